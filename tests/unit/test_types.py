"""What travels between rooms: conversations survive as they came, names of requests tell them apart, answers have one text to score."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privalign.errors import InvalidInput
from privalign.types import Candidate, Message, Request, Usage, total_usage

CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris", "a": 1}'}}
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"role": "user", "content": "", "name": "ann"},
    {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,"}}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "12 °C"},
    {"role": "assistant", "content": "x", "reasoning_content": "y", "new": {"deep": [1]}},
]


@pytest.mark.parametrize("turn", TURNS)
def test_a_message_survives(turn: dict[str, Any]) -> None:
    assert Message.from_openai(turn).to_openai() == turn


def test_absent_content_is_null() -> None:
    assert Message.from_openai({"role": "assistant", "tool_calls": []}).to_openai() == {
        "role": "assistant",
        "content": None,
        "tool_calls": [],
    }


@pytest.mark.parametrize(
    "turn",
    [
        None,
        "hi",
        {},
        {"content": "x"},
        {"role": 1, "content": "x"},
        {"role": "user", "content": 3},
        {"role": "user", "content": ["x"]},
        {"role": "user", "content": {"text": "x"}},
    ],
)
def test_what_is_no_message_is_refused(turn: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        Message.from_openai(turn)
    assert refusal.value.field == "messages"


def test_text_of_a_message() -> None:
    assert Message("user", "hi").text == "hi"
    assert Message("assistant").text == ""
    assert Message("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]).text == "a\nb"
    with pytest.raises(InvalidInput, match="image_url"):
        _ = Message("user", TURNS[2]["content"]).text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)
CONTENTS = st.none() | st.text() | st.lists(st.dictionaries(st.text(), st.text()), max_size=2)
MESSAGES = st.builds(Message, st.text(max_size=3), CONTENTS, st.dictionaries(st.text(max_size=3), JSON, max_size=2))
REQUESTS = st.builds(Request, st.lists(MESSAGES, max_size=3).map(tuple), st.dictionaries(st.text(max_size=3), JSON, max_size=2))


def shape(request: Request) -> str:
    """A second way to tell requests apart; True is not 1."""
    return repr([[m.role, m.content, sorted(m.fields.items())] for m in request.messages]) + repr(sorted(request.parameters.items()))


def ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: ordered(value[key]) for key in sorted(value)}
    return [ordered(item) for item in value] if isinstance(value, list) else value


@settings(max_examples=40, deadline=None)  # on a busy machine an example may take long
@given(REQUESTS, REQUESTS)
def test_canonical_bytes_are_equal_for_equal_requests_only(one: Request, other: Request) -> None:
    def sorted_through(r: Request) -> Request:
        return Request(tuple(Message(m.role, ordered(m.content), ordered(dict(m.fields))) for m in r.messages), ordered(dict(r.parameters)))

    assert (one.canonical() == other.canonical()) == (shape(sorted_through(one)) == shape(sorted_through(other)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Message("user", None), Message("user", "")),
        (Message("user", "a"), Message("user", "a", {"name": "a"})),
        (Message("user", "[]"), Message("user", [])),
        (Message("user", "\ud83d\ude00"), Message("user", "😀")),
        (Message("user", "a", {"content": "b"}), Message("user", "b", {"content": "a"})),
    ],
)
def test_messages_that_look_alike_have_different_bytes(one: Message, other: Message) -> None:
    assert Request((one,)).canonical() != Request((other,)).canonical()
    assert Request((one, other)).canonical() != Request((other, one)).canonical()


def test_defaults_fill_what_is_open() -> None:
    defaults = {"temperature": 0.5, "max_tokens": 9, "top_p": 0.1}
    asked = Request((), {"temperature": 0, "max_completion_tokens": 3, "top_p": None, "user": "u"})
    assert asked.with_defaults(defaults).parameters == {"temperature": 0, "max_completion_tokens": 3, "top_p": 0.1, "user": "u"}


def test_seeds_go_on_after_candidates_were_drawn() -> None:
    assert Request((), {"seed": 5, "user": "u"}).after(3).parameters == {"seed": 8, "user": "u"}
    assert Request((), {"user": "u"}).after(3) == Request((), {"user": "u"})
    for seed in ("5", 5.0, True):
        with pytest.raises(InvalidInput, match="seed"):
            Request((), {"seed": seed}).after(1)


def test_tool_calls_are_scored_as_canonical_json_without_their_ids() -> None:
    assert Candidate("hi").scored_text == "hi"
    assert Candidate("", "tool_calls", (CALL,)).scored_text == '[{"arguments":{"a":1,"city":"Paris"},"name":"weather"}]'
    assert Candidate("Wait.", "tool_calls", (CALL, CALL)).scored_text.startswith('Wait.\n[{"arguments":')
    assert Candidate("", None, ({**CALL, "id": "other"},)).scored_text == Candidate("", None, (CALL,)).scored_text
    custom = {"type": "custom", "custom": {"name": "sh", "input": "ls é"}}
    assert Candidate("", None, (custom,)).scored_text == '[{"arguments":"ls é","name":"sh"}]'


@pytest.mark.parametrize("arguments", ['{"cut', "", "[" * 100_000, "1" * 5000, "[" + "9" * 301 + "]", None, {"a": 1}])
def test_whatever_a_model_writes_as_arguments_can_be_scored(arguments: Any) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    assert Candidate("", None, (call,)).scored_text.startswith('[{"arguments":')


def test_numbers_in_arguments_are_read_up_to_a_length_only() -> None:
    def scored(digits: int) -> str:
        return Candidate("", None, ({"function": {"name": "f", "arguments": "[1, " + "9" * digits + "]"}},)).scored_text

    assert scored(300).startswith('[{"arguments":[1,999')
    assert scored(301).startswith('[{"arguments":"[1, 999')  # as it stands


def test_usage_adds_up_where_it_is_reported() -> None:
    assert total_usage([Candidate("a", usage=Usage(10, 2)), Candidate("b"), Candidate("c", usage=Usage(0, 3))]) == Usage(10, 5)
    assert total_usage([Candidate("a")]) is None
