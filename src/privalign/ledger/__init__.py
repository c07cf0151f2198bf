"""The durable privacy ledger: accounts, reservations, an append-only journal and API keys, on SQLite or PostgreSQL."""

from privalign.ledger.entries import (
    Account,
    Entry,
    IdempotencyKey,
    Key,
    Move,
    NewKey,
    Pending,
    Promise,
    Raise,
    Replay,
    Reservation,
    Role,
    Verification,
)
from privalign.ledger.failures import KeyExhausted, KeyRefused, LedgerBehind, LedgerFailed, UnknownAccount
from privalign.ledger.ledger import Ledger

__all__ = [
    "Account",
    "Entry",
    "IdempotencyKey",
    "Key",
    "KeyExhausted",
    "KeyRefused",
    "Ledger",
    "LedgerBehind",
    "LedgerFailed",
    "Move",
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
