"""What every mechanism looks like: settings, `event`, `run`. Pure: no I/O, no clock, no text.

`run` is a generator. It yields a `Draw` when it needs the rewards of fresh candidates, is sent them, and returns a
`Selection`. Drivers (`mechanisms.driver`, the aligner) are the only loops around it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privalign.errors import InvalidRewards
from privalign.events import Event, Free
from privalign.randomness import Randomness
from privalign.sensitivity import FARTHEST, Sensitivity

Rewards = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Draw:
    """A request for the rewards of fresh candidates, in the order in which they were drawn.

    Args:
        least, most: how many rewards have to be sent, and may be; the mechanism decides on all that it is sent in one batch, whose work
            depends on their number alone.
        ahead: how many more candidates may be drawn and scored together with these, for the next `Draw`.
    """

    least: int
    most: int
    ahead: int = 0


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


_FARTHEST = int(FARTHEST)
_WHOLE = (int, np.integer)
_NUMBERS = frozenset(
    {float, int, np.float64, np.float32, np.float16, *(np.dtype(f"{kind}{size}").type for kind in "iu" for size in "1248")}
)


def read_scores(rewards: Any, least: int, most: int | None = None) -> Rewards:
    """From `least` to `most` (default: as many) raw scores as floats, shape (count,); types are looked at before anything is converted.

    A whole number that a float would round is beyond ±2^53, the farthest that a range goes: it is cut to that, so that no two come further
    apart. Numbers of more digits than a float, booleans and masked arrays are refused.

    Raises:
        InvalidRewards: not so many real numbers, or one is NaN or infinite (the message does not say which).
    """
    scores = np.array(_floats(rewards), ndmin=1) if isinstance(rewards, Sequence) else np.asarray(rewards)
    if isinstance(rewards, np.ma.MaskedArray) or scores.dtype.kind not in "fiu":
        raise InvalidRewards("the scorer returned something that is not a list of numbers; refusing to select")
    if scores.ndim != 1 or not least <= len(scores) <= (most or least):
        raise InvalidRewards(f"the scorer returned scores of shape {scores.shape} for {most or least} candidates; refusing to select")
    if scores.dtype.itemsize > 8:
        raise InvalidRewards("the scorer returned numbers of more digits than a float holds; give floats")
    if scores.dtype.kind != "f":
        info = np.iinfo(scores.dtype)
        scores = np.clip(scores, max(info.min, -_FARTHEST), min(info.max, _FARTHEST))
    scores = scores.astype(np.float64)
    if not np.isfinite(scores).all():
        raise InvalidRewards("the scorer returned a score that is not a finite number; refusing to select")
    return scores


def _floats(rewards: Sequence[Any]) -> list[float]:
    kinds = {type(reward) for reward in rewards}
    if np.longdouble in kinds - _NUMBERS:
        raise InvalidRewards("the scorer returned numbers of more digits than a float holds; give floats")
    if kinds - _NUMBERS:
        raise InvalidRewards("the scorer returned something that is not a list of numbers; refusing to select")
    try:
        return [as_float(reward) for reward in rewards]
    except OverflowError:
        raise InvalidRewards("the scorer returned a score that is not a finite number; refusing to select") from None


def as_float(number: Any) -> float:
    """A real number of Python or NumPy as a float; a whole number is cut to ±2^53, so that it is one.

    Raises:
        OverflowError: a whole number that is beyond every float.
    """
    nearest = float(number)
    return float(min(max(int(number), -_FARTHEST), _FARTHEST)) if isinstance(number, _WHOLE) else nearest


@np.errstate(all="ignore")
def admit(rewards: Any, sensitivity: Sensitivity, least: int, most: int | None = None) -> Rewards:
    """Reads raw scores (`read_scores`), clips them to the public range and shifts them to [0, R]."""
    scores = read_scores(rewards, least, most)
    low, high = sensitivity.range.low, sensitivity.range.high
    shifted: Rewards = np.clip(np.clip(scores, low, high) - low, 0.0, sensitivity.width)
    return shifted
