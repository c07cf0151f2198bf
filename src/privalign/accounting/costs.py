"""What an event costs: pure or approximate ε, zCDP and Rényi. The one place that knows every kind of event.

Prices are upper bounds, rounded up, and include what sampling adds. `NonPrivate` costs infinity; an event of an unknown
kind raises TypeError.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from flint import arb

from privalign.accounting import gumbel, rejection
from privalign.accounting.gaussian import gaussian_release_epsilon, gaussian_rho
from privalign.accounting.gaussian_max import privbon_gaussian_epsilon
from privalign.accounting.renyi import randomised_response_renyi
from privalign.events import Composed, Event, Free, GaussianMax, GaussianRelease, GumbelMax, NonPrivate, RejectionRounds
from privalign.intervals import round_down, upper


def epsilon(event: Event, delta: float) -> float:
    """ε of one event at δ; rejection rounds at whatever of λ̃ and t is known, the worst case of the rest.

    Only Gaussian releases use δ; several in one event share it equally. Formal guarantee: the event is (ε, δ)-DP; with
    a realised halting time the phase-2 part is an ex-post bound on that outcome.
    """
    releases = count_releases(event)
    return _epsilon(event, round_down(arb(delta) / releases) if releases else delta)


def count_releases(event: Event) -> int:
    """How many parts of the event need a δ."""
    match event:
        case Composed(events):
            return sum(count_releases(part) for part in events)
        case GaussianRelease():
            return 1
    return 0


def rounds_epsilon(rounds: RejectionRounds) -> float:
    """ε₂ of phase 2 at whatever of λ̃ and t is known."""
    if rounds.threshold is None:
        return rejection.worst_case_epsilon(rounds)
    if rounds.halt is None:
        return rejection.worst_halt_epsilon(rounds, rounds.threshold)
    return rejection.ex_post_epsilon(rounds, rounds.threshold, rounds.halt)


def rho(event: Event) -> float:
    """ρ of one event in zero-concentrated DP; pure parts by ε²/2 (Bun & Steinke 2016), PrivBoN by η²/8."""
    match event:
        case Free():
            return 0.0
        case NonPrivate():
            return math.inf
        case GumbelMax(s, scale, n):
            return gumbel.privbon_rho(s.charged, s.width, scale, n)
        case GaussianMax(s, scale, n):
            return _pure_rho(privbon_gaussian_epsilon(s.charged, s.width, scale, n))
        case GaussianRelease():
            return gaussian_rho(event)
        case RejectionRounds():
            return _pure_rho(rounds_epsilon(replace(event, halt=None)))  # what one outcome cost bounds no divergence
        case Composed(events):
            return total(rho(part) for part in events)
    raise TypeError(f"unknown privacy event {type(event).__name__}; refusing to price it")


def renyi(event: Event, orders: tuple[float, ...]) -> tuple[float, ...]:
    """Rényi divergence of one event at each order; rejection rounds at λ̃ where it is known, never at t."""
    match event:
        case Free():
            return (0.0,) * len(orders)
        case NonPrivate():
            return (math.inf,) * len(orders)
        case GumbelMax(s, scale, n):
            return tuple(gumbel.privbon_renyi(s.charged, s.width, scale, n, order) for order in orders)
        case GaussianMax(s, scale, n):
            pure = privbon_gaussian_epsilon(s.charged, s.width, scale, n)
            return tuple(randomised_response_renyi(pure, order) for order in orders)
        case GaussianRelease():
            each = gaussian_rho(event)
            return tuple(upper(partial(_product, order, each)) for order in orders)
        case RejectionRounds():
            if event.threshold is None:
                return rejection.worst_case_renyi(event, orders)
            return tuple(rejection.renyi_at(event, event.threshold, order) for order in orders)
        case Composed(events):
            parts = [renyi(part, orders) for part in events]
            return tuple(total(column) for column in zip((0.0,) * len(orders), *parts, strict=True))
    raise TypeError(f"unknown privacy event {type(event).__name__}; refusing to price it")


def total(costs: Iterable[float]) -> float:
    """The sum of costs, rounded up once."""
    costs = list(costs)
    if math.inf in costs:
        return math.inf
    return upper(lambda: sum((arb(cost) for cost in costs), arb(0)))


def _epsilon(event: Event, delta: float) -> float:
    match event:
        case Free():
            return 0.0
        case NonPrivate():
            return math.inf
        case GumbelMax(s, scale, n):
            return gumbel.privbon_epsilon(s.charged, s.width, scale, n)
        case GaussianMax(s, scale, n):
            return privbon_gaussian_epsilon(s.charged, s.width, scale, n)
        case GaussianRelease():
            return gaussian_release_epsilon(event, delta)
        case RejectionRounds():
            return rounds_epsilon(event)
        case Composed(events):
            return total(_epsilon(part, delta) for part in events)
    raise TypeError(f"unknown privacy event {type(event).__name__}; refusing to price it")


def _product(one: float, other: float) -> arb:
    return arb(one) * arb(other)


def _pure_rho(pure: float) -> float:
    return pure if math.isinf(pure) else upper(lambda: arb(pure) * arb(pure) / 2)
