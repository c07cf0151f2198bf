"""Rigorous real numbers: ball arithmetic that is refined until it is sharp, then rounded in a stated direction.

Almost everything that privalign prints or charges as an ε goes through here (the Rényi cost of rejection rounds below
Δ = R is floats with a stated slack, and privacy loss distributions are another library's): a formula is evaluated with python-flint's `arb`
balls, which enclose the true value of the formula at the given floats; the precision is doubled until the enclosure is
sharp; and the end of the enclosure that is on the safe side becomes a float.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from typing import TypeVar

from flint import arb, ctx

from privalign.errors import InvalidInput

START_BITS = 96
MOST_BITS = 1 << 14
FAR = 12  # standard deviations below 0 from which the confluent form of the normal tail is used
ONE, HALF = arb(1), arb(0.5)
SHARP_BITS = 58  # relative accuracy asked of an enclosure: below half an ulp of a float

T = TypeVar("T")


class TooExtreme(InvalidInput, ArithmeticError):
    """A formula that no precision makes sharp: nothing is guessed, so nothing can be priced."""

    def __init__(self, what: str) -> None:
        super().__init__("settings", f"{what}; one of them is too extreme, give milder ones")


def at_precision(bits: int, formula: Callable[[], T]) -> T:
    """Evaluates `formula` with balls of `bits` bits."""
    before = ctx.prec
    ctx.prec = bits
    try:
        return formula()
    finally:
        ctx.prec = before


def sharp(formula: Callable[[], arb]) -> arb:
    """The enclosure of a formula, refined until its relative error is below 2⁻⁵⁸ or it is exactly 0.

    `formula` must build its balls from floats when called, so that a call at a higher precision is sharper.

    Raises:
        TooExtreme: no sharp enclosure at 16,384 bits (the formula is singular there).
    """
    bits = START_BITS
    while bits <= MOST_BITS:
        ball = at_precision(bits, formula)
        if ball.is_finite() and (ball.rel_accuracy_bits() >= SHARP_BITS or ball.is_zero()):
            return ball
        bits *= 2
    raise TooExtreme("no sharp enclosure of a privacy formula")


def round_up(ball: arb) -> float:
    """The least float that is certainly not below the ball; infinity where floats end."""
    bound = float(ball.upper())
    return bound if arb(bound) >= ball else math.nextafter(bound, math.inf)


def shown(bound: float, digits: int = 6) -> str:
    """A bound for people, with this many significant digits, rounded up: what is printed is a bound too."""
    if not math.isfinite(bound):
        return str(bound)
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(_printed(bound)).normalize()
    return f"{rounded:f}" if 1e-4 <= abs(bound) < 1e6 or bound == 0 else f"{rounded:e}"


def less(total: float, spent: float) -> float:
    """What is left of a total, both as printed: their exact decimal difference, rounded down; never negative.

    A difference of floats may come out above what the two printed numbers leave: 8 − 6.24 is not 1.76 in binary.
    """
    exact = max(Fraction(0), Fraction(_printed(total)) - Fraction(_printed(spent)))  # decimals would round to their context
    left = float(exact)
    return left if Fraction(_printed(left)) <= exact else math.nextafter(left, 0.0)


def total(values: Iterable[float]) -> float:
    """The sum of numbers as printed, rounded up."""
    exact = sum((Fraction(_printed(value)) for value in values), Fraction(0))
    bound = float(exact)
    return bound if Fraction(_printed(bound)) >= exact else math.nextafter(bound, math.inf)


def _printed(value: float) -> Decimal:
    return Decimal(repr(float(value)))


def round_down(ball: arb) -> float:
    """The greatest float that is certainly not above the ball."""
    return -round_up(-ball)


def upper(formula: Callable[[], arb]) -> float:
    """The formula's value as a float, rounded up."""
    return round_up(sharp(formula))


def phi(z: arb) -> arb:
    """Standard normal density φ(z)."""
    return (-(z * z) / 2).exp() / (2 * arb.pi()).sqrt()


def cdf(z: arb) -> arb:
    """Standard normal distribution function Φ(z), with full relative accuracy in the lower tail.

    Far out, erfc of a ball that is not exact loses all its digits; there Φ(−y) = φ-like factor × U(½, ½, y²/2).
    """
    if z < -FAR:
        square = z * z / 2
        return (-square).exp() * square.hypgeom_u(HALF, HALF) / (2 * arb.pi().sqrt())
    return (-z / arb(2).sqrt()).erfc() / 2


def ramp(z: arb) -> arb:
    """G(z) = zΦ(z) + φ(z) = ∫_{−∞}^{z} Φ.

    Far below 0, where the two terms cancel: G(−y) = e^{−y²/2} U(1, ½, y²/2)/√(8π), the repeated integral of erfc.
    """
    if z < -FAR:
        square = z * z / 2
        return (-square).exp() * square.hypgeom_u(ONE, HALF) / (8 * arb.pi()).sqrt()
    return z * cdf(z) + phi(z)
