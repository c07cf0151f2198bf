"""What a journal adds up to over time, by key and by model: read once, row by row, and kept in bounded memory.

Sums are of whole units, as in the ledger, so that the last of them equals the account to the unit. Every row is also
checked against the chain, so that a page can tell whether what it shows was journalled.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from privalign.accounting.rules import Debit
from privalign.errors import CheckFailed
from privalign.ledger.entries import Entry
from privalign.ledger.verification import Replayed


@dataclass(frozen=True, slots=True)
class Horizon:
    """How far back a chart looks: `buckets` of `width` seconds each."""

    name: str
    label: str
    width: int
    buckets: int

    @property
    def seconds(self) -> int:
        """How far back."""
        return self.width * self.buckets


HORIZONS = (
    Horizon("hour", "60 minutes", 60, 60),
    Horizon("day", "24 hours", 600, 144),
    Horizon("month", "30 days", 6 * 3600, 120),
    Horizon("year", "365 days", 5 * 86400, 73),
)


@dataclass(frozen=True, slots=True)
class Point:
    """What the journal added up to at the end of the bucket that begins at `start` (seconds since 1970)."""

    start: int
    debited: Debit
    queries: int


class Series:
    """Running sums at the end of each bucket in which something happened, as far back as its horizon."""

    def __init__(self, horizon: Horizon) -> None:
        self.horizon = horizon
        self._points: deque[Point] = deque(maxlen=horizon.buckets + 2)  # the one that runs, and the one before the first

    def add(self, time: float, debited: Debit, queries: int) -> None:
        """The sums after something happened at `time`, which never goes back."""
        point = Point(int(time // self.horizon.width) * self.horizon.width, debited, queries)
        if self._points and self._points[-1].start == point.start:
            self._points.pop()
        self._points.append(point)

    def since(self, now: float) -> list[Point]:
        """The sums before the horizon began, at that instant, and then those of every bucket in which they moved."""
        begins = int((now - self.horizon.seconds) // self.horizon.width) * self.horizon.width
        before, within = Point(begins, Debit(), 0), []
        for point in self._points:
            if point.start < begins:
                before = Point(begins, point.debited, point.queries)
            else:
                within.append(point)
        return [before, *within]


@dataclass
class Share:
    """What one key, or one model, reserved and did not get back. `debited` includes its open reservations."""

    queries: int = 0
    debited: Debit = field(default_factory=Debit)
    last: datetime | None = None


class History:
    """The journal of one account as far as it was read."""

    def __init__(self, account: str) -> None:
        self._chain = Replayed(account)
        self._owners: dict[int, tuple[str | None, str | None]] = {}  # key and model of each open reservation
        self.kinds: Counter[str] = Counter()
        self.by_key: dict[str | None, Share] = {}
        self.by_model: dict[str | None, Share] = {}
        self.series = {horizon.name: Series(horizon) for horizon in HORIZONS}

    @property
    def length(self) -> int:
        """How many rows were read and found right."""
        return self._chain.length

    @property
    def head(self) -> str:
        """The hash of the last of them."""
        return self._chain.head

    @property
    def debited(self) -> Debit:
        """What they add up to."""
        return self._chain.debited

    def add(self, entry: Entry) -> None:
        """The next row.

        Raises:
            CheckFailed: it does not continue the chain, or is nothing that the ledger would do.
        """
        self._chain.add(entry.seq, entry.record, entry.hash)
        self.kinds[entry.kind] += 1
        for share in self._shares(entry):
            share.queries += entry.queries
            share.debited += entry.debit
            share.last = entry.time
        for series in self.series.values():
            series.add(entry.time.timestamp(), self._chain.debited, self._chain.queries)

    def _shares(self, entry: Entry) -> Iterator[Share]:
        if entry.kind == "reserve":
            self._owners[entry.seq] = _text(entry.note.get("api_key")), _text(entry.note.get("model"))
            key, model = self._owners[entry.seq]
        elif entry.reservation is not None:
            key, model = self._owners.pop(entry.reservation)
        else:
            return
        yield self.by_key.setdefault(key, Share())
        yield self.by_model.setdefault(model, Share())

    def check(self, head: str, debited: Debit) -> None:
        """Compares the whole journal, once read, with the account's own row.

        Raises:
            CheckFailed: they differ.
        """
        if head != self.head:
            raise CheckFailed(f"account {self._chain.account}: its head is not the last hash of its journal")
        if debited != self.debited:
            raise CheckFailed(f"account {self._chain.account}: its counters are not what its journal adds up to")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
