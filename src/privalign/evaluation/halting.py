"""Phase 1 and phase 2 of PrivITP for many queries at once: (λ̃, t) with exactly the mechanism's law, in seeded floats.

The vectorised twin of `mechanisms.privitp` for studies that need thresholds and halting times and no answers. Candidates are
drawn from recorded pools without replacement within a query: it sees what fresh draws of the base policy would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privalign.acceptance import THRESHOLDS, log_accept, threshold_grid
from privalign.errors import InvalidInput, setting
from privalign.evaluation import kernels
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
    def of(cls, pools: Sequence[ArrayLike], reward_range: RewardRange, needed: int) -> Pools:
        """From one array of raw scores per prompt, in the reward model's own units; those of fewer than `needed` are left out.

        Raises:
            InvalidInput: none is left.
        """
        kept = [np.asarray(pool, dtype=np.float64) for pool in pools if np.size(pool) >= needed]
        if not kept:
            most = max(map(np.size, pools), default=0)
            lacking = f"no prompt has the {needed} usable candidates that one query needs (the most is {most})"
            raise InvalidInput(setting("n"), f"{lacking}; give a smaller n")
        sizes, scores = [pool.size for pool in kept], np.concatenate(kept)
        low, high, width = reward_range.low, reward_range.high, reward_range.width
        return cls(np.clip(np.clip(scores, low, high) - low, 0.0, width), np.concatenate([[0], np.cumsum(sizes)]), width)

    def __len__(self) -> int:
        """The number of prompts."""
        return len(self.offsets) - 1

    def draw(self, prompts: Whole, count: int, rng: np.random.Generator) -> Floats:
        """`count` rewards of each query's prompt, drawn without replacement in random order; shape (queries, count)."""
        drawn = kernels.queries_without(self.offsets, prompts, count, int(rng.integers(2**62)))
        return np.asarray(self.rewards[self.offsets[prompts, None] + drawn])


def simulate(mechanism: PrivITP, pools: Pools, prompts: Whole, rng: np.random.Generator) -> tuple[Whole, Whole]:
    """Runs one query for each entry of `prompts`.

    Returns:
        Positions of λ̃ in the grid of 1,024 points, and halting times 1 … n₂, or n₂ + 1 for the fallback; shapes (queries,).
    """
    drawn = pools.draw(prompts, mechanism.n + mechanism.n2, rng)
    noisy = normalisers(drawn[:, : mechanism.n], mechanism.beta) + rng.normal(0.0, mechanism.sigma_x, len(prompts))
    steps = np.clip((noisy + mechanism.beta) / pools.width * (THRESHOLDS - 1), 0.0, THRESHOLDS - 1.0)
    positions = np.rint(steps).astype(np.int64)
    thresholds = threshold_grid(mechanism.beta, pools.width)[positions, None]
    fresh = drawn[:, mechanism.n :]
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
