"""Bodies: whatever is sent becomes a valid call or one error of the client's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privalign.gateway import requests
from privalign.gateway.errors import ApiError
from privalign.gateway.requests import PASSED, ChatCall, idempotency_key, parse_chat, parse_json

MESSAGES = [{"role": "user", "content": "hello"}]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


def parse(**fields: Any) -> ChatCall:
    return parse_chat({"model": "m", "messages": MESSAGES, **fields}, most_n=4)


def outcome(content: bytes) -> ChatCall | ApiError:
    try:
        return parse_chat(parse_json(content, 64), most_n=4)
    except ApiError as error:
        return error


@given(st.binary(max_size=200))
def test_any_bytes(content: bytes) -> None:
    refused = outcome(content)
    assert isinstance(refused, ApiError)
    assert refused.status == 400


@given(st.dictionaries(st.sampled_from(["model", "messages", "n", "stream", "stream_options", "seed", "x", *sorted(PASSED)]), JSON))
def test_any_object(document: dict[str, Any]) -> None:
    for fields in (document, {**document, "model": "m", "messages": MESSAGES}):
        call = outcome(json.dumps(fields).encode())
        if isinstance(call, ApiError):
            assert call.status == 400
            assert str(call).isprintable()
            continue
        assert call.request.parameters.keys() <= PASSED
        assert None not in call.request.parameters.values()
        call.request.canonical()
        call.request.after(100)


@given(st.integers(0, 300))
def test_nesting(depth: int) -> None:
    content = b"[" * depth + b"1" + b"]" * depth
    if depth <= 64:
        parse_json(content, 64)
    else:
        with pytest.raises(ApiError, match="nested"):
            parse_json(content, 64)


def test_very_long_numbers_and_no_numbers_are_refused() -> None:
    for content in (b"9" * 10**6, b"9" * 301, b"[" + b"7" * 4299 + b"]", b"1e999", b"NaN", b"-Infinity"):
        with pytest.raises(ApiError, match="not JSON"):
            parse_json(content, 64)
    assert parse_json(b"9" * 300, 64) == 10**300 - 1


MANY = 10**6


@pytest.mark.parametrize(
    "content",
    [
        b"[" * MANY, b'{"a":' * MANY, b'{"a":{"a":' * MANY, b"]" * MANY, b"[]" * MANY, b"," * MANY, b'"' * MANY, b'["",' * MANY,
        b"[" + b"[]," * MANY + b"1]", b"[" + (b"[" * 60 + b"]" * 60 + b",") * (MANY // 60) + b"1]", b"[" + b"{}," * MANY + b"1]",
        b"[" + b"1," * MANY + b"1]", b'{"a":"' + b"x" * MANY + b'","b":' + b"[" * 100, b"{" + b'"a":1,' * MANY + b'"a":1}',
        b'{"a":"' + b'\\"' * MANY + b'","b":' + b"[" * 100, b'{"a":"\\\\","b":' + b"[" * MANY, b'"\\\\\\"' + b'",' * MANY,
    ],
    ids=range(17),
)  # fmt: skip
def test_what_would_hold_up_others_is_never_parsed(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many values and deep ones; many bytes alone are quick."""
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("it was parsed"))
    with pytest.raises(ApiError, match=r"nested more than|brackets and commas") as refusal:
        parse_json(content, 64)
    assert refusal.value.status == 400


@pytest.mark.parametrize("inside", ["[", "{", "]", ",", '"', "\\", '\\"[', "[\\", '{"a":[', "\n", "ä[", "😀{"])
def test_texts_hold_as_many_marks_as_they_like(inside: str) -> None:
    text = inside * (requests.MOST_MARKS + 1)
    for document in (text, {text: text}, [text, [inside, {inside: inside}]]):
        for ascii_only in (True, False):
            assert parse_json(json.dumps(document, ensure_ascii=ascii_only).encode(), 3) == document


@given(JSON)
def test_the_depth_and_the_marks_of_every_document_are_counted(document: Any) -> None:
    def depth(value: Any) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    def marks(value: Any) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if inner is None else 2 + max(0, len(inner) - 1) + sum(map(marks, inner))

    document = [json.loads(json.dumps(document).replace("NaN", "1").replace("-Infinity", "2").replace("Infinity", "3"))]
    content = json.dumps(document).encode()
    assert parse_json(content, depth(document)) == document
    with pytest.raises(ApiError, match="nested"):
        parse_json(content, depth(document) - 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "MOST_MARKS", marks(document))
        assert parse_json(content, 64) == document
        patch.setattr(requests, "MOST_MARKS", marks(document) - 1)
        with pytest.raises(ApiError, match="brackets and commas"):
            parse_json(content, 64)


def test_equal_bodies_have_equal_digests_and_others_do_not() -> None:
    assert parse(seed=1, temperature=0.5).digest == parse(temperature=0.5, seed=1).digest
    digests = {parse(**fields).digest for fields in ({}, {"seed": 1}, {"seed": 2}, {"n": 2}, {"stream": True}, {"unknown": 1})}
    assert len(digests) == 6


def test_nulls_leave_parameters_open_and_routing_is_not_passed_on() -> None:
    call = parse(temperature=None, api_base="http://evil", base_url="x", extra_headers={}, top_k=5)
    assert call.request.parameters == {"top_k": 5}
    assert call.ignored == ("api_base", "base_url", "extra_headers")
    assert (call.n, call.stream, call.include_usage) == (1, False, False)


@pytest.mark.parametrize("value", ["", "a b", "ä", "x" * 256, "a\n"])
def test_idempotency_keys(value: str) -> None:
    with pytest.raises(ApiError):
        idempotency_key(value)
    assert idempotency_key("x" * 255) == "x" * 255
    assert idempotency_key(None) is None


FUNCTION = {"type": "function", "function": {"name": "f", "description": "says f"}}
CALL = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
CUSTOM, UNKNOWN, UNTYPED = {"type": "custom", "custom": {"name": "x", "input": "y"}}, {"type": "yet to come"}, {"function": {"name": "f"}}


@pytest.mark.parametrize(
    "tool",
    [
        {}, {"type": None}, {"type": 1}, {"type": "function"}, {"function": "f"}, {"type": "function", "function": "f"},
        {"type": "function", "function": {}}, {"type": "function", "function": {"name": 1}}, {"type": ["function"]},
        {"type": "function", "function": {"name": "f", "description": 1}}, {"function": {"name": "f", "arguments": 5}}, "f", None, [],
    ],
    ids=str,
)  # fmt: skip
def test_tools_that_every_server_refuses_some_with_500(tool: Any) -> None:
    for good in (FUNCTION, CALL, CUSTOM, UNKNOWN, UNTYPED):
        with pytest.raises(ApiError) as refusal:
            parse(tools=[good, tool])
        assert (refusal.value.status, refusal.value.param) == (400, "tools")
        for calls in ([good, tool], {"0": tool}, "f"):
            with pytest.raises(ApiError, match="tool_calls of an element is not") as refusal:
                parse(messages=[{"role": "assistant", "tool_calls": calls}])
            assert (refusal.value.status, refusal.value.param) == (400, "messages")


def test_tools_and_calls_pass_in_all_their_forms() -> None:
    every = [FUNCTION, CALL, CUSTOM, UNKNOWN, UNTYPED, {"type": None, "function": {"name": "f", "arguments": {}}}]
    assert parse(tools=every).request.parameters["tools"] == every
    called = {"role": "assistant", "content": None, "name": "you", "tool_calls": every, "reasoning_content": None, "yet": {"to": "come"}}
    call = parse(messages=[*MESSAGES, called, {"role": "tool", "content": "x", "tool_call_id": None, "name": None, "tool_calls": None}])
    assert call.request.messages[1].to_openai() == called


@pytest.mark.parametrize("name", ["name", "tool_call_id"])
def test_names_of_a_turn_are_texts(name: str) -> None:
    for value in (5, ["x"], {}, True):
        with pytest.raises(ApiError, match=f"messages: {name} of an element is not text"):
            parse(messages=[*MESSAGES, {"role": "tool", "content": "x", name: value}])


@pytest.mark.parametrize(
    ("kind", "named"), [("function", "arguments"), ("custom", "input"), ("function", "input"), ("custom", "arguments")]
)
def test_the_arguments_of_a_call_are_as_quick_to_parse_as_a_body(kind: str, named: str) -> None:
    def ask(arguments: str, calls: int = 1) -> ChatCall:
        call = {"type": "yet to come", kind: {"name": "f", named: arguments}}
        return parse(messages=[*MESSAGES, {"role": "assistant", "tool_calls": [call] * calls}])

    ask(json.dumps({"text": "[" * MANY}))
    ask("[" * requests.MOST_MARKS)
    for arguments in ("[" * (requests.MOST_MARKS + 1), "[[]," * MANY, '"' * MANY):
        with pytest.raises(ApiError, match="brackets and commas"):
            ask(arguments)
    with pytest.raises(ApiError, match="brackets and commas"):
        ask("," * (requests.MOST_MARKS // 10), calls=11)


@pytest.mark.parametrize("most", [21, 10**9, -1, 2.0, True, "2"])
def test_logprobs_are_a_few_for_a_token(most: Any) -> None:
    """llama.cpp answers with its whole vocabulary where it is asked to."""
    assert parse(logprobs=True, top_logprobs=20).request.parameters["top_logprobs"] == 20
    with pytest.raises(ApiError) as refusal:
        parse(logprobs=True, top_logprobs=most)
    assert (refusal.value.status, refusal.value.param) == (400, "top_logprobs")


@pytest.mark.parametrize(
    "choice",
    [
        "none", "auto", "required", {"type": "function", "function": {"name": "f"}}, {"type": "custom", "custom": {"name": "x"}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]}},
    ],
    ids=str,
)  # fmt: skip
def test_choices_of_tools_pass(choice: Any) -> None:
    assert parse(tools=[FUNCTION, CUSTOM], tool_choice=choice).request.parameters["tool_choice"] == choice


@pytest.mark.parametrize("tools", [None, [], [FUNCTION]])
@pytest.mark.parametrize(
    "choice",
    [
        "any", "", 5, True, [], {}, {"type": "function"}, {"type": "function", "function": {"name": "g"}}, {"function": {"name": "f"}},
        {"type": "function", "function": {"name": 3}}, {"type": "function", "name": "f"}, {"type": "allowed_tools", "allowed_tools": {}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"function": {"name": "g"}}, None, 3]}},
    ],
    ids=str,
)  # fmt: skip
def test_a_choice_that_nobody_can_keep_is_refused(choice: Any, tools: Any) -> None:
    with pytest.raises(ApiError) as refusal:
        parse(tools=tools, tool_choice=choice)
    assert (refusal.value.status, refusal.value.param) == (400, "tool_choice")


def test_a_call_that_must_be_made_needs_tools() -> None:
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        with pytest.raises(ApiError, match="tool_choice: asks for a call, and there are no tools"):
            parse(tool_choice=choice)
    assert parse(tool_choice="auto").request.parameters == {"tool_choice": "auto"}


@pytest.mark.parametrize(("name", "value"), [("stop", ""), ("stop", ["a", ""]), ("functions", [{"name": "f"}]), ("function_call", "auto")])
def test_what_would_leave_nothing_to_select_from_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ApiError) as refusal:
        parse(**{name: value})
    assert (refusal.value.status, refusal.value.param) == (400, name)
