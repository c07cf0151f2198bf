"""The schema's versions, run by alembic inside the package; there is no alembic.ini and no command to remember."""

from __future__ import annotations

from sqlalchemy import Column, Connection, MetaData, Table, Text, inspect, select

HEAD = "0004"
VERSION_TABLE = "ledger_version"
_VERSION = Table(VERSION_TABLE, MetaData(), Column("version_num", Text, primary_key=True))


class NewerSchema(Exception):
    """The database was made by a later version of the package."""


def current(connection: Connection) -> str | None:
    """The schema version of the database; None where there is no ledger yet."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(select(_VERSION.c.version_num)).scalar_one_or_none()


def upgrade(connection: Connection) -> None:
    """Brings the schema to HEAD inside the caller's transaction, which must be a writing one.

    Raises:
        NewerSchema: the version is not one that this package knows.
    """
    from alembic import command  # takes long to import, and an existing ledger never needs it
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    if connection.dialect.name == "postgresql":  # two programs that open a new ledger at once take turns
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('privalign ledger schema'))")
    config = Config()
    config.set_main_option("script_location", "privalign.ledger:migrations")
    version = current(connection)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if version is not None and version not in known:
        raise NewerSchema(version)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
