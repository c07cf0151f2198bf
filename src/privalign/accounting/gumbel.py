"""PrivBoN (Gumbel noise, the exponential mechanism): exact finite-n ε, bounded range, zCDP, Rényi and privacy curve.

Arguments everywhere: sensitivity Δ > 0 (clipped to R), width R > 0, scale σ > 0, n ≥ 1 candidates. n = 1 costs 0.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from flint import arb
from numpy.typing import NDArray

from privalign.acceptance import positive, whole
from privalign.errors import InvalidInput
from privalign.intervals import upper


@lru_cache(maxsize=4096)
def privbon_epsilon(sensitivity: float, width: float, scale: float, n: int) -> float:
    """The exact ε of one PrivBoN selection, rounded up.

    ε(n) = log[(1 + (n−1)e^{R/σ})/(1 + (n−1)e^{(R−2Δ)/σ})] ≤ 2Δ/σ

    Formal guarantee: the selected index is ε-DP for rewards in [0, R] that move by at most Δ; no smaller ε holds for
    every such pair of reward vectors. Evaluated with e^{R/σ} divided out, so nothing overflows.
    """
    _check(sensitivity, width, scale, n)
    if n == 1:
        return 0.0
    delta = min(sensitivity, width)

    def formula() -> arb:
        span, step = arb(width) / arb(scale), 2 * arb(delta) / arb(scale)
        rest = (-span).exp()
        return ((rest + (n - 1)) / (rest + (n - 1) * (-step).exp())).log()

    return min(upper(formula), privbon_epsilon_bound(delta, scale))


def privbon_epsilon_bound(sensitivity: float, scale: float) -> float:
    """2Δ/σ, rounded up; Δ as given, for any n and any range."""
    positive("sensitivity", sensitivity)
    positive("scale", scale)
    return upper(lambda: 2 * arb(sensitivity) / arb(scale))


def bounded_range(sensitivity: float, width: float, scale: float, n: int) -> float:
    """η = 2Δ/σ with Δ ≤ R, rounded up: log-likelihood ratios of the index lie in an interval of length η (n = 1: 0)."""
    _check(sensitivity, width, scale, n)
    return 0.0 if n == 1 else privbon_epsilon_bound(min(sensitivity, width), scale)


def privbon_rho(sensitivity: float, width: float, scale: float, n: int) -> float:
    """ρ = η²/8, rounded up: zCDP of an η-bounded-range mechanism (Cesar & Rogers 2021)."""
    eta = bounded_range(sensitivity, width, scale, n)
    return upper(lambda: arb(eta) * arb(eta) / 8)


@lru_cache(maxsize=4096)
def bounded_range_renyi(eta: float, order: float) -> float:
    """Rényi divergence of order α > 1 of an η-bounded-range mechanism, the exact supremum, rounded up; ≤ αη²/8.

    sup_x (α−1)⁻¹ log[p^α p′^{1−α} + (1−p)^α (1−p′)^{1−α}] with p = sigmoid(x), p′ = sigmoid(x − η) (Dong, Durfee &
    Rogers 2019). With u = e^x, E = e^η and c = e^{−(α−1)η} the bracket is (1+u)^{−α}(u+E)^{α−1}(u+c), whose
    derivative vanishes at u = [E + (α−1)c − αEc]/[(α−1)E − α + c] only.
    """
    check_order(order)
    if eta == 0:
        return 0.0
    positive("eta", eta)

    def formula() -> arb:
        a, e = arb(order), arb(eta).exp()
        c = (-(a - 1) * arb(eta)).exp()
        u = (e + (a - 1) * c - a * e * c) / ((a - 1) * e - a + c)
        return ((a - 1) * (u + e).log() - a * (1 + u).log() + (u + c).log()) / (a - 1)

    return upper(formula)


def privbon_renyi(sensitivity: float, width: float, scale: float, n: int, order: float) -> float:
    """Rényi divergence of order α of one PrivBoN selection: its bounded-range curve, rounded up."""
    return bounded_range_renyi(bounded_range(sensitivity, width, scale, n), order)


def bounded_range_delta(epsilon: NDArray[np.float64], eta: float) -> NDArray[np.float64]:
    """The privacy curve of an η-bounded-range mechanism: δ(e) = (1 − e^{(e−η)/2})²/(1 − e^{−η}) for 0 ≤ e ≤ η.

    0 above η; below 0 by exchanging the two data sets, δ(−e) = 1 − e^{−e} + e^{−e}δ(e). Shape as `epsilon`.
    """
    size = np.abs(epsilon)
    forward = np.expm1((np.minimum(size, eta) - eta) / 2) ** 2 / -np.expm1(-eta)
    curve: NDArray[np.float64] = np.where(epsilon >= 0, forward, -np.expm1(-size) + np.exp(-size) * forward)
    return curve


def check_order(order: float) -> float:
    """`order` where it is a Rényi order, finite and above 1.

    Raises:
        InvalidInput: it is not.
    """
    if not 1 < order < float("inf"):
        raise InvalidInput("order", f"{order} is not a finite number above 1")
    return order


def _check(sensitivity: float, width: float, scale: float, n: int) -> None:
    positive("sensitivity", sensitivity)
    positive("range", width)
    positive("scale", scale)
    whole("n", n)
