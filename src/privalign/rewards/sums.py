"""Sums and sigmoids of protected numbers by work that their values do not change: its time tells nothing.

`math.fsum` runs longer the more digits its terms have in all, and multiplying subnormal numbers takes many times as long as others.
Here every number is brought to whole steps of a public grid, and whole numbers are added: the same instructions whatever they are.
Let u = 2⁻⁵³.

**Sums.** Of terms with Σ|t| ≤ 1 + 2⁻²⁰, at most 2²⁵ of them: t·2⁵² is exact, split into the nearest whole number and a rest
that is exact too and becomes whole steps of 2⁻²⁹, off by at most half of one. Both sums are exact: below 2⁵³, as is needed to become a
float. Their one addition rounds by u·|Σt|; the steps that were rounded off are at most 2²⁵·2⁻³⁰·2⁻⁵² = 2⁻⁵⁷ = u/16 in all.

**Products.** Values v and weights w with ‖v‖, ‖w‖ ≤ 1 on the grid of 2⁻¹⁰⁰ have products that are 0 or at least 2⁻²⁰⁰: never subnormal.
Each product rounds by u of itself, Σ|vⱼwⱼ| ≤ 1 by Cauchy–Schwarz. Scaled by powers of two, which are exact, to ‖φ‖ ≤ B < 2^f ≤ 2B and
‖w‖ ≤ W < 2^e ≤ 2W, the error of w·φ is at most

    u·BW + u·BW(1 + 2⁻²⁰) + (u/16)·2^(e+f) + 2⁻⁸⁰·BW  <  2.3u·BW

of products, addition, steps, and the grid of v and w (‖Δ‖ ≤ √2²⁸·2⁻¹⁰¹ each). Certificates charge 3u·BW for it.

**Means.** Of K scores within ±M scaled by 2^a ≥ KM, a ≤ log₂ 2KM: u·M of the addition, u·M of the quotient, and (K/2²⁵)(u/16)·2M of
the steps: less than 2.2u·M. Ensembles charge 4u·M for it.

**Sigmoid.** x is cut to ±40 and rounded to 2⁻⁴⁶, so that 64 − x is exact and between 24 and 104, far from where the exponential takes other
paths or becomes subnormal: σ(x) = 1/(1 + e⁻⁶⁴·e^(64−x)). Cutting brings no two x further apart. σ has a slope of at most ¼, so that
rounding x costs at most 2⁻⁴⁹, and what e^(64−x), e⁻⁶⁴ and their product are off by, below 12u of e⁻ˣ, at most 3u; the last two
operations round by 2u.
Certificates charge 16u for these, and for logits (8u·2²⁰, of which 3.5u/2·2²⁰ are used by the errors above) far more than 2⁻⁴⁹.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from privalign.errors import InvalidInput

Floats = NDArray[np.float64]
MOST_TERMS: Final = 2**25
_COARSE: Final = 2.0**52
_FINE: Final = 2.0**29
_GRID: Final = 2.0**100
_LOGIT: Final = 40.0  # σ(±40) is within 2⁻⁵⁷ of 0 or 1
_LOGIT_STEPS: Final = 2.0**46


def scaled(values: Floats, bound: float) -> tuple[Floats, int]:
    """Numbers below a public bound divided by a power of two above it, on the grid; and its exponent. Shape as `values`."""
    exponent = math.frexp(bound)[1]
    return np.rint(times_power(values, -exponent) * _GRID) / _GRID, exponent


def times_power(values: Floats, exponent: int) -> Floats:
    """values·2^exponent, exactly; in two steps, whose factors are floats for exponents within ±2,000."""
    half = exponent // 2
    result: Floats = values * math.ldexp(1.0, half) * math.ldexp(1.0, exponent - half)
    return result


def sums(terms: Floats, ends: NDArray[np.int64]) -> Floats:
    """The sum of the terms from each end to the next, shape (len(ends) − 1,); see above for its error.

    Args:
        terms: Σ|t| ≤ 1 + 2⁻²⁰ within each sum. ends: public, rising, the first 0.

    Raises:
        InvalidInput: a sum has more than 2²⁵ terms.
    """
    if len(ends) > 1 and int(np.diff(ends).max()) > MOST_TERMS:
        raise InvalidInput("features", f"a text has more than {MOST_TERMS:,} of them; give shorter texts")
    steps = terms * _COARSE
    coarse = np.rint(steps)
    fine = np.rint((steps - coarse) * _FINE)
    total: Floats = (_totals(coarse, ends) + _totals(fine, ends) / _FINE) / _COARSE
    return total


def _totals(whole: Floats, ends: NDArray[np.int64]) -> Floats:
    """Exact: a running sum that wraps around has the right differences all the same."""
    running = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(whole.astype(np.int64))])
    totals: Floats = (running[ends[1:]] - running[ends[:-1]]).astype(np.float64)
    return totals


def means(scores: Floats, largest: float) -> Floats:
    """The means of the columns of scores within ±largest, shape (K, n) to (n,)."""
    count, columns = scores.shape
    terms, exponent = scaled(scores.T.ravel(), count * largest * (1 + 2.0**-20))
    result: Floats = times_power(sums(terms, np.arange(columns + 1) * count), exponent) / count
    return result


def sigmoid(logits: Floats) -> Floats:
    """1/(1 + e⁻ˣ)."""
    steps = np.rint(np.clip(logits, -_LOGIT, _LOGIT) * _LOGIT_STEPS) / _LOGIT_STEPS
    result: Floats = 1.0 / (1.0 + math.exp(-64.0) * np.exp(64.0 - steps))
    return result
