"""Ranges that are released with noise: how far raw scores and their order statistics move, and what comes out of any scores."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privalign.accounting import costs
from privalign.accounting.rules import Basic
from privalign.errors import InvalidInput
from privalign.events import Composed
from privalign.ledger.terms import Terms
from privalign.preferences import ranges
from privalign.preferences.bradley_terry import Head, HeadSettings, fit_head
from privalign.preferences.ngrams import HashedNgrams
from privalign.preferences.pairs import PreferencePair
from privalign.preferences.ranges import end_event, ends_epsilon, ends_scale, raw_movement, released_ends
from privalign.rewards.head import HeadReward
from privalign.sensitivity import FARTHEST, Relation, RewardRange

SETTINGS = HeadSettings(HashedNgrams(bits=6), 10.0, Relation.REPLACE, RewardRange(0.0, 1.0), 2, output="clip")
CERTIFICATE = SETTINGS.certificate()
SCORES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


def test_raw_scores_move_by_the_weights_and_the_rounding() -> None:
    movement = raw_movement(CERTIFICATE)
    assert SETTINGS.weight_bound < movement < SETTINGS.weight_bound * (1 + 1e-6)
    assert raw_movement(replace(CERTIFICATE, feature_norm=3.0)) > 3 * SETTINGS.weight_bound


@pytest.mark.parametrize(
    "change", [{"kind": "ensemble", "shards": 2}, {"kind": "declared"}, {"feature_norm": None}, {"released": {"epsilon": 1.0}}]
)
def test_what_bounds_no_raw_score_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="head: "):
        raw_movement(replace(CERTIFICATE, **change))


def test_heads_on_neighbouring_data_move_raw_scores_and_order_statistics_by_less() -> None:
    """Pairs of data sets that differ in one record, turned round: never above the bound, and more than a fifth of it."""
    chance = np.random.default_rng(3)
    features = HashedNgrams(bits=6, length=0.0)

    def fitted(pairs: list[PreferencePair]) -> Head:
        return fit_head(pairs, features, regularisation=10.0, relation=Relation.REPLACE, range=RewardRange(-9.0, 9.0), tolerance=1e-6)

    largest = 0.0
    for _ in range(12):
        words = [f"word{number}" for number in chance.choice(1000, 8, replace=False)]
        pairs = [PreferencePair("p", *(" ".join(chance.choice(words, 2)) + end for end in (" x", " y")), None) for _ in range(3)]
        last = PreferencePair("p", words[0], words[1], None)
        heads = [fitted([*pairs, last]), fitted([*pairs, replace(last, chosen=words[1], rejected=words[0])])]
        one, two = (np.sort(HeadReward(head.weights, head.certificate).raw("p", words)[0]) for head in heads)
        bound = raw_movement(heads[0].certificate)
        assert np.abs(one - two).max() <= bound
        raw = [HeadReward(head.weights, head.certificate).raw("p", words[:1])[0, 0] for head in heads]
        largest = max(largest, abs(raw[0] - raw[1]) / bound)
    assert largest > 0.2


@given(SCORES, st.floats(0.01, 1.0), st.floats(0, 10), st.randoms(use_true_random=False))
def test_no_order_statistic_moves_further_than_the_scores(scores: list[float], coverage: float, most: float, chance: object) -> None:
    moved = [score + chance.uniform(-most, most) for score in scores]  # type: ignore[attr-defined]
    furthest = max(abs(a - b) for a, b in zip(scores, moved, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "gaussian_vector", lambda ends, scale: ends)
        patch.setattr(ranges, "_outward", lambda low, high, step: (low, high))
        one, two = (released_ends(np.array(values), coverage, 1e3) for values in (scores, moved))
    assert max(abs(a - b) for a, b in zip(one, two, strict=True)) <= furthest  # type: ignore[call-overload]


def test_the_ends_leave_as_many_scores_on_either_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "gaussian_vector", lambda ends, scale: ends)
    scores = np.random.default_rng(0).permutation(np.arange(101.0))
    assert released_ends(scores, 0.9, 2.0**-10) == RewardRange(4.0, 96.0)  # (1 − .9)/2 is just below .05
    assert released_ends(scores, 1.0, 2.0**-10) == RewardRange(0.0, 100.0)


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=9), st.floats(0.01, 1.0), st.floats(1e-290, 2.0**53, exclude_max=True))
def test_whatever_the_scores_are_a_valid_range_comes_out(scores: list[float], coverage: float, scale: float) -> None:
    """Nothing is refused because of scores: a refusal would say something of them."""
    ends = released_ends(np.array(scores), coverage, scale)
    assert -FARTHEST <= ends.low < ends.high <= FARTHEST
    step = 2.0 ** math.floor(math.log2(scale)) / ranges.STEPS
    assert ends.low % step == ends.high % step == 0 or abs(ends.low) == FARTHEST or ends.high == FARTHEST


@given(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3), st.integers(-20, 10))
def test_ends_are_rounded_outward(one: float, two: float, exponent: int) -> None:
    low, high = sorted((one, two))
    step = 2.0**exponent
    ends = ranges._outward(low, high, step)
    assert ends.low <= low <= high <= ends.high
    assert low - ends.low <= step
    assert ends.high - high <= step + step * (low == high)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 2.0**53, 1e-320])
def test_a_scale_that_is_none_is_refused(scale: float) -> None:
    with pytest.raises(InvalidInput, match="scale: "):
        released_ends(np.array([0.0, 1.0]), 0.9, scale)


@given(st.floats(0.05, 10), st.floats(1e-9, 0.1), st.floats(1e-3, 1e3))
def test_the_noise_for_an_epsilon_costs_no_more_than_that(epsilon: float, delta: float, movement: float) -> None:
    scale = ends_scale(movement, epsilon, delta)
    assert 0.999 * epsilon < ends_epsilon(movement, scale, delta) <= epsilon * (1 + 1e-9)


def test_both_ends_together_are_one_gaussian_of_a_longer_move() -> None:
    """√2·Δ/s: the Rényi divergence of the pair is the sum of those of the ends."""
    event = end_event(CERTIFICATE, 3.0)
    assert event.sensitivity.delta == raw_movement(CERTIFICATE)
    pair = costs.rho(Composed((event, event)))
    assert pair == pytest.approx((math.sqrt(2) * raw_movement(CERTIFICATE) / 3.0) ** 2 / 2)


def test_the_account_pays_for_both_ends_and_for_its_own_neighbours_only() -> None:
    events = (end_event(CERTIFICATE, 3.0),) * 2
    paying = Terms(Basic(20.0, 1e-5, 1e-6), Relation.REPLACE, 2, "data")
    assert paying.charge(events).epsilon == 2 * paying.charge(events[:1]).epsilon
    for other in (Terms(Basic(20.0, 1e-5, 1e-6), Relation.REPLACE, 3, "data"), Terms(Basic(20.0, 1e-5, 1e-6), Relation.FLIP, 2, "data")):
        with pytest.raises(InvalidInput):
            other.charge(events)
