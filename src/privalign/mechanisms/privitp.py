"""PrivITP: χ²-pessimistic rejection sampling in two Gaussian phases (paper, Algorithm 2, corrected)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from privalign.acceptance import LEAST_TAIL, AcceptanceCurve, positive, threshold_edges, threshold_grid
from privalign.errors import InvalidInput
from privalign.events import FALLBACK, Composed, Event, GaussianRelease, RejectionRounds
from privalign.mechanisms.normaliser import normaliser, normaliser_error
from privalign.mechanisms.protocol import Draw, Run, Selection, admit
from privalign.mechanisms.settings import candidates, within_floats
from privalign.randomness import Randomness, check_edges
from privalign.sensitivity import Sensitivity


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
        rewards = admit((yield Draw(self.n, self.n, ahead=self.n2)), sensitivity, self.n)
        grid, edges = threshold_grid(self.beta, sensitivity.width), threshold_edges(self.beta, sensitivity.width)
        threshold = float(grid[noise.gaussian_cell(normaliser(rewards, self.beta), self.sigma_x, edges)])
        selection = yield from PrivITPPhase2(self, threshold).run(sensitivity, noise)
        return replace(selection, index=self.n + selection.index, realised=Composed((self._phase_1(sensitivity), selection.realised)))

    def _phase_1(self, sensitivity: Sensitivity) -> GaussianRelease:
        within_floats("sigma_x", self.sigma_x, sensitivity.width)
        within_floats("beta", self.beta, sensitivity.width)
        check_edges(self.sigma_x, threshold_edges(self.beta, sensitivity.width))
        return GaussianRelease(sensitivity, self.sigma_x, input_error=normaliser_error(self.n, self.beta, sensitivity.width))

    def phase_2(self, sensitivity: Sensitivity) -> RejectionRounds:
        """The event of phase 2 alone, λ̃ not known yet."""
        within_floats("beta", self.beta, sensitivity.width)
        within_floats("sigma_z", self.sigma_z, sensitivity.width)
        within_floats("tail", self.tail, 1.0)
        if self.tail < LEAST_TAIL:
            raise InvalidInput("tail", f"{self.tail} is below {LEAST_TAIL:g}, where acceptance probabilities lose their digits")
        AcceptanceCurve(float(threshold_grid(self.beta, sensitivity.width)[-1]), sensitivity.width, self.sigma_z, self.tail)
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
        looked_at = 0
        while looked_at < cap:
            rewards = admit((yield Draw(1, cap - looked_at)), sensitivity, 1, cap - looked_at)
            accepted = noise.bernoullis(curve.accept(rewards))
            if accepted.any():
                t = looked_at + int(accepted.argmax()) + 1
                return Selection(t - 1, rounds.at(self.threshold, t), halting_time=t)
            looked_at += len(rewards)
        return Selection(cap, rounds.at(self.threshold, FALLBACK), halting_time=cap, fallback=True)
