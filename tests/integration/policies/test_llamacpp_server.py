"""A real OpenAI-compatible server, llama.cpp's, over HTTP; and the same engine in process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from privalign.errors import BackendFailed, InvalidInput, MissingDependency
from privalign.policies.completions import UpstreamFailed
from privalign.policies.llamacpp_chat import LlamaCppChatPolicy
from privalign.policies.openai import OpenAIPolicy
from privalign.types import Candidate, Message, Request

pytestmark = pytest.mark.model
pytest.importorskip("xllamacpp", reason="needs xllamacpp; get it with: pip install 'privalign[llamacpp]'")
SLOTS = 4
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"], "additionalProperties": False}


def asking(text: str = "Say yes.", **parameters: Any) -> Request:
    return Request((Message("user", text),), {"max_tokens": 8, **parameters})


@pytest.fixture(scope="module")
def url(llamacpp_server: Callable[[int, int], AbstractContextManager[str]]) -> Iterator[str]:
    with llamacpp_server(SLOTS, 256) as url:
        yield url


@pytest.fixture(scope="module")
def in_process() -> Iterator[LlamaCppChatPolicy]:
    try:
        with LlamaCppChatPolicy(slots=SLOTS, context=256) as policy:
            yield policy
    except MissingDependency as missing:
        pytest.skip(str(missing))


@pytest.fixture(params=["over HTTP", "in process"])
def policy(request: pytest.FixtureRequest) -> OpenAIPolicy | LlamaCppChatPolicy:
    if request.param == "in process":
        return request.getfixturevalue("in_process")
    return OpenAIPolicy(request.getfixturevalue("url"), "any", timeout=60.0)


def draw(policy: OpenAIPolicy | LlamaCppChatPolicy, request: Request, count: int) -> list[Candidate]:
    return asyncio.run(policy.draw(request, count))


def test_n_above_the_slots_is_found_out_and_split(url: str) -> None:
    policy = OpenAIPolicy(url, "any", timeout=60.0)
    assert len(draw(policy, asking(seed=1), 2 * SLOTS)) == 2 * SLOTS
    assert policy._most == SLOTS


def test_seeds_and_logprobs(policy: OpenAIPolicy | LlamaCppChatPolicy) -> None:
    drawn = draw(policy, asking(seed=3, logprobs=True, top_logprobs=2), 6)
    assert len({candidate.text for candidate in drawn}) > 1
    for candidate in drawn:
        assert candidate.logprobs is not None
        tokens = candidate.logprobs["content"]
        assert "".join(token["token"] for token in tokens) == candidate.text
        assert all(token["logprob"] <= 0 and len(token["top_logprobs"]) == 2 for token in tokens)


def test_every_token_of_every_candidate_is_counted(policy: OpenAIPolicy | LlamaCppChatPolicy) -> None:
    draw(policy, asking(), 2)
    for logprobs in (True, False):
        drawn = draw(policy, asking(max_tokens=20, seed=11, logprobs=logprobs), 6)
        assert all((c.usage is not None and c.usage.completion_tokens == 20) == (c.finish_reason == "length") for c in drawn)
        told = [(c.usage.completion_tokens, len(c.logprobs["content"])) for c in drawn if c.usage and c.logprobs and c.text.isascii()]
        assert all(count == tokens for count, tokens in told)
        assert bool(told) == logprobs


def test_a_response_format_binds_every_candidate(policy: OpenAIPolicy | LlamaCppChatPolicy) -> None:
    bound = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    drawn = draw(policy, asking("Where?", max_tokens=40, response_format=bound), 3)
    assert {json.loads(candidate.text)["city"] for candidate in drawn if candidate.finish_reason == "stop"} <= {"Paris", "Rome"}
    assert any(candidate.finish_reason == "stop" for candidate in drawn)


def test_tools_are_accepted(policy: OpenAIPolicy | LlamaCppChatPolicy) -> None:
    tools = [{"type": "function", "function": {"name": "place", "parameters": SCHEMA}}]
    assert all(candidate.scored_text for candidate in draw(policy, asking("Where?", tools=tools, tool_choice="auto"), 2))


@pytest.mark.parametrize("request_", [asking("word " * 900), asking(temperature="hot")])
def test_a_refused_request_is_the_clients(policy: OpenAIPolicy | LlamaCppChatPolicy, request_: Request) -> None:
    with pytest.raises(UpstreamFailed) as refusal:
        draw(policy, request_, 2)
    assert refusal.value.status == 400
    assert str(refusal.value).isprintable()
    assert len(draw(policy, asking(), 2)) == 2


def test_in_process_what_is_no_plain_json_is_refused(in_process: LlamaCppChatPolicy) -> None:
    for parameters in ({"temperature": float("nan")}, {"user": object()}):
        with pytest.raises(UpstreamFailed, match="plain JSON") as refusal:
            draw(in_process, asking(**parameters), 1)
        assert refusal.value.status == 400
    for seed in ("x", True, 1.5):
        with pytest.raises(InvalidInput, match="seed"):
            draw(in_process, asking(seed=seed), 1)


def test_in_process_seeds_pass_the_one_that_means_any(in_process: LlamaCppChatPolicy) -> None:
    last = 2**32 - 2
    over = [candidate.text for candidate in draw(in_process, asking(seed=last), 3)]
    assert over == [*(c.text for c in draw(in_process, asking(seed=last), 1)), *(c.text for c in draw(in_process, asking(seed=0), 2))]


def test_in_process_names_say_model_and_settings(in_process: LlamaCppChatPolicy) -> None:
    assert in_process.name.startswith("llamacpp SmolLM2-135M-Instruct.Q4_1.gguf {")
    assert '"temperature": 1.0' in in_process.name


def test_a_closed_engine_draws_no_more() -> None:
    policy = LlamaCppChatPolicy(slots=1, context=64)
    policy.close()
    with pytest.raises(BackendFailed, match="closed"):
        draw(policy, asking(), 1)
