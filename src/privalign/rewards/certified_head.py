"""A certified linear head in the shape that the aligner asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from numpy.typing import ArrayLike

from privalign.rewards.conversation import prompt_text
from privalign.rewards.head import HeadReward
from privalign.rewards.scores import AffineMap, FailClosedReward
from privalign.types import Candidate, Request


class CertifiedHeadReward(FailClosedReward):
    """Scores with a `HeadReward`, whose certificate states Δ and the range.

    Args:
        head: as loaded. name: a public name for it.

    The prompt that the head sees is a lone user turn as it is; of a longer conversation all turns with their roles.
    Its sums take longer for some weights than for others, so it is `in_process`.
    """

    in_process = True

    def __init__(self, head: HeadReward, *, name: str) -> None:
        super().__init__(name, head.sensitivity, AffineMap())
        self._head = head

    async def _raw(self, request: Request, candidates: Sequence[Candidate]) -> ArrayLike:
        answers = [candidate.scored_text for candidate in candidates]
        return await asyncio.to_thread(self._head.score, prompt_text(request), answers)
