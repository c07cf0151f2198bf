"""p(q), 1 − p(q), their increments, κ and b: enclosures and vectorised floats against 120-digit arithmetic."""

from __future__ import annotations

import itertools
import math
from functools import partial

import mpmath as mp
import numpy as np
import pytest
from flint import arb
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from privalign import normal
from privalign.acceptance import (
    LEAST_TAIL,
    THRESHOLDS,
    AcceptanceCurve,
    FloatProbabilities,
    acceptance_ratio,
    acceptance_ratios,
    default_tail,
    evaluation_error,
    kappa,
    kappas,
    log_accept,
    log_gain,
    log_mass,
    log_reject,
    positive,
    snap,
    threshold_edges,
    threshold_grid,
    whole,
)
from privalign.errors import InvalidInput
from privalign.intervals import at_precision, sharp, upper

DIGITS = 120
SCALES = [1e-9, 1e-3, 0.1, 1.0, 30.0, 1e9]  # in units of R
SHARES = [1e-9, 1e-3, 0.3, 0.999, 1.0]  # Δ/R


def ramp(z: mp.mpf) -> mp.mpf:
    return z * mp.ncdf(z) + mp.npdf(z)


class Reference:
    """The formulas of p as they are written, in 120 digits."""

    def __init__(self, threshold: float, width: float, scale: float, tail: float) -> None:
        self.threshold, self.scale = mp.mpf(threshold), mp.mpf(scale)
        self.ceiling = mp.mpf(width) + self.scale * mp.mpf(tail)
        self.h = (self.ceiling - self.threshold) / self.scale

    def accept(self, q: mp.mpf) -> mp.mpf:
        return (ramp((q - self.threshold) / self.scale) - ramp((q - self.ceiling) / self.scale)) / self.h

    def reject(self, q: mp.mpf) -> mp.mpf:
        return (ramp((self.ceiling - q) / self.scale) - ramp((self.threshold - q) / self.scale)) / self.h


def curves() -> list[tuple[float, float, float, float]]:
    cases = []
    for scale, beta in itertools.product(SCALES, (1e-12, 0.05, 1e6)):
        grid = threshold_grid(beta, 1.0)
        cases += [(float(grid[index]), 1.0, scale, 3.8) for index in (0, 500, 1023)]
    return [*cases, (0.3e6, 1e6, 2e5, 3.0), (0.3e-6, 1e-6, 2e-7, 3.0)]


@pytest.mark.parametrize("case", curves(), ids=str)
def test_kappa_and_b_are_rounded_up_exact_values(case: tuple[float, float, float, float]) -> None:
    threshold, width, scale, tail = case
    curve = AcceptanceCurve(*case)
    with mp.workdps(DIGITS):
        reference = Reference(*case)
        for share in SHARES:
            delta = share * width
            d, r = mp.mpf(delta), mp.mpf(width)
            k = mp.log(reference.reject(r - d) / reference.reject(r))
            b = mp.log(reference.accept(d) / reference.accept(mp.mpf(0)))
            for printed, vectorised, true in (
                (kappa(curve, delta), float(kappas(threshold, width, scale, tail, delta)), k),
                (acceptance_ratio(curve, delta), float(acceptance_ratios(threshold, width, scale, tail, delta)), b),
            ):
                assert true <= printed <= true * (1 + mp.mpf(2) ** -51)
                slack = 3 * float(evaluation_error(threshold, width, scale))
                assert true <= vectorised <= true * (1 + slack)


@settings(max_examples=300, deadline=None)
@given(
    log_scale=st.floats(-7, 4),
    log_share=st.floats(-12, 0) | st.none(),
    log_beta=st.floats(-6, 2),
    tail=st.floats(0.01, 30),
    index=st.integers(0, 1023),
)
def test_vectorised_kappa_and_b_are_bounds_at_any_scale(
    log_scale: float, log_share: float | None, log_beta: float, tail: float, index: int
) -> None:
    """Also where Δ is of the size of σ_Z²/R and σ_Z far below R: exponents are large there, and their differences small."""
    scale = 10**log_scale
    delta = min(scale**2 if log_share is None else 10**log_share, 1.0)
    threshold = float(threshold_grid(10**log_beta, 1.0)[index])
    curve = AcceptanceCurve(threshold, 1.0, scale, tail)
    room = 1 + 2.0**-40
    assert float(kappas(threshold, 1.0, scale, tail, delta)) * room + 2.0**-1000 >= kappa(curve, delta)
    assert float(acceptance_ratios(threshold, 1.0, scale, tail, delta)) * room + 2.0**-1000 >= acceptance_ratio(curve, delta)


@pytest.mark.parametrize("case", curves(), ids=str)
def test_probabilities_and_gain(case: tuple[float, float, float, float]) -> None:
    """log p and log(1 − p) to 1e-15·max(1, |log|) and what the rounding of (q − λ̃)/σ_Z costs; the gain to `evaluation_error`."""
    threshold, width, scale, _ = case
    curve = AcceptanceCurve(*case)
    argument = 2.0**-50 * (width + abs(threshold)) / scale
    with mp.workdps(DIGITS):
        reference = Reference(*case)
        for q in (0.0, 0.37 * width, width):
            accept, reject = reference.accept(mp.mpf(q)), reference.reject(mp.mpf(q))
            for true, enclose in ((accept, curve.enclose_accept), (reject, curve.enclose_reject)):
                printed = upper(partial(enclose, q))
                assert true <= printed <= max(true * (1 + mp.mpf(2) ** -51), math.ulp(0.0))
            for value, true in ((log_accept(q, *case), mp.log(accept)), (log_reject(q, *case), mp.log(reject))):
                size = max(1.0, abs(float(true)))
                assert abs(float(value) - true) <= 4e-15 * size + 4 * argument * math.sqrt(size)
            for share in (1e-9, 1e-3, 0.5):
                step = share * width
                true = mp.log(reference.accept(mp.mpf(q) + mp.mpf(step)) - accept)
                error = float(evaluation_error(threshold, width, scale)) * max(1.0, abs(float(true)))
                assert abs(float(log_gain(q, step, *case)) - true) <= error


@settings(max_examples=150, deadline=None)
@given(a=st.floats(-1000, 1000), exponent=st.floats(-12, 4))
def test_log_mass(a: float, exponent: float) -> None:
    h = 10**exponent
    with mp.workdps(60):
        true = mp.log(ramp(mp.mpf(a) + mp.mpf(h)) - ramp(mp.mpf(a)))
    assert abs(float(log_mass(a, h)) - true) <= 2e-15 * max(1.0, abs(float(true)))


@settings(max_examples=100, deadline=None)
@given(q=st.floats(0, 1), threshold=st.floats(-1, 0.99), log_scale=st.floats(-3, 3))
def test_accept_and_reject_sum_to_one(q: float, threshold: float, log_scale: float) -> None:
    scale = 10**log_scale
    total = math.exp(log_accept(q, threshold, 1.0, scale, 3.0)) + math.exp(log_reject(q, threshold, 1.0, scale, 3.0))
    assert abs(total - 1) <= 1e-15 * max(1, 1 / scale)  # (q − λ̃)/σ_Z is rounded
    curve = AcceptanceCurve(threshold, 1.0, scale, 3.0)
    assert sharp(lambda: curve.enclose_accept(q) + curve.enclose_reject(q)).overlaps(1)


@settings(max_examples=60, deadline=None)
@given(
    shares=st.lists(st.floats(0, 1), min_size=2, max_size=2),
    log_scale=st.floats(-3, 3),
    share=st.floats(1e-6, 1),
    beta=st.floats(1e-3, 10),
)
def test_kappa_falls_and_b_rises_in_the_threshold(shares: list[float], log_scale: float, share: float, beta: float) -> None:
    low, high = (AcceptanceCurve(position - beta, 1.0, 10**log_scale, 3.0) for position in sorted(shares))
    assert kappa(low, share) >= kappa(high, share)
    assert acceptance_ratio(low, share) <= acceptance_ratio(high, share)


@settings(max_examples=60, deadline=None)
@given(share=st.floats(1e-6, 0.5), more=st.floats(1, 2), threshold=st.floats(-1, 0.99), log_scale=st.floats(-2, 2))
def test_kappa_and_b_grow_with_sensitivity(share: float, more: float, threshold: float, log_scale: float) -> None:
    curve = AcceptanceCurve(threshold, 1.0, 10**log_scale, 3.0)
    assert 0 < kappa(curve, share) <= kappa(curve, share * more)
    assert 0 < acceptance_ratio(curve, share) <= acceptance_ratio(curve, share * more)


def test_sensitivity_above_the_range_is_clipped() -> None:
    curve = AcceptanceCurve(0.3, 1.0, 0.2, 3.0)
    assert kappa(curve, 7.0) == kappa(curve, 1.0)
    assert acceptance_ratio(curve, 7.0) == acceptance_ratio(curve, 1.0)
    assert kappas(0.3, 1.0, 0.2, 3.0, 7.0) == kappas(0.3, 1.0, 0.2, 3.0, 1.0)


@settings(max_examples=200, deadline=None)
@given(position=st.floats(-3, 3), beta=st.floats(1e-3, 10), width=st.floats(1e-6, 1e6))
def test_snap_moves_to_the_nearest_public_point(position: float, beta: float, width: float) -> None:
    threshold = position * width - beta
    grid = threshold_grid(beta, width)
    snapped = snap(threshold, beta, width)
    assert snapped in grid
    clamped = min(max(threshold, grid[0]), grid[-1])
    assert abs(snapped - clamped) <= np.abs(grid - clamped).min() + 8 * math.ulp(width + beta)


def test_snap_survives_infinite_noise() -> None:
    grid = threshold_grid(0.05, 1.0)
    assert grid.size == THRESHOLDS
    assert snap(math.inf, 0.05, 1.0) == grid[-1]
    assert snap(-math.inf, 0.05, 1.0) == grid[0]
    assert grid[0] == -0.05
    assert grid[-1] == 1 - 0.05


def test_default_tail() -> None:
    assert default_tail(1) == pytest.approx(math.sqrt(2 * math.log(100)), rel=1e-15)
    assert default_tail(10**6) == pytest.approx(math.sqrt(2 * math.log(1e8)), rel=1e-15)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_refusals(bad: float) -> None:
    curve = AcceptanceCurve(0.3, 1.0, 0.2, 3.0)
    for attempt in (
        lambda: AcceptanceCurve(0.3, bad, 0.2, 3.0),
        lambda: AcceptanceCurve(0.3, 1.0, bad, 3.0),
        lambda: AcceptanceCurve(0.3, 1.0, 0.2, bad),
        lambda: positive("field", bad),
        lambda: whole("field", bad),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidInput):
            attempt()
    if bad != math.inf:  # clipped to R
        for ratio in (kappa, acceptance_ratio):
            with pytest.raises(InvalidInput, match="sensitivity"):
                ratio(curve, bad)


def test_threshold_must_be_finite_and_below_the_ceiling() -> None:
    for bad in (math.nan, math.inf, -math.inf, 1.6, 2.0):
        with pytest.raises(InvalidInput, match="threshold"):
            AcceptanceCurve(bad, 1.0, 0.2, 3.0)
    assert float(np.asarray(AcceptanceCurve(1.59, 1.0, 0.2, 3.0).accept([0.5]))[0]) > 0


def test_rounds_as_probabilities() -> None:
    curve = AcceptanceCurve(0.3, 1.0, 0.2, 3.0)
    rounds = curve.accept([0.6, 0.1])
    assert np.asarray(rounds).shape == (2,)
    for i, p in enumerate(np.asarray(rounds).tolist()):
        assert p == pytest.approx(float(rounds.enclose(i)), rel=1e-14)
        assert p == pytest.approx(float(rounds.look(i)), rel=1e-14)
    exactly = FloatProbabilities(np.array([0.25, 1e-300]))
    assert np.asarray(exactly).tolist() == [0.25, 1e-300]
    assert exactly.estimate()[1] == 0
    assert [exactly.look(i) for i in (0, 1)] == [exactly.enclose(i) for i in (0, 1)] == [0.25, 1e-300]


ENDS = [0.0, 1.0, 0.37, 5e-324, 1e-300, 1e-16, 1 - 2.0**-53]


@settings(max_examples=200, deadline=None)
@given(
    rewards=st.lists(st.floats(0, 1) | st.sampled_from(ENDS), min_size=1, max_size=5),
    log_scale=st.floats(-110, 110),
    log_beta=st.floats(-12, 12),
    log_tail=st.floats(math.log10(LEAST_TAIL), 3),
    index=st.integers(0, 1023),
)
@example(rewards=[0.0, 0.5, 1.0], log_scale=-100.0, log_beta=0.0, log_tail=0.5, index=500)
@example(rewards=[0.0, 0.5, 1.0], log_scale=100.0, log_beta=0.0, log_tail=0.5, index=500)
def test_floats_and_looks_are_as_near_to_p_as_is_said(
    rewards: list[float], log_scale: float, log_beta: float, log_tail: float, index: int
) -> None:
    case = (float(threshold_grid(10**log_beta, 1.0)[index]), 1.0, 10**log_scale, max(LEAST_TAIL, 10**log_tail))
    assume(case[0] < case[1] + case[2] * case[3])
    rounds = AcceptanceCurve(*case).accept(rewards)
    floats, error = rounds.estimate()
    with mp.workdps(400):
        reference = Reference(*case)
        for i, q in enumerate(rewards):
            p = reference.accept(mp.mpf(q))
            assert abs(mp.mpf(float(floats[i])) - p) <= error
            ball = at_precision(normal.BITS, partial(rounds.look, i))
            assert ball.overlaps(arb(mp.nstr(p, 120)))
            assert float(ball.rad()) <= 2.0**-120 / min(float(reference.h), 1.0)


@settings(max_examples=100, deadline=None)
@given(log_beta=st.floats(-12, 12), width=st.floats(1e-6, 1e6), position=st.floats(-2, 3))
def test_edges_say_what_snap_says(log_beta: float, width: float, position: float) -> None:
    beta = 10**log_beta
    grid, edges = threshold_grid(beta, width), threshold_edges(beta, width)
    assert edges.shape == (THRESHOLDS - 1,)
    assert np.all(np.diff(edges) >= 0)
    value = position * width - beta
    assert snap(value, beta, width) == grid[(edges < value).sum()]
