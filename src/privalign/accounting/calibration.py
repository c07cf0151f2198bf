"""The least noise that meets a target ε: the inverse of the accounting functions, never above the target."""

from __future__ import annotations

import math
from collections.abc import Callable

from privalign.acceptance import positive
from privalign.accounting import costs
from privalign.errors import InvalidInput
from privalign.events import Event
from privalign.sensitivity import Sensitivity

RELATIVE_WIDTH = 1e-9  # the bracket around the least scale is narrowed to this
LEAST_RATIO, MOST_RATIO = 1e-9, 1e9  # scales searched, in units of R


def calibrate(event: Callable[[float], Event], epsilon: float, delta: float, sensitivity: Sensitivity) -> float:
    """The least scale, to a relative 10⁻⁹, at which `event(scale)` costs at most `epsilon` at `delta`.

    What is priced is the event that a mechanism charges, sampling slack included; for rejection rounds the worst case
    over thresholds and halting times. ε falls as the scale grows; the end of the bracket that is returned is the one
    at which the target has been shown to be met.

    Args:
        event: the event at a scale, e.g. `lambda scale: PrivBoN(n, scale).event(sensitivity)`.
        epsilon: target > 0. delta: for Gaussian releases, in (0, 1).
        sensitivity: its range gives the scales to search, 10⁻⁹R to 10⁹R.

    Raises:
        InvalidInput: ε is not a finite number above 0, or no such scale meets it.
    """
    positive("epsilon", epsilon)

    def holds(scale: float) -> bool:
        return costs.epsilon(event(scale), delta) <= epsilon

    least, most = LEAST_RATIO * sensitivity.width, MOST_RATIO * sensitivity.width
    if holds(least):
        return least
    low, high = least, max(sensitivity.delta, 2 * least)
    while not holds(high):
        if high >= most:
            raise InvalidInput("epsilon", f"{epsilon:g} cannot be met by noise of up to 10⁹ times the range; ask for a larger one")
        low, high = high, min(high * 4, most)
    while high > low * (1 + RELATIVE_WIDTH):
        middle = math.sqrt(low) * math.sqrt(high)
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
