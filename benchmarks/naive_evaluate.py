"""Naive twins of `evaluate`: the same protocols in plain loops over prompts, sizes and replicates, with NumPy inside.

Slow on purpose and short enough to be checked by eye. Each returns the expected gold, and the Monte-Carlo variance of it, of each
mechanism, size and prompt: two arrays (mechanisms, sizes, prompts).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Floats = NDArray[np.float64]
Pools = Sequence[tuple[Floats, Floats]]  # rewards and gold of each prompt

FAITHFUL = AUTHORS = ("bon", "privbon", "itp", "privitp")


def normaliser(rewards: Floats, beta: float) -> float:
    ordered = np.sort(rewards)[::-1]
    counts = np.arange(1, len(ordered) + 1)
    return float(((np.cumsum(ordered) - len(ordered) * beta) / counts).max())


def sequential(accept: Floats, payoff: Floats, fallback: float) -> float:
    alive = np.concatenate([[1.0], np.cumprod(1 - accept)])
    return float((alive[:-1] * accept) @ payoff + alive[-1] * fallback)


def softmax(rewards: Floats, payoff: Floats, scale: float) -> float:
    weights = np.exp((rewards - rewards.max()) / scale)
    return float(weights @ payoff / weights.sum())


def ramp(z: Floats) -> Floats:
    return z * ndtr(z) + np.exp(-z * z / 2) / np.sqrt(2 * np.pi)


def faithful(
    pools: Pools, sizes: Sequence[int], width: float, scale: float, beta: float, sigma_x: float, sigma_z: float, replicates: int
) -> tuple[Floats, Floats]:
    """Rewards in [0, R], draws with replacement, fresh for each phase; λ̃ is drawn, the noise of phase 2 marginalised."""
    rng = np.random.default_rng(0)
    grid = np.linspace(-beta, width - beta, 1024)
    outcomes = np.empty((4, len(sizes), len(pools), replicates))
    for p, (rewards, gold) in enumerate(pools):
        fallback = float(gold.mean())
        for j, n in enumerate(sizes):
            ceiling = width + sigma_z * np.sqrt(2 * np.log(n / 0.01))
            for b in range(replicates):
                first, second = rng.integers(len(rewards), size=(2, n))
                outcomes[0, j, p, b] = gold[first[rewards[first].argmax()]]
                outcomes[1, j, p, b] = softmax(rewards[first], gold[first], scale)
                threshold = normaliser(rewards[first], beta)
                accept = np.clip((rewards[second] - threshold) / (width - threshold), 0, 1)
                outcomes[2, j, p, b] = sequential(accept, gold[second], fallback)
                noisy = threshold + sigma_x * rng.standard_normal()
                snapped = grid[int(np.clip(np.rint((noisy + beta) / width * 1023), 0, 1023))]
                mass = ramp((rewards[second] - snapped) / sigma_z) - ramp((rewards[second] - ceiling) / sigma_z)
                outcomes[3, j, p, b] = sequential(sigma_z / (ceiling - snapped) * mass, gold[second], fallback)
    return outcomes.mean(axis=-1), outcomes.var(axis=-1, ddof=1) / replicates


def authors(
    pools: Pools, sizes: Sequence[int], base: float, scale: float, beta: float, sigma_phase: float, replicates: int, noise_draws: int
) -> tuple[Floats, Floats]:
    """Rewards as z-scores, one pool without replacement, PrivITP's acceptance averaged over noise draws."""
    rng = np.random.default_rng(0)
    outcomes = np.empty((4, len(sizes), len(pools), replicates))
    for p, (rewards, gold) in enumerate(pools):
        for j, n in enumerate(sizes):
            for b in range(replicates):
                drawn = rng.permutation(len(rewards))[:n]
                r, g = rewards[drawn], gold[drawn]
                outcomes[0, j, p, b] = g[r.argmax()]
                outcomes[1, j, p, b] = softmax(r, g, scale)
                threshold = normaliser(r, beta)
                weights = np.maximum((r - threshold) / beta, 0)
                outcomes[2, j, p, b] = sequential(np.minimum(weights / max(weights.max(), 1e-8), 1), g, base)
                thresholds = threshold + sigma_phase * rng.standard_normal((noise_draws, 1))
                noisy = r + sigma_phase * rng.standard_normal((noise_draws, n))
                most = np.maximum((noisy.max(axis=1, keepdims=True) - thresholds) / beta, 1e-8)
                accept = np.minimum(np.maximum((noisy - thresholds) / beta, 0) / most, 1).mean(axis=0)
                outcomes[3, j, p, b] = sequential(accept, g, base)
    return outcomes.mean(axis=-1), outcomes.var(axis=-1, ddof=1) / replicates
