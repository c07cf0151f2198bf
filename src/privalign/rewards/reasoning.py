"""A reward model that reads what a model thought as well as what it answered."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import ArrayLike

from privalign.rewards.protocol import Reward, scores_in_process
from privalign.sensitivity import Sensitivity
from privalign.types import Candidate, Request


class ReasoningReward:
    """Shows another reward each candidate's reasoning before its text, as `Candidate.with_reasoning` writes it.

    Formal guarantee: the other's, whose Δ holds for whatever text it is shown.
    """

    def __init__(self, reward: Reward) -> None:
        self._reward = reward

    @property
    def name(self) -> str:
        """The other's, and that it reads reasoning."""
        return f"{self._reward.name} with reasoning"

    @property
    def sensitivity(self) -> Sensitivity:
        """The other's."""
        return self._reward.sensitivity

    @property
    def in_process(self) -> bool:
        """Whether the other scores in this process."""
        return scores_in_process(self._reward)

    async def score(self, request: Request, candidates: Sequence[Candidate]) -> ArrayLike:
        """The other's scores; it raises what the other raises."""
        return await self._reward.score(request, [candidate.with_reasoning() for candidate in candidates])

    async def probe(self) -> None:
        """The other's probe."""
        await self._reward.probe()

    async def aclose(self) -> None:
        """Closes the other."""
        await self._reward.aclose()
