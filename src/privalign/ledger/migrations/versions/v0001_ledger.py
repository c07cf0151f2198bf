"""The first schema: accounts, journal, open reservations, answers and API keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

COUNTERS = ("epsilon", "delta", "rho", "rdp")


def _counters(prefix: str) -> list[sa.Column[int]]:
    return [sa.Column(f"{prefix}_{counter}", sa.BigInteger, nullable=False) for counter in COUNTERS]


def _within_limit() -> list[sa.CheckConstraint]:
    """The database itself refuses a counter above its limit or below zero, whatever the statement."""
    return [
        sa.CheckConstraint(f"debited_{counter} BETWEEN 0 AND limit_{counter}", name=f"ledger_{counter}_within_limit")
        for counter in COUNTERS
    ]


def upgrade() -> None:
    op.create_table(
        "ledger_accounts",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("parameters", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("time", sa.BigInteger, nullable=False),
        sa.Column("raises", sa.Text, nullable=False),
        *_counters("limit"),
        *_counters("debited"),
        sa.Column("queries", sa.BigInteger, nullable=False),
        sa.Column("refused", sa.BigInteger, nullable=False),
        sa.Column("length", sa.BigInteger, nullable=False),
        sa.Column("head", sa.Text, nullable=False),
        *_within_limit(),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "ledger_journal",
        sa.Column("account", sa.Text, sa.ForeignKey("ledger_accounts.name"), primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "ledger_reservations",
        sa.Column("account", sa.Text, sa.ForeignKey("ledger_accounts.name"), primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("expires", sa.BigInteger, nullable=False),
        sa.Column("queries", sa.BigInteger, nullable=False),
        *_counters("debit"),
        sa.Column("answer", sa.Text),
        sa.Column("api_key", sa.Text),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "ledger_answers",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("account", sa.Text, sa.ForeignKey("ledger_accounts.name"), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("settled", sa.BigInteger),
        sa.Column("release", sa.Text),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ledger_answers_with_text",
        "ledger_answers",
        ["settled"],
        sqlite_where=sa.text("release IS NOT NULL"),
        postgresql_where=sa.text("release IS NOT NULL"),
    )
    op.create_table(
        "ledger_keys",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("models", sa.Text),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger),
        sa.Column("revoked", sa.BigInteger),
        sa.Column("account", sa.Text, sa.ForeignKey("ledger_accounts.name")),
        sa.Column("share", sa.Float(53)),
        sa.Column("query_limit", sa.BigInteger),
        *_counters("debited"),
        sa.Column("queries", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    for statement in _SQLITE if op.get_bind().dialect.name == "sqlite" else _POSTGRESQL:
        op.execute(statement)


_SQLITE = [
    "CREATE TRIGGER ledger_journal_no_update BEFORE UPDATE ON ledger_journal BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END",
    "CREATE TRIGGER ledger_journal_no_delete BEFORE DELETE ON ledger_journal BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END",
    "CREATE TRIGGER ledger_accounts_fixed BEFORE UPDATE OF name, parameters, created ON ledger_accounts "
    "BEGIN SELECT RAISE(ABORT, 'an account is immutable'); END",
    "CREATE TRIGGER ledger_accounts_no_delete BEFORE DELETE ON ledger_accounts "
    "BEGIN SELECT RAISE(ABORT, 'an account is never deleted'); END",
]

_POSTGRESQL = [
    "CREATE FUNCTION ledger_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION '%', TG_ARGV[0]; END $$",
    "CREATE TRIGGER ledger_journal_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_journal "
    "FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse('the journal is append-only')",
    "CREATE TRIGGER ledger_accounts_fixed BEFORE UPDATE OF name, parameters, created ON ledger_accounts "
    "FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse('an account is immutable')",
    "CREATE TRIGGER ledger_accounts_no_delete BEFORE DELETE OR TRUNCATE ON ledger_accounts "
    "FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse('an account is never deleted')",
]
