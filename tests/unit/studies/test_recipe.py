"""Recipes: what they say, what is refused, and that back-ends travel to a worker as descriptions."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from privalign.errors import InvalidFile, InvalidInput
from privalign.stages.settings import CollectSettings, GradeSettings, ScoreSettings, VllmSettings
from privalign.studies.recipe import read_back_ends, read_recipe

BACK_ENDS = """
[policies.local]
independent_of_accounts = true
kind = "openai"
base_url = "http://127.0.0.1:9/v1"
model = "m"
api_key = "env:PRIVALIGN_NO_SUCH_KEY"

[rewards.armo]
kind = "vllm-classify"
base_url = "http://127.0.0.1:9"
model = "m"
range = [0.0, 1.0]
"""
WHOLE = """
[run]
name = "trial"

[collect]
task = "gsm8k"
policy = "local"
n = 4
seed = 0

[score]
rewards = ["armo"]

[grade]
kind = "judge"
policy = "local"

[evaluate.comparison]
mechanisms = ["bon", "privitp"]

[evaluate.matched]
epsilon = [1.0, 2.0]
"""


def recipe(folder: Path, text: str) -> Path:
    file = folder / "trial.toml"
    file.write_text(text + BACK_ENDS)
    return file


def test_a_recipe_says_how_every_stage_is_run(tmp_path: Path) -> None:
    read = read_recipe(recipe(tmp_path, WHOLE))
    assert read.name == "trial"
    assert read.collect == CollectSettings(task="gsm8k", policy="local", n=4, seed=0)
    assert read.score == ScoreSettings(("armo",))
    assert read.grade == GradeSettings("judge", policy="local")
    assert read.studies == ({"name": "comparison", "mechanisms": ["bon", "privitp"]}, {"name": "matched", "epsilon": [1.0, 2.0]})


def test_stages_may_be_left_out_and_the_file_gives_the_name(tmp_path: Path) -> None:
    read = read_recipe(recipe(tmp_path, ""))
    assert (read.name, read.collect, read.score, read.grade, read.studies) == ("trial", None, None, None, ())


def test_paths_are_relative_to_the_recipe(tmp_path: Path) -> None:
    read = read_recipe(recipe(tmp_path, '[collect]\nfile = "prompts.jsonl"\npolicy = "local"\nn = 1\n'))
    assert read.collect is not None
    assert read.collect.file == tmp_path / "prompts.jsonl"


def test_vllm_stands_in_the_place_of_a_policy(tmp_path: Path) -> None:
    text = '[collect]\ntask = "gsm8k"\nn = 4\nvllm = { model = "google/gemma-2-2b-it", engine = { max_model_len = 4096 }, replicas = 4 }\n'
    read = read_recipe(recipe(tmp_path, text))
    assert read.collect is not None
    assert read.collect.vllm == VllmSettings("google/gemma-2-2b-it", {"max_model_len": 4096}, replicas=4)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("n = 4", "n = 0", "[collect] n: 0 is not a whole number"),
        ("n = 4", "n = 4\nnn = 5", "[collect] nn: no such key"),
        ('task = "gsm8k"', 'task = "gsm9k"', "[collect] task: 'gsm9k' is not one of gsm8k"),
        ('task = "gsm8k"', "", "[collect] task: give either a task"),
        ('policy = "local"\nn', 'policy = "remote"\nn', "[collect] policy: there is no [policies.remote]"),
        ('rewards = ["armo"]', 'rewards = ["gold"]', "[score] rewards: there is no [rewards.gold]"),
        ('rewards = ["armo"]', 'rewards = ["armo", "armo"]', "[score] rewards: names one twice"),
        ('kind = "judge"', 'kind = "math"', "[grade] policy: belongs to kind judge"),
        ('name = "trial"', 'title = "trial"', "[run] title: no such key"),
        ("[run]", "[walk]", "[walk]: no such table"),
        ("[evaluate.comparison]", "[evaluate]\nfast = true\n[evaluate.comparison]", "[evaluate] fast: is not a table"),
        ("[run]", "[run", "not TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in WHOLE
    with pytest.raises(InvalidInput) as refusal:
        read_recipe(recipe(tmp_path, WHOLE.replace(old, new, 1)))
    assert said in str(refusal.value)
    assert "trial.toml" in str(refusal.value)


def test_a_policy_is_checked_before_anything_runs(tmp_path: Path) -> None:
    file = recipe(tmp_path, WHOLE)
    file.write_text(file.read_text().replace("independent_of_accounts = true", ""))
    with pytest.raises(InvalidInput, match="independent_of_accounts"):
        read_recipe(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="cannot be read"):
        read_recipe(tmp_path / "none.toml")


def test_back_ends_travel_without_secrets_and_are_built_where_they_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVALIGN_NO_SUCH_KEY", "planted-secret")
    back_ends = read_back_ends(recipe(tmp_path, ""))
    packed = pickle.dumps((back_ends.policy("local", "--policy"), back_ends.reward("armo", "--reward")))
    assert b"planted-secret" not in packed
    policy, reward = pickle.loads(packed)
    assert policy().name == "openai m at 127.0.0.1:9"
    assert "m" in reward().name


def test_an_ensemble_finds_its_members(tmp_path: Path) -> None:
    member = 'kind = "vllm-classify"\nbase_url = "http://127.0.0.1:9"\nrange = [0.0, 1.0]\n'
    ensemble = (
        '[rewards.all]\nkind = "ensemble"\nmembers = ["a", "b"]\nshards = { by = "person", relation = "add-remove", reason = "disjoint" }\n'
    )
    text = f'[rewards.a]\nmodel = "a"\n{member}[rewards.b]\nmodel = "b"\n{member}{ensemble}'
    reward = read_back_ends(recipe(tmp_path, text)).reward("all", "reward")
    assert reward().sensitivity.delta == pytest.approx(0.5)
    lonely = read_back_ends(recipe(tmp_path, text.replace('"a", "b"', '"a", "c"'))).reward("all", "reward")
    with pytest.raises(InvalidInput, match=r"\[rewards\.all\] members"):
        lonely()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[evaluate."../../elsewhere"]\nkind = "budget"\n', "is no name for a file"),
        ('[evaluate.""]\nkind = "budget"\n', "is no name for a file"),
        ('[evaluate.x]\nname = "../../elsewhere"\n', "name: is said in the table's head already"),
        ("[run]\nname = " + "9" * 6000 + "\n", "not TOML"),
        ("x = " + "[" * 5000 + "]" * 5000 + "\n", "not TOML"),
    ],
    ids=["outside", "empty", "twice", "digits", "deep"],
)
def test_a_hostile_recipe_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text(text)
    with pytest.raises((InvalidFile, InvalidInput), match=said):
        read_recipe(file)
