"""The connection to SQLite or PostgreSQL: durable, fork-safe, thread-safe; every error is one line.

Writing transactions hold the write lock from their first statement (SQLite: BEGIN IMMEDIATE; PostgreSQL: the row lock
on the account), so what they read stays true until they commit. A commit that returned is on the disk.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any
from urllib.parse import quote
from weakref import WeakSet, finalize

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from privalign.errors import InvalidInput, MissingDependency
from privalign.ledger import identity, migrations
from privalign.ledger.failures import LedgerFailed, explain
from privalign.ledger.identity import Identity
from privalign.ledger.place import Place, is_mounted_alone, is_writable
from privalign.ledger.transaction import Transaction

_WRITES = "privalign_writes"

# Every writer locks the account first and then reads it anew: another isolation would answer with a snapshot from before the lock,
# and end half of the writers that met with a serialization failure.
BEGIN_WRITING = "BEGIN ISOLATION LEVEL READ COMMITTED"


class Database:
    """A ledger's database.

    Args:
        url: `sqlite:///FILE` or `postgresql+psycopg://…`.
        patience: seconds to wait for another writer, and for the server, before giving up.

    Raises:
        InvalidInput: the URL is not one of the two. MissingDependency: psycopg is not installed.
    """

    def __init__(self, url: str, patience: float) -> None:
        self._url = _checked(url)
        self._patience = patience
        self.name = self._url.render_as_string(hide_password=True)
        self._start()
        _LIVE.add(self)

    def _start(self) -> None:
        self._connect_by(_engine(self._url, self._patience))
        self._as_it_was: tuple[object, ...] | None = None  # of a file that may only be read
        self._postgresql = self._url.get_backend_name() == "postgresql"
        # SQLite wakes waiting writers by polling: threads of one process take turns here instead
        self._turns = None if self._postgresql else threading.Lock()
        self._opening = threading.Lock()
        self._ready = False
        self._known: Identity | None = None  # once it is open
        self._file: tuple[int, int] | None = None  # device and inode of SQLite's file, likewise

    @property
    def identity(self) -> Identity:
        """Which ledger it is, and where it belongs. Opens it."""
        with self._explained():
            self._open()
        assert self._known is not None
        return self._known

    @property
    def place(self) -> Place | None:
        """Where its file is now; None for PostgreSQL, or where there is none."""
        return None if self._postgresql else Place.of(str(self._url.database))

    def _connect_by(self, engine: Engine) -> None:
        self._engine = engine
        self._finalizer = finalize(self, engine.dispose)  # connections close with the last reference

    def close(self) -> None:
        """Closes every connection; the next transaction opens new ones."""
        self._ready = False
        self._engine.dispose()

    def read(self) -> AbstractContextManager[Transaction]:
        """A reading transaction: one snapshot."""
        return self._transaction("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if self._postgresql else "BEGIN", nullcontext())

    def write(self) -> AbstractContextManager[Transaction]:
        """A writing transaction: committed durably at the end of the block, rolled back whole when it raises."""
        return self._transaction(BEGIN_WRITING if self._postgresql else "BEGIN IMMEDIATE", self._turn())

    def again(self, began: float) -> bool:
        """Whether a transaction that met another one, in the work that began then, may be tried again; waits a little, by chance."""
        left = began + self._patience - time.monotonic()
        if left > 0:
            time.sleep(random.uniform(0.0, min(left, 0.05)))
        return left > 0

    def open_anywhere(self) -> Identity:
        """Opens the ledger wherever its file is, until it is closed: for what makes this its place.

        Raises:
            LedgerFailed: as everywhere; the file has several names, or is mounted alone.
        """
        with self._explained(), self._opening:
            known = self._open_schema()
            self._ready = True
        return known

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if self._turns is None:
            yield
            return
        if not self._turns.acquire(timeout=self._patience):
            raise LedgerFailed(f"ledger {self.name}: locked by another program for too long; stop it and retry")
        try:
            yield
        finally:
            self._turns.release()

    @contextmanager
    def _transaction(self, begin: str, turn: AbstractContextManager[Any]) -> Iterator[Transaction]:
        driver_error: type[Exception] = self._engine.dialect.loaded_dbapi.Error
        with self._explained():
            self._open()
            self._check_place()
            if self._as_it_was is not None and begin != "BEGIN":
                self._ready = False  # it may be writable the next time
                raise LedgerFailed(f"ledger {self.name}: read-only; give this user write access to the file and its folder")
            with turn:
                connection = self._engine.raw_connection()
                try:
                    transaction = Transaction(connection, self._engine.dialect, begin)
                    yield transaction
                    transaction.commit()
                    self._check_unchanged()
                except BaseException:
                    try:
                        connection.rollback()
                    except driver_error:
                        connection.invalidate()
                    raise
                finally:
                    connection.close()  # back to the pool

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns what the driver raises into one line."""
        driver_error: type[Exception] = self._engine.dialect.loaded_dbapi.Error
        try:
            yield
        except migrations.NewerSchema as error:
            raise LedgerFailed(
                f"ledger {self.name}: its schema {error} is newer than this version of privalign; upgrade privalign"
            ) from None
        except (SQLAlchemyError, UnicodeDecodeError, driver_error) as error:
            raise explain(error, self.name) from None

    def _open(self) -> None:
        """Makes or upgrades the schema, at first use, and refuses a ledger elsewhere than where it belongs."""
        if self._ready:
            return
        with self._opening:
            if not self._ready:
                known = self._open_schema()
                here = self.place
                if known.place != here and self._as_it_was is None:  # what may only be read pays nothing
                    raise LedgerFailed(
                        f"ledger {self.name}: it belongs at {known.place}, and this is {here}; a second name or copy would pay the budget "
                        f"twice: use it where it belongs, or, if it was moved, say so with `privalign ledger moved --ledger {self.name}`"
                    )
                self._ready = True

    def _open_schema(self) -> Identity:
        """Makes or upgrades the tables, and finds out which ledger it is. Nothing is read under a name with a log of its own."""
        self._choose_mode()
        self._found()
        if not self._postgresql and is_mounted_alone(str(self._url.database)):
            raise LedgerFailed(
                f"ledger {self.name}: its file is mounted alone, without the write-ahead log that SQLite keeps beside it; mount its folder"
            )
        with self._engine.begin() as connection:
            version = migrations.current(connection)
        if version != migrations.HEAD and self._as_it_was is not None:
            raise LedgerFailed(
                f"ledger {self.name}: of another version, and read-only; copy it to where it can be written, and say `ledger moved`"
            )
        if version != migrations.HEAD:
            with self._engine.execution_options(**{_WRITES: True}).begin() as connection:
                migrations.upgrade(connection)
                identity.adopt(connection, self.place)
        with self._engine.begin() as connection:
            self._known = identity.read(connection)
        if self._known is None:
            raise LedgerFailed(f"ledger {self.name}: its row in ledger_identity is damaged; restore a backup and see `account verify`")
        self._file = self._found()
        return self._known

    def _choose_mode(self) -> None:
        """Opens a SQLite file that this user may not write so that nothing is written beside it either."""
        file = str(self._url.database)
        reading = not self._postgresql and not is_writable(file)
        if reading or self._as_it_was is not None:
            self._engine.dispose()
            self._as_it_was = _state_of(file) if reading else None
            self._connect_by(_reading_engine(self._url, self._patience) if reading else _engine(self._url, self._patience))

    def _check_unchanged(self) -> None:
        """Refuses what was read from a file without locks while another user, who may write it, did so."""
        if self._as_it_was is not None and _state_of(str(self._url.database)) != self._as_it_was:
            self.close()
            raise LedgerFailed(f"ledger {self.name}: changed while it was read; read it again")

    def _check_place(self) -> None:
        """Refuses a SQLite file that was taken away or replaced since it was opened: debits would go to a file that nobody opens again."""
        if self._found() != self._file:
            remedy = "stop every program that uses it, put the right file there, and start again"
            raise LedgerFailed(f"ledger {self.name}: its file was moved, removed or replaced while it was open; {remedy}")

    def _found(self) -> tuple[int, int] | None:
        """What file is at the place of the ledger; None for PostgreSQL, or where there is none.

        Raises:
            LedgerFailed: it has several names.
        """
        if self._postgresql:
            return None
        try:
            status = os.stat(str(self._url.database))
        except OSError:
            return None
        if status.st_nlink > 1 and self._as_it_was is None:
            raise LedgerFailed(
                f"ledger {self.name}: its file has {status.st_nlink} names (hard links), and would pay its budget under each of them; "
                f"remove the others, which `find -samefile` shows"
            )
        return status.st_dev, status.st_ino

    def _start_again(self) -> None:
        """In the child of a fork: new locks and connections. The parent's are neither used nor closed here."""
        self._finalizer.detach()
        _INHERITED.append(self._engine)  # collecting them would close them: the parent would lose its file locks
        self._start()


_LIVE: WeakSet[Database] = WeakSet()
_INHERITED: list[Engine] = []


def _after_fork() -> None:
    for database in list(_LIVE):
        database._start_again()


os.register_at_fork(after_in_child=_after_fork)


def _checked(text: str) -> URL:
    remedy = "give sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE"
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise InvalidInput("ledger", f"not a database URL; {remedy}") from None
    if url.drivername in ("postgresql", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    if url.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise InvalidInput("ledger", f"{url.drivername} is not supported; {remedy}")
    if not url.database or url.database == ":memory:":
        raise InvalidInput("ledger", f"a ledger in memory forgets what was spent; {remedy}")
    return url


def _engine(url: URL, patience: float) -> Engine:
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, hide_parameters=True, max_overflow=-1, connect_args={"timeout": patience, "isolation_level": None})
        event.listen(engine, "do_connect", lambda *_: _make_private(str(url.database)))
        event.listen(engine, "connect", lambda connection, _: _prepare_sqlite(connection, str(url), patience))
        event.listen(engine, "begin", _begin)
        return engine
    # a database whose encoding is SQL_ASCII would hand over bytes, from its first word on
    settings = {"connect_timeout": max(2, round(patience)), "client_encoding": "utf8"}
    try:
        engine = create_engine(url, hide_parameters=True, max_overflow=20, pool_pre_ping=True, connect_args=settings)
    except ImportError:
        raise MissingDependency("PostgreSQL needs psycopg; install it with `pip install 'privalign[postgres]'`") from None
    pin_session(engine, patience)
    event.listen(engine, "begin", _begin)
    return engine


def pin_session(engine: Engine, patience: float) -> None:
    """Has every session of a PostgreSQL engine set what the ledger rests on, before SQLAlchemy asks its own questions."""
    name = engine.url.render_as_string(hide_password=True)

    def connect(dialect: Any, _: object, arguments: Any, named: Any) -> Any:
        connection = dialect.connect(*arguments, **named)
        try:
            _prepare_postgresql(connection, name, patience)
        except BaseException:
            connection.close()
            raise
        return connection

    event.listen(engine, "do_connect", connect)


def _reading_engine(url: URL, patience: float) -> Engine:
    """For a file that may only be read. Without a write-ahead log that somebody uses, SQLite is told that nobody changes it."""
    file = str(url.database)
    fixed = "" if _size(file + "-wal") else "&immutable=1"
    path = quote(os.path.realpath(file))
    engine = create_engine(
        f"sqlite:///file:{path}?mode=ro{fixed}&uri=true",
        hide_parameters=True,
        max_overflow=-1,
        connect_args={"timeout": patience, "isolation_level": None},
    )
    event.listen(engine, "begin", _begin)
    return engine


def _state_of(file: str) -> tuple[object, ...]:
    """What changes when a ledger is written."""
    try:
        status = os.stat(file)
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, _size(file + "-wal")


def _size(file: str) -> int:
    try:
        return os.stat(file).st_size
    except OSError:
        return 0


def _make_private(file: str) -> None:
    """A new file for its user alone, whatever the umask; SQLite gives its write-ahead log and shared memory the same mode."""
    with suppress(OSError):  # it is there, or SQLite will say what is wrong
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _prepare_sqlite(connection: sqlite3.Connection, name: str, patience: float) -> None:
    """Durability and checks, which SQLite keeps per connection."""
    deadline = time.monotonic() + patience
    while True:  # the change to WAL does not wait for other programs by itself
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise LedgerFailed(f"ledger {name}: SQLite cannot keep a write-ahead log there; put the file on a local disk")
    connection.execute("PRAGMA synchronous = FULL")  # a commit that returned survives a power cut
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA secure_delete = ON")  # deleted answers leave no text in the file


def _begin(connection: Connection) -> None:
    """For migrations. The drivers begin nothing by themselves, so that a writer can take the lock before it reads."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(BEGIN_WRITING)
        return
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get(_WRITES) else "BEGIN")


def _prepare_postgresql(connection: Any, name: str, patience: float) -> None:
    """Sets what the ledger rests on, whatever the defaults of server, database and role.

    Refuses a server that acknowledges commits before they are on its disk. The isolation is set where transactions begin; the search
    path is the user's: it says which ledger is meant.
    """
    connection.autocommit = True
    milliseconds = max(1, round(patience * 1000))
    pinned = {
        "statement_timeout": 2 * milliseconds,  # above the wait for a lock, which it would cut short; first, as it bounds what follows
        "lock_timeout": milliseconds,
        "idle_in_transaction_session_timeout": milliseconds,  # a stalled client frees the account
        "TimeZone": "'UTC'",
        "DateStyle": "'ISO'",
        "extra_float_digits": 3,  # shares and rates in full
        "standard_conforming_strings": "on",
    }
    with connection.cursor() as cursor:
        for setting, value in pinned.items():
            cursor.execute(f"SET {setting} = {value}")
        cursor.execute("SELECT current_setting('synchronous_commit'), current_setting('fsync')")
        synchronous_commit, fsync = cursor.fetchone()
    for setting, value, durable in (
        ("synchronous_commit", synchronous_commit, ("on", "remote_apply")),
        ("fsync", fsync, ("on",)),
    ):
        if value not in durable:
            raise LedgerFailed(f"ledger {name}: {setting} is {value}, so a crash could forget what was spent; set it to on")
