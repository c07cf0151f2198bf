"""Recorded candidates as a policy, and the orders in which they may be drawn."""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from privalign.candidates.pools import read_pools
from privalign.errors import BackendFailed
from privalign.policies.protocol import BasePolicy
from privalign.types import Candidate, Request


class DrawOrder(StrEnum):
    """How fresh draws from the base policy are made out of a recorded pool."""

    FIRST = "first"  # the candidates in the order of the file
    WITHOUT = "without"  # a uniformly random order, each candidate at most once
    WITH = "with"  # every draw uniform over the pool, candidates come back

    def positions(self, size: int, count: int, source: random.Random) -> Sequence[int]:
        """The positions in a pool of `size` candidates of the first `count` draws; `count` ≤ `size` except for WITH.

        `source` is public randomness (no reward depends on it), but must be independent of the noise.
        """
        match self:
            case DrawOrder.FIRST:
                return range(count)
            case DrawOrder.WITHOUT:
                return source.sample(range(size), count)
            case DrawOrder.WITH:
                return [source.randrange(size) for _ in range(count)]


class RecordedPolicy(BasePolicy):
    """The candidates of one prompt as a policy: draws them in a given order, each position once."""

    def __init__(self, name: str, texts: Sequence[str]) -> None:
        self.name = name
        self._texts = texts
        self._drawn = 0

    async def draw(self, request: Request, count: int) -> list[Candidate]:
        """The next candidates.

        Raises:
            BackendFailed: there are no more.
        """
        start, self._drawn = self._drawn, self._drawn + count
        if self._drawn > len(self._texts):
            raise BackendFailed(f"{len(self._texts)} recorded candidates where {self._drawn} are needed; record more of them")
        return [Candidate(text) for text in self._texts[start : self._drawn]]

    async def probe(self) -> None:
        """Its file has been read: nothing can have broken, and it knows recorded prompts only."""


class RecordedFilePolicy(BasePolicy):
    """A file of candidates as a policy: a request is answered from the record of the same prompt, its last user turn.

    Without replacement every recorded candidate is drawn once in the life of the policy, so that phases and requests get
    fresh ones; with replacement draws go on for ever. Rewards in the file are not used.
    """

    def __init__(self, file: Path, order: DrawOrder) -> None:
        self.name = f"recorded {file.name} {order.value}"
        self._order = order
        self._source = random.SystemRandom()
        self._texts: dict[str, tuple[str, ...]] = {}
        self._left: dict[str, list[int]] = {}
        for pool in read_pools(file, "proxy_reward", 1):
            self._texts[pool.prompt] = pool.texts
            self._left[pool.prompt] = list(order.positions(len(pool.texts), len(pool.texts), self._source))

    async def draw(self, request: Request, count: int) -> list[Candidate]:
        """The next candidates recorded for the request's prompt.

        Raises:
            BackendFailed: the prompt is not recorded, or its candidates are used up.
        """
        prompt = next((turn.content for turn in reversed(request.messages) if turn.role == "user"), None)
        if not isinstance(prompt, str) or prompt not in self._texts:
            raise BackendFailed("the prompt is not among the recorded ones; record candidates for it")
        texts, left = self._texts[prompt], self._left[prompt]
        if self._order is DrawOrder.WITH:
            return [Candidate(texts[position]) for position in self._order.positions(len(texts), count, self._source)]
        if count > len(left):
            raise BackendFailed(f"{len(left)} recorded candidates are left where {count} are needed; record more of them")
        taken, self._left[prompt] = left[:count], left[count:]
        return [Candidate(texts[position]) for position in taken]

    async def probe(self) -> None:
        """Its file has been read: nothing can have broken, and it knows recorded prompts only."""
