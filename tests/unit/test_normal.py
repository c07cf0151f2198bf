"""Φ(−y), its integral and the quantile against mpmath: floats within their error, balls around the value."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flint import arb
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from privalign import normal
from privalign.intervals import at_precision

CELL = 1 / 16
EDGES = [float(cell * CELL) for cell in range(0, 16 * 13 + 1)]
NEXT_TO_EDGES = [near for edge in EDGES for near in (math.nextafter(edge, 0.0), edge, math.nextafter(edge, math.inf))]
ODD = [0.0, 5e-324, 1e-310, 2.0**-1022, 1e-300, 1e-20, 2.0**-53, 12.99, 13.0, 13.01, 26.0, 38.6, 40.0, 1e3, 1e100, 1e308]
Y = np.array([*NEXT_TO_EDGES, *(edge + CELL / 2 for edge in EDGES), *np.linspace(0, 40, 400).tolist(), *ODD])


def cdf(z: mpf) -> mpf:
    """Φ(z); 0 or 1 where mpmath has no floats left for it, and 10⁻⁸⁰⁰⁰ and less is missing."""
    return mp.ncdf(z) if abs(z) < 200 else mpf(int(z > 0))


def exact_tail(y: float) -> mpf:
    return cdf(-mpf(y))


def exact_integral(y: float) -> mpf:
    """g(y) = φ(y) − yΦ(−y), of which the difference takes 2·log y digits."""
    with mp.workdps(150):
        return mp.npdf(mpf(y)) - mpf(y) * mp.ncdf(-mpf(y)) if y < 200 else mpf(0)


def test_floats_are_within_their_error() -> None:
    with mp.workdps(60):
        for found, exact in ((normal.tail(Y), exact_tail), (normal.tail_integral(Y), exact_integral)):
            errors = [abs(mpf(value) - exact(y)) for value, y in zip(found.tolist(), Y.tolist(), strict=True)]
            assert max(errors) <= mpf(normal.FLOAT_ERROR)


def test_the_estimate_of_the_distribution_function_on_both_sides() -> None:
    z = np.concatenate([Y, -Y])
    with mp.workdps(60):
        errors = [abs(mpf(value) - cdf(mpf(x))) for value, x in zip(normal.cdf_estimate(z).tolist(), z.tolist(), strict=True)]
        assert max(errors) <= 2 * mpf(normal.FLOAT_ERROR)


def contains(ball: arb, value: mpf) -> bool:
    """Whether the value, given to 120 digits, may be in the ball."""
    return bool(ball.overlaps(arb(mp.nstr(value, 120))))


def test_balls_hold_the_value_and_are_sharp() -> None:
    with mp.workdps(150):
        for y in Y.tolist():
            ball = at_precision(normal.BITS, lambda y=y: normal.tail_integral_ball(arb(y)))
            assert contains(ball, exact_integral(y))
            assert float(ball.rad()) < 2.0**-121
            for z in (y, -y):
                ball = at_precision(normal.BITS, lambda z=z: normal.cdf_ball(arb(z)))
                assert contains(ball, cdf(mpf(z)))
                assert float(ball.rad()) < 2.0**-120


@given(st.floats(-41, 41), st.integers(20, 200))
@settings(max_examples=200, deadline=None)
def test_a_ball_that_is_not_exact_gives_one_that_holds_all_its_values(z: float, bits: int) -> None:
    with mp.workdps(150):
        radius = mpf(2) ** -bits * max(abs(mpf(z)), mpf(2) ** -20)
        argument = arb(z, (1, math.frexp(float(radius))[1]))
        ball = at_precision(normal.BITS, lambda: normal.cdf_ball(argument))
        if z != 0 and abs(z) > 4 * float(radius):  # one side of 0, as differences of floats are
            assert all(contains(ball, mp.ncdf(mpf(z) + step * radius / 2)) for step in (-1, 0, 1))


@given(st.integers(2, 300), st.data())
@settings(max_examples=200, deadline=None)
def test_the_quantile_holds_the_value_in_both_tails(bits: int, data: st.DataObject) -> None:
    digits = data.draw(st.integers(0, 1 << bits) | st.sampled_from([0, 1, 2, (1 << bits) - 1, 1 << bits, 1 << (bits - 1)]))
    ball = at_precision(bits + 64, lambda: normal.quantile(digits, bits))
    if digits in (0, 1 << bits):
        assert ball == (arb.neg_inf() if digits == 0 else arb.pos_inf())
        return
    assert float(ball.rad()) < 2.0**-50 * (1 + abs(float(ball)))
    with mp.workdps(250):  # Φ rises: its values at the ends of the ball are on either side of the digits
        low, high = (mpf(str(end.str(220, radius=False))) for end in (ball.lower(), ball.upper()))
        share = mpf(digits) / mpf(2) ** bits
        slack = mpf(10) ** -180
        assert mp.ncdf(low) <= share + slack
        assert share - slack <= mp.ncdf(high)
        assert at_precision(bits + 64, lambda: normal.quantile((1 << bits) - digits, bits)).overlaps(-ball)


@pytest.mark.parametrize("which", ["tail", "tail_integral", "cdf_estimate"])
def test_no_number_raises_a_warning(which: str) -> None:
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        assert np.isfinite(getattr(normal, which)(Y)).all()
