"""A reward that is told to read reasoning reads it before the text; any other reads the text alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from privalign.rewards.protocol import ScorerUntouched, scores_in_process
from privalign.rewards.reasoning import ReasoningReward
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.types import Candidate, Request

REQUEST = Request.of_prompt("hello")
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


class Reading:
    """Remembers what it was shown."""

    name = "reading"
    sensitivity = Sensitivity.of_range(RewardRange(0.0, 1.0))
    in_process = True

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.probed = 0

    async def score(self, request: Request, candidates: Sequence[Candidate]) -> Any:
        self.shown = [candidate.scored_text for candidate in candidates]
        return [0.5] * len(candidates)

    async def probe(self) -> None:
        self.probed += 1
        raise ScorerUntouched("away")


def test_reasoning_is_shown_where_it_is_asked_for() -> None:
    reading = Reading()
    candidates = [Candidate("blue", reasoning="sky?"), Candidate("red"), Candidate("", tool_calls=(CALL,), reasoning="call")]
    asyncio.run(reading.score(REQUEST, candidates))
    plain = reading.shown
    assert asyncio.run(ReasoningReward(reading).score(REQUEST, candidates)) == [0.5] * 3  # type: ignore[comparison-overlap]
    assert plain == ["blue", "red", '[{"arguments":{},"name":"f"}]']
    assert reading.shown[:2] == ["<think>\nsky?\n</think>\n\nblue", "red"]
    assert reading.shown[2].startswith("<think>\ncall\n</think>")
    assert reading.shown[2].endswith(plain[2])


def test_all_else_is_the_other_rewards() -> None:
    reward = ReasoningReward(Reading())
    assert reward.name == "reading with reasoning"
    assert reward.sensitivity == Reading.sensitivity
    assert scores_in_process(reward)
    with pytest.raises(ScorerUntouched):
        asyncio.run(reward.probe())
