"""The scalar Gaussian mechanism: exact (ε, δ), what a sampler on a grid adds, zCDP; and the published formulas.

μ = Δ/σ throughout. Sources: Balle & Wang 2018 (exact curve); Canonne, Kamath & Steinke 2020, Theorem 7 (discrete).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from flint import arb, fmpq

from privalign.acceptance import positive
from privalign.errors import InvalidInput
from privalign.events import GaussianRelease
from privalign.intervals import cdf, sharp, upper


def probability(field: str, value: float) -> float:
    """`value` where it lies strictly between 0 and 1.

    Raises:
        InvalidInput: it does not; `field` names it.
    """
    if not 0 < value < 1:
        raise InvalidInput(field, f"{value} is not strictly between 0 and 1")
    return float(value)


def gaussian_delta(epsilon: float, mu: float) -> float:
    """The exact δ(ε) of a Gaussian mechanism, rounded up.

    δ = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2). ε ≥ 0, μ > 0.
    """
    positive("mu", mu)
    if not 0 <= epsilon < math.inf:
        raise InvalidInput("epsilon", f"{epsilon} is not a finite number ≥ 0")
    return min(1.0, upper(lambda: _delta(arb(epsilon), arb(mu), arb(0))))


@lru_cache(maxsize=4096)
def analytic_gaussian_epsilon(mu: float, delta: float) -> float:
    """The least ε with δ(ε) ≤ δ, rounded up to a float at which the inequality is proved by ball arithmetic.

    Formal guarantee: releasing a number of sensitivity Δ with N(0, σ²), μ = Δ/σ, is (ε, δ)-DP; no smaller ε is.
    0 where δ(0) = Φ(μ/2) − Φ(−μ/2) ≤ δ already.

    Args:
        mu: Δ/σ > 0. delta: in (0, 1).
    """
    positive("mu", mu)
    probability("delta", delta)
    return _least_epsilon(lambda epsilon: _delta(epsilon, arb(mu), arb(0)), delta, mu)


def pdp_gaussian_epsilon(mu: float, delta: float) -> float:
    """The probabilistic-DP form μ²/2 + μΦ⁻¹(1 − δ), at least 0: P[privacy loss > ε] ≤ δ. Informational: not closed under clamping.

    Never charged. Args: mu = Δ/σ > 0; delta in (0, 1).
    """
    positive("mu", mu)
    probability("delta", delta)
    return max(0.0, upper(lambda: arb(mu) * arb(mu) / 2 + arb(mu) * arb(2).sqrt() * (2 * arb(delta)).erfcinv()))


def published_gaussian_epsilon(mu: float, delta: float) -> float:
    """ε = μ√(2 ln(1.25/δ)) as the paper prints it, valid or not. For comparison only."""
    positive("mu", mu)
    probability("delta", delta)
    return upper(lambda: arb(mu) * (2 * (arb("1.25") / arb(delta)).log()).sqrt())


def classical_gaussian_epsilon(mu: float, delta: float) -> float | None:
    """The classical formula where it is a theorem (0 < ε ≤ 1), else None. Dwork & Roth 2014, Theorem A.1."""
    epsilon = published_gaussian_epsilon(mu, delta)
    return epsilon if epsilon <= 1 else None


def effective_sensitivity(release: GaussianRelease) -> Fraction:
    """Δ′ = ⌈(Δ + 2e)/s⌉·s, exactly: the sensitivity of a number with floating error e once rounded to the grid s.

    Δ + 2e where the release is real-valued (s = 0).

    Raises:
        InvalidInput: s or e is negative or not finite.
    """
    for field, value in (("grid", release.grid), ("input-error", release.input_error)):
        if not 0 <= value < math.inf:
            raise InvalidInput(field, f"{value} is not a finite number ≥ 0")
    delta = Fraction(release.sensitivity.charged) + 2 * Fraction(release.input_error)
    if release.grid == 0:
        return delta
    step = Fraction(release.grid)
    return math.ceil(delta / step) * step


@lru_cache(maxsize=4096)
def gaussian_release_epsilon(release: GaussianRelease, delta: float) -> float:
    """ε₁(δ) of a release as it is sampled, rounded up: on a grid s, an exact discrete Gaussian of scale σ.

    With μ′ = Δ′/σ and r = s/σ ≤ 1/32 the exact discrete curve is at most
    (1 + 3e^{−2π²/r²}) [Φ(−ε/μ′ + μ′/2 + r) − e^ε Φ(−ε/μ′ − μ′/2 − r)]: the tails move in opposite directions because
    the second is subtracted.

    Raises:
        InvalidInput: δ outside (0, 1), σ not positive, or a grid coarser than σ/32.
    """
    positive("sigma_x", release.scale)
    probability("delta", delta)
    sensitivity = effective_sensitivity(release)
    shift = Fraction(release.grid) / Fraction(release.scale)
    if shift * 32 > 1:
        raise InvalidInput("grid", f"{release.grid:g} is coarser than a 32nd of the noise scale {release.scale:g}")
    mu_fraction = sensitivity / Fraction(release.scale)

    def curve(epsilon: arb) -> arb:
        r = _ball(shift)
        value = _delta(epsilon, _ball(mu_fraction), r)
        return value if shift == 0 else value * (1 + 3 * (-2 * arb.pi() ** 2 / (r * r)).exp())

    return _least_epsilon(curve, delta, float(mu_fraction))


def gaussian_rho(release: GaussianRelease) -> float:
    """ρ = Δ′²/(2σ²), rounded up: the release is ρ-zCDP, and its Rényi divergence of order α is αρ."""
    positive("sigma_x", release.scale)
    ratio = effective_sensitivity(release) / Fraction(release.scale)
    return upper(lambda: _ball(ratio * ratio / 2))


def _ball(value: Fraction) -> arb:
    return arb(fmpq(value.numerator, value.denominator))


def _delta(epsilon: arb, mu: arb, shift: arb) -> arb:
    return cdf(-epsilon / mu + mu / 2 + shift) - epsilon.exp() * cdf(-epsilon / mu - mu / 2 - shift)


def _least_epsilon(curve: Callable[[arb], arb], delta: float, mu: float) -> float:
    """Bisects floats for the least ε at which curve(ε) ≤ δ is certain; the curve falls in ε."""

    def holds(epsilon: float) -> bool:
        value = sharp(lambda: curve(arb(epsilon)))
        return bool(value <= arb(delta))

    if holds(0.0):
        return 0.0
    low, high = 0.0, mu * mu / 2 + mu + math.ulp(0.0)
    while not holds(high):
        low, high = high, 2 * high
    while True:
        middle = low + (high - low) / 2
        if not low < middle < high:
            return high
        if holds(middle):
            high = middle
        else:
            low = middle
