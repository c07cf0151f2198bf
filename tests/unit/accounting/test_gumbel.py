"""PrivBoN: exact ε, bounded range, zCDP, Rényi and privacy curve against brute force in 60 digits."""

from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privalign.accounting import gumbel
from privalign.errors import InvalidInput

CASES = [
    (share * width, width, scale * width, n)
    for width, share, scale, n in itertools.product((1e-6, 1.0, 1e6), (1e-9, 0.3, 0.7, 1.0), (1e-9, 1e-2, 1.0, 1e9), (2, 17, 10**6))
]
ETAS = [1e-12, 1e-6, 0.1, 1.0, 8.0, 100.0, 2e9]
ORDERS = [1.0001, 1.5, 4.0, 64.0, 1000.0]


def exact_epsilon(delta: float, width: float, scale: float, n: int) -> mp.mpf:
    r, d, s = mp.mpf(width), mp.mpf(delta), mp.mpf(scale)
    return mp.log((1 + (n - 1) * mp.exp(r / s)) / (1 + (n - 1) * mp.exp((r - 2 * d) / s)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_epsilon_and_its_bounds_are_rounded_up(case: tuple[float, float, float, int]) -> None:
    delta, _, scale, _ = case
    with mp.workdps(60):
        exact, eta = exact_epsilon(*case), 2 * mp.mpf(delta) / mp.mpf(scale)
        assert exact <= gumbel.privbon_epsilon(*case) <= exact * (1 + mp.mpf(2) ** -51)
        assert eta <= gumbel.privbon_epsilon_bound(delta, scale) <= eta * (1 + mp.mpf(2) ** -51)
        assert gumbel.bounded_range(*case) == gumbel.privbon_epsilon_bound(delta, scale)
        assert eta**2 / 8 <= gumbel.privbon_rho(*case) <= eta**2 / 8 * (1 + mp.mpf(2) ** -49)
        assert gumbel.privbon_epsilon(*case) <= gumbel.privbon_epsilon_bound(delta, scale)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_no_pair_of_reward_vectors_loses_more(data: st.DataObject) -> None:
    """Softmax laws of neighbouring rewards: pure ε, range of the log-ratios, and Rényi divergence."""
    n = data.draw(st.integers(2, 6))
    share = data.draw(st.floats(1e-3, 1))
    scale = 10 ** data.draw(st.floats(-1.5, 1.5))
    corner = st.sampled_from([0.0, share, 1 - share, 1.0])
    rewards = data.draw(st.lists(st.one_of(st.floats(0, 1), corner), min_size=n, max_size=n))
    moves = data.draw(st.lists(st.one_of(st.floats(-share, share), st.sampled_from([-share, share])), min_size=n, max_size=n))
    with mp.workdps(50):
        here = [mp.exp(mp.mpf(q) / scale) for q in rewards]
        there = [mp.exp(min(max(mp.mpf(q) + mp.mpf(m), mp.mpf(0)), mp.mpf(1)) / scale) for q, m in zip(rewards, moves, strict=True)]
        p, q = [x / mp.fsum(here) for x in here], [x / mp.fsum(there) for x in there]
        losses = [mp.log(a / b) for a, b in zip(p, q, strict=True)]
        slack = mp.mpf(10) ** -40
        assert max(abs(loss) for loss in losses) <= gumbel.privbon_epsilon(share, 1.0, scale, n) + slack
        assert max(losses) - min(losses) <= gumbel.bounded_range(share, 1.0, scale, n) + slack
        for order in (1.25, 2.0, 32.0):
            divergence = mp.log(mp.fsum(a ** mp.mpf(order) * b ** (1 - mp.mpf(order)) for a, b in zip(p, q, strict=True))) / (order - 1)
            assert divergence <= gumbel.privbon_renyi(share, 1.0, scale, n, order) + slack


@pytest.mark.parametrize(("share", "scale", "n"), [(0.1, 0.5, 2), (0.7, 0.3, 5), (1.0, 2.0, 3), (1e-6, 1.0, 100)])
def test_the_extremal_pair_attains_epsilon(share: float, scale: float, n: int) -> None:
    """One reward falls from Δ to 0 while all others rise from R − Δ to R."""
    with mp.workdps(50):
        d = mp.mpf(share)
        weight = lambda own, others: mp.exp(own / scale) / (mp.exp(own / scale) + (n - 1) * mp.exp(others / scale))  # noqa: E731
        loss = mp.log(weight(d, 1 - d) / weight(mp.mpf(0), mp.mpf(1)))
        assert loss <= gumbel.privbon_epsilon(share, 1.0, scale, n) <= loss * (1 + mp.mpf(2) ** -50)


@pytest.mark.slow
@pytest.mark.parametrize("eta", ETAS)
@pytest.mark.parametrize("order", ORDERS)
def test_bounded_range_renyi_is_the_supremum(eta: float, order: float) -> None:
    """Against golden-section search over x in 80 digits: never below, and above by rounding only."""
    with mp.workdps(80):
        a, h = mp.mpf(order), mp.mpf(eta)

        def divergence(x: mp.mpf) -> mp.mpf:
            logs = -mp.log1p(mp.exp(-x)), -mp.log1p(mp.exp(-(x - h))), -mp.log1p(mp.exp(x)), -mp.log1p(mp.exp(x - h))
            both = a * logs[0] + (1 - a) * logs[1], a * logs[2] + (1 - a) * logs[3]
            return (max(both) + mp.log1p(mp.exp(min(both) - max(both)))) / (a - 1)

        ratio = (mp.sqrt(5) - 1) / 2
        low, high = -a * h - 10, a * h + 10
        grid = [low + (high - low) * k / 200 for k in range(201)]
        peak = max(range(1, 200), key=lambda k: divergence(grid[k]))
        low, high = grid[peak - 1], grid[peak + 1]
        for _ in range(120):
            left, right = high - ratio * (high - low), low + ratio * (high - low)
            low, high = (left, high) if divergence(left) < divergence(right) else (low, right)
        best = divergence((low + high) / 2)
    value = gumbel.bounded_range_renyi(eta, order)
    assert best * (1 - mp.mpf(10) ** -15) <= value <= best * (1 + mp.mpf(10) ** -12)
    assert best <= value or eta > 1e6  # there the search itself is not that sharp
    assert value <= order * eta * eta / 8 * (1 + 1e-12)
    assert value <= eta


@pytest.mark.parametrize("eta", [1e-3, 1.0, 30.0])
def test_privacy_curve(eta: float) -> None:
    """The formula, its symmetry between the two data sets, and its ends."""
    points = np.array([-2 * eta, -eta, -eta / 3, 0.0, eta / 3, eta * 0.999, eta, 2 * eta])
    curve = gumbel.bounded_range_delta(points, eta)
    with mp.workdps(40):
        for point, value in zip(points, curve, strict=True):
            e, h = mp.mpf(abs(float(point))), mp.mpf(eta)
            forward = (1 - mp.exp((e - h) / 2)) ** 2 / (1 - mp.exp(-h)) if e < h else mp.mpf(0)
            true = forward if point >= 0 else 1 - mp.exp(-e) + mp.exp(-e) * forward
            assert abs(float(value) - true) <= 1e-14 * abs(true)
    assert curve[-2] == curve[-1] == 0


positive_floats = st.floats(1e-3, 1)


@settings(max_examples=100, deadline=None)
@given(share=positive_floats, less=positive_floats, log_scale=st.floats(-3, 3), louder=st.floats(1, 10), n=st.integers(1, 10**6))
def test_epsilon_is_monotone(share: float, less: float, log_scale: float, louder: float, n: int) -> None:
    """Up in Δ and in n, down in σ; the same for ρ and the Rényi divergence, which also rises in α."""
    scale = 10**log_scale
    value = gumbel.privbon_epsilon(share, 1.0, scale, n)
    assert gumbel.privbon_epsilon(share * less, 1.0, scale, n) <= value
    assert gumbel.privbon_epsilon(share, 1.0, scale * louder, n) <= value
    assert gumbel.privbon_epsilon(share, 1.0, scale, n + 1) >= value
    divergence = gumbel.privbon_renyi(share, 1.0, scale, n, 3.0)
    assert gumbel.privbon_renyi(share, 1.0, scale, n, 4.0) >= divergence
    assert gumbel.privbon_renyi(share, 1.0, scale * louder, n, 3.0) <= divergence
    assert gumbel.privbon_rho(share, 1.0, scale * louder, n) <= gumbel.privbon_rho(share, 1.0, scale, n)


def test_one_candidate_costs_nothing_and_a_wide_sensitivity_is_clipped() -> None:
    assert gumbel.privbon_epsilon(0.5, 1.0, 0.1, 1) == 0
    assert gumbel.bounded_range(0.5, 1.0, 0.1, 1) == 0
    assert gumbel.privbon_rho(0.5, 1.0, 0.1, 1) == 0
    assert gumbel.privbon_renyi(0.5, 1.0, 0.1, 1, 2.0) == 0
    assert gumbel.privbon_epsilon(9.0, 1.0, 0.1, 4) == gumbel.privbon_epsilon(1.0, 1.0, 0.1, 4)
    assert gumbel.bounded_range(9.0, 1.0, 0.1, 4) == gumbel.bounded_range(1.0, 1.0, 0.1, 4)
    assert gumbel.privbon_epsilon_bound(9.0, 0.1) > gumbel.privbon_epsilon_bound(1.0, 0.1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_refusals(bad: float) -> None:
    good: list[float] = [0.1, 1.0, 0.5, 4]
    for position in range(4):
        arguments = [*good[:position], bad, *good[position + 1 :]]
        for price in (gumbel.privbon_epsilon, gumbel.bounded_range, gumbel.privbon_rho, lambda *a: gumbel.privbon_renyi(*a, 2.0)):
            with pytest.raises(InvalidInput):
                price(*arguments)  # type: ignore[arg-type]
    for order in (bad, 1.0):
        with pytest.raises(InvalidInput, match="order"):
            gumbel.bounded_range_renyi(1.0, order)
    if bad != 0:
        with pytest.raises(InvalidInput, match="eta"):
            gumbel.bounded_range_renyi(bad, 2.0)
    with pytest.raises(InvalidInput):
        gumbel.privbon_epsilon_bound(bad, 0.5)
    with pytest.raises(InvalidInput):
        gumbel.privbon_epsilon_bound(0.1, bad)
    with pytest.raises(InvalidInput, match="n: "):
        gumbel.privbon_epsilon(0.1, 1.0, 0.5, 2.5)  # type: ignore[arg-type]
