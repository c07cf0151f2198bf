"""Reads the journal for people: its latest rows, a page at a time, of one kind, key or model."""

from __future__ import annotations

from sqlalchemy import ColumnElement, bindparam, func, select

from privalign.canonical import canonical
from privalign.ledger.book import entry_of
from privalign.ledger.entries import Entry
from privalign.ledger.schema import JOURNAL
from privalign.ledger.transaction import Transaction

_EVERY_RECORD = "{"  # with which each of them begins


def _holds(needle: str) -> ColumnElement[bool]:
    """Whether a record holds this text: exact on both databases, where LIKE has wildcards and its own idea of case."""
    return func.replace(JOURNAL.c.record, bindparam(needle), "") != JOURNAL.c.record


# The rows of an account before one of them, newest first, that hold three texts. A record is canonical JSON, so that
# `"kind":"raise"` with its quotes occurs in it as that member or not at all: quotes within a string are escaped.
LATEST_ROWS = (
    select(JOURNAL.c.record, JOURNAL.c.hash)
    .where(JOURNAL.c.account == bindparam("account"), JOURNAL.c.seq < bindparam("before"))
    .where(_holds("kind"), _holds("key"), _holds("model"))
    .order_by(JOURNAL.c.seq.desc())
    .limit(bindparam("most"))
)


def latest(
    transaction: Transaction, account: str, before: int, most: int, kind: str | None, api_key: str | None, model: str | None
) -> list[Entry]:
    """At most `most` rows before `before`, newest first.

    Raises:
        ValueError, LookupError, TypeError: a row is not a journal record.
    """
    sought = {"kind": kind, "key": api_key, "model": model}
    member = {"kind": "kind", "key": "api_key", "model": "model"}
    needles = {name: _EVERY_RECORD if value is None else f"{canonical(member[name])}:{canonical(value)}" for name, value in sought.items()}
    rows = transaction.rows(LATEST_ROWS, {"account": account, "before": before, "most": most, **needles})
    return [entry_of(row.record, row.hash) for row in rows]
