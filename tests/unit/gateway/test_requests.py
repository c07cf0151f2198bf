"""Bodies: whatever is sent becomes a valid call or one error of the client's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_very_deep_and_very_long_are_refused_quickly() -> None:
    for content in (b"[" * 10**6, b'{"a":' * 10**5 + b"1" + b"}" * 10**5, b"9" * 10**6, b"1e999", b"NaN", b"-Infinity"):
        with pytest.raises(ApiError):
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
