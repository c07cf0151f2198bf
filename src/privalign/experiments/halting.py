"""Phase 1 and phase 2 of PrivITP for many queries at once: (λ̃, t) with exactly the mechanism's law, in seeded floats.

The vectorised twin of `mechanisms.privitp` for studies that need thresholds and halting times and no answers. Candidates are
drawn from recorded pools with replacement: every draw is fresh and independent, as from the base policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privalign.acceptance import THRESHOLDS, log_accept, threshold_grid
from privalign.errors import InvalidInput
from privalign.events import FALLBACK, Halt
from privalign.mechanisms.privitp import PrivITP
from privalign.sensitivity import RewardRange

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pools:
    """The rewards of several prompts, clipped to the public range and shifted to [0, R], one after the other.

    Args:
        rewards: shape (candidates,). offsets: shape (prompts + 1,); prompt i owns rewards[offsets[i]:offsets[i + 1]].
        width: R.
    """

    rewards: Floats
    offsets: Whole
    width: float

    @classmethod
    def of(cls, pools: Sequence[ArrayLike], reward_range: RewardRange) -> Pools:
        """From one array of raw scores per prompt, in the reward model's own units.

        Raises:
            InvalidInput: no prompt, or one without a candidate.
        """
        sizes = [np.size(pool) for pool in pools]
        if not sizes or min(sizes) == 0:
            raise InvalidInput("responses", "a study needs at least one prompt, and a scored candidate for each; score the file first")
        scores = np.concatenate([np.asarray(pool, dtype=np.float64) for pool in pools])
        low, high, width = reward_range.low, reward_range.high, reward_range.width
        return cls(np.clip(np.clip(scores, low, high) - low, 0.0, width), np.concatenate([[0], np.cumsum(sizes)]), width)

    def __len__(self) -> int:
        """The number of prompts."""
        return len(self.offsets) - 1

    def draw(self, prompts: Whole, count: int, rng: np.random.Generator) -> Floats:
        """`count` rewards drawn with replacement for each query; shape (queries, count)."""
        sizes = np.diff(self.offsets)[prompts, None]
        drawn: Floats = self.rewards[self.offsets[prompts, None] + rng.integers(0, sizes, (len(prompts), count))]
        return drawn


def simulate(mechanism: PrivITP, pools: Pools, prompts: Whole, rng: np.random.Generator) -> tuple[Whole, Whole]:
    """Runs one query for each entry of `prompts`.

    Returns:
        Positions of λ̃ in the grid of 1,024 points, and halting times 1 … n₂, or n₂ + 1 for the fallback; shapes (queries,).
    """
    noisy = normalisers(pools.draw(prompts, mechanism.n, rng), mechanism.beta) + rng.normal(0.0, mechanism.sigma_x, len(prompts))
    steps = np.clip((noisy + mechanism.beta) / pools.width * (THRESHOLDS - 1), 0.0, THRESHOLDS - 1.0)
    positions = np.rint(steps).astype(np.int64)
    thresholds = threshold_grid(mechanism.beta, pools.width)[positions, None]
    fresh = pools.draw(prompts, mechanism.n2, rng)
    accepted = np.log(rng.random(fresh.shape)) < log_accept(fresh, thresholds, pools.width, mechanism.sigma_z, mechanism.tail)
    halts = np.where(accepted.any(axis=1), accepted.argmax(axis=1), mechanism.n2) + 1
    return positions, halts


def normalisers(rewards: Floats, beta: float) -> Floats:
    """λ of every row: `mechanisms.normaliser` along the last axis."""
    ranked = -np.sort(-rewards, axis=-1)
    largest = ranked[..., :1]
    counts = np.arange(1, ranked.shape[-1] + 1)
    best: Floats = ((np.cumsum(ranked - largest, axis=-1) - ranked.shape[-1] * beta) / counts).max(axis=-1)
    return np.asarray(largest[..., 0] + best)


def halt_of(mechanism: PrivITP, halt: int) -> Halt:
    """A halting time of `simulate` as events spell it."""
    return FALLBACK if halt > mechanism.n2 else halt
