"""A Python function as a policy: what it may return, and what becomes of what it may not."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any

import pytest

from privalign.errors import BackendFailed, InvalidInput
from privalign.policies.callables import CallablePolicy
from privalign.types import Candidate, Request

REQUEST = Request.of_prompt("hi")


def draw(function: Any, count: int = 2) -> list[Candidate]:
    return asyncio.run(CallablePolicy(function, "mine").draw(REQUEST, count))


def plain(request: Request, count: int) -> list[str | Candidate]:
    return [f"{request.messages[0].content} {threading.current_thread() is threading.main_thread()}", Candidate("b", "length")][:count]


async def asynchronous(request: Request, count: int) -> list[str]:
    await asyncio.sleep(0)
    return ["hi"] * count


class Object:
    async def __call__(self, request: Request, count: int) -> tuple[str, ...]:
        return ("hi",) * count


def test_a_function_without_async_runs_in_a_thread_and_may_return_candidates() -> None:
    assert draw(plain) == [Candidate("hi False"), Candidate("b", "length")]


@pytest.mark.parametrize("function", [asynchronous, Object(), functools.partial(asynchronous), lambda r, n: asynchronous(r, n)])
def test_everything_that_can_be_awaited_is(function: Any) -> None:
    assert draw(function) == [Candidate("hi")] * 2


@pytest.mark.parametrize("answer", ["ab", ["a"], ["a"] * 3, ["a", 1], None, 7, {"a", "b"}, {0: "a", 1: "b"}])
def test_anything_but_as_many_answers_fails(answer: Any) -> None:
    with pytest.raises(BackendFailed, match="policy mine: the function returned"):
        draw(lambda request, count: answer)


def test_what_it_raises_stays_in_the_cause() -> None:
    def broken(request: Request, count: int) -> list[str]:
        raise KeyError("sk-secret")

    with pytest.raises(BackendFailed) as failure:
        draw(broken)
    assert str(failure.value) == "policy mine: the function raised KeyError"
    assert isinstance(failure.value.__cause__, KeyError)


def test_its_own_errors_of_ours_pass() -> None:
    def refusing(request: Request, count: int) -> list[str]:
        raise InvalidInput("messages", "too long")

    with pytest.raises(InvalidInput, match="too long"):
        draw(refusing)
