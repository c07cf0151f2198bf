"""Accounts name their data set. One of an earlier version protects a data set of its own name, so that no two of them meet."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    # NOT NULL needs a default where rows are there already; no statement ever uses it
    op.add_column("ledger_accounts", sa.Column("dataset", sa.Text, nullable=False, server_default=""))
    op.execute("UPDATE ledger_accounts SET dataset = name")
    op.create_index("ledger_accounts_of_dataset", "ledger_accounts", ["dataset"])
    for statement in _SQLITE if op.get_bind().dialect.name == "sqlite" else _POSTGRESQL:
        op.execute(statement)


_SQLITE = [
    "DROP TRIGGER ledger_accounts_fixed",
    "CREATE TRIGGER ledger_accounts_fixed BEFORE UPDATE OF name, parameters, created, dataset ON ledger_accounts "
    "BEGIN SELECT RAISE(ABORT, 'an account is immutable'); END",
]

_POSTGRESQL = [
    "DROP TRIGGER ledger_accounts_fixed ON ledger_accounts",
    "CREATE TRIGGER ledger_accounts_fixed BEFORE UPDATE OF name, parameters, created, dataset ON ledger_accounts "
    "FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse('an account is immutable')",
]
