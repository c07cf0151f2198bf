"""The durable privacy ledger: accounts, reservations, an append-only journal and API keys, on SQLite or PostgreSQL."""

from privalign.ledger.entries import (
    Account,
    Entry,
    IdempotencyKey,
    Key,
    NewKey,
    Pending,
    Promise,
    Raise,
    Replay,
    Reservation,
    Role,
    Verification,
)
from privalign.ledger.failures import KeyExhausted, KeyRefused, LedgerFailed, UnknownAccount
from privalign.ledger.ledger import Ledger

__all__ = [
    "Account",
    "Entry",
    "IdempotencyKey",
    "Key",
    "KeyExhausted",
    "KeyRefused",
    "Ledger",
    "LedgerFailed",
    "NewKey",
    "Pending",
    "Promise",
    "Raise",
    "Replay",
    "Reservation",
    "Role",
    "UnknownAccount",
    "Verification",
]
