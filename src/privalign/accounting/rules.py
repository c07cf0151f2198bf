"""Composition rules: what an account adds up, what a query is charged, and what the sum guarantees.

A rule is a filter. Before each query it decides from public settings whether the worst case still fits; afterwards
`settle` may lower the charge to what the theorem allows, never by more. Rules are immutable: they are fixed when the
account is made. Sums are of whole units, so they are exact and free of order; costs round up, budgets down.

| event | basic | fsrc | two-counter | renyi | lowered by settle |
|---|---|---|---|---|---|
| GumbelMax | exact ε(n) | ε(n) | η²/8 into ρ | bounded-range curve at α | nothing |
| GaussianMax | ε | ε | ε | randomised-response curve at α | nothing |
| GaussianRelease | ε₁(δ_q), δ_q | ε₁(δ_q), δ_q | Δ′²/(2σ²) into ρ | αΔ′²/(2σ²) | nothing |
| RejectionRounds | sup ε₂max | sup ε₂max | sup ε₂max | sup over λ̃ of RDP₂ | see below |
| Free | 0 | 0 | 0 | 0 | – |
| NonPrivate | refused | refused | refused | refused | – |

Rejection rounds are lowered by `basic` not at all, by `fsrc` and `two-counter` by λ̃ and t, by `renyi` by λ̃ and never by t.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Protocol

from flint import arb

from privalign.acceptance import positive
from privalign.accounting import costs
from privalign.accounting.gaussian import gaussian_release_epsilon, gaussian_rho, probability
from privalign.accounting.gumbel import check_order, privbon_rho
from privalign.accounting.renyi import DEFAULT_ORDERS, conversion_offset
from privalign.errors import InvalidInput
from privalign.events import Composed, Event, Free, GaussianMax, GaussianRelease, GumbelMax, NonPrivate, RejectionRounds
from privalign.intervals import upper

COST_UNIT = Fraction(1, 10**12)  # of ε, ρ and Rényi divergence
DELTA_UNIT = Fraction(1, 10**18)
MOST_UNITS = 2**62  # what a database integer holds, with room for one addition


@dataclass(frozen=True, slots=True)
class Debit:
    """Whole units of each counter: ε, ρ and RDP in 10⁻¹², δ in 10⁻¹⁸. A rule uses the counters that it needs."""

    epsilon: int = 0
    delta: int = 0
    rho: int = 0
    rdp: int = 0

    def __add__(self, other: Debit) -> Debit:
        return Debit(self.epsilon + other.epsilon, self.delta + other.delta, self.rho + other.rho, self.rdp + other.rdp)

    def __sub__(self, other: Debit) -> Debit:
        return Debit(self.epsilon - other.epsilon, self.delta - other.delta, self.rho - other.rho, self.rdp - other.rdp)

    def __mul__(self, count: int) -> Debit:
        return Debit(self.epsilon * count, self.delta * count, self.rho * count, self.rdp * count)

    def at_most(self, other: Debit) -> Debit:
        """The smaller of the two in every counter."""
        return Debit(min(self.epsilon, other.epsilon), min(self.delta, other.delta), min(self.rho, other.rho), min(self.rdp, other.rdp))

    def fits(self, limit: Debit) -> bool:
        """Whether no counter is above the limit's."""
        return self.epsilon <= limit.epsilon and self.delta <= limit.delta and self.rho <= limit.rho and self.rdp <= limit.rdp


def units_up(value: float, unit: Fraction = COST_UNIT) -> int:
    """A cost in whole units, rounded up.

    Raises:
        InvalidInput: not a number ≥ 0, or too large to be counted (an infinite cost fits no account).
    """
    if not value >= 0:
        raise InvalidInput("cost", f"{value} is not a number ≥ 0")
    if math.isinf(value) or Fraction(value) / unit > MOST_UNITS:
        raise InvalidInput("cost", f"{value:g} is above what any account can hold; add noise, or certify a smaller sensitivity")
    return math.ceil(Fraction(value) / unit)


def units_down(value: float, unit: Fraction = COST_UNIT) -> int:
    """A budget in whole units, rounded down."""
    if not (value >= 0 and Fraction(value) / unit <= MOST_UNITS):
        raise InvalidInput("budget", f"{value:g} is not between 0 and what an account can hold")
    return math.floor(Fraction(value) / unit)


def from_units(units: int, unit: Fraction = COST_UNIT) -> float:
    """A number of units as a float, rounded up."""
    exact = units * unit
    value = float(exact)
    return value if Fraction(value) >= exact else math.nextafter(value, math.inf)


class Rule(Protocol):
    """One way of adding up, with its budget."""

    @property
    def name(self) -> str:
        """The name on the command line."""

    @property
    def epsilon(self) -> float:
        """ε_total of the guarantee."""

    @property
    def delta(self) -> float:
        """δ_total of the guarantee."""

    @property
    def limit(self) -> Debit:
        """The most that all debits of the account may add up to, in every counter."""

    def charge(self, event: Event) -> Debit:
        """The charge of one event: its worst case where it is unrealised; what may stand after settling where it is realised."""

    def spent(self, debit: Debit) -> tuple[float, float]:
        """(ε, δ) that all debits so far amount to; (0, 0) while nothing is debited. Rounded up."""


def make_rule(
    name: str,
    epsilon: float,
    delta: float,
    *,
    order: float | None = None,
    rho: float | None = None,
    delta_per_query: float | None = None,
    event: Event | None = None,
) -> Rule:
    """The rule of that name with the defaults of the contract: δ_q = δ/10⁴, ρ worth half of ε, an order that leaves half of ε.

    Args:
        event: the query that a renyi account without an explicit order should answer most of.

    Raises:
        InvalidInput: no such rule, a parameter that it does not take, or one that is out of range.
    """
    takes = {"basic": "delta_per_query", "fsrc": "delta_per_query", "two-counter": "rho", "renyi": "order"}
    if name not in takes:
        raise InvalidInput("rule", f"{name!r} is not one of {', '.join(takes)}")
    for given, value in (("order", order), ("rho", rho), ("delta_per_query", delta_per_query)):
        if value is not None and takes[name] != given:
            raise InvalidInput(given, f"not a parameter of rule {name}; leave it out")
    if name == "renyi":
        return Renyi.default(epsilon, delta, event) if order is None else Renyi(epsilon, delta, order)
    if name == "two-counter":
        return TwoCounter.halved(epsilon, delta) if rho is None else TwoCounter(epsilon, delta, rho)
    share = delta / 10_000 if delta_per_query is None else delta_per_query
    return Basic(epsilon, delta, share) if name == "basic" else Fsrc(epsilon, delta, share)


def charge_all(rule: Rule, events: Iterable[Event]) -> Debit:
    """The charge of several queries reserved together: the sum of their charges."""
    total = Debit()
    for event in events:
        total += rule.charge(event)
    return total


@dataclass(frozen=True, slots=True)
class _Pointwise:
    """What `basic` and `fsrc` share: ε and δ_q add up to ε_total and δ_total."""

    epsilon: float
    delta: float
    delta_per_query: float

    def __post_init__(self) -> None:
        _check_budget(self.epsilon, self.delta)
        probability("delta_per_query", self.delta_per_query)

    @property
    def limit(self) -> Debit:
        return Debit(epsilon=units_down(self.epsilon), delta=units_down(self.delta, DELTA_UNIT))

    def spent(self, debit: Debit) -> tuple[float, float]:
        return from_units(debit.epsilon), from_units(debit.delta, DELTA_UNIT)


@dataclass(frozen=True, slots=True)
class Basic(_Pointwise):
    """Adds up the worst-case ε and δ_q of every query. Nothing is ever lowered.

    Formal guarantee: the stream is (Σε, Σδ_q)-DP, hence (ε_total, δ_total)-DP, parameters chosen adaptively.
    """

    name: ClassVar[str] = "basic"

    def charge(self, event: Event) -> Debit:
        return _sum_charges(event, lambda part: _pointwise(_worst(part), self.delta_per_query))


@dataclass(frozen=True, slots=True)
class Fsrc(_Pointwise):
    """Reserves ε₁ + sup ε₂max and settles at the realised ε₁ + ε₂(t) (or n₂κ); δ_q adds up and is never refunded.

    Formal guarantee: by backward induction over queries (a hockey-stick step for phase 1, a pointwise step for phase 2)
    the stream is (ε_total, δ_total)-DP. The paper's Algorithm 3 with its three errors corrected.
    """

    name: ClassVar[str] = "fsrc"

    def charge(self, event: Event) -> Debit:
        return _sum_charges(event, lambda part: _pointwise(part, self.delta_per_query))


@dataclass(frozen=True, slots=True)
class TwoCounter:
    """Phase 1 in zCDP, Σρ ≤ ρ_B; phase 2 pathwise, Σε₂ ≤ ε_B; the split is fixed when the account is made.

    Formal guarantee: with the hybrid that runs phase 1 on D′ and phase 2 on D, the stream is
    (ε_B + ρ_B + 2√(ρ_B ln(1/δ)), δ)-DP, and that is at most (ε_total, δ).
    """

    epsilon: float
    delta: float
    rho: float
    name: ClassVar[str] = "two-counter"

    def __post_init__(self) -> None:
        _check_budget(self.epsilon, self.delta)
        positive("rho", self.rho)
        if self._offset(self.rho) > self.epsilon:
            raise InvalidInput("rho", f"{self.rho:g} alone converts to more than ε = {self.epsilon:g}; give a smaller one")

    @classmethod
    def halved(cls, epsilon: float, delta: float) -> TwoCounter:
        """The default split: ρ_B + 2√(ρ_B ln(1/δ)) = ε/2, solved for ρ_B and rounded down."""
        _check_budget(epsilon, delta)
        log = math.log(1 / delta)
        rho = (math.sqrt(log + epsilon / 2) - math.sqrt(log)) ** 2
        return cls(epsilon, delta, rho * (1 - 1e-12))

    def _offset(self, rho: float) -> float:
        """ρ + 2√(ρ ln(1/δ)), rounded up."""
        return 0.0 if rho == 0 else upper(lambda: arb(rho) + 2 * (arb(rho) * -arb(self.delta).log()).sqrt())

    @property
    def limit(self) -> Debit:
        left = Fraction(self.epsilon) - Fraction(self._offset(self.rho))
        return Debit(epsilon=math.floor(left / COST_UNIT) if left > 0 else 0, rho=units_down(self.rho))

    def charge(self, event: Event) -> Debit:
        return _sum_charges(event, self._split)

    def _split(self, part: Event) -> Debit:
        match part:
            case GumbelMax(s, scale, n):
                return Debit(rho=units_up(privbon_rho(s.charged, s.width, scale, n)))
            case GaussianRelease():
                return Debit(rho=units_up(gaussian_rho(part)))
        return Debit(epsilon=units_up(costs.epsilon(part, self.delta)))

    def spent(self, debit: Debit) -> tuple[float, float]:
        if debit == Debit():
            return 0.0, 0.0
        rho = from_units(debit.rho)
        return costs.total((from_units(debit.epsilon), self._offset(rho))), self.delta


@dataclass(frozen=True, slots=True)
class Renyi:
    """Adds up the Rényi divergence of every query at one public order α, fixed when the account is made.

    Formal guarantee: a fully adaptive Rényi filter (Feldman & Zrnic 2021): Σ RDP(α) ≤ budget, converted once to
    (ε_total, δ_total). Phase 2 is charged at the realised λ̃, which is known before phase 2 starts, and never by t.
    """

    epsilon: float
    delta: float
    order: float
    name: ClassVar[str] = "renyi"

    def __post_init__(self) -> None:
        _check_budget(self.epsilon, self.delta)
        check_order(self.order)
        if self._offset() >= self.epsilon:
            working = [order for order in DEFAULT_ORDERS if _offset(order, self.delta) <= self.epsilon / 2]
            remedy = f"use order {working[0]:g}" if working else "use a larger ε or δ"
            price = f"converting from order {self.order:g} costs {self._offset():.4g} at δ = {self.delta:g}"
            raise InvalidInput("order", f"{price}, all of ε = {self.epsilon:g}; {remedy}")

    @classmethod
    def default(cls, epsilon: float, delta: float, event: Event | None = None) -> Renyi:
        """The order that answers most queries of `event` (worst case over λ̃); without one the smallest default order whose offset is ≤ ε/2.

        Raises:
            InvalidInput: no default order leaves a budget.
        """
        _check_budget(epsilon, delta)
        affordable = [order for order in DEFAULT_ORDERS if _offset(order, delta) < epsilon]
        if event is not None and affordable:
            prices = costs.renyi(event, tuple(affordable))
            answers = {
                order: (epsilon - _offset(order, delta)) / max(price, 1e-300) for order, price in zip(affordable, prices, strict=True)
            }
            return cls(epsilon, delta, max(affordable, key=lambda order: answers[order]))
        half = [order for order in affordable if _offset(order, delta) <= epsilon / 2]
        if not half:
            raise InvalidInput(
                "epsilon", f"{epsilon:g} is too small for Rényi accounting at δ = {delta:g}; use a larger ε or δ, or rule basic"
            )
        return cls(epsilon, delta, half[0])

    def _offset(self) -> float:
        return _offset(self.order, self.delta)

    @property
    def limit(self) -> Debit:
        return Debit(rdp=math.floor((Fraction(self.epsilon) - Fraction(max(0.0, self._offset()))) / COST_UNIT))

    def charge(self, event: Event) -> Debit:
        def divergence(part: Event) -> Debit:
            if isinstance(part, RejectionRounds):  # by λ̃ only: t is known too late
                part = RejectionRounds(part.sensitivity, part.beta, part.scale, part.tail, part.cap, part.threshold)
            return Debit(rdp=units_up(costs.renyi(part, (self.order,))[0]))

        return _sum_charges(event, divergence)

    def spent(self, debit: Debit) -> tuple[float, float]:
        if debit == Debit():
            return 0.0, 0.0
        rdp = from_units(debit.rdp)
        return max(0.0, upper(lambda: arb(rdp) + conversion_offset(arb(self.order), arb(self.delta)))), self.delta


def _check_budget(epsilon: float, delta: float) -> None:
    positive("epsilon", epsilon)
    probability("delta", delta)
    units_down(epsilon)


def _offset(order: float, delta: float) -> float:
    return upper(lambda: conversion_offset(arb(order), arb(delta)))


def _worst(part: Event) -> Event:
    """The same rounds without what was realised."""
    if isinstance(part, RejectionRounds):
        return RejectionRounds(part.sensitivity, part.beta, part.scale, part.tail, part.cap)
    return part


def _pointwise(part: Event, delta_per_query: float) -> Debit:
    """ε, and δ_q where the part needs one."""
    if isinstance(part, GaussianRelease):
        return Debit(
            epsilon=units_up(gaussian_release_epsilon(part, delta_per_query)),
            delta=units_up(delta_per_query, DELTA_UNIT),
        )
    return Debit(epsilon=units_up(costs.epsilon(part, delta_per_query)))


def _sum_charges(event: Event, charge: Callable[[Event], Debit]) -> Debit:
    """The sum over the parts of an event.

    Raises:
        InvalidInput: a part has no guarantee. TypeError: a part of an unknown kind.
    """
    match event:
        case Composed(events):
            total = Debit()
            for part in events:
                total += _sum_charges(part, charge)
            return total
        case Free():
            return Debit()
        case NonPrivate():
            raise InvalidInput("mechanism", "it has no privacy guarantee, so no account can pay for it; choose a private one")
        case GumbelMax() | GaussianMax() | GaussianRelease() | RejectionRounds():
            return charge(event)
    raise TypeError(f"unknown privacy event {type(event).__name__}; refusing to price it")
