"""What becomes of reservations whose owners wait, leave, end, or forget them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from privalign.accounting.rules import Debit, Fsrc
from privalign.aligner import Performance, ServedModel
from privalign.aligner.async_ledger import AsyncLedger
from privalign.errors import BackendFailed, LeaseExpired
from privalign.ledger import IdempotencyKey, Ledger, Replay, Reservation
from privalign.mechanisms.privbon import PrivBoN
from privalign.policies.recorded import RecordedPolicy
from privalign.rewards.recorded import RecordedReward
from privalign.sensitivity import RewardRange, Sensitivity

SENSITIVITY = Sensitivity(0.05, RewardRange(0.0, 1.0))
PRIVBON = PrivBoN(2, 0.3)
EVENTS = [PRIVBON.event(SENSITIVITY)]
KEY = IdempotencyKey("client", "abc", "body")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    book = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    book.create_account("prefs", Fsrc(1000.0, 1e-2, 1e-6))
    yield book
    book.close()


def over(ledger: Ledger, lease: float = 120.0) -> AsyncLedger:
    policy, reward = RecordedPolicy("p", []), RecordedReward("r", [], SENSITIVITY)
    performance = Performance(padding=0.0, lease=lease, poll=0.01)
    return AsyncLedger(ledger, ServedModel("aligned", policy, reward, PRIVBON, "prefs", performance=performance))


def kinds(ledger: Ledger) -> list[str]:
    return [entry.kind for entry in ledger.journal("prefs")][1:]


def until(ledger: Ledger, wanted: list[str]) -> None:
    end = time.monotonic() + 10
    while kinds(ledger) != wanted:
        assert time.monotonic() < end, kinds(ledger)
        time.sleep(0.01)


async def reserved(book: AsyncLedger, key: IdempotencyKey | None = None) -> Reservation:
    outcome = await book.reserve(EVENTS, key, None)
    assert isinstance(outcome, Reservation)
    return outcome


def test_reserved_settled_and_found_again(ledger: Ledger) -> None:
    async def main() -> None:
        book = over(ledger)
        await book.settle(await reserved(book, KEY), EVENTS, {"answers": [1]})
        again = await book.reserve(EVENTS, KEY, None)
        assert isinstance(again, Replay)
        assert again.release == {"answers": [1]}

    asyncio.run(main())
    assert kinds(ledger) == ["reserve", "settle"]


@pytest.mark.parametrize(("touched", "ends"), [(True, "expire"), (False, "void")])
@pytest.mark.parametrize("cancelled", [False, True])
def test_what_is_not_answered_is_ended_also_where_the_caller_leaves(ledger: Ledger, touched: bool, ends: str, cancelled: bool) -> None:
    async def main() -> None:
        book = over(ledger)
        ending = asyncio.create_task(book.end(await reserved(book), touched=touched))
        if cancelled:
            await asyncio.sleep(0)
            ending.cancel()
        await asyncio.wait({ending})
        assert ending.cancelled() == cancelled
        await asyncio.gather(*book.unfinished)

    asyncio.run(main())
    assert kinds(ledger) == ["reserve", ends]
    assert (ledger.account("prefs").debited == Debit()) == (not touched)


def test_a_request_that_another_answers_is_waited_for_but_not_for_ever(ledger: Ledger) -> None:
    async def main() -> None:
        book = over(ledger, lease=0.2)
        async with book.kept(await reserved(book, KEY)):  # by somebody who lives and never ends
            with pytest.raises(BackendFailed, match="answered elsewhere"):
                await book.reserve(EVENTS, KEY, None)

    asyncio.run(main())


def test_a_kept_reservation_outlives_its_lease_and_another_does_not(ledger: Ledger) -> None:
    async def main() -> None:
        book = over(ledger, lease=0.4)
        kept, left = await reserved(book), await reserved(book)
        async with book.kept(kept):
            await asyncio.sleep(0.9)
            await book.settle(kept, EVENTS, {})
        with pytest.raises(LeaseExpired):
            await book.settle(left, EVENTS, {})

    asyncio.run(main())


def test_an_abandoned_reservation_is_given_back_without_any_loop(ledger: Ledger) -> None:
    book = over(ledger)
    book.abandon(asyncio.run(reserved(book)))
    until(ledger, ["reserve", "void"])


def test_a_forked_process_gives_back_nothing_of_its_parent(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    book = over(ledger)
    reservation = asyncio.run(reserved(book))
    started: list[Any] = []
    monkeypatch.setattr("privalign.aligner.async_ledger._thread.start_new_thread", lambda *arguments: started.append(arguments))
    owner = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: owner + 1)
    book.abandon(reservation)
    assert started == []
    monkeypatch.setattr(os, "getpid", lambda: owner)
    book.abandon(reservation)
    assert len(started) == 1


def test_who_leaves_before_a_thread_is_free_reserves_nothing(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    called, inner = threading.Event(), ledger.reserve

    def slow(*arguments: Any, **options: Any) -> Any:
        called.set()
        time.sleep(0.1)
        return inner(*arguments, **options)

    monkeypatch.setattr(ledger, "reserve", slow)

    async def main() -> None:
        book = over(ledger)
        task = asyncio.create_task(book.reserve(EVENTS, None, None))
        await asyncio.to_thread(called.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.gather(*book.unfinished)

    asyncio.run(main())
    assert kinds(ledger) == ["reserve", "void"]
