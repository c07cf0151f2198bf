"""What every mechanism looks like: settings, `event`, `run`. Pure: no I/O, no clock, no text.

`run` is a generator. It yields `Draw(count)` when it needs the rewards of `count` fresh candidates, is sent them, and
returns a `Selection`. Drivers (`mechanisms.driver`, the aligner) are the only loops around it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privalign.errors import InvalidRewards
from privalign.events import Event, Free
from privalign.randomness import Randomness
from privalign.sensitivity import Sensitivity

Rewards = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Draw:
    """A request for the rewards of `count` fresh candidates, in the order in which they were drawn."""

    count: int


@dataclass(frozen=True, slots=True)
class Selection:
    """Which candidate to release and what was spent.

    `index` counts all candidates drawn for this query from 0, in order; it may name the next candidate not drawn yet
    (a fallback, the base policy), which is released without being scored. `halting_time` counts phase-2 candidates
    looked at (None for mechanisms of one phase).
    """

    index: int
    realised: Event
    halting_time: int | None = None
    fallback: bool = False


Run = Generator[Draw, ArrayLike, Selection]


class Mechanism(Protocol):
    """The one interface of all selection rules."""

    @property
    def name(self) -> str:
        """The name on the command line."""

    @property
    def pool_size(self) -> int:
        """The largest number of candidates that one query can ask for, the fallback included."""

    def event(self, sensitivity: Sensitivity) -> Event:
        """The worst case of one query, from public settings only: what a ledger reserves."""

    def run(self, sensitivity: Sensitivity, noise: Randomness) -> Run:
        """One query."""


def event_of(mechanism: Mechanism, sensitivity: Sensitivity) -> Event:
    """What one query about rewards of this sensitivity costs: `Free` for every mechanism where the rewards are public.

    A head that was itself released under differential privacy is paid for; whatever is computed from it is
    post-processing, for the account that paid.
    """
    return Free(sensitivity.release) if sensitivity.public else mechanism.event(sensitivity)


def admit(rewards: Any, count: int, sensitivity: Sensitivity) -> Rewards:
    """Checks `count` raw scores, clips them to the public range and shifts them to [0, R].

    Raises:
        InvalidRewards: not `count` real numbers, numbers that a float would round, or one is NaN or infinite (the message
            does not say which).
    """
    scores = np.asarray(rewards)
    if scores.dtype.kind not in "fiu":
        raise InvalidRewards("the scorer returned something that is not a list of numbers; refusing to select")
    if scores.shape != (count,):
        raise InvalidRewards(f"the scorer returned scores of shape {scores.shape} for {count} candidates; refusing to select")
    if scores.dtype.itemsize > 8:  # rounding could move scores further apart than Δ; whole numbers within the range are floats
        raise InvalidRewards("the scorer returned numbers of more digits than a float holds; give floats")
    scores = scores.astype(np.float64)
    if not np.isfinite(scores).all():
        raise InvalidRewards("the scorer returned a score that is not a finite number; refusing to select")
    low, high = sensitivity.range.low, sensitivity.range.high
    shifted: Rewards = np.clip(np.clip(scores, low, high) - low, 0.0, sensitivity.width)
    return shifted
