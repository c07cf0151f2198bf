"""A Python function as a policy."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence

from privalign.errors import BackendFailed, InvalidInput, PrivalignError
from privalign.policies.protocol import BasePolicy
from privalign.types import Candidate, Request

Answers = Sequence[str | Candidate]


class CallablePolicy(BasePolicy):
    """Draws candidates by calling `function(request, count)`, which returns `count` texts or candidates.

    Args:
        function: with or without `async`; one without runs in a thread, so that it may block, and several calls may
            run at a time. It must return fresh, independent answers on every call, and must not look at protected data.
        name: a public name that says which policy, and with which settings.
    """

    def __init__(self, function: Callable[[Request, int], Answers | Awaitable[Answers]], name: str) -> None:
        self._function = function
        self.name = name

    async def draw(self, request: Request, count: int) -> list[Candidate]:
        """What the function returned, texts made candidates.

        Raises:
            BackendFailed: it raised (what it said is in the cause), or returned something else than `count` answers.
        """
        if count < 1:
            raise InvalidInput("count", f"{count} is below 1")
        try:
            answers = await self._call(request, count)
        except PrivalignError:
            raise
        except Exception as error:
            raise BackendFailed(f"policy {self.name}: the function raised {type(error).__name__}") from error
        if isinstance(answers, str) or not isinstance(answers, Sequence):
            raise BackendFailed(f"policy {self.name}: the function returned {type(answers).__name__}, not a list of answers")
        if len(answers) != count:
            raise BackendFailed(f"policy {self.name}: the function returned {len(answers)} answers where {count} were asked for")
        if not all(isinstance(answer, str | Candidate) for answer in answers):
            raise BackendFailed(f"policy {self.name}: the function returned an answer that is neither a str nor a Candidate")
        return [Candidate(answer) if isinstance(answer, str) else answer for answer in answers]

    async def _call(self, request: Request, count: int) -> Answers:
        function = self._function
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
            answers = function(request, count)
        else:
            answers = await asyncio.to_thread(function, request, count)
        return await answers if inspect.isawaitable(answers) else answers
