"""What every policy owes its caller, as tests of a class to inherit from."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any

import pytest

from privalign.errors import InvalidInput, PrivalignError
from privalign.policies.protocol import Policy
from privalign.types import Candidate, Message, Request


@dataclass(frozen=True)
class Subject:
    """A policy, and what it can: keep to seeds exactly, and know sampling parameters at all."""

    policy: Policy
    seeded: bool = True
    parameters: bool = True


def asking(text: str = "Name a colour.", **parameters: Any) -> Request:
    return Request((Message("user", text),), {"max_tokens": 6, **parameters})


def draw(subject: Subject, request: Request, count: int) -> list[Candidate]:
    return asyncio.run(subject.policy.draw(request, count))


def texts(candidates: list[Candidate]) -> list[str]:
    return [candidate.text for candidate in candidates]


class PolicyContract:
    """Inherit, and give a fixture `policy`: pytest then tries it.

    Attributes:
        seeded: whether the same seed gives the same candidates exactly. parameters: whether it keeps to `max_tokens`, `stop`,
            `temperature` and `logprobs`.
    """

    seeded = True
    parameters = True

    @pytest.fixture
    def policy(self) -> Policy:
        """The policy to be tried."""
        raise NotImplementedError("give a fixture `policy`")

    @pytest.fixture
    def subject(self, policy: Policy) -> Subject:
        """The policy with what it can."""
        return Subject(policy, self.seeded, self.parameters)

    @pytest.mark.parametrize("count", [1, 3, 11])
    def test_as_many_candidates_as_asked_for(self, subject: Subject, count: int) -> None:
        drawn = draw(subject, asking(), count)
        assert len(drawn) == count
        assert all(type(candidate) is Candidate and isinstance(candidate.text, str) for candidate in drawn)

    def test_candidates_are_fresh_and_differ(self, subject: Subject) -> None:
        first, second = texts(draw(subject, asking(), 8)), texts(draw(subject, asking(), 8))
        assert len({*first}) > 1
        assert first != second

    def test_every_candidate_of_a_seeded_request_has_a_seed_of_its_own(self, subject: Subject) -> None:
        request = asking(seed=7)
        drawn = texts(draw(subject, request, 9))
        assert len({*drawn}) > 1
        if subject.seeded:  # elsewhere up to the rounding of batched arithmetic
            assert texts(draw(subject, request, 9)) == drawn
            assert texts(draw(subject, request, 5)) + texts(draw(subject, request.after(5), 4)) == drawn

    def test_limits_and_stops_are_kept(self, subject: Subject) -> None:
        if not subject.parameters:
            pytest.skip("a function keeps to parameters as it likes")
        for limit in ("max_tokens", "max_completion_tokens"):
            cut = draw(subject, Request(asking().messages, {limit: 1}), 5)
            assert [candidate.finish_reason for candidate in cut].count("length") >= 4  # one may be nothing but an end
            assert all(candidate.usage is not None and candidate.usage.completion_tokens == 1 for candidate in cut)
        stop = ["a", "e", "i", "o"]
        stopped = draw(subject, asking(max_tokens=30, stop=stop), 5)
        assert not any(letter in candidate.text for candidate in stopped for letter in stop)
        assert any(candidate.finish_reason == "stop" for candidate in stopped)

    def test_temperature_0_draws_the_same(self, subject: Subject) -> None:
        if not subject.parameters:
            pytest.skip("a function keeps to parameters as it likes")
        assert len({*texts(draw(subject, asking(temperature=0, max_tokens=3), 5))}) == 1

    def test_logprobs_are_kept_where_they_are_asked_for(self, subject: Subject) -> None:
        if not subject.parameters:
            pytest.skip("a function keeps to parameters as it likes")
        for candidate in draw(subject, asking(logprobs=True, top_logprobs=2), 6):
            assert candidate.logprobs is not None
            assert all(token["logprob"] <= 0 for token in candidate.logprobs["content"])
        assert all(candidate.logprobs is None for candidate in draw(subject, asking(), 6))

    def test_whole_conversations_are_accepted(self, subject: Subject) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
        turns = [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "12 °C"},
            {"role": "user", "content": "And now?"},
        ]
        assert len(draw(subject, Request(tuple(map(Message.from_openai, turns)), {"max_tokens": 4}), 2)) == 2

    def test_concurrent_draws_do_not_mix(self, subject: Subject) -> None:
        requests = [asking(seed=100 * number) for number in range(4)]

        async def together() -> list[list[Candidate]]:
            return await asyncio.gather(*(subject.policy.draw(request, 3) for request in requests))

        mixed = [texts(drawn) for drawn in asyncio.run(together())]
        assert len({*map(tuple, mixed)}) == 4
        if subject.seeded:
            assert mixed == [texts(draw(subject, request, 3)) for request in requests]

    def test_a_cancelled_draw_returns_at_once_and_the_next_one_works(self, subject: Subject) -> None:
        async def cancelled() -> float:
            task = asyncio.create_task(subject.policy.draw(asking("Count to thirty.", max_tokens=30), 8))
            await asyncio.sleep(0.01)
            started = time.monotonic()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):  # one that is quicker has drawn already
                await task
            return time.monotonic() - started

        assert asyncio.run(cancelled()) < 0.5
        assert len(draw(subject, asking(), 2)) == 2

    @pytest.mark.parametrize("count", [0, -1])
    def test_no_candidates_are_refused(self, subject: Subject, count: int) -> None:
        with pytest.raises(InvalidInput) as refusal:
            draw(subject, asking(), count)
        assert refusal.value.field == "count"

    def test_a_wrong_parameter_fails_in_one_line(self, subject: Subject) -> None:
        with pytest.raises(PrivalignError) as refusal:
            draw(subject, asking(temperature="hot"), 3)
        assert str(refusal.value).isprintable()
        assert len(draw(subject, asking(), 3)) == 3

    def test_its_name_is_one_public_line(self, subject: Subject) -> None:
        name = subject.policy.name
        assert name
        assert name.isprintable()
        assert name == subject.policy.name

    def test_a_public_prompt_probes_it(self, subject: Subject) -> None:
        asyncio.run(subject.policy.probe())
