"""The minimiser of the Bradley–Terry objective, with ‖∇F‖ ≤ τ proved for the floats that are returned."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privalign.errors import InvalidInput
from privalign.preferences.bounds import UNIT
from privalign.preferences.differences import Differences

Floats = NDArray[np.float64]
_NEWTON_STEPS = 100
_CONJUGATE_STEPS = 500
_PRODUCTS = 3000  # with ∇²F, in all: the demo's preferences take 4 at Λ = 1000, 75 at 1, 800 at 0.01; below, minutes and in vain


def minimise(
    differences: Differences, regularisation: float, norm: float, tolerance: float, progress: Callable[[float], None] | None = None
) -> Floats:
    """w with ‖∇F(w)‖ ≤ τ, F(w) = Σ log(1 + e^{−w·d}) + (Λ/2)‖w‖²; shape (dimension,). 0 where there is no record.

    Newton's method with conjugate gradients and step halving on ‖∇F‖. The computed gradient is off by at most
    u·2B·N·(M + aB‖w‖ + 8) + 4uΛ‖w‖: a stored values in a difference for each w·d, sums of at most M terms (the longest
    block, then the blocks), and a few roundings of s and of the last line.

    Args:
        progress: called with the share of the way, on a logarithmic scale of ‖∇F‖. Not to be shown to others.

    Raises:
        InvalidInput: τ is not reached within 3,000 products with ∇²F, or is below what the rounding of ∇F can show.
    """
    weights = np.zeros(differences.dimension)
    margins = np.zeros(differences.records)
    slope = _gradient(differences, weights, margins, regularisation)
    size = first = float(np.linalg.norm(slope))
    products = 0
    for _ in range(_NEWTON_STEPS):
        rounding = _rounding(differences, float(np.linalg.norm(weights)), regularisation, norm)
        if size * (1 + 1e-9) + rounding <= tolerance:
            return weights
        if size == 0 or products >= _PRODUCTS:
            break
        if progress is not None:
            progress(max(0.0, math.log(first / size) / max(1.0, math.log(first / tolerance))))
        accuracy, most = min(0.1, (size / first) ** 0.5), min(_CONJUGATE_STEPS, _PRODUCTS - products)
        direction, used = _newton_direction(differences, margins, regularisation, -slope, accuracy, most)
        products += used
        along = differences.margins(direction)
        step = 1.0
        while True:
            candidate, moved = weights + step * direction, margins + step * along
            slope = _gradient(differences, candidate, moved, regularisation)
            if float(np.linalg.norm(slope)) <= (1 - 1e-4 * step) * size or step < 1e-6:
                break
            step /= 2
        weights, margins = candidate, differences.margins(candidate)  # afresh: the rounding of a running sum is not bounded
        slope = _gradient(differences, weights, margins, regularisation)
        size = float(np.linalg.norm(slope))
    raise InvalidInput("tolerance", f"the solve does not reach {tolerance:g}; raise it, or the regularisation")


def _gradient(differences: Differences, weights: Floats, margins: Floats, regularisation: float) -> Floats:
    from scipy.special import expit

    slope: Floats = regularisation * weights - differences.pull(expit(-margins))
    return slope


def _rounding(differences: Differences, length: float, regularisation: float, norm: float) -> float:
    records, stored = differences.records, differences.most_stored
    return UNIT * (2 * norm * records * (differences.longest_sum + stored * norm * length + 8) + 4 * regularisation * length)


def _newton_direction(
    differences: Differences, margins: Floats, regularisation: float, target: Floats, accuracy: float, most: int
) -> tuple[Floats, int]:
    """v with (Λ + Σ c·d dᵀ)v ≈ target, by at most so many conjugate gradients, and their number.

    A rough v only costs another Newton step.
    """
    from scipy.sparse.linalg import LinearOperator, cg
    from scipy.special import expit

    curvatures = expit(margins) * expit(-margins)
    products = 0

    def hessian(v: Any) -> Floats:
        nonlocal products
        products += 1
        product: Floats = regularisation * v + differences.pull(curvatures * differences.margins(v))
        return product

    operator = LinearOperator((target.size, target.size), matvec=hessian, dtype=np.float64)
    direction: Floats = cg(operator, target, rtol=accuracy, maxiter=most)[0]
    return direction, products
