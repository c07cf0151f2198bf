"""The ledger's own id and place; the row is written when the upgrade is done, see `identity.adopt`."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table("ledger_identity", sa.Column("id", sa.Text, primary_key=True), sa.Column("place", sa.Text))
