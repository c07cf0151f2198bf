"""API keys: who may ask, and how much of an account one key may use up.

A key is `pa_ID_SECRET`. Only SHA-256 of the secret is stored. A slow password hash would add nothing: it protects
secrets that people choose, by making guesses dear; this one is 256 random bits, and nobody can try 2²⁵⁵ of them at any price.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
from collections.abc import Iterator, Sequence
from fractions import Fraction

from sqlalchemy import bindparam, func, insert, or_, select, update

from privalign.accounting.rules import Debit
from privalign.canonical import canonical
from privalign.errors import InvalidInput
from privalign.intervals import less
from privalign.ledger.book import Book
from privalign.ledger.entries import Key, NewKey, Role, moment
from privalign.ledger.failures import KeyExhausted, KeyRefused, UnknownAccount
from privalign.ledger.schema import ACCOUNTS, COUNTERS, KEYS, columns_of, debit_of
from privalign.ledger.transaction import Row, Transaction

_PREFIX = "pa"

# Makes a key.
CREATE_KEY = insert(KEYS)

# Whether an account exists.
FIND_ACCOUNT = select(ACCOUNTS.c.name).where(ACCOUNTS.c.name == bindparam("account"))

# All keys, oldest first.
ALL_KEYS = select(KEYS).order_by(KEYS.c.created, KEYS.c.id)

# One key with the latest time that any account has seen, so that a clock moved back revives no expired key.
FIND_KEY = select(KEYS, select(func.max(ACCOUNTS.c.time)).scalar_subquery().label("latest")).where(KEYS.c.id == bindparam("key"))

# One key, locked until the transaction ends.
LOCK_KEY = select(KEYS).where(KEYS.c.id == bindparam("key")).with_for_update()

# Revokes a key, once.
REVOKE_KEY = update(KEYS).where(KEYS.c.id == bindparam("key"), KEYS.c.revoked.is_(None)).values(revoked=bindparam("now"))

_MOVED = {
    **{f"debited_{counter}": KEYS.c[f"debited_{counter}"] + bindparam(f"by_{counter}") for counter in COUNTERS},
    "queries": KEYS.c.queries + bindparam("by_queries"),
}

# Debits a key, and only where its share and its number of queries hold it.
DEBIT_KEY = (
    update(KEYS)
    .where(
        KEYS.c.id == bindparam("key"),
        or_(KEYS.c.query_limit.is_(None), bindparam("by_queries") <= KEYS.c.query_limit - KEYS.c.queries),
        *(bindparam(f"by_{counter}") <= bindparam(f"share_{counter}") - KEYS.c[f"debited_{counter}"] for counter in COUNTERS),
    )
    .values(**_MOVED)
)

# Gives back to a key what its reservation did not use.
GIVE_BACK = update(KEYS).where(KEYS.c.id == bindparam("key")).values(**_MOVED)


def create(
    transaction: Transaction,
    now: int,
    role: Role,
    models: Sequence[str] | None,
    expires: int | None,
    account: str | None,
    share: float | None,
    queries: int | None,
    rate: float | None,
) -> NewKey:
    """Makes a key; its secret is returned and forgotten.

    Raises:
        InvalidInput: a limit is out of its range, or it has ended before it begins. UnknownAccount.
    """
    if (share is None) != (account is None):
        raise InvalidInput("share", "a share is a share of one account; give both or neither")
    if share is not None and not 0 < share <= 1:
        raise InvalidInput("share", f"{share:g} is not above 0 and at most 1")
    if queries is not None and not 1 <= queries < 2**62:
        raise InvalidInput("queries", f"{queries} is not a number of queries; give at least 1")
    if rate is not None and not 0 < rate < math.inf:
        raise InvalidInput("rate", f"{rate} is not a finite number of requests a minute above 0")
    if expires is not None and expires <= now:
        raise InvalidInput("expires", "the key would have expired already; give a later date")
    if account is not None and transaction.row(FIND_ACCOUNT, {"account": account}) is None:
        raise UnknownAccount(account)
    identity, secret = secrets.token_hex(6), secrets.token_hex(32)
    transaction.change(
        CREATE_KEY,
        {
            "id": identity,
            "digest": _digest(secret),
            "role": Role(role).value,
            "models": None if models is None else canonical(list(models)),
            "created": now,
            "expires": expires,
            "revoked": None,
            "account": account,
            "share": share,
            "query_limit": queries,
            **columns_of("debited", Debit()),
            "queries": 0,
            "rate": rate,
        },
    )
    return NewKey(_key(transaction.row(FIND_KEY, {"key": identity})), f"{_PREFIX}_{identity}_{secret}")


def read(transaction: Transaction) -> Iterator[Key]:
    """All keys, oldest first."""
    return map(_key, transaction.rows(ALL_KEYS, {}))


def revoke(transaction: Transaction, identity: str, now: int) -> Key:
    """Revokes a key; the next request with it is refused. Revoking twice keeps the first date."""
    transaction.change(REVOKE_KEY, {"key": identity, "now": now})
    row = transaction.row(FIND_KEY, {"key": identity})
    if row is None:
        raise InvalidInput("key", f"no key has the id '{identity}'; see `privalign key list`")
    return _key(row)


def authenticate(transaction: Transaction, presented: str, clock: int) -> Key:
    """The key that was sent, compared in constant time.

    Raises:
        KeyRefused: unknown, wrong, expired or revoked.
    """
    prefix, _, rest = presented.partition("_")
    identity, _, secret = rest.partition("_")
    row = _found(transaction, identity) if prefix == _PREFIX else None
    matches = hmac.compare_digest(_digest(secret), row.digest if row is not None else _digest(""))
    if row is None or not matches or not _usable(row, max(clock, row.latest or 0)):
        raise KeyRefused
    return _key(row)


def valid(transaction: Transaction, identity: str, clock: int) -> Key:
    """The key of this id, for who has shown its secret before.

    Raises:
        KeyRefused: unknown, expired or revoked.
    """
    row = _found(transaction, identity)
    if row is None or not _usable(row, max(clock, row.latest or 0)):
        raise KeyRefused
    return _key(row)


def debit(book: Book, identity: str, cost: Debit, queries: int) -> None:
    """Debits the key together with its account.

    Raises:
        KeyRefused: not usable (any more), or its share is of another account. KeyExhausted: its limit does not hold it.
    """
    row = book.transaction.row(LOCK_KEY, {"key": identity})
    if row is None or not _usable(row, book.now):
        raise KeyRefused
    if row.role != Role.CLIENT.value:
        raise KeyRefused(f"key {identity} reads the ledger and may not ask; use a client's key")
    if row.account is not None and row.account != book.row.name:
        raise KeyRefused(f"key {identity} is for account {row.account} only; use another key")
    by, share = (Debit(), Debit()) if row.share is None else (cost, _share_of(book.limit, row.share))
    values = {"key": identity, **columns_of("by", by), **columns_of("share", share), "by_queries": queries}
    if book.transaction.change(DEBIT_KEY, values) == 1:
        return
    if row.query_limit is not None and row.queries + queries > row.query_limit:
        raise KeyExhausted(book.row.name, identity, row.query_limit - row.queries, queries, "queries")
    rule, debited = book.terms.rule, debit_of("debited", row)
    spent = rule.spent(debited)[0]
    remaining = less(rule.spent(share)[0], spent)
    raise KeyExhausted(book.row.name, identity, remaining, rule.spent(debited + cost)[0] - spent, "ε")


def give_back(transaction: Transaction, identity: str, debit: Debit, queries: int) -> None:
    """Lowers a key by what settle or void gave back to the account (numbers ≤ 0)."""
    row = transaction.row(LOCK_KEY, {"key": identity})
    by = debit if row is not None and row.share is not None else Debit()
    transaction.change(GIVE_BACK, {"key": identity, **columns_of("by", by), "by_queries": queries})


def _found(transaction: Transaction, identity: str) -> Row | None:
    """The row of a key; the database is asked only about what could be an id."""
    return transaction.row(FIND_KEY, {"key": identity}) if identity.isalnum() else None


def _share_of(limit: Debit, share: float) -> Debit:
    """The share of every counter, rounded down."""
    return Debit(*(math.floor(getattr(limit, counter) * Fraction(share)) for counter in COUNTERS))


def _usable(row: Row, now: int) -> bool:
    return row.revoked is None and (row.expires is None or row.expires > now)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _key(row: Row) -> Key:
    return Key(
        id=row.id,
        role=Role(row.role),
        models=None if row.models is None else tuple(json.loads(row.models)),
        created=moment(row.created),
        expires=None if row.expires is None else moment(row.expires),
        revoked=None if row.revoked is None else moment(row.revoked),
        account=row.account,
        share=row.share,
        query_limit=row.query_limit,
        debited=debit_of("debited", row),
        queries=row.queries,
        rate=row.rate,
    )
