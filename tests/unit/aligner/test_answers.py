"""What a policy answers is repaired where its meaning is certain, and named for what is wrong with it elsewhere."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privalign.aligner.answers import Fault, keeps, usable
from privalign.types import Candidate, Request, Usage

REQUEST = Request.of_prompt("hello")


def read(candidate: Candidate, **parameters: Any) -> Candidate:
    outcome = usable(candidate, Request(REQUEST.messages, parameters))
    assert isinstance(outcome, Candidate), outcome
    return outcome


def called(*calls: Any) -> Candidate:
    return Candidate("", "tool_calls", tuple(calls))


def function(name: Any = "f", arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}, **more}


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (function(), "{}"),
        (function(arguments={"city": "Paris", "n": [1, None]}), '{"city": "Paris", "n": [1, null]}'),
        (function(arguments={"city": "half \ud83d", "x": math.inf}), '{"city": "half \ufffd", "x": null}'),
        (function(arguments=None), "{}"),
        (function(arguments=""), "{}"),
        (function(arguments='{"a": '), '{"a": '),  # as the model wrote it
        ({"id": "1", "function": {"name": "f", "arguments": "{}"}}, "{}"),
        ({"id": "1", "type": None, "function": {"name": "f"}}, "{}"),
        ({"name": "f", "arguments": {"a": 1}}, '{"a": 1}'),
        (function(index=7), "{}"),
    ],
)
def test_calls_whose_meaning_is_certain_are_repaired(call: Mapping[str, Any], arguments: str) -> None:
    (repaired,) = read(called(call)).tool_calls
    assert repaired["type"] == "function"
    assert repaired["id"]
    assert isinstance(repaired["id"], str)
    assert repaired["function"] == {"name": "f", "arguments": arguments}
    assert "index" not in repaired
    json.dumps(repaired, allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.parametrize("ids", [(None, None), ("a", "a"), ("", ""), (0, 0), ("a", None), ([], {})])
def test_every_call_has_an_id_of_its_own(ids: tuple[Any, Any]) -> None:
    calls = read(called(*(function(id=identity) for identity in ids))).tool_calls
    assert len({call["id"] for call in calls}) == 2
    assert all(isinstance(call["id"], str) and call["id"] for call in calls)
    assert calls[0]["id"] == ids[0] or not isinstance(ids[0], str) or not ids[0]


def test_what_belongs_to_a_call_stays() -> None:
    (custom,) = read(called({"id": "c", "type": "custom", "custom": {"name": "sql", "input": "select 1"}})).tool_calls
    assert custom == {"id": "c", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
    (more,) = read(called(function(extra_content={"signature": "s"}))).tool_calls
    assert more["extra_content"] == {"signature": "s"}


@pytest.mark.parametrize(
    "call",
    [
        "f", None, {}, {"function": None}, {"function": "f"}, {"type": "function"}, {"id": "1", "type": "browser", "browser": {}},
        function(name=None), function(name=""), function(name=3), function(arguments=[1]), function(arguments=3), function(arguments=True),
        {"type": "custom", "custom": {"name": "f", "input": {}}}, {"arguments": "{}"},
    ],
)  # fmt: skip
def test_calls_that_could_mean_anything_are_not_used(call: Any) -> None:
    assert usable(called(call), REQUEST) is Fault.BROKEN
    assert usable(called(function(), call), REQUEST) is Fault.BROKEN


@pytest.mark.parametrize(
    ("text", "reason", "fault"),
    [("", "stop", Fault.SILENT), (" \n", None, Fault.SILENT), ("", "length", Fault.CUT), ("", "max_tokens", Fault.CUT)],
)
def test_an_answer_that_says_nothing(text: str, reason: str | None, fault: Fault) -> None:
    assert usable(Candidate(text, reason, reasoning="so far"), REQUEST) is fault


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("stop", "stop"), ("length", "length"), ("content_filter", "content_filter"), ("tool_calls", "tool_calls"), ("eos", "stop"),
        ("STOP", "stop"), ("MAX_TOKENS", "length"), ("end_turn", "stop"), ("tool_use", "tool_calls"), ("whatever", None), (None, None),
    ],
)  # fmt: skip
def test_reasons_have_the_names_that_clients_know(named: str | None, reason: str | None) -> None:
    assert read(Candidate("a", named)).finish_reason == reason


@pytest.mark.parametrize("reason", ["error", "abort", "Aborted"])
def test_an_answer_that_broke_off_is_none(reason: str) -> None:
    assert usable(Candidate("half an ans", reason), REQUEST) is Fault.BROKEN


@pytest.mark.parametrize("usage", [Usage(-5, 3), Usage(5, -3), Usage(5, 10**30), Usage(10**12, 1), Usage(1.5, 1), Usage(True, 1)])  # type: ignore[arg-type]
def test_usage_that_cannot_be_is_not_reported(usage: Usage) -> None:
    assert read(Candidate("a", usage=usage)).usage is None
    assert read(Candidate("a", usage=Usage(5, 3))).usage == Usage(5, 3)


NAMED = {"type": "function", "function": {"name": "f"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
MUST = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}


@pytest.mark.parametrize(
    ("choice", "none", "right", "other"),
    [
        (None, True, True, True),
        ("auto", True, True, True),
        ("none", True, False, False),
        ("required", False, True, True),
        (NAMED, False, True, False),
        (ALLOWED, True, True, False),
        (MUST, False, True, False),
    ],
)
def test_choices_of_tools(choice: Any, none: bool, right: bool, other: bool) -> None:
    assert (keeps(choice, []), keeps(choice, [function()]), keeps(choice, [function(), function("g")])) == (none, right, other)
    wanted = Request(REQUEST.messages, {"tool_choice": choice})
    assert (usable(Candidate("text", "stop"), wanted) is Fault.DISOBEDIENT) == (not none)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(deadline=None, max_examples=60)
@given(_JSON, _JSON, _JSON, st.text() | st.just(""))
def test_whatever_comes_is_a_proper_answer_or_a_fault(arguments: Any, identity: Any, kind: Any, text: str) -> None:
    outcome = usable(Candidate(text, "stop", ({"id": identity, "type": kind, "function": {"name": "f", "arguments": arguments}},)), REQUEST)
    if isinstance(outcome, Candidate):
        json.dumps([outcome.text, outcome.tool_calls, outcome.scored_text], allow_nan=False, ensure_ascii=False).encode()
        assert all(isinstance(call["id"], str) and isinstance(call["function"]["arguments"], str) for call in outcome.tool_calls)
