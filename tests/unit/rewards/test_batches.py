"""Pieces run together: order, bounds, and what one failure means for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from privalign.errors import BackendFailed
from privalign.rewards.batches import together
from privalign.rewards.protocol import ScorerUntouched

REFUSAL = ScorerUntouched("refused")


class Pieces:
    def __init__(self) -> None:
        self.started: list[int] = []
        self.cancelled: list[int] = []
        self.running = self.most = 0

    async def piece(self, index: int, wait: float = 0.0, error: BaseException | None = None) -> int:
        self.started.append(index)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(wait)
        except asyncio.CancelledError:
            self.cancelled.append(index)
            raise
        finally:
            self.running -= 1
        if error is not None:
            raise error
        return index


def run(pieces: list[Callable[[], Coroutine[Any, Any, int]]], concurrency: int) -> list[int]:
    async def main() -> list[int]:
        try:
            return await together(pieces, concurrency)
        finally:
            assert len(asyncio.all_tasks()) == 1  # nothing is left behind

    return asyncio.run(main())


def test_results_come_in_order_within_the_bound() -> None:
    work = Pieces()
    assert run([partial(work.piece, index, 0.01 * (index % 3)) for index in range(9)], 3) == list(range(9))
    assert work.most == 3
    assert work.started == list(range(9))
    assert run([], 3) == []


def test_only_refusals_leave_untouched() -> None:
    work = Pieces()
    with pytest.raises(ScorerUntouched, match="refused"):
        run([partial(work.piece, index, 0.01, REFUSAL) for index in range(9)], 3)
    assert work.started == [0, 1, 2]
    assert work.cancelled == []


@pytest.mark.parametrize("first", [REFUSAL, None, ValueError("x")])
@pytest.mark.parametrize("second", [REFUSAL, None, ValueError("x"), asyncio.CancelledError()])
@pytest.mark.parametrize("slower", [0, 1])
def test_anything_beside_a_refusal_is_touched(first: Any, second: Any, slower: int) -> None:
    work = Pieces()
    pieces = [partial(work.piece, 0, 0.02 * (slower == 0), first), partial(work.piece, 1, 0.02 * (slower == 1), second)]
    if first is None and second is None:
        assert run(pieces, 2) == [0, 1]
        return
    with pytest.raises(BackendFailed) as caught:
        run(pieces, 2)
    assert (type(caught.value) is ScorerUntouched) == (first is REFUSAL and second is REFUSAL)


def test_a_failure_cancels_what_is_under_way() -> None:
    work = Pieces()
    with pytest.raises(BackendFailed):
        run([partial(work.piece, 0, 0.0, ValueError("x")), partial(work.piece, 1, 30.0), partial(work.piece, 2)], 2)
    assert work.cancelled == [1]
    assert work.started == [0, 1]


def test_cancellation_reaches_every_piece() -> None:
    work = Pieces()

    async def main() -> None:
        task = asyncio.create_task(together([partial(work.piece, index, 30.0) for index in range(3)], 2))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert work.cancelled == [0, 1]
