"""The composition experiment as the paper authors' published script accounts for it: for comparison only.

Neither Algorithm 2 nor private. Rewards are z-scored over the file; every prompt brings its own "public" range, taken from its
rewards; phase 2 is sampled with one ceiling and noise and charged with another; phase 1 is charged Δ/σ_X, without any δ;
a fallback is charged as an acceptance at the last round. Each is a fault of its own: the figures say what was published,
not what is safe.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp

from privalign.acceptance import positive
from privalign.errors import InvalidInput
from privalign.mechanisms.normaliser import public_normaliser

Floats = NDArray[np.float64]

MIDPOINTS = (np.arange(512) + 0.5) / 512  # of the published quadrature in u
TAIL = 0.5  # L of the published sampling


@dataclass(frozen=True, slots=True)
class AuthorsStream:
    """One seed's stream: how many prompts the budget covered, the mean halting time over them (NaN: none), worst-case count."""

    answered: int
    mean_halting: float
    basic: int


def published_loss(threshold: float, largest: float, spread: float, scale: float, halt: int) -> float:
    """ε₂(t) of Theorem 4.1 with M = (R_max − λ̃)/β, as published: no σ_Z·L in the ceiling, no case for the fallback."""
    points = threshold + (largest - threshold) * MIDPOINTS

    def log_mean(shift: float, sign: float) -> float:
        return float(logsumexp(log_ndtr((shift + sign * points) / scale)))

    kappa = log_mean(spread - largest, 1.0) - log_mean(-largest, 1.0)
    accept = log_mean(spread, -1.0) - log_mean(0.0, -1.0)
    return (halt - 1) * kappa + accept


def z_scored(pools: Sequence[Floats], least: int) -> tuple[list[Floats], float]:
    """The pools of at least `least` rewards, z-scored together, and the standard deviation that divided them.

    Raises:
        InvalidInput: there is no such pool, or the rewards are all equal.
    """
    kept = [pool for pool in pools if len(pool) >= least]
    if not kept:
        raise InvalidInput("responses", f"no prompt has {least} scored candidates; give a smaller n")
    rewards = np.concatenate(kept)
    if rewards.min() == rewards.max():  # rounding may leave them a deviation
        raise InvalidInput("responses", "the rewards are all equal; z-scores need rewards that differ")
    mean, deviation = float(rewards.mean()), float(rewards.std())
    return [(pool - mean) / deviation for pool in kept], deviation


def authors_stream(pools: Sequence[Floats], noise: float, *, n: int, beta: float, epsilon: float, seed: int) -> AuthorsStream:
    """One pass over the prompts in random order, none of them used twice, until the budget is negative.

    Args:
        pools: z-scored rewards, at least n a prompt. noise: σ, in z-scored units (σ_X = σ/2; phase 2 gets σ).

    Raises:
        InvalidInput: σ is not a finite number above 0.
    """
    positive("sigma", noise)
    rng = np.random.default_rng(seed)
    left, worst, halts = epsilon, 0.0, []
    for cost, at_most, halt in _queries([pools[i] for i in rng.permutation(len(pools))], noise, n, beta, rng):
        left -= cost
        if left < 0:
            break
        worst = max(worst, at_most)
        halts.append(halt)
    return AuthorsStream(len(halts), float(np.mean(halts)) if halts else math.nan, math.floor(epsilon / worst) if halts else 0)


def _queries(pools: Sequence[Floats], noise: float, n: int, beta: float, rng: np.random.Generator) -> Iterator[tuple[float, float, int]]:
    """(charged, worst case, halting time) of each prompt."""
    for pool in pools:
        largest, spread = float(pool.max()), float(pool.max() - pool.min())
        phase_1 = spread / (noise / 2)

        def charge(threshold: float, halt: int, largest: float = largest, spread: float = spread, phase_1: float = phase_1) -> float:
            return phase_1 + published_loss(threshold, largest, spread, noise, halt)

        threshold = public_normaliser(rng.choice(pool, n, replace=False), beta) + rng.normal(0.0, noise / 2)
        halt = _halting(rng.choice(pool, n, replace=False), threshold, largest, noise, rng)
        yield charge(threshold, halt), charge(public_normaliser(rng.choice(pool, n, replace=False), beta), n), halt


def _halting(rewards: Floats, threshold: float, largest: float, noise: float, rng: np.random.Generator) -> int:
    """The first accepted candidate, the last one where none is; counted from 1."""
    room = largest + noise / 2 * TAIL - threshold
    weights = np.maximum(rewards + rng.normal(0.0, noise, len(rewards)) - threshold, 0.0)
    accepted = rng.random(len(rewards)) < (np.minimum(weights / room, 1.0) if room > 0 else 0.0)
    return int(accepted.argmax()) + 1 if accepted.any() else len(rewards)
