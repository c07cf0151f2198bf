"""Asking the ledger without stopping the event loop, on threads of its own: writers that wait for a lock hold up no reader, and
neither does the one that asks whether there is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from privalign.ledger import Account, Key, Ledger

T = TypeVar("T")
_THREADS = 4


class LedgerReads:
    """The few questions that serving asks the ledger beside those of the aligner. Each raises what the ledger raises."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._threads = ThreadPoolExecutor(_THREADS, "privalign-reads")
        self._writer = ThreadPoolExecutor(1, "privalign-probe")

    async def authenticate(self, presented: str) -> Key:
        """The key whose secret was sent, if it is valid now."""
        return await self._run(lambda: self._ledger.authenticate(presented))

    async def account(self, name: str) -> Account:
        """One account as it stands."""
        return await self._run(lambda: self._ledger.account(name))

    async def accounts(self) -> list[Account]:
        """All accounts as they stand."""
        return await self._run(self._ledger.accounts)

    async def check_writable(self, name: str) -> None:
        """One small commit, of an account."""
        await asyncio.get_running_loop().run_in_executor(self._writer, self._ledger.check_writable, name)

    def close(self) -> None:
        """Ends the threads."""
        for threads in (self._threads, self._writer):
            threads.shutdown(wait=False)

    async def _run(self, ask: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, ask)
