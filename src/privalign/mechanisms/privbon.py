"""PrivBoN: best-of-N with Gumbel noise, the exponential mechanism (paper, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privalign.acceptance import positive
from privalign.events import Event, GumbelMax
from privalign.mechanisms.protocol import Draw, Run, Selection, admit
from privalign.mechanisms.settings import candidates, within_floats
from privalign.randomness import Randomness
from privalign.sensitivity import Sensitivity


@dataclass(frozen=True, slots=True)
class PrivBoN:
    """argmax (r̂ᵢ + Gumbel(0, σ)) over n candidates: index i with probability ∝ exp(r̂ᵢ/σ).

    Formal guarantee: pure ε-DP for the reward model's data with the finite-n ε of
    `accounting.gumbel.privbon_epsilon` ≤ 2Δ/σ, when rewards have sensitivity Δ on the public range and the candidates
    do not depend on the protected data. As n grows the released answer follows π₀·exp(r̂/σ).
    """

    n: int
    scale: float
    name: ClassVar[str] = "privbon"

    def __post_init__(self) -> None:
        candidates("n", self.n)
        positive("scale", self.scale)

    @property
    def pool_size(self) -> int:
        return self.n

    def event(self, sensitivity: Sensitivity) -> Event:
        within_floats("scale", self.scale, sensitivity.width)
        return GumbelMax(sensitivity, self.scale, self.n)

    def run(self, sensitivity: Sensitivity, noise: Randomness) -> Run:
        rewards = admit((yield Draw(self.n, self.n)), sensitivity, self.n)
        return Selection(noise.gumbel_argmax(rewards, self.scale), realised=self.event(sensitivity))
