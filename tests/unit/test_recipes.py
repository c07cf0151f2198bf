"""Every recipe parses, its mechanisms build, and the recipes of the paper differ in nothing but what they are about."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from privalign.deployment.rewards import read_reward
from privalign.deployment.tables import Table
from privalign.options import described
from privalign.rewards.conversation import OASST_TEMPLATE, ChatTemplate
from privalign.secret import make_installation_key
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.studies.comparison import build
from privalign.studies.recipe import Recipe, read_recipe
from privalign.studies.registry import KINDS

FOLDER = Path(__file__).parents[2] / "recipes"
PAPER = sorted(path for path in FOLDER.glob("*.toml") if path.stem != "local-small")
BASES = {
    "phi3": "microsoft/Phi-3-mini-4k-instruct",
    "gemma2": "google/gemma-2-2b-it",
    "llama32": "meta-llama/Llama-3.2-3B-Instruct",
}
TASKS = {
    "gsm8k": ("gsm8k", "math"),
    "math500": ("math500", "math"),
    "mmlu-mathematics": ("mmlu-college-mathematics", "letter"),
    "mmlu-chemistry": ("mmlu-college-chemistry", "letter"),
    "alpaca": ("alpaca-eval", "judge"),
}
REWARDS = {
    "oasst": "OpenAssistant/oasst-rm-2.1-pythia-1.4b-epoch-2.5",
    "gemma": "Ray2333/GRM-gemma2-2B-rewardmodel-ft",
    "llama": "Ray2333/GRM-Llama3.2-3B-rewardmodel-ft",
    "armo": "RLHFlow/ArmoRM-Llama3-8B-v0.1",
}
NOISE = ("scale", "beta", "sigma_x", "sigma_z")
PAPER_GRID = [2**k for k in range(1, 13)]


def of_stem(path: Path) -> tuple[str, str]:
    """The data set and the base model that a recipe is named after."""
    task, base = path.stem.rsplit("-", 1)
    return task, base


def rewards_of(path: Path) -> dict[str, Any]:
    """The `[rewards.*]` tables as they stand."""
    tables: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))["rewards"]
    return tables


def sensitivity_of(path: Path, name: str) -> Sensitivity:
    return read_reward(name, Table(path, f"rewards.{name}", rewards_of(path)[name]), {}).sensitivity


def comparisons(recipe: Recipe) -> list[dict[str, Any]]:
    return [dict(study) for study in recipe.studies if study.get("kind", study["name"]) == "comparison"]


def test_there_is_a_recipe_for_every_configuration_of_the_paper() -> None:
    expected = {f"{task}-{base}" for task in TASKS for base in BASES if task != "alpaca"} | {"alpaca-gemma2"}
    assert {path.stem for path in PAPER} == expected


@pytest.mark.parametrize("path", PAPER, ids=lambda path: path.stem)
def test_a_recipe_is_what_its_name_says(path: Path) -> None:
    task, base = of_stem(path)
    recipe = read_recipe(path)
    assert recipe.name == path.stem
    assert recipe.collect is not None
    assert recipe.collect.vllm is not None
    assert recipe.grade is not None
    assert recipe.score is not None
    assert (recipe.collect.task, recipe.grade.kind) == TASKS[task]
    assert recipe.collect.vllm.model == BASES[base]
    assert (recipe.collect.n, recipe.collect.temperature) == (10_000, 1.0)
    expected = {name: model for name, model in REWARDS.items() if not (task == "alpaca" and name == "oasst")}
    assert {name: rewards_of(path)[name]["model"] for name in recipe.score.rewards} == expected
    for name in recipe.score.rewards:
        sensitivity = sensitivity_of(path, name)
        assert sensitivity == Sensitivity.of_range(sensitivity.range)  # nothing is assumed about how the model was trained


@pytest.mark.parametrize("path", PAPER, ids=lambda path: path.stem)
def test_every_study_is_about_a_column_and_its_mechanisms_build(path: Path) -> None:
    recipe = read_recipe(path)
    assert recipe.score is not None
    for study in recipe.studies:
        options = {name: value for name, value in study.items() if name not in ("name", "kind", "reward", "range")}
        assert study["reward"] in recipe.score.rewards
        assert not set(options) - set(described(KINDS[study["kind"]].options)), study["name"]
    for study in comparisons(recipe):
        sensitivity = sensitivity_of(path, study["reward"])
        noise = {name: study[name] for name in NOISE}
        rules = build(study["mechanisms"], study["n_grid"], sensitivity, noise)
        assert study["n_grid"] == PAPER_GRID
        assert len(rules) == 1 + 4 * len(PAPER_GRID)
        assert study["range"] == [sensitivity.range.low, sensitivity.range.high]
        assert study["sigma_x"] == study["sigma_z"] == study["scale"] / 2  # as the paper sets them


def test_recipes_share_their_reward_models_word_for_word() -> None:
    tables: dict[str, list[Any]] = {}
    for path in PAPER:
        for name, table in rewards_of(path).items():
            tables.setdefault(name, []).append(table)
    assert all(table == first for first, *others in tables.values() for table in others)


def test_studies_of_one_kind_differ_in_the_reward_alone() -> None:
    kinds: dict[str, list[dict[str, Any]]] = {}
    for path in PAPER:
        for study in read_recipe(path).studies:
            about = re.sub(r"-(oasst|gemma|llama|armo)$", "", study["name"])
            kinds.setdefault(about, []).append({name: value for name, value in study.items() if name not in ("name", "reward")})
    assert set(kinds) == {"comparison", "matched", "sigma", "beta", "noise", "composition", "overhead", "budget", "win-rate"}
    assert all(options == studies[0] for studies in kinds.values() for options in studies)


def test_the_template_is_the_one_that_the_model_was_trained_on() -> None:
    text = (FOLDER / "oasst.jinja").read_text(encoding="utf-8")
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    assert ChatTemplate(text).render(messages) == ChatTemplate(OASST_TEMPLATE).render(messages)


def test_the_small_recipe_reads_once_its_head_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from privalign import cli

    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "secret"))
    make_installation_key()
    for path in FOLDER.glob("local-small*"):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(
        r"^privalign (reward fit .*?)(?<!\\)$", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    arguments = [part.strip("'") for part in re.findall(r"'[^']*'|[^\s\\]+", command)]
    result = CliRunner().invoke(cli.app, [part.replace("recipes/", "") for part in arguments])
    assert result.exit_code == 0, result.output
    recipe = read_recipe(tmp_path / "local-small.toml")
    (study,) = comparisons(recipe)
    sensitivity = Sensitivity.of_range(RewardRange(*study["range"]))
    rules = build(study["mechanisms"], study["n_grid"], sensitivity, {name: study[name] for name in NOISE})
    assert len(rules) == 1 + 4 * len(study["n_grid"])
