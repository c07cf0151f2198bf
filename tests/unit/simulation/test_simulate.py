"""Simulated candidates: the stated constants are those of the law, files are what readers take, bad settings are named."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from typer.testing import CliRunner

from privalign.candidates.pools import read_pools
from privalign.cli.simulate import simulate
from privalign.errors import InvalidInput
from privalign.simulation import simulate as simulation
from privalign.simulation.simulate import Model, Plan, Simulation

DRAWS = 400_000
BEYOND_CHANCE = 6.0  # standard errors: a false alarm of 2e-9 a check, where means are normal

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(simulate)


def run(*options: str) -> str:
    result = CliRunner().invoke(app, [*options])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def of_model(model: str, out: Path, *options: str) -> str:
    return run("--model", model, "--prompts", "5", "--candidates", "7", "--out", str(out), *options)


def close(values: np.ndarray, expected: float) -> None:
    error = values.std() / math.sqrt(values.size)
    assert abs(values.mean() - expected) <= BEYOND_CHANCE * error + 1e-12


@pytest.mark.statistical
@pytest.mark.parametrize(
    "law", [Simulation(Model.GAUSSIAN, 0.2, 0.3), Simulation(Model.SATURATING), Simulation(Model.HEAVY, 0.05, 0.3)], ids=str
)
def test_constants_are_those_of_the_draws(law: Simulation) -> None:
    """36 checks at 6 standard errors, with spreads at which r* is clipped."""
    truth, proxy = law.draw(np.random.default_rng(0), DRAWS)
    assert truth.min() >= 0
    assert truth.max() <= 1
    close(truth, law.base_mean)
    close(((truth == 0) | (truth == 1)).astype(float), law.clipped)
    if law.model is not Model.HEAVY:  # its squared error has no variance
        close((proxy - truth) ** 2, law.rmse**2)
        assert np.mean((proxy < law.range[0]) | (proxy > law.range[1])) < 1e-4
    edges = np.array([0.2, 0.5, 0.75])
    mass, within = law.cells(edges)
    cell = np.searchsorted(edges, proxy)
    for index in range(4):
        close((cell == index).astype(float), mass[index])
        close((cell == index) * truth, within[index])
    best = np.sort(truth)[-DRAWS // 10 :]
    assert best.mean() == pytest.approx(law.comparator_mean(10.0), abs=BEYOND_CHANCE * truth.std() / math.sqrt(DRAWS / 10))


@pytest.mark.statistical
def test_heavy_errors_have_the_stated_quantiles() -> None:
    """Student's t with 3 degrees of freedom: P[|t| > 3.182] = 0.05, P[|t| > 5.841] = 0.01; two checks at 6 standard errors."""
    truth, proxy = Simulation(Model.HEAVY, 0.07, 0.1).draw(np.random.default_rng(1), DRAWS)
    scaled = np.abs(proxy - truth) / 0.07 * math.sqrt(3)
    close((scaled > 3.18244630528).astype(float), 0.05)
    close((scaled > 5.84090930973).astype(float), 0.01)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(coverage=st.floats(1, 1000), factor=st.floats(1, 10), spread=st.floats(0.001, 0.1))
def test_comparator_in_closed_form(coverage: float, factor: float, spread: float) -> None:
    """½ + τCφ(Φ⁻¹(1 − 1/C)) without clipping; larger coverage, better comparator; C = 1 is the base policy."""
    law = Simulation(Model.GAUSSIAN, 0.1, spread)
    closed = 0.5 + spread * coverage * norm.pdf(norm.isf(1 / coverage))
    assert law.comparator_mean(coverage) == pytest.approx(closed, abs=2e-5)
    assert law.comparator_mean(coverage * factor) >= law.comparator_mean(coverage) - 1e-12
    assert law.comparator_mean(1.0) == pytest.approx(law.base_mean, abs=1e-12)


def test_saturating_proxy_is_right_up_to_the_knee_and_misleads_beyond() -> None:
    truth, proxy = Simulation(Model.SATURATING, 0.05, 0.1).draw(np.random.default_rng(2), 10_000)
    order = np.argsort(proxy)
    truth, proxy = truth[order], proxy[order]
    below = proxy < 0.6
    assert np.array_equal(truth[below], np.clip(proxy[below], 0, 1))
    assert np.all(np.diff(truth[~below]) < 0)


@pytest.mark.parametrize("model", list(Model))
def test_jsonl_and_parquet_hold_the_same_numbers(model: Model, tmp_path: Path) -> None:
    of_model(model, tmp_path / "a.jsonl")
    of_model(model, tmp_path / "a.parquet")
    lines = list(read_pools(tmp_path / "a.jsonl"))
    assert list(read_pools(tmp_path / "a.parquet")) == lines
    assert list(read_pools(tmp_path / "a.parquet", "is_correct")) == list(read_pools(tmp_path / "a.jsonl", "is_correct"))
    assert [(len(pool.rewards), len(set(pool.texts))) for pool in lines] == [(7, 7)] * 5
    assert len({pool.prompt for pool in lines}) == 5
    record = json.loads((tmp_path / "a.jsonl").read_text().splitlines()[0])
    assert record["gt_answer"] == ""
    assert all(0 <= response["is_correct"] <= 1 for response in record["responses"])


def test_a_prompt_depends_on_the_seed_and_its_number_alone(tmp_path: Path) -> None:
    of_model("heavy", tmp_path / "five.jsonl", "--seed", "3")
    of_model("heavy", tmp_path / "two.jsonl", "--seed", "3", "--prompts", "2")
    of_model("heavy", tmp_path / "other.jsonl", "--seed", "4")
    five = (tmp_path / "five.jsonl").read_text().splitlines()
    assert (tmp_path / "two.jsonl").read_text().splitlines() == five[:2]
    assert set((tmp_path / "other.jsonl").read_text().splitlines()).isdisjoint(five)
    assert len(set(five)) == 5


@pytest.mark.parametrize("batch", [1, 10, 15, 1000])
def test_parquet_row_groups_are_bounded_and_change_nothing(batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet as pq

    of_model("gaussian", tmp_path / "whole.parquet")
    monkeypatch.setattr(simulation, "_BATCH", batch)
    of_model("gaussian", tmp_path / "cut.parquet")
    assert pq.read_table(tmp_path / "cut.parquet").equals(pq.read_table(tmp_path / "whole.parquet"))
    file = pq.ParquetFile(tmp_path / "cut.parquet")
    assert max(file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)) <= batch
    assert file.schema_arrow.names == ["prompt_id", "prompt", "gt_answer", "text", "is_correct", "proxy_reward"]


def test_constants_are_printed_and_written_beside_the_data(tmp_path: Path) -> None:
    document = json.loads(of_model("gaussian", tmp_path / "a.jsonl", "--error", "0.2", "--coverage", "4", "--json"))
    assert json.loads((tmp_path / "a.jsonl.meta.json").read_text()) == document
    assert document["notice"].startswith("not a private release")
    assert document["files"] == [str(tmp_path / "a.jsonl"), str(tmp_path / "a.jsonl.meta.json")]
    law = Simulation(Model.GAUSSIAN, 0.2, 0.1)
    expected = {"model": "gaussian", "prompts": 5, "candidates": 7, "seed": 0, "error": 0.2, "spread": 0.1, "rmse": 0.2, "coverage": 4.0}
    assert expected.items() <= document.items()
    assert document["comparator_mean"] == law.comparator_mean(4.0)
    assert document["range"] == list(law.range)
    assert "not a private release" in of_model("gaussian", tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (("--model", "gauss"), "--model"),
        (("--prompts", "0"), "--prompts"),
        (("--prompts", "99999999999999999999"), "--prompts"),
        (("--candidates", str(simulation.MOST // 5 + 1)), "--prompts"),  # of five prompts
        (("--candidates", "-1"), "--candidates"),
        (("--candidates", str(simulation.MOST_IN_A_LINE + 1)), "--candidates"),
        (("--seed", "-1"), "--seed"),
        (("--error", "0"), "--error"),
        (("--error", "nan"), "--error"),
        (("--spread", "-0.1"), "--spread"),
        (("--spread", "inf"), "--spread"),
        (("--model", "saturating", "--spread", "0"), "--spread"),
        (("--coverage", "0.5"), "--coverage"),
        (("--coverage", "nan"), "--coverage"),
    ],
)
def test_bad_settings_are_named_and_nothing_is_written(options: tuple[str, str], field: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        of_model("gaussian", tmp_path / "a.jsonl", *options)
    assert caught.value.field == field
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="folder that exists"):
        of_model("gaussian", tmp_path / "none" / "a.parquet")


def test_progress_counts_prompts(tmp_path: Path) -> None:
    plan = Plan(Simulation(Model.GAUSSIAN), prompts=3, candidates=2, seed=0)
    seen: list[int] = []
    with (tmp_path / "a.jsonl").open("w") as lines:
        simulation.write_jsonl(plan, lines, seen.append)
    with (tmp_path / "a.parquet").open("wb") as rows:
        simulation.write_parquet(plan, rows, seen.append)
    assert seen == [1, 2, 3, 3]
