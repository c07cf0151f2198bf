"""The tables, as the statements see them. The migrations make them and carry the constraints and triggers.

| table | one row per | changes |
|---|---|---|
| ledger_identity | ledger: one row | the place, by `ledger moved` |
| ledger_accounts | account | counters, head and time move; name, parameters, data set and creation never do (trigger) |
| ledger_journal | thing that happened to an account | never (trigger): append-only |
| ledger_reservations | open reservation | the lease is renewed; the row goes when it is settled, voided or expired |
| ledger_answers | idempotency key that is open or settled | gets its release when settled; loses the text after `retain` |
| ledger_keys | API key | counters move; revoked once |

Times are microseconds since 1970 (UTC), debits whole units (see `accounting.rules.Debit`).
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, MetaData, Table, Text, TextClause, text

from privalign.accounting.rules import Debit
from privalign.ledger.transaction import Row

COUNTERS = ("epsilon", "delta", "rho", "rdp")


def _counters(prefix: str) -> list[Column[int]]:
    return [Column(f"{prefix}_{counter}", BigInteger, nullable=False) for counter in COUNTERS]


def columns_of(prefix: str, debit: Debit) -> dict[str, int]:
    """A debit as named values of its four columns."""
    return {f"{prefix}_{counter}": getattr(debit, counter) for counter in COUNTERS}


def debit_of(prefix: str, row: Row) -> Debit:
    """A debit read back from its four columns, or from sums of them (None where there was nothing to add)."""
    return Debit(*(int(getattr(row, f"{prefix}_{counter}") or 0) for counter in COUNTERS))


def insert_unless_taken(table: Table, *columns: str) -> TextClause:
    """Inserts a row of these columns (default: all), or nothing where its key is taken; both databases spell it so."""
    names = columns or tuple(table.c.keys())
    values = ", ".join(f":{name}" for name in names)
    return text(f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({values}) ON CONFLICT DO NOTHING")  # noqa: S608


METADATA = MetaData()

IDENTITY = Table(
    "ledger_identity",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("place", Text),  # canonical JSON: path, device, inode of SQLite's file
)

ACCOUNTS = Table(
    "ledger_accounts",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("parameters", Text, nullable=False),  # canonical JSON: rule, relation, records per person; as created
    Column("created", BigInteger, nullable=False),
    Column("time", BigInteger, nullable=False),  # ledger time: never goes back
    Column("raises", Text, nullable=False),  # JSON list
    *_counters("limit"),
    *_counters("debited"),  # settled and open
    Column("queries", BigInteger, nullable=False),  # settled and open
    Column("refused", BigInteger, nullable=False),
    Column("length", BigInteger, nullable=False),
    Column("head", Text, nullable=False),
    Column("dataset", Text, nullable=False),  # what it protects; as created
)

JOURNAL = Table(
    "ledger_journal",
    METADATA,
    Column("account", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("record", Text, nullable=False),  # canonical JSON, see `journal`
    Column("hash", Text, nullable=False),
)

RESERVATIONS = Table(
    "ledger_reservations",
    METADATA,
    Column("account", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True),  # seq of its reserve row in the journal
    Column("owner", Text, nullable=False),
    Column("expires", BigInteger, nullable=False),
    Column("queries", BigInteger, nullable=False),
    *_counters("debit"),
    Column("answer", Text),
    Column("api_key", Text),
)

ANSWERS = Table(
    "ledger_answers",
    METADATA,
    Column("id", Text, primary_key=True),  # SHA-256 of scope and key
    Column("body", Text, nullable=False),  # SHA-256 of the body's digest
    Column("account", Text, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("settled", BigInteger),
    Column("release", Text),
)

KEYS = Table(
    "ledger_keys",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("models", Text),  # JSON list; NULL: every model
    Column("created", BigInteger, nullable=False),
    Column("expires", BigInteger),
    Column("revoked", BigInteger),
    Column("account", Text),  # of the share
    Column("share", Float(53)),
    Column("query_limit", BigInteger),
    *_counters("debited"),
    Column("queries", BigInteger, nullable=False),
    Column("rate", Float(53)),  # requests a minute; NULL: the gateway's
)
