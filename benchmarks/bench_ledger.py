"""The ledger against its targets: reserve + settle at ≥ 50 % of the rate of two bare durable commits on the same SQLite
file, and flat from 10 to 100,000 journal rows.

Baseline in the same run: two transactions of one inserted row each, same file, same durability, the driver alone. The
two are measured in turns, because a disk's speed changes from second to second, and compared by their medians.
Run: `pytest benchmarks/bench_ledger.py -s --benchmark-disable`.
"""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from privalign.accounting.rules import Renyi
from privalign.events import GumbelMax
from privalign.ledger import Ledger, Reservation
from privalign.ledger.book import Book
from privalign.sensitivity import RewardRange, Sensitivity

ROUNDS = 400
EVENT = GumbelMax(Sensitivity.of_range(RewardRange(0.0, 1.0)), 1e6, 16)


def fill(ledger: Ledger, rows: int) -> None:
    """Appends rows to the journal in a few large transactions."""
    account = ledger.account("big")
    cost = account.rule.charge(EVENT)
    with ledger._database.write() as connection:
        book = Book.lock(connection, "big", 0)
        for _ in range((rows - account.length) // 2):
            book.post("reserve", cost, queries=1)
            book.post("settle", cost - cost, reservation=book.length)


def seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(ledger: Ledger, bare: sqlite3.Connection) -> tuple[float, float]:
    """Median seconds of reserve + settle, and of two bare commits."""

    def query() -> None:
        reservation = ledger.reserve("big", [EVENT])
        assert isinstance(reservation, Reservation)
        ledger.settle(reservation, [EVENT])

    def two_commits() -> None:
        for _ in range(2):
            bare.execute("BEGIN IMMEDIATE")
            bare.execute("INSERT INTO bare (text) VALUES (?)", ("x" * 300,))
            bare.execute("COMMIT")

    pairs = [(seconds(query), seconds(two_commits)) for _ in range(ROUNDS)]
    return statistics.median(ours for ours, _ in pairs), statistics.median(theirs for _, theirs in pairs)


@pytest.mark.parametrize("rows", [10, 100_000])
def test_reserve_and_settle_against_two_bare_durable_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setenv("PRIVALIGN_ANCHOR_FOLDER", str(tmp_path / "anchors"))
    file = tmp_path / "ledger.db"
    ledger = Ledger(f"sqlite:///{file}")
    ledger.create_account("big", Renyi(1e5, 1e-6, 2.0))
    fill(ledger, rows)
    bare = sqlite3.connect(file, isolation_level=None)
    bare.execute("PRAGMA journal_mode = WAL")
    bare.execute("PRAGMA synchronous = FULL")
    bare.execute("CREATE TABLE bare (id INTEGER PRIMARY KEY, text TEXT)")
    ours, theirs = compare(ledger, bare)
    print(
        f"\n{rows} journal rows: reserve + settle {ours * 1e3:.2f} ms, two bare commits {theirs * 1e3:.2f} ms, "
        f"{theirs / ours:.0%} of the bare rate"
    )
    assert theirs / ours >= 0.5
