"""How a request was let in, before anything is drawn for it, and its way from there to an answer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any

from privalign.errors import InvalidInput
from privalign.types import Release

Answering = Callable[[], Coroutine[Any, Any, list[Release]]]


class How(StrEnum):
    """How a request was let in."""

    RESERVED = "reserved"  # its worst case is debited
    REPLAYED = "replayed"  # it was answered before
    BASE = "base"  # the budget does not hold it, and the base policy answers


class Admission:
    """A request that was let in. It is answered once; let go of unanswered, it gives back what was reserved for it.

    Args:
        abandon: gives back what was reserved; called at most once, by whatever thread lets go of it last.
    """

    def __init__(self, how: How, answering: Answering, abandon: Callable[[], None] = lambda: None) -> None:
        self.how = how
        self._answering = answering
        self._unanswered = weakref.finalize(self, abandon)
        self._unanswered.atexit = False  # then its lease ends soon

    async def answer(self) -> list[Release]:
        """The private answers, as many as were asked for, within the lease.

        A caller that cancels pays once where the scorer may have been touched, else nothing; what the policy draws is cancelled.

        Raises:
            ScoringFailed: the query stays charged. LeaseExpired: likewise; the answer came too late. BackendFailed: nothing was
                charged. InvalidInput: it was answered before.
        """
        if self._unanswered.detach() is None:
            raise InvalidInput("admission", "is answered already, and once only; have the request admitted again")
        return await self._answering()
