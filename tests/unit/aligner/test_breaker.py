"""Who is let through to a scorer that failed, and when."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import pytest

from privalign.aligner import breaker as module
from privalign.aligner.breaker import FAILURES_IN_A_ROW, LONGEST_PAUSE, Breaker
from privalign.errors import BackendFailed


class Scorer:
    """Answers probes or not; `ask` is a query that succeeds or fails."""

    def __init__(self, suspect: bool = False) -> None:
        self.probes, self.alive = 0, True
        self.breaker = Breaker(self.probe, suspect=suspect)

    async def probe(self) -> None:
        self.probes += 1
        if not self.alive:
            raise BackendFailed("the scorer is away")

    async def ask(self, fails: bool = False) -> None:
        try:
            async with self.breaker.passage():
                if fails:
                    raise KeyError("of a query")
        except KeyError:
            self.breaker.failed()
            raise


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    return clock


def fail(scorer: Scorer, times: int = 1) -> None:
    for _ in range(times):
        with pytest.raises(KeyError):
            asyncio.run(scorer.ask(fails=True))


def test_a_scorer_that_works_is_never_probed() -> None:
    scorer = Scorer()
    for _ in range(5):
        asyncio.run(scorer.ask())
    assert scorer.probes == 0


def test_a_suspect_scorer_is_probed_until_a_query_succeeds(now: list[float]) -> None:
    scorer = Scorer(suspect=True)
    scorer.alive = False
    for _ in range(3):
        with pytest.raises(BackendFailed, match="away"):
            asyncio.run(scorer.ask())
    scorer.alive = True
    fail(scorer)
    asyncio.run(scorer.ask())
    asyncio.run(scorer.ask())
    assert scorer.probes == 5


def test_the_pause_doubles_and_has_an_end(now: list[float]) -> None:
    scorer = Scorer()
    fail(scorer, FAILURES_IN_A_ROW)
    pause, pauses = 1.0, []
    for _ in range(9):
        with pytest.raises(BackendFailed, match="tried again"):
            asyncio.run(scorer.ask())
        now[0] += pause - 1e-3
        with pytest.raises(BackendFailed, match="tried again"):
            asyncio.run(scorer.ask())
        now[0] += 2e-3
        fail(scorer)
        pauses.append(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    assert pauses[-1] == LONGEST_PAUSE
    now[0] += LONGEST_PAUSE
    asyncio.run(scorer.ask())
    fail(scorer)  # the first of a new row
    asyncio.run(scorer.ask())


def test_one_trial_at_a_time_and_a_cancelled_one_leaves_room() -> None:
    async def main() -> None:
        scorer, inside, done = Scorer(suspect=True), asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            async with scorer.breaker.passage():
                inside.set()
                await done.wait()

        for cancelled in (True, False):
            inside.clear()
            done.clear()
            task = asyncio.create_task(slow())
            await inside.wait()
            with pytest.raises(BackendFailed, match="tried again"):
                await scorer.ask()
            if cancelled:
                task.cancel()
            else:
                done.set()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await scorer.ask()
        assert scorer.probes == 2

    asyncio.run(main())


def test_a_trial_that_ends_well_after_another_failure_does_not_close_the_matter() -> None:
    async def main() -> None:
        scorer, inside, done = Scorer(suspect=True), asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            async with scorer.breaker.passage():
                inside.set()
                await done.wait()

        task = asyncio.create_task(slow())
        await inside.wait()
        scorer.breaker.failed()  # by a query that had been let through before
        done.set()
        await task
        await scorer.ask()
        assert scorer.probes == 2

    asyncio.run(main())
