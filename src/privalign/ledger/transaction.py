"""Runs the ledger's statements: written in SQLAlchemy Core, compiled once for each database, executed by its driver.

SQLAlchemy's own execution costs about 40 µs a statement; a query needs a dozen of them, beside two commits of 100 µs.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sqlalchemy import Dialect, Executable, PoolProxiedConnection
from sqlalchemy.sql.elements import ClauseElement

Row = Any  # a named tuple of the statement's columns
Values = Mapping[str, object]


class Transaction:
    """An open transaction on one connection, which `Database` provides and takes back."""

    def __init__(self, connection: PoolProxiedConnection, dialect: Dialect, begin: str) -> None:
        self._connection = connection
        self._dialect = dialect
        self._cursor: Any = connection.cursor()
        self._cursor.execute(begin)

    def alone(self, what: str) -> None:
        """Lets one transaction at a time go on from here with the same `what`, where the database does not anyway."""
        if self._dialect.name == "postgresql":
            self._cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"privalign ledger {what}"])

    def commit(self) -> None:
        """Ends it; once this returns, what a writing transaction wrote is on the disk."""
        self._connection.commit()

    def rows(self, statement: Executable, values: Values) -> list[Row]:
        """All rows of a query."""
        prepared = _prepare(statement, self._dialect)
        self._cursor.execute(prepared.sql, prepared.bind(values))
        return [prepared.row(self._cursor.description)(*row) for row in self._cursor.fetchall()]

    def row(self, statement: Executable, values: Values) -> Row | None:
        """The only row of a query, or None."""
        rows = self.rows(statement, values)
        return rows[0] if rows else None

    def change(self, statement: Executable, values: Values) -> int:
        """How many rows an INSERT, UPDATE or DELETE changed."""
        prepared = _prepare(statement, self._dialect)
        self._cursor.execute(prepared.sql, prepared.bind(values))
        return int(self._cursor.rowcount)


class _Prepared:
    """The SQL of a statement with the order or names of its values."""

    def __init__(self, statement: Executable, dialect: Dialect) -> None:
        assert isinstance(statement, ClauseElement)
        compiled: Any = statement.compile(dialect=dialect)
        self.sql = str(compiled)
        self._names: list[str] | None = compiled.positiontup
        self._fixed = {name: bind.value for name, bind in compiled.binds.items() if not bind.required and bind.value is not None}
        self._row: Any = None

    def bind(self, values: Values) -> object:
        """The values as the driver wants them."""
        everything = {**self._fixed, **values} if self._fixed else values
        return everything if self._names is None else [everything[name] for name in self._names]

    def row(self, description: Any) -> Any:
        """The class of its rows."""
        if self._row is None:
            self._row = _row_class([column[0] for column in description])
        return self._row


def _row_class(columns: list[str]) -> Any:
    return namedtuple("Row", columns)


@lru_cache(maxsize=256)
def _prepare(statement: Executable, dialect: Dialect) -> _Prepared:
    return _Prepared(statement, dialect)
