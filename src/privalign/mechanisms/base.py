"""The base policy itself: one draw, no reward, no privacy cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privalign.events import Event, Free
from privalign.mechanisms.protocol import Run, Selection
from privalign.randomness import Randomness
from privalign.sensitivity import Sensitivity


@dataclass(frozen=True, slots=True)
class Base:
    """Releases the first draw unseen. Guarantee: nothing of the protected data is touched (`Free`)."""

    name: ClassVar[str] = "base"
    pool_size: ClassVar[int] = 1

    def event(self, sensitivity: Sensitivity) -> Event:
        return Free()

    def run(self, sensitivity: Sensitivity, noise: Randomness) -> Run:
        return Selection(index=0, realised=Free())
        yield  # a generator that asks for nothing
