"""Which ledger a database holds, and the place where it may be used: one row, made with the tables or when they are upgraded."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, insert, select, update

from privalign.canonical import canonical
from privalign.ledger.place import Place
from privalign.ledger.schema import ACCOUNTS, IDENTITY, JOURNAL
from privalign.ledger.transaction import Transaction

# The only row.
READ = select(IDENTITY)

# Moves the ledger to another place.
MOVE = update(IDENTITY).values(place=bindparam("to"))

# The first row of the oldest account.
_OLDEST = (
    select(JOURNAL.c.hash)
    .join(ACCOUNTS, ACCOUNTS.c.name == JOURNAL.c.account)
    .where(JOURNAL.c.seq == 1)
    .order_by(ACCOUNTS.c.created, ACCOUNTS.c.name)
    .limit(1)
)


@dataclass(frozen=True, slots=True)
class Identity:
    """The ledger's id, and where it was made or moved to; PostgreSQL keeps no place."""

    id: str
    place: Place | None


def adopt(connection: Connection, place: Place | None) -> None:
    """Names a ledger that has no name yet, where it is now.

    A ledger of an earlier version takes the hash of its oldest row, so that a backup from before the upgrade is the same ledger.
    """
    if connection.execute(READ).first() is None:
        oldest = connection.execute(_OLDEST).scalar_one_or_none()
        stored = None if place is None else canonical(place.to_json())
        connection.execute(insert(IDENTITY).values(id=(oldest or secrets.token_hex(32))[:32], place=stored))


def read(connection: Connection) -> Identity | None:
    """The identity; None where the row is missing or damaged."""
    row = connection.execute(READ).first()
    try:
        return None if row is None else Identity(row.id, None if row.place is None else Place.read(json.loads(row.place)))
    except (ValueError, TypeError):
        return None


def move(transaction: Transaction, to: Place) -> None:
    """Makes `to` the place where the ledger may be used."""
    transaction.change(MOVE, {"to": canonical(to.to_json())})
