"""Inference-time pessimism (Huang et al. 2025): χ²-regularised rejection sampling with fresh batches. Not private."""

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
class ITP:
    """PrivITP without noise: λ from n candidates, then fresh ones accepted with relu(r̂ − λ)/(R − λ), at most n2.

    Weight w = relu((r̂ − λ)/β) against M = (R − λ)/β; after n2 rejections one more draw is released (the fallback).
    No guarantee (`NonPrivate`).
    """

    n: int
    n2: int
    beta: float
    name: ClassVar[str] = "itp"

    def __post_init__(self) -> None:
        candidates("n", self.n)
        candidates("n2", self.n2)
        positive("beta", self.beta)

    @property
    def pool_size(self) -> int:
        return self.n + self.n2 + 1

    def event(self, sensitivity: Sensitivity) -> Event:
        return NonPrivate()

    def run(self, sensitivity: Sensitivity, noise: Randomness) -> Run:
        rewards = admit((yield Draw(self.n, self.n, ahead=self.n2)), sensitivity, self.n)
        threshold, looked_at = normaliser(rewards, self.beta), 0
        while looked_at < self.n2:
            rewards = admit((yield Draw(1, self.n2 - looked_at)), sensitivity, 1, self.n2 - looked_at)
            accepted = noise.bernoullis(FloatProbabilities(pessimistic_acceptances(rewards, threshold, sensitivity.width)))
            if accepted.any():
                t = looked_at + int(accepted.argmax()) + 1
                return Selection(self.n + t - 1, realised=NonPrivate(), halting_time=t)
            looked_at += len(rewards)
        return Selection(self.n + self.n2, realised=NonPrivate(), halting_time=self.n2, fallback=True)
