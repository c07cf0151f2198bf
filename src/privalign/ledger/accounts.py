"""Makes, reads and raises accounts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from sqlalchemy import and_, bindparam, func, select, update

from privalign.accounting.rules import Debit
from privalign.errors import InvalidInput
from privalign.ledger.book import APPEND, FIRST, Book, current_terms, hash_of, record_of
from privalign.ledger.entries import Account, Raise, moment
from privalign.ledger.schema import ACCOUNTS, COUNTERS, JOURNAL, RESERVATIONS, columns_of, debit_of, insert_unless_taken
from privalign.ledger.terms import Terms, canonical, terms_of
from privalign.ledger.transaction import Row, Transaction

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

# Makes an account, unless the name is taken: once and for all.
CREATE_ACCOUNT = insert_unless_taken(ACCOUNTS)

# Changes the limit and remembers the rise; the counters stay.
RAISE_LIMIT = (
    update(ACCOUNTS)
    .where(ACCOUNTS.c.name == bindparam("account"))
    .values(raises=bindparam("all_raises"), **{f"limit_{counter}": bindparam(f"to_{counter}") for counter in COUNTERS})
)

# The terms of one account, which never change.
TERMS = select(ACCOUNTS.c.parameters).where(ACCOUNTS.c.name == bindparam("account"))

# Accounts with the sum of their live reservations, in one snapshot.
ACCOUNTS_WITH_OPEN = (
    select(
        ACCOUNTS,
        *(func.sum(RESERVATIONS.c[f"debit_{counter}"]).label(f"open_{counter}") for counter in COUNTERS),
        func.coalesce(func.sum(RESERVATIONS.c.queries), 0).label("open_queries"),
    )
    .select_from(ACCOUNTS)
    .outerjoin(
        RESERVATIONS,
        and_(
            RESERVATIONS.c.account == ACCOUNTS.c.name,
            RESERVATIONS.c.expires > bindparam("clock"),
            RESERVATIONS.c.expires > ACCOUNTS.c.time,
        ),
    )
    .group_by(ACCOUNTS.c.name)
    .order_by(ACCOUNTS.c.name)
)
ACCOUNT_WITH_OPEN = ACCOUNTS_WITH_OPEN.where(ACCOUNTS.c.name == bindparam("account"))

# The next journal rows of an account, oldest first.
JOURNAL_ROWS = (
    select(JOURNAL.c.seq, JOURNAL.c.record, JOURNAL.c.hash)
    .where(JOURNAL.c.account == bindparam("account"), JOURNAL.c.seq > bindparam("after"), JOURNAL.c.seq <= bindparam("until"))
    .order_by(JOURNAL.c.seq)
    .limit(1000)
)


def check_name(name: str) -> None:
    """Refuses what cannot be the name of an account.

    Raises:
        InvalidInput: it cannot.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInput("account", f"'{name}' cannot be a name; use up to 100 letters, digits, dots, dashes and underscores")


def create(transaction: Transaction, name: str, terms: Terms, now: int) -> None:
    """Makes the account and the first row of its journal, which holds its terms and limits.

    Raises:
        InvalidInput: the name is taken or cannot be one.
    """
    check_name(name)
    parameters, limit = terms.to_json(), terms.rule.limit
    note = {"terms": json.loads(parameters), "limit": _units(limit)}
    record = record_of(name, 1, now, "create", Debit(), 0, None, note, FIRST)
    row = {
        "name": name,
        "parameters": parameters,
        "created": now,
        "time": now,
        "raises": "[]",
        **columns_of("limit", limit),
        **columns_of("debited", Debit()),
        "queries": 0,
        "refused": 0,
        "length": 1,
        "head": hash_of(record),
    }
    if transaction.change(CREATE_ACCOUNT, row) != 1:
        raise InvalidInput("account", f"'{name}' exists already and cannot be changed; choose another name, or raise it")
    transaction.change(APPEND, {"account": name, "seq": 1, "record": record, "hash": hash_of(record)})


def raise_budget(book: Book, epsilon: float, reason: str) -> None:
    """Raises ε_total, journalled with its reason.

    Raises:
        InvalidInput: not above the present ε, or no reason.
    """
    before = book.terms.rule.epsilon
    if not epsilon > before:
        raise InvalidInput("epsilon", f"{epsilon:g} is not above the present {before:g}; a budget can only be raised")
    if not reason.strip():
        raise InvalidInput("reason", "a budget is raised for a reason that the journal keeps; give one")
    limit = book.terms.raised(epsilon).rule.limit
    note: dict[str, object] = {"before": before, "after": epsilon, "reason": reason, "limit": _units(limit)}
    book.post("raise", Debit(), note=note)
    raises = [*json.loads(book.row.raises), {"time": book.now, "before": before, "after": epsilon, "reason": reason}]
    book.transaction.change(RAISE_LIMIT, {"account": book.row.name, "all_raises": canonical(raises), **columns_of("to", limit)})


def terms(transaction: Transaction, name: str) -> Terms | None:
    """The terms an account was made with."""
    row = transaction.row(TERMS, {"account": name})
    return None if row is None else terms_of(row.parameters)


def read(transaction: Transaction, clock: int, name: str | None = None) -> Iterator[Account]:
    """One account or all, by name."""
    statement = ACCOUNTS_WITH_OPEN if name is None else ACCOUNT_WITH_OPEN
    for row in transaction.rows(statement, {"clock": clock} if name is None else {"clock": clock, "account": name}):
        yield _account(row)


def _account(row: Row) -> Account:
    terms = current_terms(row)
    open_queries = int(row.open_queries)
    return Account(
        name=row.name,
        rule=terms.rule,
        relation=terms.relation,
        records_per_person=terms.records_per_person,
        created=moment(row.created),
        limit=debit_of("limit", row),
        debited=debit_of("debited", row),
        open=debit_of("open", row),
        settled_queries=row.queries - open_queries,
        open_queries=open_queries,
        refused_queries=row.refused,
        raises=tuple(Raise(moment(each["time"]), each["before"], each["after"], each["reason"]) for each in json.loads(row.raises)),
        head=row.head,
        length=row.length,
    )


def _units(limit: Debit) -> dict[str, int]:
    return {counter: getattr(limit, counter) for counter in COUNTERS}
