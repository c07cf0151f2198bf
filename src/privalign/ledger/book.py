"""One account, locked for a writing transaction: the only code that moves its counters or appends to its journal.

A journal row is a canonical JSON record that holds the hash of the row before it, and the SHA-256 of that record:

    {"account", "debit": {"delta", "epsilon", "rdp", "rho"}, "kind", "note", "previous", "queries", "reservation", "seq", "time"}

Debits are what the row adds, in whole units; negative where it gives back. Rewards, texts and noise never enter it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import bindparam, delete, func, insert, select, update

from privalign.accounting.rules import Debit
from privalign.canonical import canonical
from privalign.ledger.entries import Entry, moment
from privalign.ledger.failures import LedgerFailed, UnknownAccount
from privalign.ledger.schema import ACCOUNTS, ANSWERS, COUNTERS, JOURNAL, RESERVATIONS, columns_of, debit_of
from privalign.ledger.terms import Terms, terms_of
from privalign.ledger.transaction import Row, Transaction

FIRST = "0" * 64  # what the first row follows

# Locks the account until the transaction ends; `oldest` tells whether a lease may have run out.
LOCK_ACCOUNT = (
    select(
        ACCOUNTS,
        select(func.min(RESERVATIONS.c.expires)).where(RESERVATIONS.c.account == ACCOUNTS.c.name).scalar_subquery().label("oldest"),
    )
    .where(ACCOUNTS.c.name == bindparam("account"))
    .with_for_update(of=ACCOUNTS)
)

# Moves the counters, and only where every one stays within its limit: the check and the debit are one statement.
MOVE_COUNTERS = (
    update(ACCOUNTS)
    .where(
        ACCOUNTS.c.name == bindparam("account"),
        *(bindparam(f"by_{counter}") <= ACCOUNTS.c[f"limit_{counter}"] - ACCOUNTS.c[f"debited_{counter}"] for counter in COUNTERS),
    )
    .values(
        **{f"debited_{counter}": ACCOUNTS.c[f"debited_{counter}"] + bindparam(f"by_{counter}") for counter in COUNTERS},
        queries=ACCOUNTS.c.queries + bindparam("by_queries"),
        time=bindparam("now"),
        head=bindparam("new_head"),
        length=bindparam("new_length"),
    )
)

# Appends one row to the journal.
APPEND = insert(JOURNAL)

# The reservations of an account whose lease has run out.
EXPIRED = select(RESERVATIONS).where(RESERVATIONS.c.account == bindparam("account"), RESERVATIONS.c.expires <= bindparam("now"))

# Removes a reservation; the journal keeps what it cost.
END_RESERVATION = delete(RESERVATIONS).where(
    RESERVATIONS.c.account == bindparam("in_account"), RESERVATIONS.c.number == bindparam("with_number")
)

# Frees the idempotency key of a reservation that will never be answered.
FREE_ANSWER = delete(ANSWERS).where(ANSWERS.c.id == bindparam("answer"))

# Remembers a refusal and the ledger's time.
COUNT_REFUSAL = (
    update(ACCOUNTS)
    .where(ACCOUNTS.c.name == bindparam("account"))
    .values(refused=ACCOUNTS.c.refused + bindparam("by_queries"), time=bindparam("now"))
)


@dataclass
class Book:
    """A locked account. `now` is the ledger's time: the clock, or the last time stored where the clock is behind it."""

    transaction: Transaction
    row: Row
    now: int
    length: int
    head: str

    @classmethod
    def lock(cls, transaction: Transaction, account: str, clock: int) -> Book:
        """Locks the account and expires the leases that have run out.

        Raises:
            UnknownAccount: there is none of that name.
        """
        row = transaction.row(LOCK_ACCOUNT, {"account": account})
        if row is None:
            raise UnknownAccount(account)
        book = cls(transaction, row, max(clock, row.time), row.length, row.head)
        if row.oldest is not None and row.oldest <= book.now:
            book.expire()
        return book

    @property
    def terms(self) -> Terms:
        """The account's terms, with its ε as raised."""
        return current_terms(self.row)

    @property
    def limit(self) -> Debit:
        return debit_of("limit", self.row)

    def expire(self) -> None:
        """Closes what was not settled in time, at its worst case for good; its idempotency keys are free again."""
        for late in self.transaction.rows(EXPIRED, {"account": self.row.name, "now": self.now}):
            self.post("expire", Debit(), reservation=late.number)
            self.transaction.change(END_RESERVATION, {"in_account": self.row.name, "with_number": late.number})
            if late.answer is not None:
                self.transaction.change(FREE_ANSWER, {"answer": late.answer})

    def post(
        self, kind: str, debit: Debit, *, queries: int = 0, reservation: int | None = None, note: Mapping[str, object] | None = None
    ) -> bool:
        """Moves the counters and journals why. Returns False, with nothing written, when that would exceed a limit."""
        seq = self.length + 1
        record = record_of(self.row.name, seq, self.now, kind, debit, queries, reservation, note or {}, self.head)
        hashed = hash_of(record)
        moved = self.transaction.change(
            MOVE_COUNTERS,
            {
                "account": self.row.name,
                **columns_of("by", debit),
                "by_queries": queries,
                "now": self.now,
                "new_head": hashed,
                "new_length": seq,
            },
        )
        if moved != 1:
            return False
        self.transaction.change(APPEND, {"account": self.row.name, "seq": seq, "record": record, "hash": hashed})
        self.length, self.head = seq, hashed
        return True


def current_terms(row: Row) -> Terms:
    """The terms of an account's row, with its ε as raised."""
    try:
        terms, raises = terms_of(row.parameters, row.dataset), json.loads(row.raises)
        return terms.raised(raises[-1]["after"]) if raises else terms
    except (ValueError, LookupError, TypeError):
        raise LedgerFailed(f"account {row.name}: its row in the ledger is damaged; find out how with `account verify`") from None


def record_of(
    account: str,
    seq: int,
    now: int,
    kind: str,
    debit: Debit,
    queries: int,
    reservation: int | None,
    note: Mapping[str, object],
    previous: str,
) -> str:
    """The canonical JSON of a journal row. Written out: every query pays for it twice, and all but the note is plain."""
    units = f'{{"delta":{debit.delta},"epsilon":{debit.epsilon},"rdp":{debit.rdp},"rho":{debit.rho}}}'
    return (
        f'{{"account":"{account}","debit":{units},"kind":"{kind}","note":{canonical(note) if note else "{}"},"previous":"{previous}",'
        f'"queries":{queries},"reservation":{"null" if reservation is None else reservation},"seq":{seq},"time":{now}}}'
    )


def hash_of(record: str) -> str:
    """SHA-256 of a record, which holds the hash before it: the chain."""
    return hashlib.sha256(record.encode()).hexdigest()


def entry_of(record: str, hashed: str) -> Entry:
    """A stored row, read.

    Raises:
        ValueError, LookupError, TypeError: the record is not one that `record_of` wrote.
    """
    fields = json.loads(record)
    return Entry(
        account=fields["account"],
        seq=fields["seq"],
        time=moment(fields["time"]),
        kind=fields["kind"],
        reservation=fields["reservation"],
        debit=Debit(**fields["debit"]),
        queries=fields["queries"],
        note=fields["note"],
        previous=fields["previous"],
        hash=hashed,
        record=record,
    )
