"""A Python function as a reward model."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import ArrayLike

from privalign.rewards.protocol import ScorerUntouched
from privalign.rewards.scores import AffineMap, FailClosedReward, UnusableScores
from privalign.sensitivity import Sensitivity
from privalign.types import Candidate, Request

Scoring = Callable[[Request, Sequence[Candidate]], Any]  # of numbers, or of an awaitable of them; what comes back is checked


class FunctionReward(FailClosedReward):
    """Scores with `function(request, candidates)`, which returns one number a candidate, in order.

    Args:
        function: plain (run in a thread) or asynchronous. It may raise `ScorerUntouched` where it has not met the protected data;
            its message is not passed on. Whatever else it raises is not passed on either.
        name: a public name for the model behind it.
    """

    def __init__(self, function: Scoring, *, name: str, sensitivity: Sensitivity, mapping: AffineMap | None = None) -> None:
        super().__init__(name, sensitivity, mapping or AffineMap())
        self._function = function

    async def _raw(self, request: Request, candidates: Sequence[Candidate]) -> ArrayLike:
        try:
            if inspect.iscoroutinefunction(self._function):
                scores = self._function(request, candidates)
            else:
                scores = await asyncio.to_thread(self._in_thread, request, candidates)
            checked_later: ArrayLike = await scores if inspect.isawaitable(scores) else scores
            return checked_later
        except ScorerUntouched:
            raise ScorerUntouched("the scoring function refused before it scored anything") from None

    def _in_thread(self, request: Request, candidates: Sequence[Candidate]) -> Any:
        try:
            return self._function(request, candidates)
        except StopIteration:  # a future cannot carry it: whoever awaits the thread would wait for ever
            raise UnusableScores from None
