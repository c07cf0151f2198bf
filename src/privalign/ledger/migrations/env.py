"""Alembic's entry point: runs the versions on the connection, and in the transaction, that `upgrade` hands over."""

from alembic import context

from privalign.ledger.migrations import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()
