"""The gateway over real sockets, around back-ends that do as told: what clients get, and what each request costs."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from privalign.accounting.rules import Fsrc
from privalign.errors import BackendFailed
from privalign.gateway.logs import JsonLines
from privalign.ledger import Ledger, LedgerFailed, Role
from privalign.mechanisms.privbon import PrivBoN
from privalign.policies.callables import CallablePolicy
from privalign.policies.completions import UpstreamFailed
from privalign.rewards.protocol import ScorerUntouched
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.types import Candidate, Usage

Gateway = Callable[..., Any]
SENSITIVITY = Sensitivity(0.05, RewardRange(0.0, 1.0))
TIGHT = Fsrc(1.0, 1e-2, 1e-6)  # holds one query of PrivBoN(2, 0.3) at Δ = 0.05, not many


def error_of(response: httpx.Response, status: int) -> Any:
    assert response.status_code == status, response.text
    document = response.json()
    assert document.keys() == {"error"}
    assert document["error"].keys() == {"message", "type", "param", "code"}
    return document["error"]


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def slowly(seconds: float, value: Callable[[int], Any]) -> Callable[..., Any]:
    async def answer(*arguments: Any) -> Any:
        await asyncio.sleep(seconds)
        return value(arguments[-1])

    return answer


def texts(count: int) -> list[Candidate]:
    return [Candidate(f"text {place}", "stop", usage=Usage(3 if place == 0 else 0, 2)) for place in range(count)]


def test_an_answer_and_its_price(gateway: Gateway) -> None:
    running = gateway()
    response = running.ask()
    body = response.json()
    assert body["object"] == "chat.completion"
    assert body["model"] == "aligned"
    (choice,) = body["choices"]
    assert choice["message"]["content"] in ("text 0", "text 1")
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    usage = body["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 4, 7)
    assert usage["completion_tokens_details"] == {"accepted_prediction_tokens": 2, "rejected_prediction_tokens": 2}
    account = running.ledger.account("prefs")
    privacy = body["privalign"]
    assert privacy.keys() == {"mechanism", "epsilon", "delta", "account", "remaining", "replayed"}
    assert (privacy["mechanism"], privacy["account"], privacy["replayed"]) == ("privbon", "prefs", False)
    assert privacy["remaining"] == dict(zip(("epsilon", "delta"), account.remaining, strict=True))
    assert privacy["epsilon"] == pytest.approx(account.spent[0])
    assert response.headers["x-privalign-epsilon"] == repr(privacy["epsilon"])
    assert response.headers["x-privalign-remaining"] == repr(account.remaining[0])
    assert response.headers["x-request-id"].startswith("req_")
    assert running.queries == (1, 0)


def test_n_answers_are_n_selections_charged_together(gateway: Gateway) -> None:
    running = gateway()
    body = running.ask(n=3).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert running.queries == (3, 0)
    assert [entry.queries for entry in running.ledger.journal("prefs") if entry.kind == "reserve"] == [3]
    assert body["privalign"]["epsilon"] >= running.ledger.account("prefs").spent[0] * (1 - 1e-9)
    assert body["usage"]["completion_tokens"] == 12
    assert "is above" in error_of(running.ask(n=17), 400)["message"]


def test_a_stream(gateway: Gateway, stream_events: Callable[[httpx.Response], list[Any]]) -> None:
    running = gateway()
    response = running.ask(stream=True, stream_options={"include_usage": True}, n=2)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-privalign-mechanism"] == "privbon"
    *chunks, done = stream_events(response)
    assert done == "[DONE]"
    assert len({(chunk["id"], chunk["created"], chunk["object"], chunk["model"]) for chunk in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    for index in (0, 1):
        mine = [chunk["choices"][0] for chunk in chunks[:-1] if chunk["choices"][0]["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant"
        assert mine[1]["delta"]["content"].startswith("text")
        assert (mine[-1]["delta"], mine[-1]["finish_reason"]) == ({}, "stop")
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["total_tokens"]) == ([], 14)
    assert chunks[-1]["privalign"]["account"] == "prefs"
    assert "usage" not in stream_events(running.ask(stream=True))[0]


def test_a_slow_stream_is_kept_open_by_comments(gateway: Gateway, stream_events: Callable[[httpx.Response], list[Any]]) -> None:
    running = gateway(ping_every=0.05)
    running.reward.answer = slowly(0.3, lambda count: np.full(count, 0.5))
    response = running.ask(stream=True)
    assert response.text.startswith(": ping\n\n")
    assert 3 <= response.text.count(": ping\n\n") <= 8
    assert response.headers["x-privalign-account"] == "prefs"
    documents = stream_events(response)
    assert documents[-1] == "[DONE]"
    assert documents[-2]["privalign"]["replayed"] is False
    running.reward.answer = slowly(0.2, raising(ValueError("0.123")))
    failed = running.ask(stream=True)
    assert failed.status_code == 200
    (document,) = stream_events(failed)
    assert document["error"]["code"] == "scoring_failed"
    assert "0.123" not in failed.text


CALL = {"function": {"name": "f", "arguments": {"city": "Paris"}}}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("answer", "fields", "status", "param"),
    [
        (Candidate("", "stop"), {}, 502, None),
        (Candidate("", "length", reasoning="so far"), {"max_tokens": 3}, 400, "max_tokens"),
        (Candidate("", "tool_calls", ({"function": {"name": "f", "arguments": [1]}},)), {"tools": TOOLS}, 502, None),
        (Candidate("text", "stop"), {"tools": TOOLS, "tool_choice": "required"}, 400, "tool_choice"),
        (Candidate("", "tool_calls", (CALL,)), {"tools": TOOLS, "tool_choice": "none"}, 400, "tool_choice"),
    ],
)
def test_where_nothing_remains_to_select_from_nothing_is_scored_or_charged(
    gateway: Gateway, answer: Candidate, fields: dict[str, Any], status: int, param: str | None
) -> None:
    running = gateway()
    running.policy.answer = lambda request, count: [answer] * count
    response = running.ask(**fields)
    error = error_of(response, status)
    assert (error["code"], error["param"]) == ("unusable_answers", param)
    assert response.headers.get("x-should-retry") == (None if param else "false")
    assert running.reward.calls == 0
    assert running.queries == (0, 0)
    assert running.ledger.account("prefs").spent == (0.0, 0.0)


def test_one_answer_of_several_without_candidates_costs_none_of_them(gateway: Gateway) -> None:
    running = gateway()
    asked: list[int] = []

    def answer(request: Any, count: int) -> list[Candidate]:
        asked.append(count)
        return [Candidate("" if len(asked) > 2 else "text", "stop")] * count  # the third answer and all redraws are empty

    running.policy.answer = answer
    assert error_of(running.ask(n=3), 502)["code"] == "unusable_answers"
    assert running.reward.calls == 0
    assert running.ledger.account("prefs").spent == (0.0, 0.0)
    asked.clear()

    def away_at_last(request: Any, count: int) -> Any:
        asked.append(count)
        return slowly(0.1, raising(UpstreamFailed("away")))(count) if len(asked) == 3 else texts(count)

    running.policy.answer = away_at_last
    assert error_of(running.ask(n=3), 503)
    assert running.reward.calls == 0
    assert running.ledger.account("prefs").spent == (0.0, 0.0)


def test_repaired_calls_reasoning_and_usage_that_cannot_be(gateway: Gateway, stream_events: Callable[[httpx.Response], list[Any]]) -> None:
    running = gateway()
    answer = Candidate("", "stop", (CALL, {**CALL, "index": 9}), reasoning="where?", usage=Usage(-1, 10**30))
    running.policy.answer = lambda request, count: [answer] * count
    body = running.ask(tools=TOOLS, tool_choice="required").json()
    message = body["choices"][0]["message"]
    assert [call["function"] for call in message["tool_calls"]] == [{"name": "f", "arguments": '{"city": "Paris"}'}] * 2
    assert [call["type"] for call in message["tool_calls"]] == ["function"] * 2
    assert len({call["id"] for call in message["tool_calls"]}) == 2
    assert (message["reasoning_content"], message["reasoning"], body["usage"]) == ("where?", "where?", None)
    said = stream_events(running.ask(tools=TOOLS, stream=True))[1]["choices"][0]["delta"]
    assert [call["index"] for call in said["tool_calls"]] == [0, 1]
    assert said["reasoning_content"] == "where?"
    assert b"privalign_tokens_total{" not in running.get("/metrics", running.officer).content


def test_no_more_tokens_than_the_model_answers_with(gateway: Gateway) -> None:
    running = gateway(max_tokens=100)
    for name in ("max_tokens", "max_completion_tokens"):
        assert error_of(running.ask(**{name: 101}), 400)["param"] == name
    assert running.queries == (0, 0)
    assert running.ask(max_tokens=100).status_code == 200
    assert running.ask().status_code == 200
    assert [request.parameters for request in running.policy.requests] == [{"max_tokens": 100}] * 2


def test_usage_that_is_not_reported_is_not_zero(gateway: Gateway) -> None:
    running = gateway()
    running.policy.answer = lambda request, count: [Candidate("a", "length")] * count
    assert running.ask().json()["usage"] is None


def test_tool_calls_and_logprobs_of_the_winner(gateway: Gateway, stream_events: Callable[[httpx.Response], list[Any]]) -> None:
    running = gateway()
    calls = tuple({"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in range(2))
    logprobs = {"content": [{"token": "x", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}
    running.policy.answer = lambda request, count: [Candidate("", "tool_calls", calls, logprobs)] * count
    choice = running.ask(logprobs=True).json()["choices"][0]
    assert (choice["message"]["content"], choice["message"]["tool_calls"]) == (None, list(calls))
    assert (choice["finish_reason"], choice["logprobs"]) == ("tool_calls", logprobs)
    said = stream_events(running.ask(stream=True, logprobs=True))[1]["choices"][0]
    assert [call["index"] for call in said["delta"]["tool_calls"]] == [0, 1]
    assert said["logprobs"] == logprobs


def test_parameters_reach_every_candidate_and_others_are_named(gateway: Gateway) -> None:
    running = gateway()
    sampling = {
        "temperature": 0.3, "top_p": 0.9, "stop": ["x"], "max_tokens": 5, "seed": 7, "logit_bias": {"1": 2}, "presence_penalty": 0.1,
        "frequency_penalty": 0.2, "user": "u", "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "auto",
        "response_format": {"type": "json_object"}, "min_p": 0.1,
    }  # fmt: skip
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "42"},
    ]
    response = running.ask(messages=messages, api_base="http://evil.example", metadata={}, **sampling)
    assert response.status_code == 200
    assert response.headers["x-privalign-ignored"] == "api_base, metadata"
    (request,) = running.policy.requests
    assert request.parameters == sampling
    assert [turn.to_openai() for turn in request.messages] == [{**turn, "content": turn.get("content")} for turn in messages]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"), ({"messages": ["x"]}, "messages"), ({"messages": [{"content": "x"}]}, "messages"),
        ({"model": 1}, "model"), ({"model": None}, "model"), ({"n": 0}, "n"), ({"n": True}, "n"), ({"n": 1.5}, "n"),
        ({"seed": "x"}, "seed"), ({"seed": 2**70}, "seed"),
        ({"temperature": "hot"}, "temperature"), ({"top_p": 2}, "top_p"), ({"stop": [1]}, "stop"),
        ({"max_tokens": 0}, "max_tokens"), ({"stream": "yes"}, "stream"), ({"stream_options": []}, "stream_options"),
        ({"stream_options": {"include_usage": 1}}, "stream_options"), ({"tools": ["x"]}, "tools"), ({"user": 1}, "user"),
    ],
)  # fmt: skip
def test_wrong_parameters_are_named_and_free(gateway: Gateway, fields: dict[str, Any], param: str) -> None:
    running = gateway()
    assert error_of(running.ask(**fields), 400)["param"] == param
    assert running.ledger.account("prefs").length == 1


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}},
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}, "text": "hi"},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "text"},
        {"type": "text", "text": 1},
        {},
    ],
)
def test_what_no_scorer_could_read_reaches_no_model(gateway: Gateway, part: dict[str, Any]) -> None:
    """A base model that reads images would fetch them, from addresses that the client chose."""
    running = gateway()
    content = [{"type": "text", "text": "hi"}, part]
    assert error_of(running.ask(messages=[{"role": "user", "content": content}]), 400)["param"] == "messages"
    assert (running.policy.requests, running.ledger.account("prefs").length) == ([], 1)


def test_models(gateway: Gateway) -> None:
    running = gateway()
    listed = running.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["aligned"]
    assert running.get("/v1/models/aligned").json() == listed["data"][0]
    assert error_of(running.get("/v1/models/none"), 404)["code"] == "model_not_found"
    assert error_of(running.ask(model="none"), 404)["code"] == "model_not_found"
    other = running.ledger.create_key(Role.CLIENT, models=["other"]).secret
    assert running.get("/v1/models", other).json()["data"] == []
    assert error_of(running.get("/v1/models/aligned", other), 404)["code"] == "model_not_found"
    assert error_of(running.ask(key=other), 404)["code"] == "model_not_found"


# Keys


def test_keys_and_roles(gateway: Gateway) -> None:
    running = gateway()
    for wrong in ("x", "sk-123", running.key[:-1] + ("0" if running.key[-1] != "0" else "1"), running.key + "0"):
        assert error_of(running.ask(key=wrong), 401)["code"] == "invalid_api_key"
        assert error_of(running.get("/v1/models", wrong), 401)["code"] == "invalid_api_key"
    assert error_of(running.ask(key=running.officer), 403)["type"] == "permission_error"
    assert error_of(running.get("/metrics"), 403)["type"] == "permission_error"
    assert error_of(running.get("/metrics", "x"), 401)["code"] == "invalid_api_key"
    assert "privalign_account_epsilon" in running.get("/metrics", running.officer).text
    two = httpx.Headers([("authorization", f"Bearer {running.key}"), ("authorization", "Bearer x")])
    assert httpx.get(f"{running.url}/v1/models", headers=two).status_code == 401
    assert running.ask().status_code == 200
    running.ledger.revoke_key(running.key.split("_")[1])
    assert error_of(running.ask(), 401)["code"] == "invalid_api_key"
    assert running.queries == (1, 0)


def test_without_keys_only_where_it_was_asked_for(gateway: Gateway) -> None:
    running = gateway(allow_anonymous=True)
    assert running.ask(key="sk-none").status_code == 200
    assert httpx.get(f"{running.url}/v1/models").status_code == 200
    rebound = {"host": "evil.example", "origin": "http://evil.example"}  # whose name was made to mean this machine
    assert error_of(running.ask(key="sk-none", headers=rebound), 403)["code"] == "permission_denied"
    assert running.queries == (1, 0)
    assert running.ask(headers=rebound).status_code == 200  # it cannot know a key
    running.ledger.revoke_key(running.key.split("_")[1])
    assert running.ask().status_code == 401  # a revoked key is not nobody's
    assert running.get("/metrics", "x").status_code == 401


def test_limits_of_a_key(gateway: Gateway) -> None:
    running = gateway()
    few = running.ledger.create_key(Role.CLIENT, queries=1).secret
    assert running.ask(key=few).status_code == 200
    response = running.ask(key=few)
    assert error_of(response, 429)["code"] == "insufficient_quota"
    assert response.headers["x-should-retry"] == "false"
    running.ledger.create_account("other", TIGHT)
    elsewhere = running.ledger.create_key(Role.CLIENT, account="other", share=0.5).secret
    assert error_of(running.ask(key=elsewhere), 403)["code"] == "permission_denied"


# The budget


def test_an_exhausted_budget(gateway: Gateway) -> None:
    running = gateway(rule=TIGHT)
    for _ in range(100):
        response = running.ask()
        if response.status_code != 200:
            break
    error = error_of(response, 429)
    assert (error["code"], error["type"]) == ("insufficient_quota", "insufficient_quota")
    assert response.headers["x-should-retry"] == "false"
    assert "remaining" in error["message"]
    drawn = len(running.policy.requests)
    assert error_of(running.ask(stream=True), 429)["code"] == "insufficient_quota"  # no stream begins
    assert len(running.policy.requests) == drawn


def test_the_budget_can_be_hidden(gateway: Gateway) -> None:
    running = gateway(rule=Fsrc(0.4, 1e-2, 1e-6), show_budget=False)
    response = running.ask()
    assert response.json()["privalign"]["remaining"] is None
    assert "x-privalign-remaining" not in response.headers
    while response.status_code == 200:
        response = running.ask()
    message = error_of(response, 429)["message"]
    assert not any(letter.isdigit() for letter in message)


def test_open_reservations_in_the_way_mean_later(gateway: Gateway) -> None:
    mechanism = PrivBoN(2, 0.3)
    worst = TIGHT.charge(mechanism.event(SENSITIVITY)).epsilon * 1e-12
    running = gateway(mechanism, rule=Fsrc(1.5 * worst, 1e-2, 1e-6))
    running.policy.answer = slowly(1.0, texts)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(running.ask)
        running.wait_until(lambda: running.queries == (0, 1))
        response = running.ask()
        assert error_of(response, 429)["code"] == "budget_busy"
        assert response.headers["retry-after"] == "1"
        assert "x-should-retry" not in response.headers
        assert first.result().status_code == 200
    assert error_of(running.ask(), 429)["code"] == "insufficient_quota"


def test_an_answer_from_the_base_policy_says_so(gateway: Gateway) -> None:
    running = gateway(rule=Fsrc(0.4, 1e-2, 1e-6), on_exhausted="base")
    while (response := running.ask()).json()["privalign"]["mechanism"] == "privbon":
        assert response.status_code == 200
    calls, spent = running.reward.calls, running.ledger.account("prefs").debited
    response = running.ask(n=2)
    privacy = response.json()["privalign"]
    assert (privacy["mechanism"], privacy["epsilon"], privacy["delta"]) == ("base", 0.0, 0.0)
    assert response.headers["x-privalign-mechanism"] == "base"
    assert (running.reward.calls, running.ledger.account("prefs").debited) == (calls, spent)


# Failures


def test_a_scorer_that_fails_is_told_in_one_line_and_stays_charged(gateway: Gateway) -> None:
    running = gateway()
    for bad in (raising(ValueError("reward 0.123")), lambda count: np.full(count, np.nan), lambda count: np.zeros(count + 1)):
        running.reward.answer = bad
        response = running.ask()
        error = error_of(response, 500)
        assert (error["code"], error["type"]) == ("scoring_failed", "server_error")
        assert response.headers["x-should-retry"] == "false"
        assert "0.123" not in response.text
    assert running.queries == (3, 0)


@pytest.mark.parametrize(
    ("failure", "status", "retry_after", "should_retry"),
    [
        (UpstreamFailed("secret-host busy", 429, 7.2), 429, "8", None),
        (UpstreamFailed("secret-host", 429, float("nan")), 429, "1", None),
        (UpstreamFailed("secret-host key", 401), 502, None, "false"),
        (UpstreamFailed("secret-host failed", 500), 503, "1", None),
        (UpstreamFailed("secret-host away"), 503, "1", None),
        (UpstreamFailed("secret-host refused: too long", 400, words="too long"), 400, None, None),
        (BackendFailed("secret-host"), 503, "1", None),
        (RuntimeError("secret-host"), 500, None, "false"),
    ],
)
def test_a_policy_that_fails_costs_nothing(
    gateway: Gateway, failure: Exception, status: int, retry_after: str | None, should_retry: str | None
) -> None:
    running = gateway()
    running.policy.answer = raising(failure)
    for stream in (False, True):
        response = running.ask(stream=stream)
        error = error_of(response, status)
        assert response.headers.get("retry-after") == retry_after
        assert response.headers.get("x-should-retry") == should_retry
        assert "secret-host" not in response.text
        assert ("too long" in error["message"]) == (status == 400)
    assert running.queries == (0, 0)
    assert running.reward.calls == 0


@pytest.mark.parametrize(
    ("refusal", "status", "retry_after"),
    [
        (ScorerUntouched("busy", 429, 30.0), 429, "30"),
        (ScorerUntouched("cannot be reached"), 503, "1"),
        (ScorerUntouched("refuses the API key", 401), 503, "1"),
        (ScorerUntouched("too long", 413), 400, None),
    ],
)
def test_a_scorer_that_was_not_touched_costs_nothing(gateway: Gateway, refusal: Exception, status: int, retry_after: str | None) -> None:
    running = gateway()
    running.reward.answer = raising(refusal)
    response = running.ask()
    error_of(response, status)
    assert response.headers.get("retry-after") == retry_after
    assert "x-should-retry" not in response.headers
    assert running.queries == (0, 0)


def test_requests_that_no_model_can_read_do_not_break_the_circuit(gateway: Gateway) -> None:
    running = gateway()
    running.reward.answer = raising(ScorerUntouched("too long", 413))
    for _ in range(5):
        assert running.ask().status_code == 400
    running.reward.answer = lambda count: np.full(count, 0.5)
    assert running.ask().status_code == 200


def test_a_ledger_that_is_away(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    running = gateway()
    monkeypatch.setattr(Ledger, "account", raising(LedgerFailed("ledger secret-host: away")))
    response = running.ask()
    assert response.json()["privalign"]["remaining"] is None  # the answer is paid and is not lost to a figure
    monkeypatch.setattr(Ledger, "reserve", raising(LedgerFailed("ledger secret-host: away")))
    assert error_of(running.ask(), 503)["code"] == "ledger_unavailable"
    monkeypatch.setattr(Ledger, "authenticate", raising(LedgerFailed("ledger secret-host: away")))
    response = running.ask()
    assert error_of(response, 503)["code"] == "ledger_unavailable"
    assert "secret-host" not in response.text


# The same request again


def test_an_idempotency_key_replays_for_free(gateway: Gateway, stream_events: Callable[[httpx.Response], list[Any]]) -> None:
    running = gateway(PrivBoN(16, 5.0))
    headers = {"idempotency-key": "a"}
    first, again = running.ask(headers=headers), running.ask(headers=headers)
    assert first.json()["choices"] == again.json()["choices"]
    assert (first.json()["privalign"]["replayed"], again.json()["privalign"]["replayed"]) == (False, True)
    assert again.headers["x-privalign-replayed"] == "true"
    assert running.queries == (1, 0)
    other = running.ask(headers=headers, temperature=0.5)
    assert error_of(other, 422)["code"] == "idempotency_conflict"
    assert other.headers["x-should-retry"] == "false"
    key = running.ledger.create_key(Role.CLIENT).secret
    assert running.ask(headers=headers, key=key).json()["privalign"]["replayed"] is False  # another client's key is another key
    assert running.queries == (2, 0)
    for bad in ("", "x" * 256, "a b"):
        assert error_of(running.ask(headers={"idempotency-key": bad}), 400)["param"] == "Idempotency-Key"
    two = [("authorization", f"Bearer {running.key}"), ("idempotency-key", "a"), ("idempotency-key", "b")]
    body = {"model": "aligned", "messages": [{"role": "user", "content": "hello"}]}
    assert error_of(httpx.post(f"{running.url}/v1/chat/completions", json=body, headers=two), 400)["param"] == "Idempotency-Key"
    streams = [running.ask(headers={"idempotency-key": "s"}, stream=True) for _ in range(2)]
    assert [stream_events(stream)[-2]["privalign"]["replayed"] for stream in streams] == [False, True]


def test_the_same_request_at_the_same_time_is_charged_once(gateway: Gateway) -> None:
    running = gateway()
    running.reward.answer = slowly(0.2, lambda count: np.full(count, 0.5))
    with ThreadPoolExecutor(8) as threads:
        responses = list(threads.map(lambda _: running.ask(headers={"idempotency-key": "once"}), range(8)))
    assert {response.status_code for response in responses} == {200}
    assert sum(not response.json()["privalign"]["replayed"] for response in responses) == 1
    assert running.queries == (1, 0)


# Clients that leave, and an end


def leave(running: Any, body: dict[str, Any], seconds: float, headers: str = "") -> None:
    """Sends a request, waits, and hangs up."""
    content = json.dumps({"model": "aligned", "messages": [{"role": "user", "content": "hello"}], **body}).encode()
    host, port = running.url.removeprefix("http://").split(":")
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {running.key}\r\n{headers}"
    head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + content)
        time.sleep(seconds)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_scoring_pays_nothing(gateway: Gateway, stream: bool) -> None:
    running = gateway(ping_every=0.05)
    running.policy.answer = slowly(20.0, texts)
    leave(running, {"stream": stream}, 0.3)
    running.wait_until(lambda: running.policy.cancelled == 1)
    running.wait_until(lambda: running.queries == (0, 0))
    assert [entry.kind for entry in running.ledger.journal("prefs")] == ["create", "reserve", "void"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_while_scored_pays_once(gateway: Gateway, stream: bool) -> None:
    running = gateway(ping_every=0.05)
    running.reward.answer = slowly(20.0, lambda count: np.zeros(count))
    leave(running, {"stream": stream}, 0.3)
    running.wait_until(lambda: running.queries == (1, 0))
    assert running.reward.calls == 1


def test_a_client_that_leaves_with_an_idempotency_key_finds_its_answer(gateway: Gateway) -> None:
    running = gateway()
    running.reward.answer = slowly(0.5, lambda count: np.full(count, 0.5))
    leave(running, {}, 0.2, "idempotency-key: k\r\n")
    running.wait_until(lambda: running.queries == (1, 0))
    response = running.ask(headers={"idempotency-key": "k"})
    assert response.json()["privalign"]["replayed"] is True
    assert running.queries == (1, 0)


def test_told_to_stop_it_finishes_what_is_under_way(gateway: Gateway) -> None:
    running = gateway(shutdown_grace=10.0)
    running.reward.answer = slowly(1.0, lambda count: np.full(count, 0.5))
    outcome: list[Any] = []
    kept = httpx.Client(headers={"authorization": f"Bearer {running.key}"})
    assert kept.get(f"{running.url}/v1/models").status_code == 200
    thread = threading.Thread(target=lambda: outcome.append(running.ask()))
    thread.start()
    running.wait_until(lambda: running.reward.calls == 1)
    running.stop()
    thread.join()
    assert outcome[0].status_code == 200
    with pytest.raises(httpx.TransportError):
        kept.get(f"{running.url}/v1/models")
    kept.close()
    assert running.queries == (1, 0)


def test_what_takes_too_long_at_the_end_is_cancelled_and_accounted_for(
    gateway: Gateway, stream_events: Callable[[httpx.Response], list[Any]]
) -> None:
    running = gateway(shutdown_grace=2.0, ping_every=0.05)
    running.policy.answer = slowly(30.0, texts)
    with ThreadPoolExecutor(3) as threads:
        asked = threads.submit(running.ask)
        streamed = threads.submit(running.ask, stream=True)
        kept = threads.submit(running.ask, headers={"idempotency-key": "k"})
        running.wait_until(lambda: len(running.policy.requests) == 3)
        leave(running, {}, 0.2, "idempotency-key: gone\r\n")
        running.wait_until(lambda: len(running.policy.requests) == 4)
        began = time.monotonic()
        running.stop()
        assert time.monotonic() - began < 3.5  # once the grace, with or without a client that waits
        for response in (asked.result(), kept.result()):
            assert error_of(response, 503)["code"] == "stopping"
            assert response.headers["x-should-retry"] == "false"
        (document,) = stream_events(streamed.result())
        assert document["error"]["code"] == "stopping"
    running.wait_until(lambda: running.queries == (0, 0))


# Limits


def test_the_rate_of_a_key(gateway: Gateway) -> None:
    running = gateway(requests_per_minute=1.0, burst=3)
    statuses = [running.ask().status_code for _ in range(4)]
    assert statuses == [200, 200, 200, 429]
    response = running.ask()
    assert error_of(response, 429)["code"] == "rate_limit_exceeded"
    assert 50 <= int(response.headers["retry-after"]) <= 60
    other = running.ledger.create_key(Role.CLIENT).secret
    assert running.ask(key=other).status_code == 200
    assert running.queries == (4, 0)


def test_more_at_once_than_there_are_places(gateway: Gateway) -> None:
    running = gateway(max_concurrency=2)
    running.policy.answer = slowly(1.0, texts)
    with ThreadPoolExecutor(4) as threads:
        responses = list(threads.map(lambda _: running.ask(), range(4)))
    assert sorted(response.status_code for response in responses) == [200, 200, 503, 503]
    assert {response.headers.get("retry-after") for response in responses if response.status_code == 503} == {"1"}
    assert running.queries == (2, 0)
    assert running.ask().status_code == 200


def test_a_key_with_a_rate_of_its_own(gateway: Gateway) -> None:
    running = gateway()
    slow = running.ledger.create_key(Role.CLIENT, rate=1.0).secret
    assert [running.ask(key=slow).status_code for _ in range(2)] == [200, 429]
    assert running.ask().status_code == 200


def test_one_key_may_not_take_all_places(gateway: Gateway) -> None:
    running = gateway(max_concurrency_of_key=1)
    running.policy.answer = slowly(1.0, texts)
    other = running.ledger.create_key(Role.CLIENT).secret
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(running.ask)
        time.sleep(0.4)
        second, its = threads.submit(running.ask), threads.submit(running.ask, key=other)
        assert error_of(second.result(), 429)["code"] == "rate_limit_exceeded"
        assert (first.result().status_code, its.result().status_code) == (200, 200)
    assert running.queries == (2, 0)


CAUSES = [
    (UpstreamFailed("secret-host away", cause="ConnectError"), None, "policy fake-policy", "UpstreamFailed", 503),
    (UpstreamFailed("secret-host refused: hello", 400, words="hello"), None, "policy fake-policy", "UpstreamFailed", 400),
    (RuntimeError("secret"), None, "gateway", "RuntimeError", 500),
    (None, ScorerUntouched("secret-host", 429), "reward model fake-reward", "ScorerUntouched", 429),
    (None, RuntimeError("0.7390851332151607"), "reward model fake-reward", "ScoringFailed", 500),
]


def logged(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(JsonLines().format(record)) for record in caplog.records if record.name == "privalign.gateway"]


@pytest.mark.parametrize("stream", [False, True])
def test_every_failure_leaves_one_line_with_its_cause(gateway: Gateway, caplog: pytest.LogCaptureFixture, stream: bool) -> None:
    caplog.set_level(logging.INFO, "privalign.gateway")
    running = gateway(ping_every=0.01)
    policy, reward = running.policy.answer, running.reward.answer
    for drawing, scoring, backend, kind, status in CAUSES:
        running.policy.answer = policy if drawing is None else slowly(0.03, raising(drawing)) if stream else raising(drawing)
        running.reward.answer = reward if scoring is None else raising(scoring)
        response = running.ask(stream=stream, messages=[{"role": "user", "content": "hello there"}])
        assert stream or response.status_code == status
        identity = response.headers["x-request-id"]
        running.wait_until(
            lambda identity=identity: any(line.get("request") == identity and line["event"] == "request" for line in logged(caplog))
        )
        (line,) = [line for line in logged(caplog) if line.get("request") == identity and line["event"] == "failure"]
        assert (line["backend"], line["exception"], line["status"], line["model"]) == (backend, kind, status, "aligned")
        assert line["remedy"]
    text = json.dumps(logged(caplog))
    assert not any(piece in text for piece in ("secret", "hello", "0.739", running.key))


def test_a_ledger_that_is_away_leaves_its_own_words_once(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "privalign.gateway")
    running = gateway()
    assert running.get("/readyz").json() == {"status": "ready", "models": {"aligned": {"status": "ready"}}}
    full = raising(LedgerFailed("ledger sqlite:///l.db: the disk is full; free some space"))
    for name in ("authenticate", "check_writable"):
        monkeypatch.setattr(running.ledger, name, full)
    for response in (running.ask(), running.get("/v1/models"), running.get("/metrics", running.officer)):
        assert error_of(response, 503)["code"] == "ledger_unavailable"
        lines = [line for line in logged(caplog) if line.get("request") == response.headers["x-request-id"] and line["event"] == "failure"]
        assert [(line["backend"], line["exception"]) for line in lines] == [("ledger", "LedgerFailed")]
        assert "free some space" in lines[0]["remedy"]
    assert b"disk" not in running.ask().content


def test_start_and_stop_are_logged(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "privalign.gateway")
    running = gateway()
    running.stop()
    start, stopping, stop = logged(caplog)
    assert (start["event"], start["url"], start["models"]) == ("start", running.url, ["aligned"])
    assert (stopping["event"], stopping["under_way"]) == ("stopping", 0)
    assert (stop["event"], stop["url"]) == ("stop", running.url)


def test_a_dead_policy_takes_away_its_own_model(gateway: Gateway) -> None:
    running = gateway(beside=CallablePolicy(raising(UpstreamFailed("secret-host cannot be reached")), "dead"))
    ready = httpx.get(f"{running.url}/readyz")
    models = {"aligned": {"status": "ready"}, "beside": {"status": "not ready", "away": ["policy"]}}
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "away": ["policy"], "models": models})
    refused = running.ask(model="beside")
    assert error_of(refused, 503)["code"] == "backend_unavailable"
    assert refused.headers["retry-after"] == "1"
    assert running.ask().status_code == 200
    assert running.queries == (1, 0)


def test_health(gateway: Gateway) -> None:
    running = gateway()
    assert httpx.get(f"{running.url}/healthz").json() == {"status": "ok"}
    running.policy.answer = raising(BackendFailed("secret-host away"))
    response = httpx.get(f"{running.url}/readyz")
    assert (response.status_code, response.json()) == (
        503,
        {"status": "not ready", "away": ["policy"], "models": {"aligned": {"status": "not ready", "away": ["policy"]}}},
    )
    assert running.ledger.account("prefs").length == 1
