"""Makes, reads and raises accounts."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from sqlalchemy import and_, bindparam, func, select, update

from privalign.accounting.rules import Debit
from privalign.canonical import canonical
from privalign.errors import InvalidInput
from privalign.ledger.anchors import Anchor
from privalign.ledger.book import APPEND, FIRST, Book, current_terms, hash_of, record_of
from privalign.ledger.entries import Account, Promise, Raise, moment
from privalign.ledger.failures import LedgerBehind
from privalign.ledger.schema import ACCOUNTS, COUNTERS, JOURNAL, RESERVATIONS, columns_of, debit_of, insert_unless_taken
from privalign.ledger.terms import Terms, terms_of
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
TERMS = select(ACCOUNTS.c.parameters, ACCOUNTS.c.dataset).where(ACCOUNTS.c.name == bindparam("account"))

# The accounts over one data set, with their ε as raised.
OVER_DATASET = (
    select(ACCOUNTS.c.name, ACCOUNTS.c.parameters, ACCOUNTS.c.raises, ACCOUNTS.c.dataset)
    .where(ACCOUNTS.c.dataset == bindparam("over"))
    .order_by(ACCOUNTS.c.name)
)

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


# The hash of one row of an account's journal.
HASH_OF_ROW = select(JOURNAL.c.hash).where(JOURNAL.c.account == bindparam("account"), JOURNAL.c.seq == bindparam("seq"))

# The names of all accounts.
NAMES = select(ACCOUNTS.c.name).order_by(ACCOUNTS.c.name)


def check_name(name: str, field: str = "account") -> None:
    """Refuses what cannot be the name of an account, or of a data set.

    Raises:
        InvalidInput: it cannot; `field` says what for.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInput(field, f"'{name}' cannot be a name; use up to 100 ASCII letters, digits, dots, dashes and underscores")


def check_sharing(terms: Terms, also: Collection[str], others: Mapping[str, Terms]) -> None:
    """Refuses a second account over a data set, unless it names all others there: what they promise adds up.

    Args:
        also: the accounts that it names. others: those that protect its data set.

    Raises:
        InvalidInput: another one is not named, one that is named is not among them, or their neighbours differ, so that their
        promises are about different pairs and have no sum.
    """
    for name in also:
        if name not in others:
            raise InvalidInput("also", f"'{name}' is not an account over data set {terms.dataset}; leave it out, or correct it")
    for name, other in others.items():
        if name not in also:
            raise InvalidInput(
                "dataset",
                f"{terms.dataset} is the data set of account {name} too, and what both promise adds up; "
                f'accept that with `--also {name}` (in a deployment file `also = ["{name}"]`), or give the data set of this account',
            )
        if (other.relation, other.records_per_person) != (terms.relation, terms.records_per_person):
            raise InvalidInput(
                "also",
                f"{name} protects {other.relation.value} of {other.records_per_person} per person, this account {terms.relation.value} of "
                f"{terms.records_per_person}; promises add up only for the same neighbours: give the same relation and records per person",
            )


def create(transaction: Transaction, name: str, terms: Terms, also: Iterable[str], now: int) -> str:
    """Makes the account and the first row of its journal, which holds its terms, its limits and whom it shares its data set with.

    Returns:
        The hash of that row.

    Raises:
        InvalidInput: the name is taken or cannot be one, or as `check_sharing`.
    """
    check_name(name)
    check_name(terms.dataset, "dataset")
    transaction.alone("accounts")
    named = sorted(set(also))
    check_sharing(terms, named, {row.name: current_terms(row) for row in _over(transaction, terms.dataset) if row.name != name})
    parameters, limit = terms.to_json(), terms.rule.limit
    note: dict[str, object] = {"terms": json.loads(parameters), "limit": _units(limit), "dataset": terms.dataset}
    if named:
        note["also"] = named
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
        "dataset": terms.dataset,
    }
    if transaction.change(CREATE_ACCOUNT, row) != 1:
        raise InvalidInput("account", f"'{name}' exists already and cannot be changed; choose another name, or raise it")
    transaction.change(APPEND, {"account": name, "seq": 1, "record": record, "hash": hash_of(record)})
    return hash_of(record)


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


def check_anchor(transaction: Transaction, name: str, length: int, head: str, anchor: Anchor | None) -> None:
    """Refuses an account whose journal, `length` rows that end with `head`, lacks the row that was anchored before the transaction began.

    Raises:
        LedgerBehind: it went back, or was rewritten.
    """
    if anchor is None:
        return
    if anchor.row == length:
        found: str | None = head
    else:
        row = transaction.row(HASH_OF_ROW, {"account": name, "seq": anchor.row})
        found = None if row is None else row.hash
    if found != anchor.head:
        raise LedgerBehind(name, anchor.head, length)


def terms(transaction: Transaction, name: str) -> Terms | None:
    """The terms an account was made with."""
    row = transaction.row(TERMS, {"account": name})
    return None if row is None else terms_of(row.parameters, row.dataset)


def read(transaction: Transaction, clock: int, name: str | None = None) -> Iterator[Account]:
    """One account or all, by name."""
    if name is not None:
        for row in transaction.rows(ACCOUNT_WITH_OPEN, {"clock": clock, "account": name}):
            yield _account(row, _over(transaction, row.dataset))
        return
    rows = transaction.rows(ACCOUNTS_WITH_OPEN, {"clock": clock})
    for row in rows:
        yield _account(row, [other for other in rows if other.dataset == row.dataset])


def _over(transaction: Transaction, dataset: str) -> list[Row]:
    return transaction.rows(OVER_DATASET, {"over": dataset})


def _promises(rows: Iterable[Row], but: str) -> Iterator[Promise]:
    for row in rows:
        if row.name != but:
            rule = current_terms(row).rule
            yield Promise(row.name, rule.epsilon, rule.delta)


def _account(row: Row, over: Iterable[Row]) -> Account:
    """The account of a row; `over` are the rows of all accounts over its data set."""
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
        dataset=row.dataset,
        also=tuple(_promises(over, row.name)),
    )


def _units(limit: Debit) -> dict[str, int]:
    return {counter: getattr(limit, counter) for counter in COUNTERS}
