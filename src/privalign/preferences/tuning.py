"""Choosing Λ on public preferences, for what it is needed for: private selection at a given price.

A large Λ lowers Δ and blunts the head; as long as scores fall no faster than Δ it costs nothing. What counts is how often
private selection between two answers, at ε = 1 a query, agrees with a preference that the head has not seen.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from privalign.errors import InvalidInput
from privalign.preferences.bounds import weight_bound
from privalign.preferences.differences import Differences, differences_of
from privalign.preferences.features import FeatureMap
from privalign.preferences.pairs import PreferencePair
from privalign.preferences.solver import minimise
from privalign.sensitivity import Relation

GRID: Final = tuple(10 ** (exponent / 2) for exponent in range(0, 9))  # Λ/B²
EPSILON: Final = 1.0


@dataclass(frozen=True, slots=True)
class Tuned:
    """Λ, and what heads fitted with it to public pairs do on other public pairs.

    `accuracy`: the share of pairs whose chosen answer scores higher. `private_accuracy`: the probability that PrivBoN at ε = 1
    selects the chosen one of the two.
    """

    regularisation: float
    accuracy: float
    private_accuracy: float


def choose_regularisation(
    pairs: Sequence[PreferencePair],
    features: FeatureMap,
    *,
    relation: Relation,
    records_per_person: int,
    feature_norm: float,
    tolerance: float,
    progress: Callable[[float], None] | None = None,
) -> Tuned:
    """The Λ of B²·{1, √10, …, 10⁴} with the greatest private accuracy, cross-validated on two halves by a hash of the prompt.

    All arguments are public: nothing here may come from protected preferences. What suits N public pairs suits about as many
    protected ones.

    Raises:
        InvalidInput: all prompts fall into one half.
    """
    half = np.array([zlib.crc32(pair.prompt.encode()) % 2 == 0 for pair in pairs], dtype=np.bool_)
    if half.all() or not half.any():
        raise InvalidInput("public", "holds too few prompts to choose on; give more, or --lambda")
    differences, _ = differences_of(pairs, features, feature_norm, key=b"")  # nobody asks for owners
    parts = differences.keep(half), differences.keep(~half)
    outcomes = []
    for number, step in enumerate(GRID, 1):
        regularisation = step * feature_norm**2
        margins = np.concatenate(
            [held_out.margins(minimise(fitted, regularisation, feature_norm, tolerance)) for fitted, held_out in (parts, parts[::-1])]
        )
        sensitivity = feature_norm * weight_bound(relation, records_per_person, feature_norm, regularisation, tolerance)
        outcomes.append(Tuned(regularisation, _accuracy(margins), _private_accuracy(margins, sensitivity)))
        if progress is not None:
            progress(number / len(GRID))
    return max(outcomes, key=lambda tuned: tuned.private_accuracy)


def pair_accuracy(weights: NDArray[np.float64], differences: Differences) -> float:
    """The share of pairs whose chosen answer scores higher, ties counting half. Not private if either argument is protected."""
    return _accuracy(differences.margins(weights))


def _accuracy(margins: NDArray[np.float64]) -> float:
    return float(((margins > 0).sum() + (margins == 0).sum() / 2) / len(margins))


def _private_accuracy(margins: NDArray[np.float64], sensitivity: float) -> float:
    """PrivBoN of two at σ = 2Δ/ε: the chosen one with probability 1/(1 + e^{−margin/σ})."""
    from scipy.special import expit

    return float(expit(margins * EPSILON / (2 * sensitivity)).mean())
