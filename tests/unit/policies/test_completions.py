"""Reading chat completions: order, usable choices, usage, and errors in every shape."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privalign.errors import MissingDependency
from privalign.policies import openai
from privalign.policies.callables import CallablePolicy
from privalign.policies.completions import error_message, read_completion
from privalign.policies.openai import OpenAIPolicy
from privalign.policies.protocol import default_parameters
from privalign.types import Candidate


def choice(text: Any, index: Any = None, **more: Any) -> dict[str, Any]:
    return {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": "stop", **more}


def entries(*tokens: str) -> dict[str, Any]:
    return {"content": [{"token": token, "logprob": -1.0} for token in tokens]}


def read(choices: list[Any], n: int, **more: Any) -> dict[int, Candidate]:
    completion = read_completion({"choices": choices, **more}, n)
    assert completion is not None
    return dict(completion.candidates)


def test_choices_take_the_places_that_they_name() -> None:
    read_out = read([choice("c", 2), choice("a", 0)], 3)
    assert {place: candidate.text for place, candidate in read_out.items()} == {0: "a", 2: "c"}


@pytest.mark.parametrize("indices", [(0, 0), (None, None), (5, 6), ("0", "1"), (True, False)])
def test_choices_that_name_no_place_keep_their_order(indices: tuple[Any, Any]) -> None:
    read_out = read([choice("a", indices[0]), choice("b", indices[1])], 2)
    assert [candidate.text for candidate in read_out.values()] == ["a", "b"]


@pytest.mark.parametrize(
    "bad",
    [
        None,
        "x",
        {},
        {"message": None},
        choice(7),
        choice("x", error={"message": "m"}),
        choice("x", finish_reason="error"),
        choice("x") | {"message": {"content": "x", "tool_calls": "y"}},
    ],
)
def test_a_choice_that_cannot_be_used_is_left_out(bad: Any) -> None:
    assert [candidate.text for candidate in read([choice("a"), bad], 2).values()] == ["a"]


@pytest.mark.parametrize("body", [None, [], "x", {}, {"choices": None}, {"choices": []}, {"choices": {}}, {"error": "x"}])
def test_what_is_no_completion_is_none(body: Any) -> None:
    assert read_completion(body, 1) is None


def test_what_the_model_said_is_kept() -> None:
    (said,) = read([choice(None) | {"message": {"content": None, "refusal": "I may not."}}], 1).values()
    assert said.text == "I may not."
    (parts,) = read([choice([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])], 1).values()
    assert parts.text == "a\nb"
    (broken,) = read([choice("half \ud83d")], 1).values()
    assert broken.text == "half \ufffd"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept_apart_from_what_is_said(name: str) -> None:
    (thought,) = read([choice("blue") | {"message": {"content": "blue", name: "sky?"}}], 1).values()
    assert (thought.text, thought.reasoning, thought.scored_text) == ("blue", "sky?", "blue")
    (cut,) = read([choice(None, finish_reason="length") | {"message": {"content": None, name: "sky?"}}], 1).values()
    assert (cut.text, cut.reasoning) == ("", "sky?")
    (other,) = read([choice("blue") | {"message": {"content": "blue", name: {"text": "sky?"}}}], 1).values()
    assert other.reasoning is None


@settings(deadline=None, max_examples=30)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=8), st.integers(0, 10**6))
def test_shares_of_a_reported_sum_add_up_to_it(texts: list[str], reported: int) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": reported}
    candidates = read([choice(text, place) for place, text in enumerate(texts)], len(texts), usage=usage)
    taken = [candidate.usage for candidate in candidates.values() if candidate.usage]
    assert sum(usage.completion_tokens for usage in taken) == reported
    assert [usage.prompt_tokens for usage in taken] == [9] + [0] * (len(texts) - 1)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        {"prompt_tokens": None, "completion_tokens": 3},
        {"prompt_tokens": 1, "completion_tokens": 1.5},
        {"prompt_tokens": -5, "completion_tokens": 3},
        {"prompt_tokens": 5, "completion_tokens": -3},
        {"prompt_tokens": 1e30, "completion_tokens": 3},
        {"prompt_tokens": 5, "completion_tokens": 10**30},
    ],
)
def test_usage_that_is_not_reported_is_not_invented(usage: Any) -> None:
    assert read([choice("a", 0)], 1, usage=usage)[0].usage is None


def test_llama_cpp_counts_its_first_choice_only() -> None:
    choices = [
        choice("a b", 0, logprobs=entries("a", " b", "")),
        choice("c", 1, logprobs=entries("c")),  # cut by a stop string, which is not listed
        choice("d e f", 2, logprobs=entries("d", " e", " f", "")),
        choice("g", 3, logprobs=entries("g"), finish_reason="length"),
    ]
    told = {"usage": {"prompt_tokens": 9, "completion_tokens": 3}, "timings": {"predicted_n": 3}}
    assert [c.usage.completion_tokens for c in read(choices, 4, **told).values() if c.usage] == [3, 2, 4, 1]
    untold = [choice("aaa", 0), choice("aaaaaaa", 1)]
    assert [c.usage.completion_tokens for c in read(untold, 2, **told).values() if c.usage] == [3, 6]
    cut = [choice("aaa", 0, finish_reason="length"), choice("b", 1, finish_reason="length")]
    assert [c.usage.completion_tokens for c in read(cut, 2, **told).values() if c.usage] == [3, 3]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "m", "code": 1}}, "m"),
        ({"error": "m"}, "m"),
        ({"object": "error", "message": "m", "code": 400}, "m"),
        ({"detail": [{"msg": "m"}]}, "m"),
        ({"error": {"message": "a\n\tb\x00\x1b[0m"}}, "a b[0m"),
        ({"error": {}}, ""),
        ({"error": {"message": None}}, ""),
        ([], ""),
        (None, ""),
        (7, ""),
    ],
)
def test_errors_come_in_many_shapes(body: Any, message: str) -> None:
    assert error_message(body) == message


def test_waits_grow_are_jittered_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for attempt in range(2000):
        assert 0 < openai._wait(min(attempt, 1000), None) <= openai.LONGEST_BACKOFF
        assert 3.0 <= openai._wait(min(attempt, 1000), 3.0) <= 3.0 + openai.LONGEST_BACKOFF
    assert len({openai._wait(3, None) for _ in range(10)}) > 1


def test_missing_httpx_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingDependency, match="pip install httpx"):
        OpenAIPolicy("http://host/v1", "m")


def test_what_a_policy_takes_by_itself_is_public() -> None:
    assert default_parameters(OpenAIPolicy("http://host/v1", "m", parameters={"max_tokens": 5})) == {"max_tokens": 5}
    assert default_parameters(CallablePolicy(lambda request, count: [], "none")) == {}
