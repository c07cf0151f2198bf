"""Conversions between divergences and (ε, δ), against 60 digits and against the exact Gaussian curve."""

from __future__ import annotations

import math

import mpmath as mp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privalign.accounting.gaussian import analytic_gaussian_epsilon
from privalign.accounting.renyi import DEFAULT_ORDERS, randomised_response_renyi, renyi_to_epsilon, zcdp_to_epsilon
from privalign.errors import InvalidInput

ORDERS = [1.0001, 1.25, 2.0, 64.0, 1000.0]
DELTAS = [1e-300, 1e-20, 1e-5, 0.25, 1 - 1e-9]


def converted(rdp: mp.mpf, order: mp.mpf, delta: float) -> mp.mpf:
    return rdp + mp.log((order - 1) / order) - (mp.log(mp.mpf(delta)) + mp.log(order)) / (order - 1)


@pytest.mark.parametrize("epsilon", [1e-300, 1e-9, 0.1, 3.0, 700.0, 1e4, 1e18])
@pytest.mark.parametrize("order", ORDERS)
def test_randomised_response(epsilon: float, order: float) -> None:
    with mp.workdps(700):
        e, a = mp.mpf(epsilon), mp.mpf(order)
        log_p, log_q = -mp.log1p(mp.exp(-e)), -e - mp.log1p(mp.exp(-e))
        both = a * log_p + (1 - a) * log_q, a * log_q + (1 - a) * log_p
        exact = (both[0] + mp.log1p(mp.exp(both[1] - both[0]))) / (a - 1)
        value = randomised_response_renyi(epsilon, order)
        assert exact <= value <= max(exact * (1 + mp.mpf(2) ** -51), math.ulp(0.0))
        assert value <= epsilon
        assert value <= a * e * e / 2 * (1 + mp.mpf(2) ** -51) + mp.mpf(5e-324)


@settings(max_examples=60, deadline=None)
@given(p=st.floats(0.01, 0.99), epsilon=st.floats(1e-3, 5), share=st.floats(-1, 1), order=st.floats(1.01, 200))
def test_no_pure_mechanism_of_two_outcomes_diverges_more(p: float, epsilon: float, share: float, order: float) -> None:
    with mp.workdps(40):
        e, a, here = mp.mpf(epsilon), mp.mpf(order), mp.mpf(p)
        low = max(here * mp.exp(-e), 1 - (1 - here) * mp.exp(e))
        high = min(here * mp.exp(e), 1 - (1 - here) * mp.exp(-e))
        there = low + (high - low) * (mp.mpf(share) + 1) / 2
        divergence = mp.log(here**a * there ** (1 - a) + (1 - here) ** a * (1 - there) ** (1 - a)) / (a - 1)
        assert divergence <= randomised_response_renyi(epsilon, order) * (1 + mp.mpf(10) ** -20)


@pytest.mark.parametrize("rdp", [1e-300, 1e-6, 0.3, 40.0, 1e18])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("delta", DELTAS)
def test_conversion_is_rounded_up(rdp: float, order: float, delta: float) -> None:
    with mp.workdps(400):
        exact = max(converted(mp.mpf(rdp), mp.mpf(order), delta), mp.mpf(0))
        assert exact <= renyi_to_epsilon(rdp, order, delta) <= exact * (1 + mp.mpf(2) ** -51)


@pytest.mark.parametrize("order", DEFAULT_ORDERS)
@pytest.mark.parametrize("delta", [*DELTAS, 4 / 27])
def test_no_divergence_costs_nothing(order: float, delta: float) -> None:
    """Also where the conversion's offset is exactly 0 (α = 2, δ = ¼), which no ball can show."""
    assert renyi_to_epsilon(0.0, order, delta) == 0
    assert zcdp_to_epsilon(0.0, delta) == 0
    assert randomised_response_renyi(0.0, order) == 0


@pytest.mark.slow
@pytest.mark.parametrize("rho", [1e-18, 1e-6, 0.01, 1.0, 300.0, 1e18])
@pytest.mark.parametrize("delta", DELTAS)
def test_zcdp_conversion_is_valid_and_near_the_best_order(rho: float, delta: float) -> None:
    value = zcdp_to_epsilon(rho, delta)
    mu = math.sqrt(2 * rho) * (1 - 1e-12)
    assert value >= analytic_gaussian_epsilon(mu, delta)  # a Gaussian of this ρ needs that much
    with mp.workdps(60):
        best = min(converted(mp.mpf(rho) * a, a, delta) for a in (1 + mp.exp(mp.mpf(k) / 40) for k in range(-1100, 1550)))
        assert value <= max(best, mp.mpf(0)) + max(abs(best), mp.mpf(rho)) * mp.mpf(10) ** -9


@settings(max_examples=80, deadline=None)
@given(rdp=st.floats(1e-6, 100), more=st.floats(1, 10), order=st.floats(1.01, 500), delta=st.floats(1e-15, 0.9), smaller=st.floats(1e-3, 1))
def test_conversion_is_monotone(rdp: float, more: float, order: float, delta: float, smaller: float) -> None:
    assert renyi_to_epsilon(rdp, order, delta) <= renyi_to_epsilon(rdp * more, order, delta)
    assert renyi_to_epsilon(rdp, order, delta) <= renyi_to_epsilon(rdp, order, delta * smaller)
    assert zcdp_to_epsilon(rdp, delta) <= zcdp_to_epsilon(rdp * more, delta) * (1 + 1e-9)
    assert randomised_response_renyi(rdp, order) <= randomised_response_renyi(rdp * more, order)
    assert randomised_response_renyi(rdp, order) <= randomised_response_renyi(rdp, order * more)


def test_infinity_stays_infinite() -> None:
    assert renyi_to_epsilon(math.inf, 2.0, 0.1) == math.inf
    assert zcdp_to_epsilon(math.inf, 0.1) == math.inf
    assert randomised_response_renyi(math.inf, 2.0) == math.inf


@pytest.mark.parametrize("bad", [math.nan, -math.inf, -1.0])
def test_negative_and_missing_numbers_are_refused(bad: float) -> None:
    for attempt in (
        lambda: renyi_to_epsilon(bad, 2.0, 0.1),
        lambda: zcdp_to_epsilon(bad, 0.1),
        lambda: randomised_response_renyi(bad, 2.0),
    ):
        with pytest.raises(InvalidInput):
            attempt()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1.0, 0.0, -1.0])
def test_orders_and_deltas_are_checked(bad: float) -> None:
    for attempt in (
        lambda: renyi_to_epsilon(1.0, bad, 0.1),
        lambda: randomised_response_renyi(1.0, bad),
        lambda: renyi_to_epsilon(1.0, 2.0, bad),
        lambda: zcdp_to_epsilon(1.0, bad),
    ):
        with pytest.raises(InvalidInput):
            attempt()
