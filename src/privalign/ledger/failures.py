"""What the ledger raises beside `privalign.errors`, and how a driver's error becomes one line.

    PrivalignError
    ├── InvalidInput
    │   └── UnknownAccount    no account of that name
    ├── BackendFailed
    │   └── LedgerFailed      the database is away, full, locked, read-only, damaged or elsewhere: nothing was released
    │       ├── TransactionsMet   two transactions could not both go on: tried again, until the patience ends
    │       └── LedgerBehind  it lacks a row that was committed: an older copy was put back, or it was rewritten
    ├── BudgetExhausted
    │   └── KeyExhausted      the sub-limit of an API key is used up
    └── KeyRefused            an API key is unknown, expired or revoked, or not made for this account

After `LedgerFailed` nothing is half-written. A lost connection can hide whether a commit arrived: a reservation may
then stand unknown to its owner and stays spent; a settled answer may be stored and is replayed to its idempotency key.
"""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from privalign.errors import BackendFailed, BudgetExhausted, InvalidInput, PrivalignError


class LedgerFailed(BackendFailed):
    """The ledger's database did not do its work; the message says why and what helps."""


class TransactionsMet(LedgerFailed):
    """Two transactions could not both go on, and the server ended this one whole: it can be tried again."""


class LedgerBehind(LedgerFailed):
    """The ledger lacks a row that was committed and anchored outside it: it went back, or was rewritten."""

    def __init__(self, account: str, head: str, rows: int) -> None:
        super().__init__(missing_head(account, head, rows))


def missing_head(account: str, head: str, rows: int) -> str:
    """What a hash means that a journal should hold and does not."""
    return (
        f"account {account}: the hash {head} is not in its journal of {rows} rows; "
        "an older copy of the ledger was put back, or the journal was rewritten: count all budget since then as spent"
    )


class UnknownAccount(InvalidInput):
    """No account of that name."""

    def __init__(self, name: str) -> None:
        super().__init__("account", f"'{name}' does not exist in this ledger; make it with `privalign account create`")


class KeyRefused(PrivalignError):
    """An API key that cannot be used. One message for unknown, wrong, expired and revoked, so that none can be told apart."""

    def __init__(self, message: str = "the API key is unknown, expired or revoked; ask for a new one") -> None:
        super().__init__(message)


class KeyExhausted(BudgetExhausted):
    """The sub-limit of an API key does not hold another query: `remaining` and `requested` are ε of its share, or queries."""

    def __init__(self, account: str, key: str, remaining: float, requested: float, unit: str) -> None:
        super().__init__(account, remaining, requested)
        self.key = key
        self.unit = unit

    def __str__(self) -> str:
        return f"key {self.key}: {self.remaining:.6g} {self.unit} left of its limit where {self.requested:.6g} is requested"


_SQLITE = {
    sqlite3.SQLITE_FULL: "the disk is full; free some space",
    sqlite3.SQLITE_BUSY: "locked by another program for too long; stop it and retry",
    sqlite3.SQLITE_LOCKED: "locked by another program for too long; stop it and retry",
    sqlite3.SQLITE_READONLY: "read-only; give this user write access to the file and its folder",
    sqlite3.SQLITE_PERM: "not accessible; give this user access to the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check that the folder exists and that this user may write to it",
    sqlite3.SQLITE_CORRUPT: "damaged; restore a backup and check it with `account verify --expect-head`",
    sqlite3.SQLITE_NOTADB: "not a ledger, or damaged; restore a backup and check it with `account verify --expect-head`",
    sqlite3.SQLITE_IOERR: "a disk error; check the disk and its space",
}

_POSTGRESQL = {  # by class or code of SQLSTATE
    "08": "the server is away; start it or check the URL",
    "25006": "the server is read-only; point the URL at the primary",
    "28": "the server refuses this user; check user and password",
    "3D": "the database does not exist; create it",
    "42501": "this user may not use the ledger's tables; grant it access",
    "53100": "the server's disk is full; free some space",
    "53300": "the server has no connection left; raise max_connections",
    "55P03": "locked by another session for too long; end it and retry",
    "40001": "held up by other sessions for too long; retry",
    "40P01": "held up by other sessions for too long; retry",
    "22021": "the database's encoding does not hold this text; make one with ENCODING 'UTF8'",
    "22P05": "the database's encoding does not hold this text; make one with ENCODING 'UTF8'",
    "57014": "locked by another session for too long; end it and retry",
    "57P": "the server is shutting down or was restarted; retry",
    "XX001": "damaged; restore a backup and check it with `account verify --expect-head`",
}


def explain(error: Exception, ledger: str) -> LedgerFailed:
    """The driver's error as one line that names the ledger, the cause and the remedy, without SQL or values."""
    kind = TransactionsMet if _state(error) in ("40001", "40P01") else LedgerFailed
    return kind(f"ledger {ledger}: {_cause(error)}")


def _state(error: Exception) -> str | None:
    """The SQLSTATE of an error of PostgreSQL, where it has one."""
    state: str | None = getattr(getattr(error, "orig", error), "sqlstate", None)
    return state


def _cause(error: Exception) -> str:
    if isinstance(error, PoolTimeout):
        return "every connection is busy; retry, or serve fewer requests at once"
    original = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    if isinstance(original, SQLAlchemyError):
        return f"{type(original).__name__}; nothing was written"
    if isinstance(original, sqlite3.Error):
        code = getattr(original, "sqlite_errorcode", 0) & 0xFF
        return _SQLITE.get(code) or _first_line(original)
    if isinstance(original, UnicodeDecodeError):
        return "it holds text in another encoding; make a database with ENCODING 'UTF8'"
    state = _state(original)
    if state is None and type(original).__name__ == "ProgrammingError":  # found wrong before anything was sent, as of an unknown option
        return f"the URL cannot be used: {_first_line(original)}"
    if state is None:  # the server never answered, or hung up
        return "the server is away; start it or check the URL"
    known = (_POSTGRESQL[state[:length]] for length in (5, 3, 2) if state[:length] in _POSTGRESQL)
    return next(known, None) or _first_line(original)


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
