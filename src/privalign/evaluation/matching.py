"""The noise at which a mechanism costs as much as a given budget allows, per query or for a whole stream.

What is returned is priced by `accounting` and never above the budget; the search in between uses estimates, which for PrivITP
are a hundred times cheaper than the price.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from privalign.acceptance import acceptance_ratios, kappas, positive, threshold_grid, whole
from privalign.accounting import costs, rejection
from privalign.accounting.composition import compose
from privalign.accounting.gaussian import gaussian_release_epsilon, gaussian_rho, probability
from privalign.accounting.renyi import DEFAULT_ORDERS, renyi_to_epsilon
from privalign.errors import InvalidInput
from privalign.events import Composed, Event, GaussianRelease, RejectionRounds
from privalign.mechanisms.protocol import Mechanism
from privalign.sensitivity import Sensitivity

CLOSE = 0.98  # a price between this part of the budget and all of it is a match
ATTEMPTS = 12
_LOG_WIDTH = 1e-4  # of the bracket around a scale
_PROBED = 9  # thresholds of the estimate of a Rényi price
_REACH = math.log(1e9)  # scales searched: from 10⁻⁹ to 10⁹ times the range


@dataclass(frozen=True, slots=True)
class Budget:
    """(ε, δ) for `queries` answers together.

    One query is priced as a calculator prices it: the worst case of one release, δ for phase 1. Several are priced by the best
    valid rule for T identical queries that are fixed in advance (`accounting.composition`); of PrivITP's Rényi prices the one at
    a single public order.
    """

    epsilon: float
    delta: float
    queries: int = 1

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        probability("delta", self.delta)
        whole("queries", self.queries)

    def price(self, event: Event, orders: tuple[float, ...] = DEFAULT_ORDERS) -> float:
        """ε at δ of that many releases of `event`, rounded up."""
        if self.queries == 1:
            return costs.epsilon(event, self.delta)
        return compose(event, self.queries, self.delta, orders).best


@dataclass(frozen=True, slots=True)
class Matched:
    """A mechanism at a noise scale that meets a budget; `epsilon` is the price of all its queries, at most the budget's."""

    mechanism: Mechanism
    scale: float
    epsilon: float


def match(at: Callable[[float], Mechanism], sensitivity: Sensitivity, budget: Budget) -> Matched:
    """The mechanism `at` the least scale, up to 2 % of ε, at which the budget pays for it.

    Args:
        at: the mechanism at a noise scale in reward units; its price falls with the scale.

    Raises:
        InvalidInput: no scale up to 10⁹ times the range meets the budget.
    """
    aim, best = budget.epsilon, None
    for _ in range(ATTEMPTS):
        found = priced(at, estimated_scale(at, sensitivity, budget, aim), sensitivity, budget)
        if found.epsilon <= budget.epsilon:
            best = found
            if found.epsilon >= CLOSE * budget.epsilon:
                break
        aim *= min(4.0, (1 + CLOSE) / 2 * budget.epsilon / max(found.epsilon, 1e-300))
    if best is None:
        raise InvalidInput("epsilon", f"{budget.epsilon:g} for {budget.queries:,} queries cannot be met; allow more ε, or fewer queries")
    return best


def priced(at: Callable[[float], Mechanism], scale: float, sensitivity: Sensitivity, budget: Budget) -> Matched:
    """The mechanism at this scale with its price, whether or not the budget pays for it."""
    mechanism = at(scale)
    event = mechanism.event(sensitivity)
    return Matched(mechanism, scale, budget.price(event, _orders(event, budget)))


def estimated_scale(at: Callable[[float], Mechanism], sensitivity: Sensitivity, budget: Budget, aim: float | None = None) -> float:
    """The scale at which the estimated price is `aim` (default: the budget's ε); the price itself may be a little off.

    Raises:
        InvalidInput: as `match`.
    """
    from scipy.optimize import brentq

    target = budget.epsilon if aim is None else aim

    def excess(log_scale: float) -> float:
        price = _estimate(at(math.exp(log_scale)).event(sensitivity), budget)
        return 700.0 if math.isinf(price) else math.log(max(price, 1e-300) / target)

    centre = math.log(sensitivity.width)
    low = high = math.log(sensitivity.delta)
    step = math.log(4)
    while excess(high) > 0:
        low, high = high, high + step
        if high > centre + _REACH:
            raise InvalidInput("epsilon", f"{budget.epsilon:g} cannot be met by noise of up to 10⁹ times the range; allow more ε")
    while low == high or excess(low) <= 0:
        low, high = low - step, low
        if low < centre - _REACH:
            return math.exp(low)
    return math.exp(float(brentq(excess, low, high, xtol=_LOG_WIDTH)) + 2 * _LOG_WIDTH)


def _estimate(event: Event, budget: Budget) -> float:
    """The price, or for PrivITP a figure close to it."""
    parts = _privitp(event)
    if parts is None:
        return budget.price(event)
    release, rounds = parts
    s, share = rounds.sensitivity, budget.delta / budget.queries
    grid = threshold_grid(rounds.beta, s.width)
    k, b = (ratio(grid, s.width, rounds.scale, rounds.tail, s.charged) for ratio in (kappas, acceptance_ratios))
    worst = float(np.maximum((rounds.cap - 1) * k + b, rounds.cap * k).max())
    basic = budget.queries * (gaussian_release_epsilon(release, share) + worst)
    return basic if budget.queries == 1 else min(basic, _renyi_estimate(release, rounds, budget)[0])


def _orders(event: Event, budget: Budget) -> tuple[float, ...]:
    """The orders at which an event is priced: for PrivITP, whose Rényi price takes seconds, the best one by estimate."""
    parts = _privitp(event)
    return DEFAULT_ORDERS if parts is None or budget.queries == 1 else (_renyi_estimate(*parts, budget)[1],)


def _renyi_estimate(release: GaussianRelease, rounds: RejectionRounds, budget: Budget) -> tuple[float, float]:
    """(ε, order) by the Rényi divergence at a few thresholds, at the order that makes ε least.

    What conversion adds falls with the order and the divergence rises: ε has one valley, and the search ends beyond it.
    """
    grid = threshold_grid(rounds.beta, rounds.sensitivity.width)
    probed = grid[np.linspace(0, len(grid) - 1, _PROBED).astype(int)]
    rho, best = gaussian_rho(release), (math.inf, DEFAULT_ORDERS[0])
    for order in DEFAULT_ORDERS:
        divergence = order * rho + max(rejection.renyi_at(rounds, float(threshold), order) for threshold in probed)
        epsilon = renyi_to_epsilon(budget.queries * divergence, order, budget.delta)
        if epsilon > best[0]:
            break
        best = (epsilon, order)
    return best


def _privitp(event: Event) -> tuple[GaussianRelease, RejectionRounds] | None:
    match event:
        case Composed((GaussianRelease() as release, RejectionRounds() as rounds)):
            return release, rounds
    return None
