"""The scalar Gaussian mechanism against its exact curve, and the release on a grid against exact discrete Gaussians."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import mpmath as mp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privalign.accounting import gaussian
from privalign.errors import InvalidInput
from privalign.events import GaussianRelease
from privalign.sensitivity import RewardRange, Sensitivity

MUS = [1e-9, 1e-3, 0.1, 1.0, 8.0, 1e3, 1e9]
DELTAS = [1e-300, 1e-20, 1e-5, 0.3, 1 - 1e-9]


def release(delta: float, scale: float, grid: float = 0.0, error: float = 0.0, width: float = 1.0) -> GaussianRelease:
    return GaussianRelease(Sensitivity(delta, RewardRange(0, width)), scale, grid, error)


def fine(scale: float) -> float:
    return math.ldexp(0.5, math.frexp(scale)[1] - 32)


def exact_delta(epsilon: float, mu: mp.mpf) -> mp.mpf:
    e = mp.mpf(epsilon)
    return mp.ncdf(-e / mu + mu / 2) - mp.exp(e) * mp.ncdf(-e / mu - mu / 2)


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("delta", DELTAS)
def test_analytic_epsilon_is_the_least_float(mu: float, delta: float) -> None:
    """δ(ε) ≤ δ at the returned float, δ(previous float) > δ up to the 2⁻⁵⁸ that a proof by balls leaves."""
    epsilon = gaussian.analytic_gaussian_epsilon(mu, delta)
    with mp.workdps(150):
        assert exact_delta(epsilon, mp.mpf(mu)) <= mp.mpf(delta)
        if epsilon > 0:
            assert exact_delta(math.nextafter(epsilon, 0), mp.mpf(mu)) > mp.mpf(delta) * (1 - mp.mpf(2) ** -56)
        else:
            assert exact_delta(0.0, mp.mpf(mu)) <= mp.mpf(delta)


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("times", [0.0, 0.3, 2.0, 9.0])
def test_delta_is_rounded_up(mu: float, times: float) -> None:
    epsilon = times * mu
    with mp.workdps(150):
        exact = exact_delta(epsilon, mp.mpf(mu))
        assert exact <= gaussian.gaussian_delta(epsilon, mu) <= exact * (1 + mp.mpf(2) ** -51)


@cache
def discrete_tail(scale: int, digits: int) -> list[mp.mpf]:
    """P[X > k − 1], k = 0 …, of the discrete Gaussian with weights e^{−k²/(2σ²)} on the integers."""
    weights = [mp.exp(-mp.mpf(k * k) / (2 * scale * scale)) for k in range(40 * scale)]
    mass = 2 * mp.fsum(weights) - 1
    tails, tail = [], mp.mpf(0)
    for weight in reversed(weights):
        tail += weight / mass
        tails.append(tail)
    return tails[::-1]


def exact_discrete_delta(epsilon: float, shift: int, scale: int) -> mp.mpf:
    """Canonne, Kamath & Steinke 2020, Theorem 7, by summation: integers, sensitivity `shift`, scale σ."""
    tails, e = discrete_tail(scale, mp.mp.dps), mp.mpf(epsilon)

    def above(a: mp.mpf) -> mp.mpf:
        first = int(mp.floor(a)) + 1
        if first >= len(tails):
            return mp.mpf(0)
        return tails[first] if first >= 0 else 1 - tails[1 - first]

    middle = e * scale * scale / shift
    return above(middle - mp.mpf(shift) / 2) - mp.exp(e) * above(middle + mp.mpf(shift) / 2)


@pytest.mark.parametrize("ratio", [32, 45, 64])
@pytest.mark.parametrize("shift", [1, 2, 20, 90])
@pytest.mark.parametrize("delta", [1e-9, 1e-4, 0.02, 0.4])
def test_a_release_on_a_coarse_grid_is_private(ratio: int, shift: int, delta: float) -> None:
    """σ/s as small as is allowed: the exact discrete δ at the charged ε, for every shift up to Δ′, is at most δ."""
    step = 2.0**-5
    event = release(shift * step, ratio * step, step, width=100.0)
    epsilon = gaussian.gaussian_release_epsilon(event, delta)
    with mp.workdps(40):
        for moved in {1, (shift + 1) // 2, shift}:
            assert exact_discrete_delta(epsilon, moved, ratio) <= delta
        continuous = gaussian.analytic_gaussian_epsilon(shift / ratio, delta)
        assert epsilon >= continuous
        assert epsilon <= 1.4 * continuous + 0.1


@pytest.mark.parametrize("mu", [1e-3, 0.3, 2.0, 100.0])
@pytest.mark.parametrize("delta", [1e-20, 1e-5, 0.1])
def test_a_fine_grid_costs_almost_nothing(mu: float, delta: float) -> None:
    """At σ/s ≥ 2³² the price is above the real-valued one, in the tenth digit at most where μ is not tiny."""
    scale = 0.7 / mu
    event = release(0.7, scale, fine(scale))
    exact = gaussian.analytic_gaussian_epsilon(0.7 / scale, delta)
    charged = gaussian.gaussian_release_epsilon(event, delta)
    assert exact <= charged <= exact * (1 + 1e-6) + 1e-8
    assert gaussian.gaussian_release_epsilon(release(0.7, scale), delta) == pytest.approx(exact, rel=1e-14)


@settings(max_examples=150, deadline=None)
@given(delta=st.floats(1e-9, 1), grid_bits=st.integers(-60, 2), error=st.floats(0, 1e-3), scale=st.floats(1e-3, 1e3))
def test_effective_sensitivity_covers_any_two_rounded_numbers(delta: float, grid_bits: int, error: float, scale: float) -> None:
    """Δ′ is the least multiple of s that is ≥ Δ + 2e; numbers within Δ + 2e of one another round to within Δ′."""
    step = Fraction(2) ** grid_bits
    event = release(delta, scale, float(step), error)
    reach = Fraction(delta) + 2 * Fraction(error)
    effective = gaussian.effective_sensitivity(event)
    assert reach <= effective < reach + step
    assert (effective / step).denominator == 1
    for position in (Fraction(0), step / 2, step * Fraction(49, 100), Fraction(1, 3)):
        first, second = (math.floor(x / step + Fraction(1, 2)) for x in (position, position + reach))  # the sampler's rounding
        assert (second - first) * step <= effective
    ratio = effective / Fraction(scale)
    assert ratio * ratio / 2 <= Fraction(gaussian.gaussian_rho(event)) <= ratio * ratio / 2 * (1 + Fraction(1, 2**51))


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("delta", DELTAS)
def test_a_real_valued_release_costs_the_exact_curve(mu: float, delta: float) -> None:
    """Grid 0, as phase 1 samples: between the least ε of the largest float below Δ/σ and that of the least above."""
    event = release(0.1, 0.1 / mu)
    charged = gaussian.gaussian_release_epsilon(event, delta)
    ratio = Fraction(event.sensitivity.charged) / Fraction(event.scale)
    below, above = math.nextafter(float(ratio), 0.0), math.nextafter(float(ratio), math.inf)
    assert gaussian.analytic_gaussian_epsilon(below, delta) <= charged <= gaussian.analytic_gaussian_epsilon(above, delta)
    assert Fraction(gaussian.gaussian_rho(event)) >= ratio * ratio / 2
    assert gaussian.effective_sensitivity(event) == Fraction(event.sensitivity.charged)


@pytest.mark.parametrize("error", [0.0, 1e-15, 1e-3])
def test_the_error_of_the_number_is_charged_on_both_sides(error: float) -> None:
    event = release(0.1, 0.5, error=error)
    assert gaussian.effective_sensitivity(event) == Fraction(0.1) + 2 * Fraction(error)
    assert gaussian.gaussian_release_epsilon(event, 1e-6) >= gaussian.gaussian_release_epsilon(release(0.1 + 1.99 * error, 0.5), 1e-6)


@pytest.mark.parametrize("mu", [1e-9, 0.1, 1.0, 8.0])
@pytest.mark.parametrize("delta", [0.5, 0.9, 1 - 1e-9])
def test_the_probabilistic_form_is_never_negative(mu: float, delta: float) -> None:
    loss = gaussian.pdp_gaussian_epsilon(mu, delta)
    assert loss >= 0
    with mp.workdps(30):  # P[privacy loss > ε] ≤ δ, the loss being N(μ²/2, μ²)
        assert mp.ncdf((mp.mpf(mu) ** 2 / 2 - mp.mpf(loss)) / mp.mpf(mu)) <= mp.mpf(delta) * (1 + mp.mpf(10) ** -12)


def test_published_formulas_are_rounded_up_and_labelled() -> None:
    with mp.workdps(40):
        for mu, delta in ((0.1, 1e-5), (3.0, 0.3), (1e-6, 1e-300)):
            paper = mp.mpf(mu) * mp.sqrt(2 * mp.log(mp.mpf("1.25") / mp.mpf(delta)))
            loss = mp.mpf(mu) ** 2 / 2 + mp.mpf(mu) * mp.sqrt(2) * mp.erfinv(1 - 2 * mp.mpf(delta)) if delta > 1e-20 else None
            assert paper <= gaussian.published_gaussian_epsilon(mu, delta) <= paper * (1 + mp.mpf(2) ** -51)
            if loss is not None:
                assert loss <= gaussian.pdp_gaussian_epsilon(mu, delta) <= loss * (1 + mp.mpf(10) ** -15)
    assert gaussian.classical_gaussian_epsilon(0.1, 1e-5) == gaussian.published_gaussian_epsilon(0.1, 1e-5)
    assert gaussian.classical_gaussian_epsilon(7.8, 1e-2) is None
    # σ_X = .1282R, Δ = R, δ = .01: the published 24.24 is no bound, the true δ there is .745 and the right ε is 47.70
    mu = 1 / 0.1282
    published = gaussian.published_gaussian_epsilon(mu, 1e-2)
    assert published == pytest.approx(24.24, abs=0.01)
    assert gaussian.gaussian_delta(published, mu) == pytest.approx(0.745, abs=1e-3)
    assert gaussian.analytic_gaussian_epsilon(mu, 1e-2) == pytest.approx(47.70, abs=0.02)


def test_the_classical_formula_holds_where_it_is_given() -> None:
    for mu in (1e-6, 1e-3, 0.1, 0.2):
        for delta in (1e-12, 1e-5, 1e-3):
            classical = gaussian.classical_gaussian_epsilon(mu, delta)
            assert classical is None or classical >= gaussian.analytic_gaussian_epsilon(mu, delta)


def test_the_probabilistic_form_is_not_closed_under_clamping() -> None:
    """μ = .5, δ = .01: clamped where a little more than δ lies beyond, the atom loses more than the probabilistic ε."""
    loss = gaussian.pdp_gaussian_epsilon(0.5, 0.01)
    with mp.workdps(20):
        quantile = mp.sqrt(2) * mp.erfinv(1 - 2 * mp.mpf("0.0105"))
        atom = mp.log(mp.ncdf(-quantile) / mp.ncdf(-quantile - mp.mpf("0.5")))
    assert loss == pytest.approx(1.288, abs=1e-3)
    assert atom > loss


@settings(max_examples=40, deadline=None)
@given(mu=st.floats(1e-3, 20), less=st.floats(0.1, 1), delta=st.floats(1e-12, 0.5), smaller=st.floats(1e-3, 1))
def test_epsilon_is_monotone(mu: float, less: float, delta: float, smaller: float) -> None:
    """Up in Δ/σ, down in δ."""
    value = gaussian.analytic_gaussian_epsilon(mu, delta)
    assert gaussian.analytic_gaussian_epsilon(mu * less, delta) <= value
    assert gaussian.analytic_gaussian_epsilon(mu, delta * smaller) >= value
    charged = gaussian.gaussian_release_epsilon(release(mu, 1.0, 2.0**-40, 1e-15, width=100.0), delta)
    assert charged >= value
    assert gaussian.gaussian_release_epsilon(release(mu, 1.0, 2.0**-40, 1e-6, width=100.0), delta) >= charged


@pytest.mark.parametrize("mu", [1e-9, 1e-4, 1.0, 1e9])
@pytest.mark.parametrize("delta", DELTAS)
def test_extreme_releases(mu: float, delta: float) -> None:
    event = release(0.1, 0.1 / mu, fine(0.1 / mu), 1e-15)
    charged = gaussian.gaussian_release_epsilon(event, delta)
    assert gaussian.analytic_gaussian_epsilon(mu, delta) <= charged < math.inf
    assert 0 < gaussian.gaussian_rho(event) < math.inf


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_refusals(bad: float) -> None:
    for function in (
        gaussian.gaussian_delta,
        gaussian.analytic_gaussian_epsilon,
        gaussian.pdp_gaussian_epsilon,
        gaussian.published_gaussian_epsilon,
    ):
        if function is gaussian.gaussian_delta:
            with pytest.raises(InvalidInput, match="mu"):
                function(1.0, bad)
        else:
            with pytest.raises(InvalidInput, match="mu"):
                function(bad, 0.1)
            with pytest.raises(InvalidInput, match="delta"):
                function(1.0, bad)
    with pytest.raises(InvalidInput, match="delta"):
        gaussian.gaussian_release_epsilon(release(0.1, 0.5), bad)
    for price in (lambda event: gaussian.gaussian_release_epsilon(event, 0.1), gaussian.gaussian_rho):
        with pytest.raises(InvalidInput, match="sigma_x"):
            price(release(0.1, bad))
        if bad != 0:
            with pytest.raises(InvalidInput, match="grid"):
                price(release(0.1, 0.5, grid=bad))
            with pytest.raises(InvalidInput, match="input-error"):
                price(release(0.1, 0.5, error=bad))
            with pytest.raises(InvalidInput, match="epsilon"):
                gaussian.gaussian_delta(bad, 1.0)


def test_a_grid_coarser_than_a_32nd_of_the_noise_is_refused() -> None:
    assert gaussian.gaussian_release_epsilon(release(0.1, 1.0, 2.0**-5), 0.01) > 0
    with pytest.raises(InvalidInput, match="grid"):
        gaussian.gaussian_release_epsilon(release(0.1, 0.99, 2.0**-5), 0.01)
    with pytest.raises(InvalidInput, match="delta"):
        gaussian.gaussian_release_epsilon(release(0.1, 1.0), 1.0)
