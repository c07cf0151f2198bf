"""The circuit breaker before a scorer: queries, whose failures stay charged, are kept from one that is dead."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from privalign.aligner.failures import ScorerPaused
from privalign.errors import BackendFailed
from privalign.rewards.protocol import ScorerUntouched

FAILURES_IN_A_ROW = 3  # of a scorer that answers probes, after which queries wait
LONGEST_PAUSE = 60.0  # seconds


class Breaker:
    """Closed while the scorer works. After a failure one query at a time goes through, once the scorer answered a probe;
    after several in a row, though it answers those, only after a pause that doubles.

    Args:
        probe: has the scorer answer a public text, or raises.
        suspect: whether the scorer must answer a probe before the first query.
    """

    def __init__(self, probe: Callable[[], Awaitable[None]], *, suspect: bool = False) -> None:
        self._probe = probe
        self._suspect = suspect
        self._failures = 0  # in a row
        self._closed_until = 0.0
        self._trial = threading.Lock()

    @contextlib.asynccontextmanager
    async def passage(self) -> AsyncIterator[None]:
        """Lets one query through to the scorer.

        Raises:
            BackendFailed: not now; no protected data was touched.
        """
        if not self._suspect:
            yield
            return
        if time.monotonic() < self._closed_until or not self._trial.acquire(blocking=False):
            raise ScorerPaused
        try:
            await self._probed()
            failures = self._failures
            yield
            if self._failures == failures:
                self._suspect, self._failures = False, 0
        finally:
            self._trial.release()

    async def _probed(self) -> None:
        """Raises what a scorer says of itself where that was untouched, and else nothing but that it failed."""
        try:
            await self._probe()
        except ScorerUntouched:
            raise
        except BackendFailed as failure:
            raise ScorerPaused(f"the reward model cannot score a public text: {failure}") from None

    def failed(self) -> None:
        """The scorer failed a query."""
        self._suspect, self._failures = True, self._failures + 1
        if self._failures >= FAILURES_IN_A_ROW:
            self._closed_until = time.monotonic() + min(2.0 ** (self._failures - FAILURES_IN_A_ROW), LONGEST_PAUSE)
