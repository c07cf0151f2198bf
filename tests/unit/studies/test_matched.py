"""Equal privacy: prices at most the budget, the least noise that meets it, and settings chosen on held-out prompts only."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from privalign.accounting.composition import compose
from privalign.candidates.scored import ScoredPrompts
from privalign.errors import InvalidInput
from privalign.evaluation.held_out import Measured
from privalign.evaluation.matching import CLOSE, Budget, match
from privalign.evaluation.outcomes import measure
from privalign.mechanisms.bon import BoN
from privalign.mechanisms.itp import ITP
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privbon_gaussian import PrivBoNGaussian
from privalign.mechanisms.privitp import PrivITP
from privalign.mechanisms.protocol import Mechanism
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.settings import parse
from privalign.studies.matched import MatchedSettings, matched

UNIT = RewardRange(0.0, 1.0)
WHOLE = Sensitivity.of_range(UNIT)
QUICK = MatchedSettings(n=8, epsilons=(1.0, 8.0), streams=(20,), betas=(0.05, 0.2), splits=(1.0, 2.0), replicates=10)


def scored(prompts: int = 24, candidates: int = 20, seed: int = 0) -> ScoredPrompts:
    rng = np.random.default_rng(seed)
    gold = rng.random((prompts, candidates))
    rewards = np.clip(gold + rng.normal(0, 0.2, gold.shape), 0, 1)
    return ScoredPrompts(np.arange(prompts + 1) * candidates, rewards.ravel(), gold.ravel())


def variants(n: int) -> list:
    return [
        lambda scale: PrivBoN(n, scale),
        lambda scale: PrivBoNGaussian(n, scale),
        lambda scale: PrivITP(n, n, 0.05, scale, scale / 2, 3.0),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("queries", [1, 30])
@pytest.mark.parametrize("epsilon", [0.3, 6.0])
@pytest.mark.parametrize("which", [0, 1, pytest.param(2, marks=pytest.mark.soak)])
def test_match_is_priced_within_its_budget(queries: int, epsilon: float, which: int) -> None:
    """The price is that of all orders and methods or above it, at most ε, and a tenth less noise would cost more than ε."""
    at, budget = variants(8)[which], Budget(epsilon, 1e-5, queries)
    found = match(at, WHOLE, budget)
    assert CLOSE * epsilon <= found.epsilon <= epsilon
    event = found.mechanism.event(WHOLE)
    if queries > 1:
        assert compose(event, queries, 1e-5).best <= found.epsilon
    scale = getattr(found.mechanism, "scale", None) or found.mechanism.sigma_x  # type: ignore[attr-defined]
    assert budget.price(at(0.9 * scale).event(WHOLE)) > epsilon


def test_match_agrees_with_the_calculator() -> None:
    for name, at in zip(("privbon", "privbon-gaussian"), variants(8), strict=False):
        found = match(at, WHOLE, Budget(2.0, 1e-6))
        exact = parse({"mechanism": name, "n": 8, "range": (0, 1)}).calibrated(2.0)
        assert exact <= found.mechanism.scale <= exact * (1 + 1e-3)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_match_below_the_range() -> None:
    """A certified Δ: PrivITP's stream is found by estimates and priced exactly at one order."""
    small, budget = Sensitivity(0.05, UNIT), Budget(4.0, 1e-5, 20)
    found = match(variants(4)[2], small, budget)
    assert CLOSE * 4.0 <= found.epsilon <= 4.0


@pytest.mark.parametrize("wrong", [(0.0, 0.1, 1), (1.0, 0.0, 1), (1.0, 1.0, 1), (1.0, 0.1, 0)])
def test_wrong_budgets(wrong: tuple[float, float, int]) -> None:
    with pytest.raises(InvalidInput):
        Budget(*wrong)


@pytest.mark.slow
def test_study() -> None:
    study = matched([scored()], WHOLE, QUICK)
    references = {row["mechanism"]: row for row in study.rows if row["basis"] == "none"}
    assert set(references) == {"base", "bon", "itp"}
    assert references["itp"]["recovered_percent"] == pytest.approx(100)
    assert references["itp"]["recovered_se_percent"] == pytest.approx(0, abs=1e-9)
    assert references["base"]["lift_pp"] == pytest.approx(0, abs=1e-9)
    private = [row for row in study.rows if row["basis"] != "none"]
    assert len(private) == 3 * 2 * 2
    for row in private:
        assert CLOSE * row["epsilon_target"] <= row["epsilon_charged"] <= row["epsilon_target"]
        assert row["queries"] == (1 if row["basis"] == "query" else 20)
        assert row["delta"] == (1e-6 if row["basis"] == "query" else 1e-5)
        assert row["recovered_percent"] == pytest.approx(100 * row["lift_pp"] / references["itp"]["lift_pp"])
    lifts = {(row["mechanism"], row["basis"], row["epsilon_target"]): row["lift_pp"] for row in private}
    for mechanism in ("privbon", "privbon-gaussian", "privitp"):
        for basis in ("query", "stream"):
            assert lifts[mechanism, basis, 8.0] > lifts[mechanism, basis, 1.0]
        assert lifts[mechanism, "query", 8.0] > lifts[mechanism, "stream", 8.0]
    assert study.settings["prompts_tuning"] + study.settings["prompts_reporting"] == 24


def test_certified_sensitivity_buys_utility() -> None:
    settings = dataclasses.replace(QUICK, streams=(), epsilons=(1.0,))
    whole, small = (matched([scored()], sensitivity, settings) for sensitivity in (WHOLE, Sensitivity(0.05, UNIT)))
    for before, after in zip(whole.rows, small.rows, strict=True):
        assert after["lift_pp"] > before["lift_pp"] or before["basis"] == "none"


def test_more_noise_than_privacy_asks_for_where_the_reward_is_hacked() -> None:
    """One candidate in ten is bad and scores highest: PrivBoN at the least noise finds it, a multiple of the noise is chosen."""
    rng = np.random.default_rng(3)
    gold = rng.random((30, 60))
    rewards, bad = 0.5 * gold, rng.random(gold.shape) < 0.1
    block = ScoredPrompts(np.arange(31) * 60, np.where(bad, 1.0, rewards).ravel(), np.where(bad, 0.0, gold).ravel())
    settings = MatchedSettings(n=32, epsilons=(8.0,), streams=(), splits=(1.0,), replicates=10)
    (least,), (free,) = (
        [row for row in matched([block], Sensitivity(0.05, UNIT), dataclasses.replace(settings, multiples=multiples)).rows
         if row["mechanism"] == "privbon"]
        for multiples in ((1.0,), (1.0, 100.0))
    )  # fmt: skip
    assert free["scale"] == pytest.approx(100 * least["scale"])
    assert free["lift_pp"] > least["lift_pp"] + 1
    assert free["epsilon_charged"] < least["epsilon_charged"] <= 8.0
    with pytest.raises(InvalidInput, match="multiples"):
        MatchedSettings(multiples=(0.5,))


def test_held_out_split() -> None:
    block, mechanisms = scored(10), (BoN(2), BoN(8), ITP(4, 4, 0.1))
    outcomes = measure([block], mechanisms, UNIT, WHOLE)
    measured = Measured.split(outcomes, 0.3, seed=1)
    assert (len(measured.tuning.base), len(measured.reporting.base)) == (3, 7)
    both = np.concatenate([measured.tuning.base, measured.reporting.base])
    assert sorted(both) == sorted(outcomes.base)
    best: Mechanism = measured.best(mechanisms)
    assert measured.tuning.true[measured.position(best)].mean() == measured.tuning.true.mean(axis=1).max()
    row = measured.row(BoN(8))
    assert row["lift_pp"] == pytest.approx(100 * (measured.reporting.true[1] - measured.reporting.base).mean())
    assert row["tuning_lift_pp"] == pytest.approx(100 * (measured.tuning.true[1] - measured.tuning.base).mean())
    for part in (-0.1, 1.0, float("nan")):
        with pytest.raises(InvalidInput, match="held_out"):
            Measured.split(outcomes, part, seed=1)
    everybody = Measured.split(outcomes, 0.0, seed=1)  # nothing is chosen
    assert (everybody.tuning.base.size, everybody.rows) == (0, tuple(outcomes.rows()))
    assert everybody.row(BoN(8))["tuning_lift_pp"] is None
    with pytest.raises(InvalidInput, match="cannot be split"):
        Measured.split(outcomes.take([0]), 0.5, seed=1)


def test_nothing_to_recover() -> None:
    """A skyline that does not lift the reward has no percentages."""
    block = scored(6)
    reversed_gold = dataclasses.replace(block, gold=1 - block.gold)
    measured = Measured.split(measure([reversed_gold], (BoN(4), ITP(4, 4, 0.1)), UNIT, WHOLE), 0.5, seed=0)
    assert measured.reporting.recovered(BoN(4), ITP(4, 4, 0.1)) == {"recovered_percent": None, "recovered_se_percent": None}
