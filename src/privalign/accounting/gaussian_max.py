"""PrivBoN with Gaussian noise: exact ε by rigorous quadrature (Lebensold et al. 2024; paper, eq. 26)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from flint import acb, arb, ctx

from privalign.acceptance import positive, whole
from privalign.intervals import FAR, HALF, TooExtreme, cdf, phi, upper


@lru_cache(maxsize=4096)
def privbon_gaussian_epsilon(sensitivity: float, width: float, scale: float, n: int) -> float:
    """The exact ε of argmax(r_i + N(0, σ²)) over n candidates, rounded up.

    ε = log E_z[Φ(z − (R−2Δ)/σ)^{n−1}] − log E_z[Φ(z − R/σ)^{n−1}], z ~ N(0, 1), Δ clipped to R; n = 1 costs 0.

    Formal guarantee: the index is ε-DP for rewards in [0, R] that move by at most Δ. Grows with n; looser than Gumbel
    noise of the same scale. Each expectation is an integral of a log-concave function: the part around its mode by
    ball arithmetic, the two tails bounded by exponentials.

    Args:
        sensitivity: Δ > 0. width: R > 0. scale: σ > 0. n: 1 to 10⁶.
    """
    positive("sensitivity", sensitivity)
    positive("range", width)
    positive("scale", scale)
    whole("n", n)
    if n == 1:
        return 0.0
    delta = min(sensitivity, width)

    def formula() -> arb:
        far = arb(width) / arb(scale)
        near = (arb(width) - 2 * arb(delta)) / arb(scale)
        return _log_expectation(near, n - 1) - _log_expectation(far, n - 1)

    return upper(formula)


def _log_expectation(shift: arb, power: int) -> arb:
    """A ball around log ∫ φ(z) Φ(z − c)^m dz at the current precision."""
    peak = arb(_mode(float(shift), power))
    start = peak - shift

    def fallen(offset: arb) -> arb:
        """How far the log of the integrand is below its value at the peak."""
        return offset * offset / 2 + peak * offset - power * _log_cdf_ratio(start, offset)

    left, right = (_reach(fallen, sign) for sign in (-1, 1))
    body = acb.integral(lambda offset, _: _relative(offset, peak, start, power), acb(left), acb(right)).real
    tails = arb(0)
    for end in (left, right):
        slope = abs(end + peak - power * phi(end + start) / cdf(end + start))  # log-concave: at least this steep further out
        tails += ((-fallen(end)).exp() / slope).union(arb(0))
    return -peak * peak / 2 + power * cdf(start).log() + (body + tails).log() - (2 * arb.pi()).log() / 2


def _relative(offset: acb, peak: arb, start: arb, power: int) -> acb:
    """The integrand over its value at the peak; in the far tail of Φ the two exponentials are joined before e^x."""
    z = start + offset
    if z.real < -FAR and start < -FAR:
        ratio = (z * z / 2).hypgeom_u(acb(HALF), acb(HALF)) / (start * start / 2).hypgeom_u(HALF, HALF)
        return (-(1 + power) * offset * offset / 2 - (peak + power * start) * offset).exp() * ratio**power
    ratio = (-z / acb(2).sqrt()).erfc() / (2 * cdf(start))
    return (-offset * offset / 2 - peak * offset).exp() * ratio**power


def _log_cdf_ratio(start: arb, offset: arb) -> arb:
    """log Φ(x + o) − log Φ(x)."""
    z = start + offset
    if z < -FAR and start < -FAR:
        ratio = (z * z / 2).hypgeom_u(HALF, HALF) / (start * start / 2).hypgeom_u(HALF, HALF)
        return ratio.log() - offset * offset / 2 - start * offset
    return (cdf(z) / cdf(start)).log()


def _reach(fallen: Callable[[arb], arb], sign: int) -> arb:
    """An offset at which the integrand is below 2^−precision of its peak."""
    offset = arb(sign) / 4096
    enough = arb(ctx.prec)
    while not fallen(offset) > enough:
        offset *= arb(1.5)
        if offset.abs_lower() > 1e6:
            raise TooExtreme("no sharp enclosure of a privacy formula: the integrand does not fall")
    return arb(offset.mid())


def _mode(shift: float, power: int) -> float:
    """The mode of −z²/2 + m log Φ(z − c) in floats; only speed depends on it."""
    from scipy.special import erfcx

    low, high = min(shift, 0.0) - 1.0, max(shift, 0.0) + 2.0 + math.sqrt(2 * math.log(power + 1))
    for _ in range(200):
        middle = (low + high) / 2
        hazard = math.sqrt(2 / math.pi) / float(erfcx((shift - middle) / math.sqrt(2)))
        low, high = (middle, high) if power * hazard > middle else (low, middle)
    return low
