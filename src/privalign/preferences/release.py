"""A head that is released with differential privacy itself: its weights are public, and so is every score computed from them.

Output perturbation (Chaudhuri, Monteleoni & Sarwate 2011; Wu et al. 2017): w + N(0, s²I), s calibrated to ‖w − w′‖ by the exact
curve of the Gaussian mechanism (Balle & Wang 2018), which depends on ‖w − w′‖ alone and not on the dimension.
"""

from __future__ import annotations

import math
import secrets
import sys
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
from flint import arb
from numpy.typing import NDArray

from privalign import normal
from privalign.accounting.gaussian import gaussian_delta, probability
from privalign.errors import InvalidInput
from privalign.intervals import MOST_BITS, at_precision, upper
from privalign.preferences.bradley_terry import Head, HeadSettings
from privalign.randomness import GUARD_BITS, WORD
from privalign.sensitivity import Certificate

Floats = NDArray[np.float64]
GRID: Final = 2.0**-20  # the step that released weights are rounded to, in units of the noise; its power of two is taken
_MOST_STEPS: Final = 2.0**50  # a weight of more steps than this is refused: neighbouring steps must be distinct floats


def release_scale(bound: float, epsilon: float, delta: float) -> float:
    """The least noise s, up to a relative 1e-9, at which a release of weights with ‖w − w′‖ ≤ bound is (ε, δ)-DP.

    Formal guarantee: δ(ε) ≤ δ at μ = bound/s, proved by ball arithmetic.

    Raises:
        InvalidInput: ε is not a finite number above 0, or δ is not in (0, 1).
    """
    if not 0 < epsilon < math.inf:
        raise InvalidInput("release_epsilon", f"{epsilon} is not a finite number above 0")
    probability("release_delta", delta)
    low, high = 0.0, 1.0
    while gaussian_delta(epsilon, high) <= delta:
        low, high = high, 2 * high
    while high - low > 1e-10 * high or low == 0.0:
        middle = (low + high) / 2
        if gaussian_delta(epsilon, middle) <= delta:
            low = middle
        else:
            high = middle
    return upper(lambda: arb(bound) / arb(low))


def released_head(weights: Floats, settings: HeadSettings, scale: float, *, epsilon: float, delta: float, account: str) -> Head:
    """The head with noisy weights: keep it to yourself until the account has paid for `release_event`, then never draw again.

    Args:
        weights: of `minimisers`, one head, not projected.

    Formal guarantee: the weights are a function of w + N(0, s²I) over the reals, exactly; (ε, δ)-DP where
    s ≥ `release_scale(settings.weight_bound, epsilon, delta)`. Scores are post-processing: no query costs anything.
    Nothing is refused because of what the weights are: a coordinate beyond 2⁴⁹ grid steps is cut to that, which brings no two
    weights further apart.

    Raises:
        InvalidInput: the scale is not a finite number above 0, or too small for a grid below it.
    """
    most = furthest(scale)
    noisy = gaussian_vector(np.clip(weights, -most, most), scale)
    return Head(noisy, released_certificate(settings, scale, epsilon=epsilon, delta=delta, account=account))


def released_certificate(settings: HeadSettings, scale: float, *, epsilon: float, delta: float, account: str) -> Certificate:
    """The certificate of a released head, not signed yet; nothing in it depends on the preferences."""
    return replace(
        settings.certificate(),
        sensitivity=settings.range.width,  # assumed by whoever does not know that the scores are public
        weight_norm=None,  # noisy weights are not projected
        released={"epsilon": epsilon, "delta": delta, "account": account, "scale": scale},
    )


def grid_of(scale: float) -> float:
    """The step that weights with noise of this scale are rounded to.

    Raises:
        InvalidInput: the scale is not a finite number above 0, or too small for a grid below it.
    """
    if not sys.float_info.min / GRID < scale < math.inf:
        raise InvalidInput("scale", f"{scale} is not a finite number above 0, or too small for a grid below it")
    return 2.0 ** math.floor(math.log2(scale * GRID))


def furthest(scale: float) -> float:
    """What numbers are cut to before `gaussian_vector`, which would refuse larger ones and so say something of them."""
    return _MOST_STEPS / 2 * grid_of(scale)


def gaussian_vector(values: Floats, scale: float) -> Floats:
    """values_j + scale·Z_j rounded to a grid of about scale·2⁻²⁰, Z_j independent standard normal over the reals.

    Z_j = Φ⁻¹(U_j) of a uniform real U_j of which 64 digits are drawn. Floats with a proven error decide the grid point of
    nearly every coordinate; where the interval straddles the middle between two points (about one in 2¹⁵), interval
    arithmetic and further digits decide, until it is certain. Rounding is post-processing: nothing is added to the
    sensitivity, whatever the dimension. Entropy comes from the operating system.

    Raises:
        InvalidInput: the scale is not a finite number above 0, or a value is not finite or beyond 2⁵⁰ grid steps.
    """
    from scipy.special import ndtri

    grid = grid_of(scale)
    if not (np.isfinite(values).all() and float(np.abs(values).max(initial=0.0)) < _MOST_STEPS * grid):
        raise InvalidInput("weights", "they are too large for the noise, or not finite; nothing is released")
    words = np.frombuffer(secrets.token_bytes(8 * len(values)), dtype=np.uint64)
    # The nearer tail is known from integers as [m, m + 1]/2^64. |ẑ − Z| ≤ 2/m + 2^−36 as shown for the Gaussian argmax of
    # `randomness`; in steps of the grid x = (w + s·z)/grid, with a relative 2^−50 for the roundings of its three operations.
    m = np.minimum(words, ~words).astype(np.float64)
    with np.errstate(all="ignore"):
        z = np.where(words >> np.uint64(63) == 0, 1.0, -1.0) * ndtri((m + 0.5) * 2.0**-WORD)
        x = values / grid + (scale / grid) * z
        error = (scale / grid) * (2 / m + 2.0**-36) + (np.abs(values) / grid + (scale / grid) * np.abs(z)) * 2.0**-50
        steps = np.rint(x)
        certain = np.abs(x - steps) + error < 0.5
    for j in np.flatnonzero(~certain).tolist():
        steps[j] = _settled(int(words[j]), float(values[j]), scale, grid)
    released: Floats = steps * grid + 0.0  # no −0.0: its sign would tell on which side of 0 the rounded number lay
    return released


def _settled(digits: int, value: float, scale: float, grid: float) -> float:
    """The grid point nearest to value + scale·Φ⁻¹(U), U in [digits, digits + 1]/2^64, with as many more digits as it takes."""
    bits = WORD
    while bits <= MOST_BITS:
        low, high = at_precision(bits + GUARD_BITS, partial(_steps, digits, bits, value, scale, grid))
        if low is not None and low == high:
            return float(low)
        digits, bits = (digits << bits) | secrets.randbits(bits), 2 * bits
    raise ArithmeticError("no sharp enclosure of a Gaussian quantile")


def _steps(digits: int, bits: int, value: float, scale: float, grid: float) -> tuple[int | None, int | None]:
    """The steps ⌊x + ½⌋ at both ends of the interval; None where an end is infinite or straddles."""
    ends = []
    for end in (digits, digits + 1):
        x = (arb(value) + arb(scale) * normal.quantile(end, bits)) / arb(grid) + arb(0.5)
        ends.append(_floor(x))
    return ends[0], ends[1]


def _floor(x: Any) -> int | None:
    return int(x.floor().unique_fmpz()) if x.is_finite() and x.floor().unique_fmpz() is not None else None
