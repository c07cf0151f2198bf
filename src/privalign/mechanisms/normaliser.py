"""The normaliser λ of χ²-regularised selection: (1/n) Σ relu((rᵢ − λ)/β) = 1."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def normaliser(rewards: ArrayLike, beta: float) -> float:
    """λ = max_k (S_k − nβ)/k with S_k the sum of the k largest rewards, relative to the largest one for accuracy.

    Its sensitivity is exactly that of one reward, and λ ∈ [mean − β, max − β]. Cost: one sort; the same steps for all rewards.

    Args:
        rewards: shape (n,), n ≥ 1, finite. beta: β > 0.
    """
    ordered = descending(np.asarray(rewards, dtype=np.float64))
    largest = ordered[0]
    counts = np.arange(1, ordered.size + 1)
    return float(largest + ((np.cumsum(ordered - largest) - ordered.size * beta) / counts).max())


def descending(values: Floats) -> Floats:
    """The values from the largest to the smallest by Batcher's bitonic network: the same comparisons in any order of the values."""
    n = values.size
    padded = np.full(1 << (n - 1).bit_length(), -np.inf)
    padded[:n] = values
    for low, high in _comparisons(padded.size):
        one, other = padded[low], padded[high]
        padded[low], padded[high] = np.maximum(one, other), np.minimum(one, other)
    return padded[:n]


@lru_cache(maxsize=8)
def _comparisons(size: int) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """For each step of the network the places that receive the larger of two values, and those that receive the smaller."""
    steps, places = [], np.arange(size)
    span = 2
    while span <= size:
        distance = span // 2
        while distance:
            first = places[places & distance == 0]
            second, falling = first | distance, first & span == 0
            steps.append((np.where(falling, first, second), np.where(falling, second, first)))
            distance //= 2
        span *= 2
    return steps


def normaliser_error(n: int, beta: float, width: float) -> float:
    """A bound on |computed λ − λ| for rewards in [0, R].

    All terms of S_k − nβ (relative to the largest reward) have one sign, so the sum of at most n + 1 of them, the
    product nβ and the division have relative error ≤ (n + 5)u with u = 2⁻⁵³, on a quotient of size ≤ R + β; the same
    holds for every other k, whose quotient is below; adding the largest reward rounds once more. Doubled for safety.
    Below the normal floats the product and the division are off by half the least float each instead.
    """
    return math.ldexp(2.0 * (n + 8), -53) * (width + beta) + 2 * math.ulp(0.0)


def pessimistic_acceptances(rewards: Floats, threshold: float, ceiling: float) -> Floats:
    """relu((r − λ)/β)/M with M = (ceiling − λ)/β, at most 1: rounds of inference-time pessimism without noise; shape (count,).

    λ is below every ceiling in use by at least β; where β is below the spacing of floats the two meet, and then only
    rewards at the ceiling are accepted.
    """
    if ceiling <= threshold:
        return (rewards >= ceiling).astype(np.float64)
    result: Floats = np.minimum(np.maximum(rewards - threshold, 0.0) / (ceiling - threshold), 1.0)
    return result
