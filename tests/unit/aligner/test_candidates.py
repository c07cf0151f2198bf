"""Candidates to select from: as many as asked for, drawn again where they cannot be used, for a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from privalign.aligner import NothingToSelect
from privalign.aligner.candidates import REDRAWS, drawn
from privalign.errors import BackendFailed
from privalign.policies.protocol import BasePolicy
from privalign.types import Candidate, Request, Usage

REQUEST = Request.of_prompt("hello")
SAID, SILENT, CUT = Candidate("said", "stop", usage=Usage(0, 2)), Candidate("", "stop"), Candidate("", "length")


class Policy(BasePolicy):
    """Answers by its place among all candidates that were drawn, and by attempt."""

    name = "policy"

    def __init__(self, answer: Callable[[int, int], Candidate | Exception]) -> None:
        self.answer = answer
        self.asked: list[tuple[Any, int]] = []

    async def draw(self, request: Request, count: int) -> list[Candidate]:
        self.asked.append((request.parameters.get("seed"), count))
        answers = [self.answer(len(self.asked) - 1, place) for place in range(count)]
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return [answer for answer in answers if isinstance(answer, Candidate)]


def draw(policy: Policy, count: int = 4, before: Sequence[Candidate] = (), **parameters: Any) -> list[Candidate]:
    return asyncio.run(drawn(policy, Request(REQUEST.messages, parameters), count, before))


def test_what_can_be_used_is_drawn_once() -> None:
    policy = Policy(lambda attempt, place: SAID)
    assert draw(policy) == [SAID] * 4
    assert policy.asked == [(None, 4)]


def test_what_cannot_be_used_is_drawn_again_with_seeds_of_its_own() -> None:
    policy = Policy(lambda attempt, place: SILENT if attempt == 0 and place in (1, 3) else Candidate(f"{attempt}.{place}"))
    assert [candidate.text for candidate in draw(policy, seed=7)] == ["0.0", "1.0", "0.2", "1.1"]
    assert [count for _, count in policy.asked] == [4, 2]
    first, again = (seed for seed, _ in policy.asked)
    assert first == 7
    assert again > 7 + 10**6  # no later candidate of the request has it


def test_copies_take_the_places_that_stay_empty_and_took_no_tokens() -> None:
    policy = Policy(lambda attempt, place: SAID if attempt == 0 and place == 2 else SILENT)
    candidates = draw(policy)
    assert [candidate.text for candidate in candidates] == ["said"] * 4
    assert [candidate.usage for candidate in candidates] == [None, None, Usage(0, 2), None]
    assert [count for _, count in policy.asked] == [4, *[3] * REDRAWS]


def test_where_nothing_can_be_used_earlier_ones_are_taken() -> None:
    policy = Policy(lambda attempt, place: SILENT)
    assert [candidate.text for candidate in draw(policy, 3, [Candidate("a"), Candidate("b")])] == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("answer", "parameters", "param"),
    [
        (SILENT, {}, None),
        (CUT, {}, "max_tokens"),
        (Candidate("text", "stop"), {"tool_choice": "required"}, "tool_choice"),
        (Candidate("", "stop", ({"function": {"name": "f", "arguments": [1]}},)), {}, None),
    ],
)
def test_nothing_to_select_from(answer: Candidate, parameters: dict[str, Any], param: str | None) -> None:
    policy = Policy(lambda attempt, place: answer)
    with pytest.raises(NothingToSelect) as failure:
        draw(policy, **parameters)
    assert failure.value.param == param
    assert len(policy.asked) == 1 + REDRAWS


def test_a_redraw_that_fails_brings_nothing_and_the_first_draw_raises() -> None:
    away = BackendFailed("away")
    policy = Policy(lambda attempt, place: away if attempt else SAID if place else SILENT)
    assert [candidate.text for candidate in draw(policy)] == ["said"] * 4
    assert len(policy.asked) == 2
    with pytest.raises(BackendFailed, match="away"):
        draw(Policy(lambda attempt, place: away))


def test_another_number_than_asked_for_is_refused() -> None:
    class Short(Policy):
        async def draw(self, request: Request, count: int) -> list[Candidate]:
            return [SAID] * (count - 1)

    with pytest.raises(BackendFailed, match="returned 3 candidates where 4"):
        draw(Short(lambda attempt, place: SAID))
