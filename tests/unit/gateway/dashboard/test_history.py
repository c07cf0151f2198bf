"""A history adds up to the ledger, knows who asked, stays small, and notices a journal that was tampered with."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from privalign.accounting.rules import Debit
from privalign.gateway.dashboard import followers
from privalign.gateway.dashboard.followers import Followed, Followers
from privalign.gateway.dashboard.history import HORIZONS, History, Series
from privalign.ledger.anchors import Anchors
from privalign.ledger.book import FIRST, entry_of, hash_of, record_of

TRIGGERS_OFF = "SELECT name FROM sqlite_master WHERE type = 'trigger'"


def rewrite(url: str, statement: str) -> None:
    """Changes the database as someone would who owns the file."""
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    for (name,) in connection.execute(TRIGGERS_OFF).fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute(statement)
    connection.commit()
    connection.close()


def whole(followed: Followed) -> Followed:
    return followed


def test_it_adds_up_to_the_ledger_by_key_and_in_all(town: Any) -> None:
    watching = Followers(town.ledger)
    for _ in range(4):  # read on in between, as an open page does
        town.answer(30)
        followed = watching.look("prefs", whole)
    account, history = town.ledger.account("prefs"), followed.history
    assert followed.complete
    assert (history.debited, history.length, history.head) == (account.debited, account.length, account.head)
    for shares in (history.by_key, history.by_model):
        assert sum((share.debited for share in shares.values()), Debit()) == account.debited
        assert sum(share.queries for share in shares.values()) == account.settled_queries + account.open_queries
    keys = town.ledger.keys()
    (client,) = (key for key in keys if key.role == "client")
    assert history.by_key[client.id].queries == client.queries
    assert sum(history.kinds.values()) == account.length
    for series in history.series.values():
        assert series.since(town.clock.now)[-1].debited == account.debited


def test_rows_that_name_a_model_are_counted_for_it() -> None:
    history, seq, head = History("prefs"), 0, FIRST

    def add(kind: str, debit: int, queries: int, reservation: int | None, note: dict[str, object]) -> None:
        nonlocal seq, head
        seq += 1
        record = record_of("prefs", seq, seq, kind, Debit(rdp=debit), queries, reservation, note, head)
        head = hash_of(record)
        history.add(entry_of(record, head))

    add("create", 0, 0, None, {"terms": {}, "limit": {"epsilon": 0, "delta": 0, "rho": 0, "rdp": 100}})
    add("reserve", 40, 1, None, {"model": "small", "api_key": "k"})
    add("reserve", 30, 2, None, {"model": "large", "api_key": "k"})
    add("settle", -15, 0, 2, {})
    add("void", -30, -2, 3, {})
    add("reserve", 9, 1, None, {})
    shares = {name: (share.queries, share.debited.rdp) for name, share in history.by_model.items()}
    assert shares == {"small": (1, 25), "large": (0, 0), None: (1, 9)}
    assert {name: share.debited.rdp for name, share in history.by_key.items()} == {"k": 25, None: 9}


def test_it_reads_a_long_journal_in_pieces(town: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "ROWS_AT_A_TIME", 25)
    town.answer(60)
    watching, length = Followers(town.ledger), town.ledger.account("prefs").length
    seen = [watching.look("prefs", lambda followed: (followed.history.length, followed.complete)) for _ in range(7)]
    assert seen[:3] == [(25, False), (50, False), (75, False)]
    assert seen[-1] == (length, True)
    assert all(complete == (read == length) for read, complete in seen)


def test_series_keep_what_their_horizon_needs_and_no_more() -> None:
    for horizon in HORIZONS:
        series = Series(horizon)
        for step in range(10 * horizon.buckets):
            series.add(1e9 + step * horizon.width / 3, Debit(rdp=step), step)
        assert len(series._points) == horizon.buckets + 2
        now = 1e9 + (10 * horizon.buckets - 1) * horizon.width / 3
        first, *rest = series.since(now)
        assert first.start <= now - horizon.seconds < first.start + horizon.width
        assert first.queries == pytest.approx(10 * horizon.buckets - 3 * horizon.buckets, abs=6)
        assert rest[-1].queries == 10 * horizon.buckets - 1


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE ledger_journal SET record = replace(record, '\"queries\":1', '\"queries\":2') WHERE seq = 30", "row 30 was changed"),
        ("DELETE FROM ledger_journal WHERE seq = 30", "row 30 is missing"),
        ("DELETE FROM ledger_journal WHERE seq >= 80", "row 80 is missing"),
        ("UPDATE ledger_accounts SET debited_rdp = debited_rdp - 1", "its counters are not what its journal adds up to"),
        ("UPDATE ledger_accounts SET head = 'ff'", "its head is not the last hash"),
    ],
)
def test_it_says_what_was_tampered_with(town: Any, monkeypatch: pytest.MonkeyPatch, statement: str, named: str) -> None:
    monkeypatch.setattr(Anchors, "read", lambda *_: None)  # a host that has none; elsewhere the ledger itself refuses some of them
    town.answer(40)
    town.ledger.close()
    rewrite(town.url, statement)
    followed = Followers(town.ledger).look("prefs", whole)
    assert followed.fault is not None
    assert named in followed.fault
    assert not followed.complete


def test_it_notices_an_older_copy_that_was_put_back_while_it_watched(town: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Anchors, "read", lambda *_: None)  # a host that has none; elsewhere the ledger itself refuses it
    file = Path(town.url.removeprefix("sqlite:///"))
    town.answer(10)
    town.ledger.close()
    rewrite(town.url, "PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(file, tmp_path / "old.db")
    watching = Followers(town.ledger)
    town.answer(10)
    assert watching.look("prefs", whole).complete
    town.ledger.close()
    for each in file.parent.glob(f"{file.name}-*"):
        each.unlink()
    shutil.copy(tmp_path / "old.db", file)
    fault = watching.look("prefs", whole).fault
    assert fault is not None
    assert "older copy" in fault
    town.answer(30)  # and it does not forget, once the journal has grown beyond what it had read
    assert watching.look("prefs", whole).fault == fault
