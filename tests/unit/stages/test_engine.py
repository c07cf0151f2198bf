"""What runs the stages: calls in order, and policies that are closed."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privalign.errors import BackendFailed
from privalign.stages.engine import in_order, policy_opened
from privalign.types import Candidate, Request


@given(st.lists(st.integers(0, 3), max_size=12), st.integers(1, 5))
def test_results_are_in_order_and_no_more_run_than_may(delays: list[int], concurrency: int) -> None:
    running = most = 0

    async def call(place: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(delays[place]):
            await asyncio.sleep(0)
        running -= 1
        return place

    calls = [lambda place=place: call(place) for place in range(len(delays))]
    assert asyncio.run(in_order(calls, concurrency)) == list(range(len(delays)))
    assert most <= concurrency


def test_the_first_failure_stops_the_others() -> None:
    finished = []

    async def slow() -> None:
        await asyncio.sleep(30)
        finished.append("slow")

    async def failing() -> None:
        raise BackendFailed("gone")

    with pytest.raises(BackendFailed, match="gone"):
        asyncio.run(in_order([slow, failing], 2))
    assert not finished


class Plain:
    name = "plain"

    async def draw(self, request: Request, count: int) -> list[Candidate]:
        return [Candidate("a")] * count


class Held(Plain):
    def __init__(self) -> None:
        self.steps: list[str] = []

    def __enter__(self) -> Held:
        self.steps.append("in")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.steps.append("out")


class HeldByTheLoop(Plain):
    def __init__(self) -> None:
        self.steps: list[str] = []

    async def __aenter__(self) -> HeldByTheLoop:
        self.steps.append("in")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.steps.append("out")


@pytest.mark.parametrize("made", [Held(), HeldByTheLoop()])
def test_a_policy_that_holds_something_open_is_closed_whatever_happens(made: Any) -> None:
    with policy_opened(lambda: made):
        assert made.steps == ["in"]
    with pytest.raises(ZeroDivisionError), policy_opened(lambda: made):
        raise ZeroDivisionError
    assert made.steps == ["in", "out"] * 2


def test_a_policy_that_holds_nothing_draws() -> None:
    with policy_opened(Plain) as (runner, policy):
        assert len(runner.run(policy.draw(Request.of_prompt("p"), 3))) == 3
