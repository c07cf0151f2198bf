"""Re-adds a journal from its first row and compares the result with the account: finds what was changed, and where.

The chain proves that no row was changed, taken out, put in or moved, given its last hash. Who can rewrite the database
can rewrite the whole chain, or put an old copy back: only a hash that was written down elsewhere shows that, or an anchor.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import bindparam, func, select

from privalign.accounting.rules import Debit
from privalign.canonical import canonical
from privalign.errors import CheckFailed
from privalign.ledger.anchors import Anchor
from privalign.ledger.book import FIRST, entry_of, hash_of
from privalign.ledger.entries import Entry, Verification, microseconds
from privalign.ledger.failures import missing_head
from privalign.ledger.schema import ACCOUNTS, COUNTERS, JOURNAL, RESERVATIONS, debit_of
from privalign.ledger.terms import terms_of
from privalign.ledger.transaction import Row, Transaction

# An account's row with the last seq of its journal, which must be the same.
ACCOUNT_AND_LAST = select(
    ACCOUNTS, select(func.max(JOURNAL.c.seq)).where(JOURNAL.c.account == ACCOUNTS.c.name).scalar_subquery().label("last")
).where(ACCOUNTS.c.name == bindparam("account"))

# The open reservations of an account, whatever their lease.
OPEN_RESERVATIONS = select(RESERVATIONS).where(RESERVATIONS.c.account == bindparam("account")).order_by(RESERVATIONS.c.number)

Open = dict[int, tuple[Debit, int]]


def snapshot(transaction: Transaction, name: str) -> tuple[Row | None, Open]:
    """The account's row and its open reservations at one instant; the journal up to its length never changes."""
    row = transaction.row(ACCOUNT_AND_LAST, {"account": name})
    reservations = transaction.rows(OPEN_RESERVATIONS, {"account": name})
    return row, {each.number: (debit_of("debit", each), each.queries) for each in reservations}


class Replayed:
    """What the rows of a journal add up to so far."""

    def __init__(self, account: str) -> None:
        self.account = account
        self.length = 0
        self.head = FIRST
        self.time = 0
        self.terms = ""
        self.dataset = account  # of an earlier version: that of its name
        self.limit = Debit()
        self.debited = Debit()
        self.queries = 0
        self.open: Open = {}
        self.raises: list[dict[str, object]] = []

    def add(self, seq: int, record: str, hashed: str) -> None:
        """Checks and adds the next row.

        Raises:
            CheckFailed: naming the row and what is wrong with it.
        """
        if seq != self.length + 1:
            raise self._wrong(self.length + 1, "is missing")
        if hash_of(record) != hashed:
            raise self._wrong(seq, "was changed: its hash is not that of its record")
        try:
            entry = entry_of(record, hashed)
            time = microseconds(entry.time)
            if (entry.account, entry.seq, entry.previous) != (self.account, seq, self.head):
                raise self._wrong(seq, "does not follow the row before it")
            self._apply(entry, time)
        except (ValueError, LookupError, TypeError):
            raise self._wrong(seq, "is not a journal record") from None
        if time < self.time:
            raise self._wrong(seq, "is earlier than the row before it")
        if not self.debited.fits(self.limit):
            raise self._wrong(seq, "exceeds the budget")
        self.length, self.head, self.time = seq, hashed, time

    def _apply(self, entry: Entry, time: int) -> None:
        match entry.kind, entry.reservation:
            case "create", None if entry.seq == 1:
                self.terms, self.limit = canonical(entry.note["terms"]), _limit(entry)
                self.dataset = str(entry.note.get("dataset", self.account))
                allowed = entry.debit == Debit() and entry.queries == 0
            case "raise", None:
                self.limit = _limit(entry)
                self.raises.append({"time": time, **{name: entry.note[name] for name in ("before", "after", "reason")}})
                allowed = entry.debit == Debit() and entry.queries == 0
            case "move", None:
                allowed = entry.debit == Debit() and entry.queries == 0
            case "reserve", None:
                self.open[entry.seq] = entry.debit, entry.queries
                allowed = Debit().fits(entry.debit) and entry.queries > 0
            case "settle" | "void" | "expire", int(number) if number in self.open:
                reserved, queries = self.open.pop(number)
                full = Debit() - reserved
                allowed = {
                    "settle": full.fits(entry.debit) and entry.debit.fits(Debit()) and entry.queries == 0,
                    "void": entry.debit == full and entry.queries == -queries,
                    "expire": entry.debit == Debit() and entry.queries == 0,
                }[entry.kind]
            case _:
                allowed = False
        if not allowed:
            raise self._wrong(entry.seq, f"('{entry.kind}') is not something that the ledger does at this point")
        self.debited += entry.debit
        self.queries += entry.queries

    def compare(self, row: Row, still_open: Open) -> None:
        """Compares the sum with the account's row and its open reservations.

        Raises:
            CheckFailed: naming what differs.
        """
        if row.last is not None and row.last > row.length:
            raise self._wrong(row.length + 1, "is beyond the end that the account knows")
        stored: list[tuple[str, object, object]] = [
            ("length", row.length, self.length),
            ("terms", row.parameters, self.terms),
            ("data set", row.dataset, self.dataset),
            ("raises", row.raises, canonical(self.raises)),
            ("queries", row.queries, self.queries),
        ]
        for counter in COUNTERS:
            stored.append((f"limit of {counter}", getattr(debit_of("limit", row), counter), getattr(self.limit, counter)))
            stored.append((f"debited {counter}", getattr(debit_of("debited", row), counter), getattr(self.debited, counter)))
        stored.append(("head", row.head, self.head))
        for what, found, expected in stored:
            if found != expected:
                raise CheckFailed(
                    f"account {self.account}: its {what} is {found}, the journal says {expected}; the account's row was changed"
                )
        for number in sorted(self.open.keys() | still_open.keys()):
            if self.open.get(number) != still_open.get(number):
                raise CheckFailed(f"account {self.account}: reservation {number} is not as journalled; its row was changed")

    def _wrong(self, seq: int, what: str) -> CheckFailed:
        return CheckFailed(f"account {self.account}: journal row {seq} {what}")


def verify(
    row: Row, still_open: Open, rows: Iterable[tuple[int, str, str]], expect_head: str | None, anchor: Anchor | None
) -> Verification:
    """Replays `rows`, compares, and looks for the hashes that must occur in the chain: one written down, one anchored.

    Raises:
        CheckFailed: naming the row, the counter or the missing hash.
    """
    replayed = Replayed(row.name)
    sought = {head for head in (expect_head, None if anchor is None else anchor.head) if head is not None}
    for seq, record, hashed in rows:
        replayed.add(seq, record, hashed)
        sought.discard(hashed)
    if expect_head in sought:
        raise CheckFailed(missing_head(row.name, str(expect_head), replayed.length))
    replayed.compare(row, still_open)  # says more than that the last row is not the anchored one
    for head in sought:
        raise CheckFailed(missing_head(row.name, head, replayed.length))
    terms = terms_of(replayed.terms, replayed.dataset)
    if replayed.raises:
        terms = terms.raised(float(str(replayed.raises[-1]["after"])))
    anchored = None if anchor is None else anchor.row
    return Verification(row.name, replayed.length, replayed.head, replayed.debited, terms.rule.spent(replayed.debited), anchored)


def _limit(entry: Entry) -> Debit:
    limit = entry.note["limit"]
    if not isinstance(limit, dict):
        raise TypeError
    return Debit(**limit)
