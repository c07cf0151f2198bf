"""PrivBoN with Gaussian noise (report-noisy-max; paper, Appendix E)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privalign.acceptance import positive
from privalign.events import Event, GaussianMax
from privalign.mechanisms.protocol import Draw, Run, Selection, admit
from privalign.mechanisms.settings import candidates, within_floats
from privalign.randomness import Randomness
from privalign.sensitivity import Sensitivity


@dataclass(frozen=True, slots=True)
class PrivBoNGaussian:
    """argmax (r̂ᵢ + N(0, σ²)) over n candidates.

    Formal guarantee: pure ε-DP with the ε of `accounting.gaussian_max.privbon_gaussian_epsilon`, which grows with n
    and is looser than Gumbel noise at the same scale; tends to plain best-of-N as n grows.
    """

    n: int
    scale: float
    name: ClassVar[str] = "privbon-gaussian"

    def __post_init__(self) -> None:
        candidates("n", self.n)
        positive("scale", self.scale)

    @property
    def pool_size(self) -> int:
        return self.n

    def event(self, sensitivity: Sensitivity) -> Event:
        within_floats("scale", self.scale, sensitivity.width)
        return GaussianMax(sensitivity, self.scale, self.n)

    def run(self, sensitivity: Sensitivity, noise: Randomness) -> Run:
        rewards = admit((yield Draw(self.n, self.n)), sensitivity, self.n)
        return Selection(noise.gaussian_argmax(rewards, self.scale), realised=self.event(sensitivity))
