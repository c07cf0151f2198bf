"""Δ as mechanisms see it, public ranges, and the sensitivity of the normaliser in exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from privalign.errors import InvalidInput
from privalign.mechanisms.normaliser import normaliser, normaliser_error, public_normaliser
from privalign.mechanisms.protocol import admit
from privalign.sensitivity import FARTHEST, RewardRange, Sensitivity

finite = st.floats(-1e6, 1e6)


ends = st.floats(-FARTHEST, FARTHEST)


@settings(max_examples=400, deadline=None)
@given(low=ends, high=ends)
@example(low=-1e-20, high=1.0)
@example(low=0.1, high=0.3)
@example(low=-0.1, high=9e15)
@example(low=-FARTHEST, high=FARTHEST)
def test_width_is_never_below_the_exact_one(low: float, high: float) -> None:
    exact = Fraction(high) - Fraction(low)
    if exact <= 0:
        with pytest.raises(InvalidInput, match="range"):
            RewardRange(low, high)
        return
    width = Fraction(RewardRange(low, high).width)
    assert exact <= width
    assert width - exact <= 2 * Fraction(math.ulp(float(width)))


@pytest.mark.parametrize(("low", "high"), [(0.0, math.nextafter(FARTHEST, math.inf)), (-1e16, 1.0), (1.0, 1.7976931348623157e308)])
def test_a_range_where_floats_round_whole_numbers_is_refused(low: float, high: float) -> None:
    with pytest.raises(InvalidInput, match="scale scores and range down"):
        RewardRange(low, high)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (-3.5, 12.25), (0.0, 1e-6), (1e6, 2e6)])
def test_exact_widths_stay_exact(low: float, high: float) -> None:
    assert RewardRange(low, high).width == high - low


@settings(max_examples=400, deadline=None)
@given(
    low=finite,
    width=st.floats(1e-6, 1e6),
    share=st.floats(1e-12, 1.5),
    position=st.floats(-0.2, 1.2),
    direction=st.sampled_from([-1, 1]),
)
def test_charged_covers_clipping_and_the_rounding_of_the_shift(
    low: float, width: float, share: float, position: float, direction: int
) -> None:
    """Two scores at most Δ apart, through `admit`: what the mechanism sees differs by at most `charged`."""
    limits = RewardRange(low, low + width)
    sensitivity = Sensitivity(share * width, limits)
    here = low + position * width
    there = here + direction * sensitivity.value
    while abs(Fraction(there) - Fraction(here)) > Fraction(sensitivity.value):
        there = math.nextafter(there, here)
    seen = [Fraction(float(value)) for value in admit(np.array([here, there]), sensitivity, 2)]
    assert abs(seen[0] - seen[1]) <= Fraction(sensitivity.charged)
    assert all(0 <= value <= Fraction(sensitivity.width) for value in seen)
    assert sensitivity.delta <= sensitivity.charged <= sensitivity.width
    assert sensitivity.charged <= sensitivity.delta + 2.0**-50 * sensitivity.width


def test_a_range_from_zero_adds_nothing() -> None:
    assert Sensitivity(0.1, RewardRange(0, 1)).charged == 0.1
    assert Sensitivity(0.1, RewardRange(-1, 1)).charged > 0.1
    assert Sensitivity(5.0, RewardRange(-1, 1)).charged == 2.0
    assert Sensitivity.of_range(RewardRange(-1, 1)).delta == 2.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_refusals(bad: float) -> None:
    with pytest.raises(InvalidInput, match="sensitivity"):
        Sensitivity(bad, RewardRange(0, 1))
    if bad != -1.0:
        with pytest.raises(InvalidInput, match="range"):
            RewardRange(0, bad)
    with pytest.raises(InvalidInput, match="range"):
        RewardRange(1.0, 1.0)
    with pytest.raises(InvalidInput, match="range"):
        RewardRange(-1.7e308, 1.7e308)


# ---- the normaliser ----------------------------------------------------------------------------------------------


def exact_normaliser(rewards: list[float], beta: float) -> Fraction:
    """max_k (S_k − nβ)/k in fractions."""
    ordered = sorted(map(Fraction, rewards), reverse=True)
    total, best = Fraction(0), None
    for k, reward in enumerate(ordered, 1):
        total += reward
        value = (total - len(ordered) * Fraction(beta)) / k
        best = value if best is None else max(best, value)
    assert best is not None
    return best


rewards_lists = st.lists(st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1.0, 0.5])), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(rewards=rewards_lists, log_beta=st.floats(-12, 6))
def test_normaliser_solves_its_equation(rewards: list[float], log_beta: float) -> None:
    """(1/n) Σ relu((r − λ)/β) = 1 holds exactly for the fraction, and the float is within the stated error of it."""
    beta, n = 10**log_beta, len(rewards)
    exact = exact_normaliser(rewards, beta)
    assert sum(max(Fraction(r) - exact, Fraction(0)) for r in rewards) == n * Fraction(beta)
    value = Fraction(normaliser(rewards, beta))
    assert public_normaliser(rewards, beta) == value
    assert abs(value - exact) <= Fraction(normaliser_error(n, beta, 1.0))
    mean = sum(map(Fraction, rewards)) / n
    assert mean - Fraction(beta) <= exact <= max(map(Fraction, rewards)) - Fraction(beta)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), log_beta=st.floats(-6, 2), share=st.floats(1e-6, 1))
def test_normaliser_moves_no_further_than_one_reward(data: st.DataObject, log_beta: float, share: float) -> None:
    rewards = data.draw(rewards_lists)
    beta = 10**log_beta
    moves = data.draw(st.lists(st.one_of(st.floats(-1, 1), st.sampled_from([-1.0, 1.0])), min_size=len(rewards), max_size=len(rewards)))
    there = [min(max(r + m * share, 0.0), 1.0) for r, m in zip(rewards, moves, strict=True)]
    moved = max(abs(Fraction(a) - Fraction(b)) for a, b in zip(rewards, there, strict=True))
    assert abs(exact_normaliser(rewards, beta) - exact_normaliser(there, beta)) <= moved
    error = 2 * Fraction(normaliser_error(len(rewards), beta, 1.0))
    assert abs(Fraction(normaliser(rewards, beta)) - Fraction(normaliser(there, beta))) <= moved + error


def test_a_common_shift_attains_the_sensitivity() -> None:
    rewards = [0.25, 0.5, 0.125, 0.0]
    assert exact_normaliser([r + 0.25 for r in rewards], 0.05) - exact_normaliser(rewards, 0.05) == Fraction(1, 4)


@pytest.mark.parametrize("n", [4096, 10**6])
@pytest.mark.parametrize("beta", [1e-12, 0.05, 1e6])
def test_the_error_of_large_batches(n: int, beta: float) -> None:
    rewards = np.random.default_rng(5).random(n)
    product = n * Fraction(beta)
    scaled = np.sort((rewards * 2.0**53).astype(np.int64))[::-1]  # rewards are multiples of 2⁻⁵³
    sums = np.cumsum(scaled.astype(object)) if n <= 4096 else None
    if sums is None:  # only the neighbourhood of the maximum, found in floats, can matter
        totals = np.cumsum(scaled.astype(np.longdouble)) * np.longdouble(2) ** -53
        values = (totals - np.longdouble(n) * np.longdouble(beta)) / np.arange(1, n + 1)
        peak = int(values.argmax())
        candidates = range(max(peak - 3, 0), min(peak + 4, n))
        prefix = {k: int(sum(map(int, scaled[: k + 1]))) for k in candidates}
    else:
        candidates = range(n)
        prefix = dict(enumerate(sums))
    best: Fraction = max((Fraction(int(prefix[k]), 2**53) - product) / (k + 1) for k in candidates)
    assert abs(Fraction(normaliser(rewards, beta)) - best) <= Fraction(normaliser_error(n, beta, 1.0))
