"""Rényi differential privacy: the orders in use, the curve of a pure mechanism, and conversion to (ε, δ)."""

from __future__ import annotations

import math
from functools import lru_cache

from flint import arb

from privalign.accounting.gaussian import probability
from privalign.accounting.gumbel import check_order
from privalign.errors import InvalidInput
from privalign.intervals import upper

DEFAULT_ORDERS: tuple[float, ...] = (1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256)


@lru_cache(maxsize=4096)
def randomised_response_renyi(epsilon: float, order: float) -> float:
    """Rényi divergence of order α > 1 of any ε-DP mechanism, rounded up.

    (α−1)⁻¹ log[p^α(1−p)^{1−α} + (1−p)^α p^{1−α}], p = e^ε/(1 + e^ε): randomised response is the worst of them.
    Also ≤ ε and ≤ αε²/2.
    """
    check_order(order)
    if not epsilon >= 0:
        raise InvalidInput("epsilon", f"{epsilon} is not a number ≥ 0")
    if epsilon in (0.0, float("inf")):
        return epsilon

    def formula() -> arb:
        a, e = arb(order), arb(epsilon)
        # p^α(1−p)^{1−α} = e^{αε}/(1+e^ε); divided through by e^{αε}
        return (a * e - (1 + e.exp()).log() + (1 + ((1 - 2 * a) * e).exp()).log()) / (a - 1)

    return min(epsilon, upper(formula))


def renyi_to_epsilon(rdp: float, order: float, delta: float) -> float:
    """ε at δ of a mechanism with Rényi divergence `rdp` at `order`, rounded up.

    ε = max(0, RDP(α) + log((α−1)/α) − (log δ + log α)/(α−1)) (Canonne, Kamath & Steinke 2020, Prop. 12).

    Formal guarantee: (ε, δ)-DP for the mechanism, or the whole stream, that the divergence bounds.
    """
    check_order(order)
    probability("delta", delta)
    if rdp in (0.0, float("inf")):  # divergence 0: the two distributions are equal
        return rdp
    if not rdp >= 0:
        raise InvalidInput("rdp", f"{rdp} is not a number ≥ 0")
    a = arb(order)
    return max(0.0, upper(lambda: arb(rdp) + conversion_offset(a, arb(delta))))


def conversion_offset(order: arb, delta: arb) -> arb:
    """log((α−1)/α) − (log δ + log α)/(α−1): what conversion adds to the divergence at this order."""
    return ((order - 1) / order).log() - (delta.log() + order.log()) / (order - 1)


def zcdp_to_epsilon(rho: float, delta: float) -> float:
    """ε at δ of a ρ-zCDP mechanism: the conversion of RDP αρ at the best real order, rounded up.

    Every order gives a valid bound; the order is found in floats and the bound at it evaluated with rounding up.
    """
    probability("delta", delta)
    if not rho >= 0:
        raise InvalidInput("rho", f"{rho} is not a number ≥ 0")
    if rho in (0.0, float("inf")):
        return rho
    from scipy.optimize import minimize_scalar

    def bound(log_order: float) -> float:
        order = 1 + math.exp(log_order)
        return rho * order + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)

    best = minimize_scalar(bound, bounds=(-30.0, 40.0), method="bounded", options={"xatol": 1e-10})
    order = 1 + math.exp(float(best.x))
    return max(0.0, upper(lambda: arb(rho) * arb(order) + conversion_offset(arb(order), arb(delta))))
