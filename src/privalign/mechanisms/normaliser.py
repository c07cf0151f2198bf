"""The normaliser λ of χ²-regularised selection: (1/n) Σ relu((rᵢ − λ)/β) = 1."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def normaliser(rewards: ArrayLike, beta: float) -> float:
    """λ; its sensitivity is exactly that of one reward, and λ ∈ [mean − β, max − β]. Cost: one sort; the same steps for all rewards.

    Args:
        rewards: shape (n,), n ≥ 1, finite. beta: β > 0.
    """
    return _of_descending(descending(np.asarray(rewards, dtype=np.float64)), beta)


def public_normaliser(rewards: ArrayLike, beta: float) -> float:
    """The same number by the library's sort, whose time follows the rewards: for experiments, where they are public."""
    return _of_descending(np.sort(np.asarray(rewards, dtype=np.float64))[::-1], beta)


@np.errstate(all="ignore")
def _of_descending(ordered: Floats, beta: float) -> float:
    """λ = max_k (S_k − nβ)/k with S_k the sum of the k largest rewards, relative to the largest one for accuracy.

    Args:
        ordered: the rewards from the largest to the smallest, shape (n,), n ≥ 1, finite. beta: β > 0.
    """
    largest = ordered[0]
    counts = np.arange(1, ordered.size + 1)
    return float(largest + ((np.cumsum(ordered - largest) - ordered.size * beta) / counts).max())


def descending(values: Floats) -> Floats:
    """The values from the largest to the smallest by Batcher's bitonic network: the same comparisons in any order of the values.

    Two sorted runs of half a span, the second one read backwards, meet at equal places; what remains to be done is within either half.
    """
    n = values.size
    padded = np.full(1 << (n - 1).bit_length(), -np.inf)
    padded[:n] = values
    span = 2
    while span <= padded.size:
        _exchange(padded.reshape(-1, span)[:, : span // 2], padded.reshape(-1, span)[:, : span // 2 - 1 : -1])
        distance = span // 4
        while distance:
            pairs = padded.reshape(-1, 2, distance)
            _exchange(pairs[:, 0], pairs[:, 1])
            distance //= 2
        span *= 2
    return padded[:n]


def _exchange(first: Floats, second: Floats) -> None:
    """The larger number of each pair goes to the first view, the smaller one to the second."""
    larger = np.maximum(first, second)
    np.minimum(first, second, out=second)
    first[...] = larger


def normaliser_error(n: int, beta: float, width: float) -> float:
    """A bound on |computed λ − λ| for rewards in [0, R].

    All terms of S_k − nβ (relative to the largest reward) have one sign, so the sum of at most n + 1 of them, the
    product nβ and the division have relative error ≤ (n + 5)u with u = 2⁻⁵³, on a quotient of size ≤ R + β; the same
    holds for every other k, whose quotient is below; adding the largest reward rounds once more. Doubled for safety.
    Below the normal floats the product and the division are off by half the least float each instead.
    """
    return math.ldexp(2.0 * (n + 8), -53) * (width + beta) + 2 * math.ulp(0.0)


@np.errstate(all="ignore")
def pessimistic_acceptances(rewards: Floats, threshold: float, ceiling: float) -> Floats:
    """relu((r − λ)/β)/M with M = (ceiling − λ)/β, at most 1: rounds of inference-time pessimism without noise; shape (count,).

    λ is below every ceiling in use by at least β; where β is below the spacing of floats the two meet, and then only
    rewards at the ceiling are accepted.
    """
    if ceiling <= threshold:
        return (rewards >= ceiling).astype(np.float64)
    result: Floats = np.minimum(np.maximum(rewards - threshold, 0.0) / (ceiling - threshold), 1.0)
    return result
