"""Φ(−y) and its integral g(y) = φ(y) − yΦ(−y) for y ≥ 0 by one table of Taylor polynomials: the same steps for every y.

Library functions choose their method, and so their running time, by the argument, which is protected here. A table does not: cells of
width 1/16 on [0, 13), in each the Taylor polynomial about its centre c, |y − c| ≤ 1/32. With He_k the Hermite polynomials

    g(c + t) = g(c) − Φ(−c) t + Σ_{k ≥ 2} (−1)^k He_{k−2}(c) φ(c) t^k / k!

and |He_k φ| ≤ .434 √(k!) everywhere (Cramér's inequality), so that the remainder after degree d is at most
.434 √((d−1)!)/(d+1)! · |t|^{d+1}; one degree less for Φ(−y) = −g′(y). Beyond 13 both are below 2⁻¹²⁴ and taken as their value at 13.

Floats (degree 8): remainder below 2⁻⁵⁷; the rounding of the last addition and of the leading coefficient, both on numbers of at most a
half, is 2⁻⁵⁵ each, everything behind them is multiplied by t ≤ 2⁻⁵ or more: together below 2⁻⁵³ (`FLOAT_ERROR`).
Balls (degree 20, at `BITS`): remainders below 2⁻¹⁴⁰ and 2⁻¹³⁰ are added to the ball; arithmetic carries its own errors.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from flint import arb, arb_poly
from numpy.typing import NDArray

from privalign.intervals import at_precision, cdf, phi, ramp

Floats = NDArray[np.float64]

FLOAT_ERROR = 2.0**-53  # of `tail` and `tail_integral`, absolute
BITS = 192  # working precision of a decision in balls; what it leaves open has a probability below 2^−100
_CELLS_PER_UNIT, _END = 16, 13
_CELLS = _CELLS_PER_UNIT * _END
_FLOAT_DEGREE, _BALL_DEGREE = 8, 20
_INTEGRAL_REST, _TAIL_REST = arb(0, 2.0**-122), arb(0, 2.0**-122)  # remainder, and what lies beyond 13


def tail_integral(y: Floats) -> Floats:
    """g(y) = ∫_y^∞ Φ(−s) ds = φ(y) − yΦ(−y) for y ≥ 0, within `FLOAT_ERROR`."""
    return _evaluate(_float_tables()[0], y)


def tail(y: Floats) -> Floats:
    """Φ(−y) for y ≥ 0, within `FLOAT_ERROR`."""
    return _evaluate(_float_tables()[1], y)


def tail_integral_ball(y: arb) -> arb:
    """A ball around g(y) for y ≥ 0, of radius about 2⁻¹²² where y is exact and the precision is `BITS`."""
    return _evaluate_ball(0, y) + _INTEGRAL_REST


def cdf_ball(z: arb) -> arb:
    """A ball around Φ(z), of radius about 2⁻¹²² where z is exact and the precision is `BITS`; the same steps for every z."""
    upper = _evaluate_ball(1, abs(z)) + _TAIL_REST  # Φ(−|z|)
    positive = float(z) > 0
    return upper + (1 - 2 * upper) * int(positive)


def cdf_estimate(z: Floats) -> Floats:
    """Φ(z) within 2·`FLOAT_ERROR`."""
    lower = tail(np.abs(z))
    result: Floats = np.where(z > 0, 1.0 - lower, lower)
    return result


def quantile(digits: int, bits: int) -> arb:
    """Φ⁻¹(digits/2^bits) at the current precision, equally sharp in both tails; infinite at 0 and at 1."""
    if 2 * digits > 1 << bits:
        return -quantile((1 << bits) - digits, bits)
    if digits == 0:
        return arb.neg_inf()
    return -arb(2).sqrt() * arb((digits, 1 - bits)).erfcinv()


def _evaluate(table: Floats, y: Floats) -> Floats:
    """Horner's rule with the coefficients of each number's cell."""
    within = np.minimum(y, _END)
    cells = np.minimum((within * _CELLS_PER_UNIT).astype(np.int64), _CELLS - 1)
    offset = within - (cells + 0.5) / _CELLS_PER_UNIT
    coefficients = table[:, cells]
    value = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        value = coefficient + value * offset
    result: Floats = value
    return result


def _evaluate_ball(which: int, y: arb) -> arb:
    within = (y, arb(_END))[float(y) >= _END]  # not arb.min, whose ball is as wide as the digits that a far larger y lacks
    cell = min(int(float(within) * _CELLS_PER_UNIT), _CELLS - 1)
    return _ball_tables()[cell][which](within - arb((2 * cell + 1, -1)) / _CELLS_PER_UNIT)


@lru_cache(maxsize=1)
def _ball_tables() -> list[tuple[arb_poly, arb_poly]]:
    """The polynomials of g and of Φ(−y) in every cell."""
    return at_precision(BITS + 64, lambda: [_polynomials(arb((2 * cell + 1, -1)) / _CELLS_PER_UNIT) for cell in range(_CELLS)])


def _polynomials(centre: arb) -> tuple[arb_poly, arb_poly]:
    coefficients = [ramp(-centre), -cdf(-centre)]
    previous, hermite = arb(0), arb(1)  # He_{k−1}, He_k
    scale = phi(centre) / 2
    for k in range(_BALL_DEGREE - 1):
        coefficients.append(scale * hermite)
        scale = -scale / (k + 3)
        previous, hermite = hermite, centre * hermite - k * previous
    integral = arb_poly(coefficients)
    return integral, -integral.derivative()


@lru_cache(maxsize=1)
def _float_tables() -> tuple[Floats, Floats]:
    """Coefficients as floats, shape (degree + 1, cells), for g and for Φ(−y)."""
    tables = np.array([[[float(polynomial[k]) for k in range(_FLOAT_DEGREE + 1)] for polynomial in cell] for cell in _ball_tables()])
    return np.ascontiguousarray(tables[:, 0].T), np.ascontiguousarray(tables[:, 1].T)
