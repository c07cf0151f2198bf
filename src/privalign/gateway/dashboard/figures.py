"""The figures on the pages: pure functions of an account, its history and the time.

What is shown as spent is rounded up and what is shown as remaining is the total less that, so that both are bounds and
the two add up to the total. The full numbers, digit by digit those of `account show`, stand beside them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from privalign.accounting.rules import Debit, Rule
from privalign.gateway.dashboard.followers import Followed
from privalign.gateway.dashboard.history import HORIZONS, Horizon, Point, Share
from privalign.intervals import shown
from privalign.ledger import Account

DIGITS = 5  # significant ones of a total; every other ε of the account has as many decimals
FARTHEST = timedelta(days=36525)  # beyond a century no date is printed
SHORTEST = 60.0  # seconds that a pace must be measured over
COUNTERS = ("epsilon", "delta", "rho", "rdp")


@dataclass(frozen=True, slots=True)
class Amount:
    """An ε: the number itself, how it is printed, and its part of the total in per cent."""

    value: float
    text: str
    percent: float


@dataclass(frozen=True, slots=True)
class Budget:
    """One account in numbers. `spent` = `settled` + `open`, and `spent` + `remaining` = `total`, as printed too."""

    total: Amount
    spent: Amount
    settled: Amount
    open: Amount
    remaining: Amount
    percent: str  # spent, rounded up
    half: str  # of the total
    delta: str  # of the guarantee
    entry_price: Amount | None  # what the first answer commits for good, where the rule has such a price


@dataclass(frozen=True, slots=True)
class Pace:
    """What was spent within a horizon, and when the budget ends if that goes on.

    It is measured over less than the horizon for a young account. `ends` None: not at this pace, or too early.
    """

    horizon: Horizon
    queries: int
    epsilon: Amount
    per_day: str | None
    ends: datetime | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Chain:
    """The state of a journal: "whole", "reading" or "broken", and a sentence."""

    state: str
    text: str


@dataclass(frozen=True, slots=True)
class Sharer:
    """A key or a model with what was asked through it. `percent` is its part of all debits of the binding counter."""

    name: str | None
    queries: int
    percent: float
    last: datetime | None


def budget(account: Account) -> Budget:
    """The account's figures."""
    rule, total, grain = account.rule, Decimal(repr(account.rule.epsilon)), _grain(account.rule)
    epsilon, _ = account.spent
    settled = rule.spent(account.debited - account.open)[0]

    def amount(value: float, printed: Decimal) -> Amount:
        return Amount(value, f"{printed:f}", min(100.0, 100 * value / rule.epsilon))

    spent = _up(epsilon, grain)
    closed = min(_up(settled, grain), spent)
    first = rule.spent(Debit(rdp=1))[0] if account.limit.rdp else 0.0
    return Budget(
        total=Amount(rule.epsilon, f"{total.normalize():f}", 100.0),
        spent=amount(epsilon, spent),
        settled=amount(settled, closed),
        open=amount(max(0.0, epsilon - settled), spent - closed),
        remaining=amount(account.remaining[0], max(Decimal(0), (total - spent).quantize(grain, ROUND_FLOOR))),
        percent=f"{(100 * spent / total).quantize(Decimal('0.1'), ROUND_CEILING):f}",
        half=f"{(total / 2).normalize():f}",
        delta=shown(rule.delta),
        entry_price=amount(first, _up(first, grain)) if first > 0 else None,
    )


def spent_after(rule: Rule, debited: Debit) -> float:
    """ε of some debits, without the price of the first answer: what a pace is measured by."""
    return max(0.0, rule.spent(debited)[0] - rule.spent(Debit(rdp=1))[0]) if debited != Debit() else 0.0


def pace(followed: Followed, horizon: Horizon, now: datetime) -> Pace:
    """The pace within one horizon."""
    account, rule = followed.account, followed.account.rule
    start, *_ = followed.history.series[horizon.name].since(now.timestamp())
    begins = max(start.start, account.created.timestamp())
    seconds = max(0.0, now.timestamp() - begins)
    rise = max(0.0, spent_after(rule, account.debited) - spent_after(rule, start.debited))
    queries = account.settled_queries + account.open_queries - start.queries
    grain = _grain(rule)
    epsilon = Amount(rise, f"{_up(rise, grain):f}", min(100.0, 100 * rise / rule.epsilon))
    if seconds < SHORTEST:
        return Pace(horizon, queries, epsilon, None, None, "too early to tell")
    per_day = f"{_up(rise * 86400 / seconds, grain):f}"
    left = lasts(account, start.debited, seconds)
    if left is None:
        return Pace(horizon, queries, epsilon, per_day, None, "no end at this pace")
    if left == 0:
        return Pace(horizon, queries, epsilon, per_day, now, "used up")
    if left > FARTHEST.total_seconds():
        return Pace(horizon, queries, epsilon, per_day, None, "beyond a century")
    return Pace(horizon, queries, epsilon, per_day, now + timedelta(seconds=left), f"in {duration(left)}")


def lasts(account: Account, before: Debit, seconds: float) -> float | None:
    """Seconds until the first counter reaches its limit, if each goes on as within the last `seconds`; None if none moves.

    Counters bind, not the converted ε, which is no straight line in them under two-counter.
    """
    left: list[float] = []
    for counter in COUNTERS:
        limit, now, then = (getattr(debit, counter) for debit in (account.limit, account.debited, before))
        if now > then:
            left.append(max(0, limit - now) * seconds / (now - then))
    return min(left, default=None)


def chain(followed: Followed) -> Chain:
    """Whether the journal is whole, as far as this process read it."""
    read, length = followed.history.length, followed.account.length
    if followed.fault is not None:
        return Chain("broken", followed.fault.removeprefix(f"account {followed.account.name}: "))
    if not followed.complete:
        return Chain("reading", f"reading the journal: {read:,} of {length:,} rows, all right so far")
    return Chain("whole", f"{length:,} {'row' if length == 1 else 'rows'} checked from the first on; they add up to these figures")


def paces(followed: Followed, now: datetime) -> tuple[Pace, ...]:
    """The pace within every horizon."""
    return tuple(pace(followed, horizon, now) for horizon in HORIZONS)


def curve(followed: Followed, horizon: Horizon, now: datetime) -> list[tuple[datetime, float, int]]:
    """(time, ε spent, queries) over one horizon: where it began, the end of each bucket that moved it, and now."""
    account = followed.account
    first, *rest = followed.history.series[horizon.name].since(now.timestamp())

    def at(point: Point, seconds: float) -> tuple[datetime, float, int]:
        return datetime.fromtimestamp(seconds, UTC), account.rule.spent(point.debited)[0], point.queries

    points = [at(first, first.start), *(at(point, min(point.start + horizon.width, now.timestamp())) for point in rest)]
    return [*points, (now, account.spent[0], account.settled_queries + account.open_queries)]


def sharers(shares: Mapping[str | None, Share], account: Account) -> tuple[Sharer, ...]:
    """Who used how much, the most first; parts are of the counter that is nearest to its limit."""
    binding = max(COUNTERS, key=lambda counter: _part(getattr(account.debited, counter), getattr(account.limit, counter)))
    whole = getattr(account.debited, binding)
    rows = [Sharer(name, share.queries, 100 * _part(getattr(share.debited, binding), whole), share.last) for name, share in shares.items()]
    return tuple(sorted(rows, key=lambda row: (-row.percent, -row.queries, row.name or "")))


def exact(account: Account) -> tuple[tuple[str, str], ...]:
    """The numbers of `account show`, digit by digit."""
    units = {"epsilon": "10⁻¹²", "rho": "10⁻¹²", "rdp": "10⁻¹²", "delta": "10⁻¹⁸"}
    rows = [
        ("spent ε", repr(account.spent[0])),
        ("spent δ", repr(account.spent[1])),
        ("remaining ε", repr(account.remaining[0])),
        ("remaining δ", repr(account.remaining[1])),
    ]
    for name, debit in (("limit", account.limit), ("debited", account.debited), ("open", account.open)):
        rows += [
            (f"{name} {counter}, units of {units[counter]}", f"{value}")
            for counter, value in dataclasses.asdict(debit).items()
            if getattr(account.limit, counter)
        ]
    return tuple(rows)


def duration(seconds: float) -> str:
    """A length of time for people, rounded down: an end is announced rather too early than too late."""
    for unit, length in (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= 2 * length:
            return f"{math.floor(seconds / length):,} {unit}s"
    return f"{math.floor(seconds)} seconds"


def _grain(rule: Rule) -> Decimal:
    """The last decimal that is printed: whole numbers at the coarsest."""
    return Decimal(1).scaleb(min(0, Decimal(repr(rule.epsilon)).adjusted() - DIGITS + 1))


def _up(value: float, grain: Decimal) -> Decimal:
    return Decimal(repr(value)).quantize(grain, ROUND_CEILING)


def _part(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
