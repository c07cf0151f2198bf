"""Several pieces of one scoring, run together: all of them answer, or none counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from privalign.errors import BackendFailed
from privalign.rewards.protocol import ScorerUntouched
from privalign.rewards.scores import SCORER_FAILED

T = TypeVar("T")


async def together(pieces: Sequence[Callable[[], Coroutine[Any, Any, T]]], concurrency: int) -> list[T]:
    """The results of all pieces, in order, at most `concurrency` at a time.

    After a refusal nothing more is started, and what is under way is awaited, so that a scorer that refuses every
    piece counts as untouched. After any other failure what is under way is cancelled.

    Raises:
        ScorerUntouched: every piece that was started ended so. BackendFailed: anything else.
    """
    waiting = list(enumerate(pieces))[::-1]
    running: dict[asyncio.Task[T], int] = {}
    results: dict[int, T] = {}
    refusal: ScorerUntouched | None = None
    try:
        while running or (waiting and refusal is None):
            while waiting and refusal is None and len(running) < concurrency:
                index, piece = waiting.pop()
                running[asyncio.create_task(piece())] = index
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                index = running.pop(task)
                failure = asyncio.CancelledError() if task.cancelled() else task.exception()
                if failure is None:
                    results[index] = task.result()
                elif isinstance(failure, ScorerUntouched):
                    refusal = refusal or failure
                else:
                    raise BackendFailed(SCORER_FAILED)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    if refusal is not None:
        raise BackendFailed(SCORER_FAILED) if results else refusal
    return [results[index] for index in range(len(pieces))]
