"""A certified linear head in the shape that the aligner asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from numpy.typing import ArrayLike

from privalign.rewards.conversation import prompt_text
from privalign.rewards.head import HeadReward
from privalign.rewards.scores import AffineMap, FailClosedReward
from privalign.sensitivity import Certificate
from privalign.types import Candidate, Request


class CertifiedHeadReward(FailClosedReward):
    """Scores with a `HeadReward`, whose certificate states Δ and the range.

    Args:
        head: as loaded. name: a public name for it.

    The prompt that the head sees is a lone user turn as it is; of a longer conversation all turns with their roles.
    It is `in_process`: how long the work of its sums, the same for all weights, takes is not left to show.
    """

    in_process = True

    def __init__(self, head: HeadReward, *, name: str) -> None:
        super().__init__(name, head.sensitivity, AffineMap())
        self._head = head

    @property
    def certificate(self) -> Certificate:
        """What bounds its scores, and names the head that makes them."""
        return self._head.certificate

    async def _raw(self, request: Request, candidates: Sequence[Candidate]) -> ArrayLike:
        answers = [candidate.scored_text for candidate in candidates]
        return await asyncio.to_thread(self._head.score, prompt_text(request), answers)
