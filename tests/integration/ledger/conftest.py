"""Ledgers that the code of earlier versions made."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

DUMPS = Path(__file__).parents[2] / "fixtures" / "ledgers"


def _restore(url: str, version: str) -> None:
    """Puts the dump of an earlier version where a ledger will be opened."""
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            connection.executescript((DUMPS / f"{version}.sqlite.sql").read_text())
        connection.close()
        return
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute((DUMPS / f"{version}.postgresql.sql").read_text())


@pytest.fixture
def older_ledger() -> Callable[[str, str], None]:
    """Puts the ledger of a version of the schema at a URL: `older_ledger(url, "0002")`."""
    return _restore
