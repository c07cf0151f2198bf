"""The ledger for code that must not block, and what becomes of a reservation whose owner leaves."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import functools
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from privalign.aligner.model import ServedModel
from privalign.errors import BackendFailed, PrivalignError
from privalign.events import Event
from privalign.ledger import IdempotencyKey, Ledger, Pending, Replay, Reservation

T = TypeVar("T")
Outcome = Reservation | Replay | Pending | None


class AnsweredElsewhere(BackendFailed):
    """Another process answers the same request under the same idempotency key, and does not end."""

    def __init__(self) -> None:
        super().__init__("the same request is still being answered elsewhere; ask again later, or under a new idempotency key")


class AsyncLedger:
    """Reserves and settles for one served model, on threads of its own: behind slow scorers, leases would run out before
    they are renewed.
    """

    def __init__(self, ledger: Ledger, model: ServedModel) -> None:
        self._ledger = ledger
        self._model = model
        self._owner = os.getpid()
        self.unfinished: set[asyncio.Task[None]] = set()  # giving back for those who left while they waited

    async def reserve(self, events: Sequence[Event], idempotency: IdempotencyKey | None, api_key: str | None) -> Reservation | Replay:
        """Debits the worst case, or finds the stored answer; waits while another process answers under the same key.

        A lease at most, by this process's own clock: the ledger's may have been ahead when the other began. Whoever is
        cancelled while waiting has reserved nothing.

        Raises:
            BudgetExhausted, IdempotencyConflict, KeyRefused: as the ledger's. BackendFailed: the other did not end.
        """
        patience = time.monotonic() + 2 * self._model.performance.lease
        while True:
            left = threading.Event()
            reserving = asyncio.create_task(self._on_threads(self._reserve_unless, left, events, idempotency, api_key))
            try:
                outcome = await asyncio.shield(reserving)
            except asyncio.CancelledError:  # the thread goes on, and may outlast this loop: what it reserves would stay spent, for nothing
                left.set()
                await asyncio.shield(self._in_background(self._undo(reserving)))
                raise
            assert outcome is not None
            if not isinstance(outcome, Pending):
                return outcome
            if time.monotonic() > patience:
                raise AnsweredElsewhere
            await asyncio.sleep(self._model.performance.poll)

    async def settle(self, reservation: Reservation, realised: Sequence[Event], release: Mapping[str, object]) -> None:
        """Lowers the debit to what was released and stores the release; nothing may leave before this returns.

        Raises:
            LeaseExpired, LedgerFailed: as the ledger's; nothing may leave at all.
        """
        await self._on_threads(self._ledger.settle, reservation, realised, release)

    async def end(self, reservation: Reservation, *, touched: bool) -> None:
        """Closes a reservation that will not be answered, also where the caller is cancelled meanwhile."""
        await asyncio.shield(self._in_background(self._on_threads(self._end, reservation, touched)))

    def abandon(self, reservation: Reservation) -> None:
        """Gives back what nobody will answer, from whatever code lets go of it: a collector may run in the middle of a lock.

        So by a new thread and through nothing that locks. A forked process lets go of copies only.
        """
        if os.getpid() == self._owner:
            _thread.start_new_thread(self._end, (reservation, False))

    @contextlib.asynccontextmanager
    async def kept(self, reservation: Reservation) -> AsyncIterator[None]:
        """Keeps a reservation alive meanwhile."""
        renewal = asyncio.create_task(self._renew(reservation))
        try:
            yield
        finally:
            renewal.cancel()

    def _reserve_unless(
        self, left: threading.Event, events: Sequence[Event], idempotency: IdempotencyKey | None, api_key: str | None
    ) -> Outcome:
        """Reserves, unless whoever asks has left: then None, and nothing stays reserved."""
        if left.is_set():
            return None
        model = self._model
        outcome = self._ledger.reserve(
            model.account, events, lease=model.performance.lease, idempotency=idempotency, api_key=api_key, model=model.name
        )
        if left.is_set() and isinstance(outcome, Reservation):
            self._end(outcome, False)
            return None
        return outcome

    async def _undo(self, reserving: asyncio.Task[Outcome]) -> None:
        with contextlib.suppress(PrivalignError):
            outcome = await reserving
            if isinstance(outcome, Reservation):
                await self._on_threads(self._end, outcome, False)

    async def _renew(self, reservation: Reservation) -> None:
        while True:
            await asyncio.sleep(self._model.performance.lease / 3)
            with contextlib.suppress(PrivalignError):  # tried again in a third of the lease; settling tells the rest
                await self._on_threads(self._ledger.renew, reservation)

    def _end(self, reservation: Reservation, touched: bool) -> None:
        """Spent where the scorer may have been touched, else given back."""
        with contextlib.suppress(PrivalignError):  # then it stays open until its lease ends, and is spent: the safe side
            if touched:
                self._ledger.forfeit(reservation)
            else:
                self._ledger.void(reservation)

    def _in_background(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self.unfinished.add(task)  # the event loop itself holds it only weakly
        task.add_done_callback(self.unfinished.discard)
        return task

    async def _on_threads(self, act: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(ledger_threads(os.getpid()), functools.partial(act, *arguments))


@functools.lru_cache(maxsize=1)
def ledger_threads(process: int) -> ThreadPoolExecutor:
    """Threads do not survive a fork, so they belong to a process."""
    return ThreadPoolExecutor(8, f"privalign-ledger-{process}")
