"""PrivITP: χ²-pessimistic rejection sampling in two Gaussian phases (paper, Algorithm 2, corrected)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from privalign.acceptance import AcceptanceCurve, positive, snap
from privalign.events import FALLBACK, Composed, Event, GaussianRelease, RejectionRounds
from privalign.mechanisms.normaliser import normaliser, normaliser_error
from privalign.mechanisms.protocol import Draw, Run, Selection, admit
from privalign.mechanisms.settings import candidates
from privalign.randomness import Randomness
from privalign.sensitivity import Sensitivity

GRID_BITS = 32  # the sampler's grid is at least 2³² times finer than σ_X: its price is below the tenth digit of ε


def release_grid(scale: float) -> float:
    """The grid step s = 2^k of the phase-1 sampler, with σ_X/s in [2³², 2³³)."""
    return math.ldexp(1.0, math.frexp(scale)[1] - 1 - GRID_BITS)


@dataclass(frozen=True, slots=True)
class PrivITP:
    """Phase 1 releases λ̃ = snap(clamp(λ + N(0, σ_X²))); phase 2 accepts fresh candidates with probability p(r̂).

    Args:
        n: phase-1 candidates. n2: cap on phase-2 candidates. beta: β > 0, in reward units.
        sigma_x, sigma_z: noise of the two phases, in reward units, > 0. tail: L > 0, the ceiling is R + σ_Z·L.

    Formal guarantee, for rewards of sensitivity Δ in the public range and candidates that do not depend on the
    protected data: phase 1 is a Gaussian mechanism with μ = Δ/σ_X; given λ̃, stopping at t costs at most (t − 1)κ + b
    and the fallback n₂κ, pathwise, covering the release of λ̃, all texts, t and the answer
    (`accounting.rejection`). The noise of phase 2 is never drawn: one exact Bernoulli(p(r̂)) a candidate, fresh for
    every drawn index, equal texts included.
    """

    n: int
    n2: int
    beta: float
    sigma_x: float
    sigma_z: float
    tail: float
    name: ClassVar[str] = "privitp"

    def __post_init__(self) -> None:
        candidates("n", self.n)
        candidates("n2", self.n2)
        positive("beta", self.beta)
        positive("sigma_x", self.sigma_x)
        positive("sigma_z", self.sigma_z)
        positive("tail", self.tail)

    @property
    def pool_size(self) -> int:
        return self.n + self.n2 + 1

    def event(self, sensitivity: Sensitivity) -> Event:
        return Composed((self._phase_1(sensitivity), self.phase_2(sensitivity)))

    def run(self, sensitivity: Sensitivity, noise: Randomness) -> Run:
        rewards = admit((yield Draw(self.n)), self.n, sensitivity)
        noisy = noise.gaussian(normaliser(rewards, self.beta), self.sigma_x, release_grid(self.sigma_x))
        phase_2 = PrivITPPhase2(self, snap(noisy, self.beta, sensitivity.width))
        selection = yield from phase_2.run(sensitivity, noise)
        return replace(selection, index=self.n + selection.index, realised=Composed((self._phase_1(sensitivity), selection.realised)))

    def _phase_1(self, sensitivity: Sensitivity) -> GaussianRelease:
        error = normaliser_error(self.n, self.beta, sensitivity.width)
        return GaussianRelease(sensitivity, self.sigma_x, release_grid(self.sigma_x), error)

    def phase_2(self, sensitivity: Sensitivity) -> RejectionRounds:
        """The event of phase 2 alone, λ̃ not known yet."""
        return RejectionRounds(sensitivity, self.beta, self.sigma_z, self.tail, self.n2)


@dataclass(frozen=True, slots=True)
class PrivITPPhase2:
    """Phase 2 at a threshold that was released before: for a repeated prompt, whose phase 1 is paid already.

    Formal guarantee: that of phase 2 given λ̃; reusing a released λ̃ is post-processing.
    """

    settings: PrivITP
    threshold: float
    name: ClassVar[str] = "privitp"

    @property
    def pool_size(self) -> int:
        return self.settings.n2 + 1

    def event(self, sensitivity: Sensitivity) -> RejectionRounds:
        return replace(self.settings.phase_2(sensitivity), threshold=self.threshold)

    def run(self, sensitivity: Sensitivity, noise: Randomness) -> Run:
        curve = AcceptanceCurve(self.threshold, sensitivity.width, self.settings.sigma_z, self.settings.tail)
        rounds, cap = self.event(sensitivity), self.settings.n2
        for t in range(1, cap + 1):
            (reward,) = admit((yield Draw(1)), 1, sensitivity)
            if noise.bernoulli(curve.accept(float(reward))):
                return Selection(t - 1, rounds.at(self.threshold, t), halting_time=t)
        return Selection(cap, rounds.at(self.threshold, FALLBACK), halting_time=cap, fallback=True)
