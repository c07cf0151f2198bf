"""What can happen to a database: one clear line, nothing half-written, and it goes on when the cause is gone."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Engine, event

from privalign.accounting.rules import Renyi
from privalign.errors import BackendFailed, InvalidInput
from privalign.events import GumbelMax
from privalign.ledger import IdempotencyKey, Ledger, LedgerFailed, Reservation
from privalign.sensitivity import RewardRange, Sensitivity

EVENT = GumbelMax(Sensitivity.of_range(RewardRange(0.0, 1.0)), 10.0, 16)
RULE = Renyi(50.0, 1e-6, 2.0)


def file_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def one_line(error: pytest.ExceptionInfo[LedgerFailed]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert "INSERT" not in text
    assert isinstance(error.value, BackendFailed)
    return text


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that holds one megabyte, where this user may mount one; else SQLite's own limit of as many pages."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    mounted = (
        mount is not None and subprocess.run([mount, "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True).returncode == 0
    )

    def limit(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA max_page_count = 60")

    if not mounted:
        event.listen(Engine, "connect", limit)
    yield folder
    if mounted:
        subprocess.run(["umount", "-l", folder], check=True)
    else:
        event.remove(Engine, "connect", limit)


def test_a_full_disk(small_disk: Path) -> None:
    ledger = Ledger(f"sqlite:///{small_disk}/ledger.db")
    ledger.create_account("prefs", RULE)

    def answer_until_full(scope: str, size: int = 20_000) -> None:
        for number in range(1000):
            reservation = ledger.reserve("prefs", [EVENT], idempotency=IdempotencyKey(scope, str(number), "body"))
            assert isinstance(reservation, Reservation)
            ledger.settle(reservation, [EVENT], {"text": "x" * size})

    ledger.check_writable("prefs")

    for scope in ("first", "again"):
        with pytest.raises(LedgerFailed) as error:
            answer_until_full(scope)
        assert "the disk is full; free some space" in one_line(error)
        account = ledger.account("prefs")
        assert account.settled_queries > 3
        assert ledger.verify("prefs").debited == account.debited == RULE.charge(EVENT) * (account.settled_queries + account.open_queries)
    with pytest.raises(LedgerFailed):
        answer_until_full("small", 100)
    for _ in range(3):
        with pytest.raises(LedgerFailed, match="the disk is full"):
            ledger.check_writable("prefs")
    ledger.close()


def test_a_locked_file(sqlite_url: str) -> None:
    ledger = Ledger(sqlite_url, patience=0.2)
    ledger.create_account("prefs", RULE)
    other = sqlite3.connect(file_of(sqlite_url), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerFailed) as error:
        ledger.reserve("prefs", [EVENT])
    assert "locked by another program for too long" in one_line(error)
    with pytest.raises(LedgerFailed, match="locked"):
        ledger.check_writable("prefs")
    assert ledger.account("prefs").length == 1  # readers do not wait
    other.execute("ROLLBACK")
    other.close()
    ledger.reserve("prefs", [EVENT])


def test_a_crowd_behind_a_locked_file_waits_no_longer_than_one(sqlite_url: str) -> None:
    """Were turns waited for without limit, the last of ten would wait ten times as long as the first."""
    ledger = Ledger(sqlite_url, patience=0.5)
    ledger.create_account("prefs", RULE)
    other = sqlite3.connect(file_of(sqlite_url), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()

    def wait(_: int) -> float:
        with pytest.raises(LedgerFailed, match="locked by another program for too long"):
            ledger.reserve("prefs", [EVENT])
        return time.monotonic() - began

    with ThreadPoolExecutor(10) as crowd:
        waited = sorted(crowd.map(wait, range(10)))
    other.execute("ROLLBACK")
    other.close()
    assert waited[-1] < 0.5 * 10 * 0.8  # twice the patience, and leave for a busy machine
    ledger.reserve("prefs", [EVENT])


@pytest.mark.parametrize("what", ["moved", "removed", "replaced by an older copy"])
def test_a_file_that_goes_while_it_is_open(sqlite_url: str, what: str) -> None:
    """Debits to a file that nobody will open again would be forgotten: refused, until the programs start again."""
    ledger = Ledger(sqlite_url)
    ledger.create_account("prefs", RULE)
    file = file_of(sqlite_url)
    older = file.with_suffix(".old")
    with sqlite3.connect(file) as source, sqlite3.connect(older) as target:
        source.backup(target)
    ledger.reserve("prefs", [EVENT])
    if what == "moved":
        file.rename(file.with_suffix(".moved"))
    elif what == "removed":
        file.unlink()
    else:
        older.replace(file)
    for use in (lambda: ledger.reserve("prefs", [EVENT]), lambda: ledger.account("prefs")):
        with pytest.raises(LedgerFailed) as error:
            use()
        assert "moved, removed or replaced while it was open" in one_line(error)
    ledger.close()


def test_a_read_only_file(sqlite_url: str) -> None:
    Ledger(sqlite_url).create_account("prefs", RULE)
    file = file_of(sqlite_url)

    def as_nobody(said: multiprocessing.Queue[str]) -> None:  # the superuser may write anywhere
        if os.geteuid() == 0:
            os.seteuid(65534)
        try:
            Ledger(sqlite_url).reserve("prefs", [EVENT])
        except LedgerFailed as error:
            said.put(str(error))
        else:
            said.put("written")

    fork = multiprocessing.get_context("fork")
    said = fork.Queue()
    file.chmod(0o444)
    file.parent.chmod(0o555)
    try:
        process = fork.Process(target=as_nobody, args=(said,))
        process.start()
        text = said.get(timeout=30)
        process.join()
    finally:
        file.parent.chmod(0o755)
    assert "read-only" in text or "cannot be opened" in text
    assert "\n" not in text
    assert Ledger(sqlite_url).account("prefs").length == 1


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(LedgerFailed) as error:
        Ledger(f"sqlite:///{tmp_path}/nowhere/ledger.db").accounts()
    assert "check that the folder exists" in one_line(error)


def test_a_file_that_is_no_ledger(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"something else entirely" * 1000)
    with pytest.raises(LedgerFailed) as error:
        Ledger(f"sqlite:///{tmp_path}/ledger.db").accounts()
    assert "not a ledger, or damaged" in one_line(error)


def test_a_corrupted_file(sqlite_url: str) -> None:
    ledger = Ledger(sqlite_url)
    ledger.create_account("prefs", RULE)
    for _ in range(100):
        ledger.reserve("prefs", [EVENT])
    ledger.close()
    with file_of(sqlite_url).open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        for page in range(1, size // 4096):
            file.seek(page * 4096)
            file.write(os.urandom(64))
    with pytest.raises(LedgerFailed) as error:
        ledger.reserve("prefs", [EVENT])
    assert "damaged; restore a backup" in one_line(error)


def test_a_newer_schema(ledger_url: str) -> None:
    ledger = Ledger(ledger_url)
    ledger.create_account("prefs", RULE)
    with ledger._database._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE ledger_version SET version_num = '9999'")
    with pytest.raises(LedgerFailed) as error:
        Ledger(ledger_url).account("prefs")
    assert "its schema 9999 is newer than this version of privalign; upgrade privalign" in one_line(error)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://localhost/x", "nonsense", "postgresql+asyncpg://localhost/x"])
def test_a_url_that_is_no_durable_database(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"ledger: .*sqlite:///FILE"):
        Ledger(url)


def test_a_server_that_is_away() -> None:
    ledger = Ledger("postgresql+psycopg://user:hunter2@127.0.0.1:1/ledger", patience=2.0)
    with pytest.raises(LedgerFailed) as error:
        ledger.accounts()
    assert "the server is away" in one_line(error)
    assert "hunter2" not in str(error.value)


def test_a_server_that_restarts(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pgserver

        server = pgserver.get_server(tmp_path / "pg")
        url = server.get_uri().replace("postgresql://", "postgresql+psycopg://")
        ledger = Ledger(url, patience=2.0)
        ledger.create_account("prefs", RULE)
        reservation = ledger.reserve("prefs", [EVENT])
        assert isinstance(reservation, Reservation)
        server.cleanup()
        with pytest.raises(LedgerFailed) as error:
            ledger.settle(reservation, [EVENT])
        assert "the server is" in one_line(error)
        server = pgserver.get_server(tmp_path / "pg")
        ledger.settle(reservation, [EVENT])
        ledger.verify("prefs")
        ledger.close()
        server.cleanup()


def test_a_server_that_hangs_up_in_the_middle(postgresql_url: str, postgresql: str) -> None:
    ledger = Ledger(postgresql_url)
    ledger.create_account("prefs", RULE)

    def hung_up_on() -> None:
        with ledger._database.write() as transaction:
            backend = transaction._cursor.connection.info.backend_pid
            with psycopg.connect(postgresql.replace("+psycopg", ""), autocommit=True) as connection:
                connection.execute("SELECT pg_terminate_backend(%s)", (backend,))
            transaction._cursor.execute("SELECT 1")

    with pytest.raises(LedgerFailed) as error:
        hung_up_on()
    assert "the server is" in one_line(error)
    ledger.reserve("prefs", [EVENT])


@pytest.mark.parametrize(("setting", "value"), [("synchronous_commit", "off"), ("synchronous_commit", "local")])
def test_a_server_that_may_forget_is_refused(postgresql_url: str, setting: str, value: str) -> None:
    ledger = Ledger(f"{postgresql_url}%20-c{setting}%3D{value}")
    with pytest.raises(LedgerFailed) as error:
        ledger.accounts()
    assert f"{setting} is {value}" in one_line(error)


def test_a_locked_account(postgresql_url: str) -> None:
    ledger, other = Ledger(postgresql_url, patience=0.3), Ledger(postgresql_url)
    ledger.create_account("prefs", RULE)
    with other._database.write() as transaction:
        transaction._cursor.execute("SELECT * FROM ledger_accounts FOR UPDATE")
        with pytest.raises(LedgerFailed) as error:
            ledger.reserve("prefs", [EVENT])
    assert "locked by another session" in one_line(error)
    ledger.reserve("prefs", [EVENT])
