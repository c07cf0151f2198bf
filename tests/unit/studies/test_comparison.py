"""`measure` as a whole: which prompts count, rows, errors that are honest, and results that depend on nothing but the seed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privalign.acceptance import default_tail
from privalign.accounting import costs
from privalign.candidates.scored import ScoredPrompts
from privalign.errors import InvalidInput
from privalign.evaluation.outcomes import Outcomes, measure
from privalign.mechanisms.base import Base
from privalign.mechanisms.bon import BoN
from privalign.mechanisms.itp import ITP
from privalign.mechanisms.itp_reuse import ITPReuse
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privbon_gaussian import PrivBoNGaussian
from privalign.mechanisms.privitp import PrivITP
from privalign.mechanisms.protocol import Mechanism
from privalign.sensitivity import HeadRelease, Relation, RewardRange, Sensitivity

RANGE = RewardRange(-1.0, 1.5)
PRICE = Sensitivity(0.5, RANGE)
KEYS = [
    "mechanism", "n", "true_mean", "true_se", "lift_pp", "lift_se_pp", "mc_se_pp", "proxy_mean", "proxy_se", "gap_se", "win_rate",
    "win_rate_se",
    "gold_win_rate", "gold_win_rate_se", "fallback_rate", "fallback_rate_se", "halting_mean", "halting_se", "epsilon", "epsilon_mean",
    "reason",
]  # fmt: skip


def rules(*sizes: int) -> list[Mechanism]:
    return [
        Base(),
        *(
            rule
            for n in sizes
            for rule in (
                BoN(n),
                PrivBoN(n, 0.4),
                PrivBoNGaussian(n, 0.4),
                ITP(n, n, 0.2),
                ITPReuse(n, 0.2),
                PrivITP(n, n, 0.2, 0.5, 0.5, default_tail(n)),
            )
        ),
    ]


def block(counts: list[int], seed: int = 0) -> ScoredPrompts:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    gold = rng.integers(0, 2, offsets[-1]).astype(float)
    return ScoredPrompts(offsets, np.round(0.6 * gold + 0.7 * rng.standard_normal(offsets[-1]), 1), gold)


POOLS = block([12, 30, 4, 17, 100, 25, 13])


def assert_same(one: Outcomes, other: Outcomes) -> None:
    for name in ("true", "true_variance", "proxy", "win_rate", "gold_win_rate", "fallback", "halting", "epsilon_mean", "base"):
        assert np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True), name


@pytest.mark.slow
@pytest.mark.parametrize("draw", ["with", "without"])
def test_results_depend_on_the_seed_alone(draw: str) -> None:
    """Not on workers, blocks, other mechanisms or their order."""
    chosen = rules(1, 4)
    one = measure([POOLS], chosen, RANGE, PRICE, draw=draw, seed=5)
    apart = [POOLS.take([number]) for number in range(POOLS.prompts)]
    assert_same(one, measure(apart, chosen, RANGE, PRICE, draw=draw, seed=5, workers=3))
    back = measure([POOLS], chosen[::-1], RANGE, PRICE, draw=draw, seed=5)
    assert np.allclose(back.true[::-1], one.true, rtol=1e-10)
    assert np.abs(measure([POOLS], chosen, RANGE, PRICE, draw=draw, seed=6).true - one.true).max() > 1e-4


@pytest.mark.parametrize("draw", ["with", "without"])
def test_each_mechanism_alone_gives_the_same(draw: str) -> None:
    chosen = rules(2, 4)
    together = measure([POOLS], chosen, RANGE, PRICE, draw=draw, replicates=2000)
    for m, rule in enumerate(chosen):
        alone = measure([POOLS], [rule, *rules(4)], RANGE, PRICE, draw=draw, replicates=2000)
        error = np.sqrt(alone.true_variance[0] + together.true_variance[m])
        assert (np.abs(alone.true[0] - together.true[m]) < 6 * error + 1e-9).all()


def test_rows_have_the_keys_of_the_contract() -> None:
    outcomes = measure([POOLS], rules(2, 4), RANGE, PRICE, delta=1e-5)
    rows = outcomes.rows()
    assert [list(row) for row in rows] == [KEYS] * 13
    by = {(row["mechanism"], row["n"]): row for row in rows}
    base = by["base", 1]
    assert (base["lift_pp"], base["win_rate"], base["epsilon"], base["epsilon_mean"], base["mc_se_pp"]) == (0.0, 0.5, 0.0, 0.0, 0.0)
    for name in ("bon", "itp", "itp-reuse"):
        assert by[name, 4]["epsilon"] is None
        assert by[name, 4]["epsilon_mean"] is None
    for rule in rules(4):
        if rule.name.startswith("priv"):
            assert by[rule.name, 4]["epsilon"] == costs.epsilon(rule.event(PRICE), 1e-5)
    assert by["privbon", 4]["epsilon_mean"] == by["privbon", 4]["epsilon"]
    assert 0 < by["privitp", 4]["epsilon_mean"] < by["privitp", 4]["epsilon"]
    assert [by[name, 4]["halting_mean"] is None for name in ("bon", "privbon", "privbon-gaussian", "itp", "itp-reuse", "privitp")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
    assert by["bon", 4]["mc_se_pp"] == 0
    assert by["itp", 4]["mc_se_pp"] > 0
    assert by["privbon", 4]["mc_se_pp"] > 0
    for name, key in (("proxy", "proxy_se"), ("win_rate", "win_rate_se"), ("gold_win_rate", "gold_win_rate_se")):
        assert [row[key] for row in rows] == pytest.approx(getattr(outcomes, name).std(axis=1, ddof=1) / math.sqrt(outcomes.base.size))
    lift = 100 * (outcomes.true - outcomes.base)
    assert [row["lift_se_pp"] for row in rows] == pytest.approx(lift.std(axis=1, ddof=1) / math.sqrt(outcomes.base.size))


def test_prompts_with_too_few_candidates_are_left_out_for_every_mechanism_and_counted() -> None:
    """And a mechanism that fewer than half of the prompts can serve is not measured: the others keep their prompts."""
    short = ScoredPrompts(POOLS.offsets, POOLS.rewards, POOLS.gold, skipped=7)
    outcomes = measure([short], rules(5, 12), RANGE, PRICE, draw="with")
    assert outcomes.skipped == {"candidates": 7, "prompts": 1}
    assert outcomes.true.shape == (13, 6)
    assert set(outcomes.reasons) == {None}
    outcomes = measure([short], rules(5, 12), RANGE, PRICE)  # up to 25 candidates a query
    assert outcomes.skipped == {"candidates": 7, "prompts": 1}
    rows = outcomes.rows()
    missing = [row for row in rows if row["reason"]]
    assert [(row["mechanism"], row["n"]) for row in missing] == [("itp", 12), ("privitp", 12)]
    assert {row["reason"] for row in missing} == {"needs 25 candidates a prompt; 3 of 7 prompts have them"}
    for row in missing:
        assert {name for name, value in row.items() if value is not None} <= {"mechanism", "n", "epsilon", "reason"}
    rest = measure([short], rules(5), RANGE, PRICE).take(np.arange(6))
    assert rest.skipped["prompts"] == 1
    assert [row for row in rows if row["n"] < 12] == rest.rows()
    few = measure([short], [BoN(50)], RANGE, PRICE)
    assert few.skipped["prompts"] == 6  # nothing else to measure
    with pytest.raises(InvalidInput, match=r"no prompt has the 101 usable candidates that one query needs \(the most is 100\)"):
        measure([short], [BoN(101), BoN(200)], RANGE, PRICE)


def test_a_prompt_without_candidates_serves_nothing() -> None:
    pools = block([0, 9, 9])
    outcomes = measure([pools], [Base(), BoN(2)], RANGE, PRICE)
    assert outcomes.skipped["prompts"] == 1
    assert outcomes.reasons == (None, None)


def test_pairs_of_mechanisms_have_the_error_of_their_difference() -> None:
    outcomes = measure([POOLS], rules(2, 4), RANGE, PRICE)
    by = {(row["mechanism"], row["n"]): row for row in outcomes.paired_rows()}
    one, other, skyline = (outcomes.true[[(rule.name, getattr(rule, "n", 1)) for rule in outcomes.mechanisms].index(key)]
                           for key in (("privitp", 4), ("privbon", 4), ("itp", 4)))  # fmt: skip
    row, difference = by["privitp", 4], 100 * (one - other)
    assert row["over_privbon_pp"] == pytest.approx(difference.mean())
    assert row["over_privbon_se_pp"] == pytest.approx(difference.std(ddof=1) / math.sqrt(difference.size))
    assert row["over_privbon_pp"] == pytest.approx(row["lift_pp"] - by["privbon", 4]["lift_pp"])
    share = (one - outcomes.base).mean() / (skyline - outcomes.base).mean()
    assert row["recovered_percent"] == pytest.approx(100 * share)
    # the ratio of means over all prompts but one, for each of them: the jackknife's error is within a third
    left_out = [np.delete(one - outcomes.base, i).mean() / np.delete(skyline - outcomes.base, i).mean() for i in range(one.size)]
    jackknife = 100 * math.sqrt((one.size - 1) * np.var(left_out))
    assert row["recovered_se_percent"] == pytest.approx(jackknife, rel=1 / 3)
    for name in ("privbon", "itp", "base"):
        assert by[name, 4 if name != "base" else 1]["over_privbon_pp"] is None or name == "itp"
    assert by["itp", 4]["recovered_percent"] is None
    assert by["base", 1]["recovered_percent"] is None


def test_some_prompts_of_the_outcomes() -> None:
    outcomes = measure([POOLS], rules(2), RANGE, PRICE)
    held_out = outcomes.take([3, 1])
    assert held_out.true.tolist() == outcomes.true[:, [3, 1]].tolist()
    assert held_out.base.tolist() == outcomes.base[[3, 1]].tolist()
    assert held_out.rows()[1]["true_mean"] == outcomes.true[1, [3, 1]].mean()
    assert held_out.take([0]).rows()[1]["true_se"] is None  # of a single prompt


@pytest.mark.parametrize("draw", ["with", "without"])
def test_every_law_has_mass_one_and_rewards_count_as_clipped(draw: str) -> None:
    ones = ScoredPrompts(POOLS.offsets, POOLS.rewards, np.ones(POOLS.gold.size))
    outcomes = measure([ones], rules(1, 5), RANGE, PRICE, draw=draw)
    assert outcomes.true == pytest.approx(1.0, abs=1e-9)
    assert outcomes.gold_win_rate == pytest.approx(0.5, abs=1e-9)
    clipped = ScoredPrompts(POOLS.offsets, np.clip(POOLS.rewards, -1, 1.5), POOLS.gold)
    raw, cut = (measure([each], rules(1, 5), RANGE, PRICE, draw=draw).true for each in (POOLS, clipped))
    # candidates above the range tie; which of them comes first in a pool may differ, and is drawn at random
    assert np.abs(raw - cut).max() < (1e-9 if draw == "with" else 0.05)


@pytest.mark.parametrize("draw", ["with", "without"])
def test_extreme_scales_have_the_limits_of_the_mechanisms(draw: str) -> None:
    """Hardly any noise: PrivBoN is BoN and PrivITP is ITP; very much: PrivBoN is the base policy."""
    sharp = [PrivBoN(4, 1e-12), PrivBoNGaussian(4, 1e-12), BoN(4), ITP(4, 4, 0.2), PrivITP(4, 4, 0.2, 1e-12, 1e-12, 3.0)]
    wild = [PrivBoN(4, 1e9), PrivBoNGaussian(4, 1e9), PrivITP(4, 4, 0.2, 1e6, 1e9, 3.0)]  # λ̃ has edges to tell apart
    outcomes = measure([POOLS], sharp + wild, RANGE, PRICE, draw=draw, replicates=3000)
    true, error = outcomes.true, np.sqrt(outcomes.true_variance)
    for private, plain in ((0, 2), (1, 2), (4, 3)):
        gap = np.abs(true[private] - true[plain])
        assert (gap < 6 * np.hypot(error[private], error[plain]) + 0.005).all()  # λ̃ is snapped
    for noisy in (5, 6, 7):
        assert (np.abs(true[noisy] - outcomes.base) < 6 * error[noisy] + 1e-6).all()


def test_public_rewards_cost_nothing() -> None:
    released = Sensitivity(0.5, RANGE, source="released", release=HeadRelease(1.0, 1e-6, 2.0, 0.4, Relation.REPLACE, 1, "prefs"))
    outcomes = measure([POOLS], rules(2), RANGE, released)
    assert outcomes.epsilon.tolist() == [0.0] * 7
    assert (outcomes.epsilon_mean == 0).all()


@pytest.mark.parametrize("draw", ["with", "without"])
def test_the_stated_variance_is_that_over_seeds(draw: str) -> None:
    """240 runs: their spread within 4.5 standard deviations of what is stated, never smaller than half of it but by design.

    Stratified noise (privitp without replacement) makes the truth smaller than stated.
    """
    pools, chosen, runs = POOLS.take([1]), rules(4), 240
    outcomes = [measure([pools], chosen, RANGE, PRICE, draw=draw, replicates=20, seed=seed) for seed in range(runs)]
    true = np.array([each.true[:, 0] for each in outcomes])
    stated = np.mean([each.true_variance[:, 0] for each in outcomes], axis=0)
    spread = true.var(axis=0, ddof=1)
    for m, rule in enumerate(chosen):
        if stated[m] < 1e-20:
            assert spread[m] < 1e-20, rule.name
        else:
            assert spread[m] / stated[m] < 1 + 4.5 * math.sqrt(2 / runs), rule.name
            if not (rule.name == "privitp" and draw == "without"):
                assert spread[m] / stated[m] > 1 - 4.5 * math.sqrt(2 / runs), rule.name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draw": "first"}, "draw: 'first' is not one of without, with"),
        ({"replicates": 1}, "replicates: 1 is too few"),
        ({"seed": -1}, "seed: -1"),
        ({"workers": 0}, "workers: 0"),
        ({"mechanisms": []}, "mechanisms: none given"),
        ({"reward_range": RewardRange(0, 1)}, "range: not the range"),
    ],
)
def test_bad_settings_are_named(change: dict, message: str) -> None:
    arguments = {"mechanisms": rules(2), "reward_range": RANGE, "sensitivity": PRICE} | change
    with pytest.raises(InvalidInput, match=message):
        measure([POOLS], **arguments)
