"""Best-of-N: the largest reward wins. Not private."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privalign.events import Event, NonPrivate
from privalign.mechanisms.protocol import Draw, Run, Selection, admit
from privalign.mechanisms.settings import candidates
from privalign.randomness import Randomness
from privalign.sensitivity import Sensitivity


@dataclass(frozen=True, slots=True)
class BoN:
    """argmax r̂ᵢ over n candidates; the first of equals. No guarantee (`NonPrivate`): the baseline to compare with."""

    n: int
    name: ClassVar[str] = "bon"

    def __post_init__(self) -> None:
        candidates("n", self.n)

    @property
    def pool_size(self) -> int:
        return self.n

    def event(self, sensitivity: Sensitivity) -> Event:
        return NonPrivate()

    def run(self, sensitivity: Sensitivity, noise: Randomness) -> Run:
        rewards = admit((yield Draw(self.n, self.n)), sensitivity, self.n)
        return Selection(int(np.argmax(rewards)), realised=self.event(sensitivity))
