"""T identical queries: basic, zCDP, Rényi and PLD composition, and the best of the bounds that are valid.

The settings of the queries are fixed in advance, so a minimum over orders and over methods is valid (an adaptive stream
of different queries needs one order fixed beforehand: the ledger's rules).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb
from numpy.typing import NDArray

from privalign.acceptance import whole
from privalign.accounting import costs, gumbel
from privalign.accounting.gaussian import effective_sensitivity, probability
from privalign.accounting.renyi import DEFAULT_ORDERS, renyi_to_epsilon, zcdp_to_epsilon
from privalign.errors import InvalidInput
from privalign.events import Composed, Event, Free, GaussianMax, GaussianRelease, GumbelMax, NonPrivate, RejectionRounds
from privalign.intervals import round_down, upper

Floats = NDArray[np.float64]

PLD_POINTS = 20_000  # grid points of a composed privacy loss distribution: bounds its memory whatever the settings
PLD_COARSEST_GRID = 2.0**-20  # in units of σ; a sampler's grid s changes δ by a relative (s/σ)²z²/8, z deviations out
PLD_LEAST_DELTA = 1e-9  # below this its convolution's rounding is not negligible against δ


@dataclass(frozen=True, slots=True)
class Composition:
    """ε at δ after T queries by each method; None where a method does not apply. `best` is the least valid one."""

    basic: float
    zcdp: float
    renyi: float
    pld: float | None

    @property
    def best(self) -> float:
        return min(bound for bound in (self.basic, self.zcdp, self.renyi, self.pld) if bound is not None)


def compose(event: Event, queries: int, delta: float, orders: tuple[float, ...] = DEFAULT_ORDERS) -> Composition:
    """ε of `queries` releases of `event`, each about the same data, at a total δ.

    basic: T·ε(δ/(T·releases)); zcdp: conversion of T·ρ; renyi: the least conversion of T·RDP(α) over `orders`;
    pld: privacy loss distributions (dp-accounting), pessimistic, on a bounded grid.

    Formal guarantee: each number is a valid ε at δ for the T answers together, candidates drawn independently of the
    protected data and prompts chosen adaptively.

    Args:
        queries: T ≥ 1. delta: total δ in (0, 1).
    """
    whole("queries", queries)
    probability("total-delta", delta)
    if any(isinstance(part, RejectionRounds) and part.halt is not None for part in _flatten(event)):
        raise InvalidInput("halt", "a stream is priced before any halting time exists; leave it out")
    share = round_down(arb(delta) / queries)
    return Composition(
        basic=_times(queries, costs.epsilon(event, share)) if share > 0 else math.inf,
        zcdp=zcdp_to_epsilon(_times(queries, costs.rho(event)), delta),
        renyi=min(
            renyi_to_epsilon(_times(queries, rdp), order, delta) for rdp, order in zip(costs.renyi(event, orders), orders, strict=True)
        ),
        pld=_pld_epsilon(event, queries, delta),
    )


def _times(count: int, cost: float) -> float:
    return cost if math.isinf(cost) else upper(lambda: count * arb(cost))


@np.errstate(over="ignore")  # of dp-accounting's ratios of tails: they become infinite, and so does the bound
def _pld_epsilon(event: Event, queries: int, delta: float) -> float | None:
    """ε by privacy loss distributions, or None where δ or the losses are out of their reach."""
    if delta < PLD_LEAST_DELTA:
        return None
    parts = _flatten(event)
    if any(isinstance(part, NonPrivate) for part in parts):
        return None
    if any(isinstance(part, GaussianRelease) and part.grid > PLD_COARSEST_GRID * part.scale for part in parts):
        return None
    rho = sum(costs.rho(part) for part in parts) * queries
    if rho == 0:
        return 0.0
    # losses concentrate around ρ with deviation √(2ρ); the grid covers them out to the tails that δ leaves
    span = rho + 2 * math.sqrt(rho * math.log(1 / PLD_LEAST_DELTA)) + 1e-300
    interval = 2 * span / PLD_POINTS
    if not math.isfinite(span) or span > 1e4:
        return None

    from dp_accounting.pld import privacy_loss_distribution as pld

    composed = None
    for part in parts:
        if isinstance(part, GaussianRelease):
            # T Gaussian releases are one with T times the squared signal-to-noise ratio
            ratio = float(effective_sensitivity(part)) / part.scale * math.sqrt(queries) * (1 + 1e-12)
            summed = pld.from_gaussian_mechanism(1 / ratio, value_discretization_interval=interval)
        else:
            summed = _discretised(part, interval).self_compose(queries)
        composed = summed if composed is None else composed.compose(summed)
    assert composed is not None  # ρ > 0, so there is a part
    # allowances for float rounding: of the convolution, against δ; of reading the grid, upwards
    try:
        value = float(composed.get_epsilon_for_delta(delta * (1 - 1e-3)))
    except OverflowError:  # losses beyond ±709 in the composed distribution
        return None
    return value * (1 + 1e-9) if math.isfinite(value) else None


def _flatten(event: Event) -> list[Event]:
    """The parts of an event, `Free` ones left out."""
    if isinstance(event, Composed):
        return [leaf for part in event.events for leaf in _flatten(part)]
    return [] if isinstance(event, Free) else [event]


def _discretised(part: Event, interval: float) -> Any:
    """A dominating pair of one pure part on the grid, from its privacy curve δ(e) (connect-the-dots: pessimistic)."""
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

    match part:
        case GumbelMax(s, scale, n):
            limit = gumbel.bounded_range(s.charged, s.width, scale, n)
            curve: Callable[[Floats, float], Floats] = gumbel.bounded_range_delta
        case GaussianMax() | RejectionRounds():
            limit = costs.epsilon(part, 0.5)
            curve = pure_delta
        case _:
            raise TypeError(f"unknown privacy event {type(part).__name__}; refusing to price it")
    reach = math.ceil(limit / interval)
    grid: Floats = interval * np.arange(-reach, reach + 1, dtype=np.float64)
    deltas = np.clip(curve(grid, limit), 0.0, 1.0)
    return pld.PrivacyLossDistribution(pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -reach, reach, deltas))


def pure_delta(epsilon: Floats, limit: float) -> Floats:
    """The privacy curve of randomised response at ε₀, which dominates every ε₀-DP mechanism; shape as `epsilon`.

    δ(e) = (e^{ε₀} − e^e)/(1 + e^{ε₀}) for |e| ≤ ε₀, 0 above, 1 − e^e below.
    """
    inside = -np.expm1(np.minimum(epsilon - limit, 0.0)) / (1 + math.exp(-limit))
    return np.where(epsilon < -limit, -np.expm1(np.minimum(epsilon, 0.0)), inside)
