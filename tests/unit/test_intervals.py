"""Rounding in a stated direction, and the normal integrals, against 80-digit arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import mpmath as mp
import pytest
from flint import arb, ctx, fmpq
from hypothesis import example, given
from hypothesis import strategies as st

from privalign.intervals import at_precision, cdf, less, phi, ramp, round_down, round_up, sharp, shown, upper

POINTS = [-1e6, -1e3, -40.0, -12.0000001, -12.0, -11.9999999, -3.0, -1e-9, 0.0, 1e-300, 0.5, 8.0, 40.0, 1e6]
fractions = st.fractions(min_value=-(10**30), max_value=10**30)


def ball_of(value: Fraction) -> arb:
    return arb(fmpq(value.numerator, value.denominator))


@given(fractions)
def test_rounding_brackets_the_exact_number(value: Fraction) -> None:
    high, low = round_up(ball_of(value)), round_down(ball_of(value))
    assert Fraction(low) <= value <= Fraction(high)
    assert high - low <= 4 * math.ulp(float(value))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_round_to_themselves(value: float) -> None:
    assert round_up(arb(value)) == value == round_down(arb(value))


def test_rounding_beyond_the_floats() -> None:
    tiny, huge = arb(2) ** -2000, arb(2) ** 2000
    assert round_up(tiny) == math.ulp(0.0)
    assert round_down(tiny) == 0.0
    assert round_up(huge) == math.inf
    assert round_down(-huge) == -math.inf


def test_upper_is_the_least_float_above() -> None:
    third = upper(lambda: arb(1) / 3)
    assert Fraction(third) > Fraction(1, 3) > Fraction(math.nextafter(third, 0))


def test_sharp_survives_cancellation_of_a_thousand_bits() -> None:
    exact = sharp(lambda: (arb(1) + arb(2) ** -1000) - 1)
    assert exact.overlaps(arb(2) ** -1000)
    assert exact.rel_accuracy_bits() >= 58


def test_sharp_refuses_what_has_no_value() -> None:
    with pytest.raises(ArithmeticError, match="too extreme"):
        sharp(lambda: arb(1) / arb(0))
    with pytest.raises(ArithmeticError, match="too extreme"):
        sharp(lambda: arb(2).log() + arb("0.5").log())  # 0, but no ball can show it


def test_precision_is_restored_after_an_error() -> None:
    before = ctx.prec

    def fail() -> arb:
        assert ctx.prec == 777
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        at_precision(777, fail)
    assert ctx.prec == before


def reference_ramp(z: mp.mpf) -> mp.mpf:
    return z * mp.ncdf(z) + mp.npdf(z)


def exact(point: arb) -> mp.mpf:
    """The dyadic number that a ball of radius 0 is."""
    mantissa, exponent = point.man_exp()
    return mp.ldexp(mp.mpf(int(mantissa)), int(exponent))


@pytest.mark.parametrize(
    ("function", "reference"),
    [(phi, mp.npdf), (cdf, mp.ncdf), (ramp, reference_ramp)],
    ids=["phi", "cdf", "ramp"],
)
@pytest.mark.parametrize("z", POINTS)
def test_normal_integrals(function: Callable[[arb], arb], reference: Callable[[mp.mpf], mp.mpf], z: float) -> None:
    with mp.workdps(80):
        value = reference(mp.mpf(z))
        ball = sharp(lambda: function(arb(z)))
        middle, radius = exact(ball.mid()), exact(ball.rad())
        assert abs(value - middle) <= radius + abs(value) * mp.mpf(10) ** -75
        assert radius <= abs(value) * mp.mpf(2) ** -56


@given(st.floats(1e-12, 1e12), st.integers(1, 8))
def test_what_is_shown_is_never_below_the_bound(bound: float, digits: int) -> None:
    text = shown(bound, digits)
    assert float(text) >= bound
    assert float(text) <= bound * (1 + 10.0 ** (1 - digits)) * (1 + 1e-15)


@given(st.floats(1e-12, 1e6), st.floats(0, 1.5) | st.integers(0, 10**4).map(lambda share: share / 10**4))
@example(8.0, 0.78)
@example(8.0, 1.25e-29)  # more digits apart than a decimal context holds
def test_what_is_left_and_what_is_spent_never_exceed_the_total_as_printed(total: float, share: float) -> None:
    spent = total * share
    left, exact = less(total, spent), Fraction(Decimal(repr(total))) - Fraction(Decimal(repr(spent)))
    assert left >= 0
    assert Fraction(Decimal(repr(left))) <= max(0, exact)
    assert left == 0 or Fraction(Decimal(repr(math.nextafter(left, math.inf)))) > exact


def test_what_is_left_reads_like_a_subtraction_on_paper() -> None:
    assert [less(8.0, 6.24), less(0.3, 0.1), less(1e-6, 1e-10), less(1.0, 1.5)] == [1.76, 0.2, 9.999e-7, 0.0]


@pytest.mark.parametrize(
    ("bound", "text"), [(20.0, "20"), (0.001, "0.001"), (1e-6, "1e-6"), (8.000004, "8.00001"), (0.0, "0"), (1.00035, "1.00035")]
)
def test_round_numbers_are_shown_as_they_are(bound: float, text: str) -> None:
    assert shown(bound) == text
