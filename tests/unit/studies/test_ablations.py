"""σ and β: selection on one part of the prompts, figures of the other; win rates; studies by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privalign.candidates.scored import ScoredPrompts
from privalign.errors import InvalidInput
from privalign.evaluation.held_out import Splitting
from privalign.evaluation.outcomes import measure
from privalign.mechanisms.privbon import PrivBoN
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.studies.ablations import beta_ablation, noise_comparison, sigma_ablation
from privalign.studies.registry import KINDS, Source, kind_of, read_source, run_study, run_table
from privalign.studies.win_rates import WinRateSettings, win_rates

UNIT = RewardRange(0.0, 1.0)
WHOLE = Sensitivity.of_range(UNIT)
QUICK = Splitting(replicates=10)


def scored(prompts: int = 20, candidates: int = 24) -> ScoredPrompts:
    """Rewards that err by .4 on gold of 0 or 1."""
    rng = np.random.default_rng(1)
    gold = (rng.random((prompts, candidates)) < 0.4).astype(float)
    rewards = np.clip(0.5 * gold + rng.normal(0.25, 0.2, gold.shape), 0, 1)
    return ScoredPrompts(np.arange(prompts + 1) * candidates, rewards.ravel(), gold.ravel())


def selected_is_best(rows: Any, mechanism: str) -> bool:
    own = [row for row in rows if row["mechanism"] == mechanism]
    (chosen,) = [row for row in own if row["selected"]]
    return bool(chosen["tuning_lift_pp"] == max(row["tuning_lift_pp"] for row in own))


@pytest.mark.slow
def test_sigma() -> None:
    study = sigma_ablation([scored()], WHOLE, [0.01, 0.3, 5.0], n=8, settings=QUICK)
    assert study.kind == "ablation-sigma"
    assert [(row["sigma"], row["mechanism"]) for row in study.rows] == [(s, m) for s in (0.01, 0.3, 5.0) for m in ("privbon", "privitp")]
    assert all(selected_is_best(study.rows, mechanism) for mechanism in ("privbon", "privitp"))
    privbon = [row for row in study.rows if row["mechanism"] == "privbon"]
    assert privbon[0]["proxy_mean"] > privbon[1]["proxy_mean"] > privbon[2]["proxy_mean"]
    assert privbon[0]["epsilon"] > privbon[1]["epsilon"] > privbon[2]["epsilon"]
    assert "not settings of a private release" in study.settings["chosen_on_rewards"]


@pytest.mark.slow
def test_beta() -> None:
    study = beta_ablation([scored()], WHOLE, [0.01, 0.1, 5.0], n=8, sigma=0.2, settings=QUICK)
    assert study.kind == "ablation-beta"
    assert all(selected_is_best(study.rows, mechanism) for mechanism in ("itp", "privitp"))
    assert {row["sigma"] for row in study.rows} == {0.2}
    lifts = {(row["beta"], row["mechanism"]): row["lift_pp"] for row in study.rows}
    assert lifts[5.0, "itp"] < lifts[0.1, "itp"]


def test_noise_over_n() -> None:
    study = noise_comparison([scored()], WHOLE, [0.1, 1.0], [4, 8], betas=[0.1, 5.0], settings=QUICK)
    assert {row["beta"] for row in study.rows} == {0.1} == {study.settings["beta_selected"]}
    keys = [(row["mechanism"], row["sigma"], row["n"]) for row in study.rows]
    noisy = [("privitp", sigma, n) for sigma in (0.1, 1.0) for n in (4, 8)]
    assert keys == [("itp", None, 4), ("itp", None, 8), *noisy]


def test_all_prompts_report_where_nothing_is_chosen() -> None:
    """One β over n, or no held-out part: no prompt is put aside, nothing is selected."""
    one = noise_comparison([scored()], WHOLE, [0.1], [4], betas=[0.1], settings=QUICK)
    assert one.settings["prompts"] == 20
    assert {"prompts_tuning", "chosen_on_rewards"}.isdisjoint(one.settings)
    assert [row["tuning_lift_pp"] for row in one.rows] == [None, None]
    study = sigma_ablation([scored()], WHOLE, [0.1, 1.0], n=4, settings=Splitting(replicates=10, held_out=0.0))
    assert study.settings["prompts"] == 20
    assert not any(row["selected"] for row in study.rows)
    with pytest.raises(InvalidInput, match="held_out: 0 is not strictly between"):
        noise_comparison([scored()], WHOLE, [0.1], [4], betas=[0.1, 1.0], settings=Splitting(held_out=0.0))


def test_pairs_of_mechanisms_in_ablations() -> None:
    """PrivITP beside PrivBoN of its σ, and beside ITP of its β, prompt by prompt."""
    study = sigma_ablation([scored()], WHOLE, [0.1, 1.0], n=4, settings=QUICK)
    for privbon, privitp in zip(study.rows[::2], study.rows[1::2], strict=True):
        assert privbon["over_privbon_pp"] is None
        assert privitp["over_privbon_pp"] == pytest.approx(privitp["lift_pp"] - privbon["lift_pp"])
        assert privitp["over_privbon_se_pp"] > 0
    study = beta_ablation([scored()], WHOLE, [0.1, 1.0], n=4, sigma=0.2, settings=QUICK)
    for itp, privitp in zip(study.rows[::2], study.rows[1::2], strict=True):
        assert itp["recovered_percent"] is None
        assert privitp["recovered_percent"] == pytest.approx(100 * privitp["lift_pp"] / itp["lift_pp"])
        assert privitp["recovered_se_percent"] > 0


def test_win_rates() -> None:
    block = scored()
    study = win_rates([block], WHOLE, [2, 8], WinRateSettings(0.2, replicates=10))
    assert [(row["n"], row["mechanism"]) for row in study.rows] == [(n, m) for n in (2, 8) for m in ("bon", "privbon", "itp", "privitp")]
    outcomes = measure([block], [PrivBoN(8, 0.2)], UNIT, WHOLE, replicates=10)
    row = study.rows[5]
    assert row["gold_win_rate"] == pytest.approx(float(outcomes.gold_win_rate.mean()))
    assert row["gold_win_rate_se"] == pytest.approx(float(outcomes.gold_win_rate.std(ddof=1)) / math.sqrt(20))
    assert all(0.5 < row["gold_win_rate"] < 1 for row in study.rows)


OPTIONS: dict[str, dict[str, Any]] = {
    "comparison": {"mechanisms": "base,bon,privbon,privitp", "n_grid": [2, 4], "scale": 0.1, "sigma_x": 0.1, "sigma_z": 0.1},
    "composition": {"sigmas": "0.5,1", "n": 4, "seeds": 1, "most": 20, "order": 1.5},
    "matched": {"n": 4, "epsilons": [2], "streams": [5], "splits": [1.0], "replicates": 5},
    "ablation": {"parameter": "sigma", "sigmas": [0.1, 1.0], "n": 4, "replicates": 5},
    "win-rate": {"sigma": 0.2, "n_grid": "2,4", "replicates": 5},
    "overhead": {"sigma": 0.2, "n_grid": [4], "simulated": 50, "timed": 1},
    "budget": {"n": 4, "simulated": 50},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_study_runs_by_name(kind: str) -> None:
    progress: list[tuple[int, int]] = []
    study = run_study(kind, OPTIONS[kind], Source([scored(6)], WHOLE), lambda done, total: progress.append((done, total)))
    assert study.kind.startswith(kind)
    assert study.rows
    assert {frozenset(row) for row in study.rows} == {frozenset(study.rows[0])}
    assert progress
    assert all(0 <= done <= total for done, total in progress)
    assert study.notice.startswith("not a private release")


@pytest.mark.slow
def test_authors_protocol_by_name() -> None:
    compared = run_study("comparison", {"protocol": "authors", "mechanisms": ["bon", "itp"], "n_grid": [2]}, Source([scored(6)], WHOLE))
    assert [row["mechanism"] for row in compared.rows] == ["bon", "itp"]
    assert compared.settings["private"].startswith("not a private mechanism")
    study = run_study("composition", {"protocol": "authors", "sigmas": [5], "n": 4, "seeds": 1}, Source([scored(6)], WHOLE))
    assert study.settings["protocol"] == "authors"


def test_comparison_is_what_was_measured() -> None:
    block = scored(6)
    study = run_study("comparison", OPTIONS["comparison"], Source([block], WHOLE))
    assert [(row["mechanism"], row["n"]) for row in study.rows][:4] == [("base", 1), ("bon", 2), ("bon", 4), ("privbon", 2)]
    (alone,) = measure([block], [PrivBoN(4, 0.1)], UNIT, WHOLE).rows()
    assert study.rows[4].items() >= alone.items()


@pytest.mark.parametrize("parameter", ["beta", "n"])
def test_other_ablations_by_name(parameter: str) -> None:
    own: dict[str, Any] = {"beta": {"sigma": 0.2, "betas": [0.1, 1.0], "n": 4}, "n": {"sigmas": [0.2], "n_grid": [2, 4]}}[parameter]
    study = run_study("ablation", {"parameter": parameter, "replicates": 5, **own}, Source([scored(6)], WHOLE))
    assert study.kind == {"beta": "ablation-beta", "n": "noise"}[parameter]


@pytest.mark.parametrize(
    ("kind", "options", "field"),
    [
        ("nonsense", {}, "kind"),
        ("comparison", {"mechanisms": ["bon"]}, "n_grid"),
        ("comparison", {"mechanisms": ["best"], "n_grid": [2]}, "mechanisms"),
        ("comparison", {"mechanisms": ["bon"], "n_grid": [2], "scale": 1}, "scale"),
        ("comparison", {"mechanisms": ["privbon"], "n_grid": [2]}, "scale"),
        ("comparison", {"mechanisms": ["bon"], "n_grid": [2], "protocol": "authors", "sigma_z": 1}, "sigma_z"),
        ("comparison", {"mechanisms": ["bon"], "n_grid": [2], "protocol": "authors", "draw": "with"}, "draw"),
        ("composition", {}, "sigmas"),
        ("composition", {"sigmas": "a"}, "sigmas"),
        ("composition", {"sigmas": []}, "sigmas"),
        ("composition", {"sigmas": [-1.0]}, "sigmas"),
        ("matched", {"betas": [0.0]}, "betas"),
        ("overhead", {"sigma": 0.0}, "sigma"),
        ("budget", {"sigmas": "1,-1"}, "sigmas"),
        ("ablation", {"parameter": "sigma", "sigmas": [1], "beta": -1}, "beta"),
        ("composition", {"sigmas": [1], "protocol": "other"}, "protocol"),
        ("composition", {"sigmas": [1], "betas": [1]}, "betas"),
        ("composition", {"sigmas": [1], "n": 1.5}, "n"),
        ("composition", {"sigmas": [1], "seeds": True}, "seeds"),
        ("matched", {"held_out": 1.5, "epsilons": [2], "streams": [2]}, "held_out"),
        ("matched", {"splits": [0]}, "splits"),
        ("ablation", {}, "sigmas"),
        ("ablation", {"parameter": "gamma"}, "parameter"),
        ("ablation", {"parameter": "beta"}, "sigma"),
        ("ablation", {"parameter": "sigma", "sigmas": [1], "betas": [1]}, "betas"),
        ("overhead", {"sigma": "1e999"}, "sigma"),
        ("budget", {"seed": -1}, "seed"),
    ],
)
def test_wrong_options(kind: str, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        run_study(kind, options, Source([scored(4)], WHOLE))
    assert caught.value.field == field


def test_recipe_tables(tmp_path: Path) -> None:
    file = tmp_path / "scored.jsonl"
    response = '{"text": "a", "is_correct": 1, "proxy_reward": 0.5}, {"text": "b", "is_correct": 0, "proxy_reward": null}'
    file.write_text(f'{{"prompt": "p", "responses": [{", ".join([response] * 9)}]}}\n' * 2)
    tables = [
        {"name": "table-6", "kind": "budget", "range": [0, 1], "n": 4, "simulated": 20},
        {"name": "overhead", "range": [0, 1], "sigma": 1, "n_grid": [4], "simulated": 20, "timed": 1},
    ]
    done = {str(table["name"]): run_table(table, [file], lambda *_: None) for table in tables}
    assert {name: study.kind for name, study in done.items()} == {"table-6": "budget", "overhead": "overhead"}
    assert done["table-6"].settings["skipped_candidates"] == 18
    with pytest.raises(InvalidInput, match=r"\[evaluate.x\] kind: 'x' is not one of"):
        kind_of({"name": "x"})
    with pytest.raises(InvalidInput, match=r"\[evaluate.budget\] range: missing"):
        run_table({"name": "budget"}, [file], lambda *_: None)
    with pytest.raises(InvalidInput, match="range"):
        read_source([file], {})
