"""Scores that are recorded beside the candidates of one prompt."""

from __future__ import annotations

from collections.abc import Sequence

from privalign.errors import BackendFailed
from privalign.sensitivity import Sensitivity
from privalign.types import Candidate, Request


class RecordedReward:
    """The scores of one prompt's candidates, in the order in which a recorded policy draws them.

    Args:
        scores: raw scores of the first draws, finite; candidates beyond them are never scored.
    """

    def __init__(self, name: str, scores: Sequence[float], sensitivity: Sensitivity) -> None:
        self.name = name
        self.sensitivity = sensitivity
        self._scores = scores
        self._scored = 0

    async def score(self, request: Request, candidates: Sequence[Candidate]) -> Sequence[float]:
        """The next scores."""
        start, self._scored = self._scored, self._scored + len(candidates)
        if self._scored > len(self._scores):
            raise BackendFailed("the recorded scores do not reach as far as the candidates; record more of them")
        return self._scores[start : self._scored]

    async def probe(self) -> None:
        """Nothing can have broken."""

    async def aclose(self) -> None:
        """Nothing is open."""
