"""Inference-time pessimism as the authors' code runs it: one batch for λ and for the rejection rounds. Not private."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privalign.acceptance import FloatProbabilities, positive
from privalign.events import Event, NonPrivate
from privalign.mechanisms.normaliser import normaliser, pessimistic_acceptances
from privalign.mechanisms.protocol import Draw, Run, Selection, admit
from privalign.mechanisms.settings import candidates
from privalign.randomness import Randomness
from privalign.sensitivity import Sensitivity


@dataclass(frozen=True, slots=True)
class ITPReuse:
    """λ and the rounds on the same n candidates, with M = max wᵢ; a uniform one of them if none is accepted.

    Acceptance relu(rᵢ − λ)/(max r − λ): the best candidate is accepted when its turn comes, so the fallback is
    reached by rounding only. No guarantee (`NonPrivate`).
    """

    n: int
    beta: float
    name: ClassVar[str] = "itp-reuse"

    def __post_init__(self) -> None:
        candidates("n", self.n)
        positive("beta", self.beta)

    @property
    def pool_size(self) -> int:
        return self.n

    def event(self, sensitivity: Sensitivity) -> Event:
        return NonPrivate()

    def run(self, sensitivity: Sensitivity, noise: Randomness) -> Run:
        rewards = admit((yield Draw(self.n, self.n)), sensitivity, self.n)
        threshold = normaliser(rewards, self.beta)
        ceiling = float(rewards.max())
        accepted = noise.bernoullis(FloatProbabilities(pessimistic_acceptances(rewards, threshold, ceiling)))
        if accepted.any():
            index = int(accepted.argmax())
            return Selection(index, realised=NonPrivate(), halting_time=index + 1)
        return Selection(noise.index(self.n), realised=NonPrivate(), halting_time=self.n, fallback=True)
