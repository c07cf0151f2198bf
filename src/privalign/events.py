"""The vocabulary of privacy events: what was released about the protected data, and with which public settings.

Mechanisms emit events, accounting prices them, the ledger remembers them. Append-only in meaning: an event never
changes what it stands for. A rule that meets an event it does not know must raise.
All rewards and thresholds are in units shifted to [0, R].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from privalign.sensitivity import HeadRelease, RewardRange, Sensitivity


class Fallback(Enum):
    """Marks an outcome in which every phase-2 candidate was rejected."""

    FALLBACK = "fallback"


FALLBACK: Final = Fallback.FALLBACK
Halt = int | Fallback


@dataclass(frozen=True, slots=True)
class GumbelMax:
    """The index of the largest of n rewards + Gumbel(0, scale): index i with probability ∝ exp(r_i/scale)."""

    sensitivity: Sensitivity
    scale: float
    n: int


@dataclass(frozen=True, slots=True)
class GaussianMax:
    """The index of the largest of n rewards + N(0, scale²)."""

    sensitivity: Sensitivity
    scale: float
    n: int


@dataclass(frozen=True, slots=True)
class GaussianRelease:
    """One number of sensitivity Δ released with N(0, scale²).

    `grid` is the step s = 2^k that the sampler rounds to (0: real-valued), `input_error` a bound e on the floating
    error of the number itself. Both join the sensitivity: Δ′ = ⌈(Δ + 2e)/s⌉·s.
    """

    sensitivity: Sensitivity
    scale: float
    grid: float = 0.0
    input_error: float = 0.0


@dataclass(frozen=True, slots=True)
class RejectionRounds:
    """Phase 2 of PrivITP: at most `cap` rounds, each accepting a fresh candidate of reward q with probability p(q).

    Unrealised (`threshold` None): the worst case over the 1,024 thresholds and every halting time. With `threshold`
    λ̃ the worst halting time at λ̃; with `halt` too (1 … cap, or FALLBACK) the ex-post cost of that outcome.
    """

    sensitivity: Sensitivity
    beta: float
    scale: float
    tail: float
    cap: int
    threshold: float | None = None
    halt: Halt | None = None

    def at(self, threshold: float, halt: Halt) -> RejectionRounds:
        """The realised event."""
        return replace(self, threshold=threshold, halt=halt)


@dataclass(frozen=True, slots=True)
class Composed:
    """All of `events`, released one after the other about the same data."""

    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Free:
    """Nothing about the protected data: post-processing, a DP-released head, the base policy.

    `release` are the terms of the head: free only for the account that paid for it.
    """

    release: HeadRelease | None = None


@dataclass(frozen=True, slots=True)
class NonPrivate:
    """No guarantee at all: infinite cost under every rule."""


def release_event(release: HeadRelease) -> GaussianRelease:
    """What the account of the preferences pays for a head, once: a Gaussian release of sensitivity ‖w − w′‖.

    Weights have no range that they are clipped to; the one stated here is only wider than the bound, so that it never
    takes the bound's place.
    """
    bound, data = release.movement, release.dataset
    neighbours = (release.relation, release.records_per_person)
    return GaussianRelease(Sensitivity(bound, RewardRange(0.0, 4 * bound), "certificate", *neighbours, dataset=data), release.scale)


Event = GumbelMax | GaussianMax | GaussianRelease | RejectionRounds | Composed | Free | NonPrivate
