"""One selection: candidates are drawn and scored in chunks until the mechanism has chosen one of them."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Sequence

from numpy.typing import ArrayLike

from privalign.aligner.candidates import drawn
from privalign.aligner.clock import Clock
from privalign.aligner.failures import Part, ScoringFailed, outward
from privalign.aligner.model import ServedModel
from privalign.aligner.steps import Steps
from privalign.mechanisms.protocol import Mechanism, Selection, read_scores
from privalign.randomness import Randomness
from privalign.rewards.protocol import ScorerUntouched
from privalign.types import Candidate, Request

LONG_FOR_SCORES = 10.0  # seconds after which it is the scorer's fault that a client left


class Query:
    """Drives one run of a mechanism.

    Args:
        characters: that a scorer in this process reads with each candidate, before its own.

    Attributes:
        candidates: all that were drawn.
        touched: whether the scorer may have read protected data for this query.
        scorer_failed: whether the scorer is to blame for a failure.
    """

    def __init__(
        self, model: ServedModel, mechanism: Mechanism, request: Request, noise: Randomness, clock: Clock, characters: int = 0
    ) -> None:
        self._model = model
        self._request = request
        self._clock = clock
        self._steps = Steps(mechanism, model.reward.sensitivity, noise, model.performance.chunk)
        self.candidates: list[Candidate] = []
        self.touched = False
        self.scorer_failed = False
        self._drawing = False
        self._read_with_each = characters
        self._ahead: list[Candidate] = []  # drawn, and not scored yet

    async def draw(self) -> None:
        """Draws what is scored first. What a policy fails at here costs nothing, whichever query of a request it is of."""
        if self._steps.wanted:
            self._ahead = await self._draw(self._steps.wanted)

    async def run(self) -> tuple[Candidate, Selection]:
        """The chosen candidate. Afterwards no score is kept, and what is raised leads to none."""
        try:
            return await self._select()
        except BaseException as failure:
            error = outward(failure, self.touched, Part.POLICY if self._drawing else Part.REWARD)
        finally:
            self._steps.forget()
        self.candidates.clear()
        raise error

    async def _select(self) -> tuple[Candidate, Selection]:
        while wanted := self._steps.wanted:
            await self._provide(wanted)
        selection = self._steps.selection
        if selection.index >= len(self.candidates):  # a fallback, or the base policy: released unscored
            self.candidates += await self._draw(1)
        return self.candidates[selection.index], selection

    async def _provide(self, count: int) -> None:
        """Has fresh candidates scored, and what the scores lead to computed within their section."""
        fresh, self._ahead = self._ahead or await self._draw(count), []
        asked = time.perf_counter()
        scores = await self._score(fresh)
        start = asked if self._clock.here else time.perf_counter()
        self.candidates += fresh
        if not await self._clock.section(functools.partial(self._take, scores, count), start, count, self._characters(fresh)):
            raise ScoringFailed

    async def _score(self, fresh: Sequence[Candidate]) -> ArrayLike:
        began = time.monotonic()
        before, self.touched = self.touched, True  # from here on only the scorer's own word can say that it saw nothing
        try:
            return await self._model.reward.score(self._request, fresh)
        except ScorerUntouched as refusal:
            self.touched = before
            self.scorer_failed = not refusal.of_request  # what one client sent says nothing about the scorer
            raise
        except asyncio.CancelledError:  # clients leave, which is no fault of the scorer's
            self.scorer_failed = time.monotonic() - began >= LONG_FOR_SCORES
            raise
        except BaseException:
            self.scorer_failed = True
            raise

    def _characters(self, fresh: Sequence[Candidate]) -> int:
        """What a scorer in this process has to read; elsewhere its time is its own."""
        if not self._clock.here:
            return 0
        texts = sum(len(candidate.with_reasoning().scored_text) for candidate in fresh)
        return texts + len(fresh) * self._read_with_each

    def _take(self, scores: ArrayLike, count: int) -> None:
        """The work of a section."""
        self.scorer_failed = True  # unless the scores are what they should be
        usable = read_scores(scores, count)
        self.scorer_failed = False
        self._steps.take(usable)

    async def _draw(self, count: int) -> list[Candidate]:
        """The next candidates: a seeded request goes on where it was."""
        self._drawing = True  # until it has drawn: then it is not the policy that fails
        fresh = await drawn(self._model.policy, self._request.after(len(self.candidates)), count, self.candidates)
        self._drawing = False
        return fresh
