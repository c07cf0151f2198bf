"""The migrations make what the statements expect."""

from __future__ import annotations

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect

from privalign.ledger import Ledger, migrations
from privalign.ledger.schema import METADATA


def test_the_migrated_schema_is_that_of_the_statements(ledger_url: str) -> None:
    ledger = Ledger(ledger_url)
    ledger.accounts()
    with ledger._database._engine.begin() as connection:
        assert migrations.current(connection) == migrations.HEAD
        found = inspect(connection)
        tables = {table for table in found.get_table_names() if table.startswith("ledger_")}
        assert tables == {*METADATA.tables, migrations.VERSION_TABLE}
        options = {"compare_type": True, "include_name": lambda name, kind, _: kind != "table" or name in METADATA.tables}
        context = MigrationContext.configure(connection, opts=options)
        changes = compare_metadata(context, METADATA)
    constraints = ("remove_index", "remove_fk")  # live in the migration only
    assert [change for change in changes if change[0] not in constraints] == []


def test_an_existing_ledger_opens_without_migrating(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def upgrade(_: Connection) -> None:
        raise AssertionError("no upgrade is due")

    Ledger(ledger_url).accounts()
    monkeypatch.setattr(migrations, "upgrade", upgrade)
    assert Ledger(ledger_url).accounts() == []


def test_a_migration_that_fails_leaves_nothing_behind(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("in the middle")

    with monkeypatch.context() as patch:
        patch.setattr("alembic.op.create_index", fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            Ledger(ledger_url).accounts()
    ledger = Ledger(ledger_url)
    with ledger._database._engine.begin() as connection:
        assert inspect(connection).get_table_names() == []
    assert ledger.accounts() == []
