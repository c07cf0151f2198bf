"""PrivBoN with Gaussian noise against adaptive quadrature, a closed form and simulated pairs."""

from __future__ import annotations

import math
from itertools import pairwise

import mpmath as mp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privalign.accounting import gumbel
from privalign.accounting.gaussian_max import privbon_gaussian_epsilon
from privalign.errors import InvalidInput


def log_win(shift: mp.mpf, power: int) -> mp.mpf:
    """log E_z Φ(z − shift)^power by quadrature around the peak."""
    peak = mp.findroot(lambda z: -z + power * mp.npdf(z - shift) / mp.ncdf(z - shift), max(shift, mp.mpf(1)) * power / (power + 1))
    return mp.log(mp.quad(lambda z: mp.npdf(z) * mp.ncdf(z - shift) ** power, mp.linspace(peak - 12, peak + 12, 97)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "scale", "n"), [(0.1, 0.5, 2), (1.0, 1.0, 16), (0.3, 0.3, 7), (1e-6, 2.0, 256), (0.5, 0.05, 3), (1.0, 0.2, 4096)]
)
def test_epsilon_is_the_rounded_up_integral(share: float, scale: float, n: int) -> None:
    with mp.workdps(25):
        r, d, s = mp.mpf(1), mp.mpf(share), mp.mpf(scale)
        exact = log_win((r - 2 * d) / s, n - 1) - log_win(r / s, n - 1)
        value = privbon_gaussian_epsilon(share, 1.0, scale, n)
        assert exact * (1 - mp.mpf(10) ** -16) <= value <= exact * (1 + mp.mpf(10) ** -15)


@pytest.mark.parametrize("width", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("scale", [1e-9, 1e-2, 1.0, 1e9])
@pytest.mark.parametrize("share", [1e-9, 0.4, 1.0, 7.0])
def test_two_candidates_have_a_closed_form(width: float, scale: float, share: float) -> None:
    """n = 2: the difference of two noises is N(0, 2σ²), so ε = log Φ((2Δ − R)/(σ√2)) − log Φ(−R/(σ√2))."""
    delta, sigma = share * width, scale * width
    with mp.workdps(60):
        r, d, s = mp.mpf(width), min(mp.mpf(delta), mp.mpf(width)), mp.mpf(sigma) * mp.sqrt(2)
        exact = mp.log(mp.ncdf((2 * d - r) / s)) - mp.log(mp.ncdf(-r / s))
        value = privbon_gaussian_epsilon(delta, width, sigma, 2)
        assert exact <= value <= exact * (1 + mp.mpf(2) ** -51)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    rewards=st.lists(st.floats(0, 1), min_size=3, max_size=3),
    moves=st.lists(st.floats(-1, 1), min_size=3, max_size=3),
    share=st.floats(0.05, 1),
    scale=st.floats(0.2, 3),
)
def test_no_pair_of_reward_vectors_loses_more(rewards: list[float], moves: list[float], share: float, scale: float) -> None:
    there = [min(max(q + share * move, 0.0), 1.0) for q, move in zip(rewards, moves, strict=True)]
    bound = privbon_gaussian_epsilon(share, 1.0, scale, 3)
    with mp.workdps(15):

        def win(values: list[float]) -> mp.mpf:
            first, *rest = [mp.mpf(v) / scale for v in values]
            return mp.quad(lambda z: mp.npdf(z) * mp.ncdf(z + first - rest[0]) * mp.ncdf(z + first - rest[1]), [-9, -3, 0, 3, 9])

        assert abs(mp.log(win(rewards) / win(there))) <= bound + 1e-9


def test_it_grows_with_n_and_exceeds_gumbel() -> None:
    values = [privbon_gaussian_epsilon(1.0, 1.0, 1.0, n) for n in (1, 2, 16, 256, 4096, 10**6)]
    assert values[0] == 0
    assert all(less < more for less, more in pairwise(values))
    assert values[1] == pytest.approx(1.15, abs=5e-3)
    assert values[4] == pytest.approx(7.26, abs=5e-3)
    assert values[4] > gumbel.privbon_epsilon(1.0, 1.0, 1.0, 4096)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(share=st.floats(1e-3, 1), less=st.floats(0.1, 1), log_scale=st.floats(-1, 2), louder=st.floats(1, 10), n=st.integers(1, 300))
def test_epsilon_is_monotone(share: float, less: float, log_scale: float, louder: float, n: int) -> None:
    value = privbon_gaussian_epsilon(share, 1.0, 10**log_scale, n)
    assert privbon_gaussian_epsilon(share * less, 1.0, 10**log_scale, n) <= value
    assert privbon_gaussian_epsilon(share, 1.0, 10**log_scale * louder, n) <= value
    assert privbon_gaussian_epsilon(share, 1.0, 10**log_scale, n + 1) > value


@pytest.mark.parametrize(("scale", "n"), [(1e-9, 1000), (1e-4, 10**6), (1e9, 10**6), (1.0, 10**6)])
def test_extreme_settings(scale: float, n: int) -> None:
    value = privbon_gaussian_epsilon(0.1, 1.0, scale, n)
    assert 0 < value < math.inf


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_refusals(bad: float) -> None:
    good: list[float] = [0.1, 1.0, 0.5, 4]
    for position in range(4):
        with pytest.raises(InvalidInput):
            privbon_gaussian_epsilon(*good[:position], bad, *good[position + 1 :])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="n: "):
        privbon_gaussian_epsilon(0.1, 1.0, 0.5, 2.5)  # type: ignore[arg-type]
