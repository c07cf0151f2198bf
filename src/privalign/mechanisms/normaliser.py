"""The normaliser λ of χ²-regularised selection: (1/n) Σ relu((rᵢ − λ)/β) = 1."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike


def normaliser(rewards: ArrayLike, beta: float) -> float:
    """λ = max_k (S_k − nβ)/k with S_k the sum of the k largest rewards, relative to the largest one for accuracy.

    Its sensitivity is exactly that of one reward, and λ ∈ [mean − β, max − β]. Cost: one sort.

    Args:
        rewards: shape (n,), n ≥ 1, finite. beta: β > 0.
    """
    gaps = np.sort(np.asarray(rewards, dtype=np.float64))[::-1]
    largest = gaps[0]
    counts = np.arange(1, gaps.size + 1)
    return float(largest + ((np.cumsum(gaps - largest) - gaps.size * beta) / counts).max())


def normaliser_error(n: int, beta: float, width: float) -> float:
    """A bound on |computed λ − λ| for rewards in [0, R].

    All terms of S_k − nβ (relative to the largest reward) have one sign, so the sum of at most n + 1 of them, the
    product nβ and the division have relative error ≤ (n + 5)u with u = 2⁻⁵³, on a quotient of size ≤ R + β; the same
    holds for every other k, whose quotient is below; adding the largest reward rounds once more. Doubled for safety.
    Below the normal floats the product and the division are off by half the least float each instead.
    """
    return math.ldexp(2.0 * (n + 8), -53) * (width + beta) + 2 * math.ulp(0.0)


def pessimistic_acceptance(reward: float, threshold: float, ceiling: float) -> float:
    """relu((r − λ)/β)/M with M = (ceiling − λ)/β, at most 1: one round of inference-time pessimism without noise.

    λ is below every ceiling in use by at least β; where β is below the spacing of floats the two meet, and then only
    rewards at the ceiling are accepted.
    """
    if ceiling <= threshold:
        return float(reward >= ceiling)
    return min(max(reward - threshold, 0.0) / (ceiling - threshold), 1.0)
