"""Keys have a rate of their own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("ledger_keys", sa.Column("rate", sa.Float(53)))
