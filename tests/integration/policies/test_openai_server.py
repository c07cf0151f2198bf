"""OpenAI-compatible servers over real sockets: what `n` they honour, what they are sent, and every way in which they fail."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest

from privalign.errors import BackendFailed, InvalidInput
from privalign.policies.completions import UpstreamFailed
from privalign.policies.openai import OpenAIPolicy
from privalign.types import Candidate, Message, Request, total_usage

Serve = Callable[..., Any]
REQUEST = Request.of_prompt("Name a colour.")
SEEDED = Request(REQUEST.messages, {"seed": 100})
KEY = "sk-proj-0123456789abcdef"


def policy(server: Any, **settings: Any) -> OpenAIPolicy:
    return OpenAIPolicy(server.url, "strict-1", **{"timeout": 5.0, **settings})


def draw(drawn_from: OpenAIPolicy, request: Request = REQUEST, count: int = 4) -> list[Candidate]:
    return asyncio.run(drawn_from.draw(request, count))


def texts(candidates: list[Candidate]) -> list[str]:
    return [candidate.text for candidate in candidates]


@pytest.fixture
def expected(serve: Serve) -> list[str]:
    """The texts of seeds 100 … 115."""
    return texts(draw(policy(serve()), SEEDED, 16))


# ---- n


def test_n_is_batched_where_it_is_honoured(serve: Serve) -> None:
    server = serve()
    drawn = policy(server)
    assert len(set(texts(draw(drawn, count=16)))) == 16
    draw(drawn, count=3)
    assert server.sizes == [16, 3]


def test_n_ignored_is_found_out_once_and_fanned_out(serve: Serve, expected: list[str]) -> None:
    server = serve(n_rule="ignored")
    drawn = policy(server)
    assert texts(draw(drawn, SEEDED, 16)) == expected
    assert server.sizes == [16] + [1] * 15  # the first answer is kept
    assert sorted(body["seed"] for body in server.bodies) == [*range(100, 116)]
    draw(drawn, count=5)
    assert server.sizes[16:] == [1] * 5


@pytest.mark.parametrize(("rule", "sizes", "later"), [("refused", [8, 4, 2], 1), ("at most 4", [8], 4)])
def test_n_refused_is_found_out_once(serve: Serve, expected: list[str], rule: str, sizes: list[int], later: int) -> None:
    server = serve(n_rule=rule)
    drawn = policy(server)
    assert texts(draw(drawn, SEEDED, 8)) == expected[:8]
    assert server.sizes == [*sizes, *[later] * (8 // later)]
    draw(drawn, count=8)
    assert server.sizes[-8 // later :] == [later] * (8 // later)


def test_a_refused_request_does_not_pass_for_a_refused_n(serve: Serve) -> None:
    server = serve()
    drawn = policy(server)
    bad = Request(REQUEST.messages, {"temperature": 9})
    with pytest.raises(UpstreamFailed, match=r"refused the request \(400\): temperature: 9 is not from 0 to 2") as refusal:
        draw(drawn, bad, 8)
    assert refusal.value.status == 400
    draw(drawn, count=8)
    assert server.sizes[-1] == 8
    with pytest.raises(UpstreamFailed, match="temperature"):
        draw(drawn, bad, 8)
    assert server.sizes[-2:] == [8, 8]  # 8 is known to be honoured: not tried below


def test_half_a_batch_is_completed(serve: Serve, expected: list[str]) -> None:
    server = serve()
    server.replies.append(("some", 4))
    assert texts(draw(policy(server), SEEDED, 8)) == expected[:8]
    assert server.sizes == [8, 4]
    assert server.bodies[1]["seed"] == 104


def test_one_failed_choice_is_asked_for_again_alone(serve: Serve, expected: list[str]) -> None:
    server = serve()
    server.replies.append(("holes", 2, 5))
    assert texts(draw(policy(server), SEEDED, 8)) == expected[:8]
    assert server.sizes == [8, 1, 1]
    assert sorted(body["seed"] for body in server.bodies[1:]) == [102, 105]


def test_one_failed_candidate_is_retried_and_not_the_request(serve: Serve) -> None:
    server = serve(n_rule="ignored")
    drawn = policy(server)
    draw(drawn, count=2)
    server.bodies.clear()
    server.replies.extend([("proper",), ("status", 500, {}), ("proper",)])
    assert len(draw(drawn, count=6)) == 6
    assert len(server.bodies) == 7


def test_more_choices_than_asked_for_are_dropped(serve: Serve) -> None:
    server = serve()
    server.replies.append(("some", 9))
    assert len(draw(policy(server), count=4)) == 4


def test_fan_out_is_bounded_and_concurrent(serve: Serve) -> None:
    server = serve(n_rule="refused", delay=0.1)
    drawn = policy(server, concurrency=5)
    draw(drawn, count=2)
    started = time.monotonic()
    draw(drawn, count=15)
    assert server.most_at_once == 5
    assert time.monotonic() - started < 15 * 0.1


# ---- what is sent, what is kept


def test_parameters_and_messages_reach_the_server_unchanged(serve: Serve) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    parameters = {
        **{"temperature": 0.5, "top_p": 0.9, "stop": ["a", "b"], "max_completion_tokens": 7, "presence_penalty": 0.1, "user": "u"},
        **{"frequency_penalty": -0.1, "logit_bias": {"5": 1}, "response_format": {"type": "json_object"}, "tools": tools},
        **{"tool_choice": "auto", "logprobs": True, "top_logprobs": 2},
    }
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {"url": "data:,"}}], "name": "ann"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "c", "content": "12 °C \ud800"},
    ]
    server = serve()
    own = {"n": 3, "stream": True, "stream_options": {"include_usage": True}, "model": "theirs"}
    request = Request(tuple(map(Message.from_openai, messages)), {**parameters, **own})
    drawn = draw(policy(server, parameters={"max_tokens": 99, "top_p": 0.1, "seed": 4}), request, 2)
    assert server.bodies == [{**parameters, "seed": 4, "messages": messages, "model": "strict-1", "n": 2}]
    assert all(candidate.logprobs is not None for candidate in drawn)


def test_no_seed_is_sent_where_none_was_given(serve: Serve) -> None:
    server = serve(n_rule="ignored")
    draw(policy(server))
    assert not any("seed" in body for body in server.bodies)


def test_later_draws_of_a_seeded_request_go_on_where_the_first_ended(serve: Serve, expected: list[str]) -> None:
    drawn = policy(serve())
    assert texts(draw(drawn, SEEDED, 6)) + texts(draw(drawn, SEEDED.after(6), 10)) == expected


def test_finish_reason_and_tool_calls_are_kept(serve: Serve) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    called = draw(policy(serve()), Request(REQUEST.messages, {"tools": tools, "tool_choice": "required", "seed": 1}), 2)
    assert [candidate.finish_reason for candidate in called] == ["tool_calls"] * 2
    assert called[0].text == ""
    assert called[0].tool_calls[0]["id"] == "call_1"
    assert called[0].scored_text.startswith('[{"arguments":{"a":1,"z":"')
    cut = draw(policy(serve()), Request(REQUEST.messages, {"max_tokens": 1}), 2)
    assert [candidate.finish_reason for candidate in cut] == ["length"] * 2
    assert all(candidate.logprobs is None for candidate in cut)


@pytest.mark.parametrize("rule", ["honoured", "ignored"])
@pytest.mark.parametrize("logprobs", [{}, {"logprobs": True}])
def test_usage_adds_up(serve: Serve, rule: str, logprobs: dict[str, Any]) -> None:
    candidates = draw(policy(serve(n_rule=rule)), Request(REQUEST.messages, {"seed": 0, **logprobs}), 10)
    usage = total_usage(candidates)
    assert usage is not None
    assert usage.completion_tokens == sum(len(candidate.text.split()) for candidate in candidates)
    assert usage.prompt_tokens == (10 if rule == "honoured" else 100)
    if logprobs:
        assert all(c.usage is not None and c.usage.completion_tokens == len(c.text.split()) for c in candidates)


def test_usage_of_a_server_that_counts_its_first_choice_only(serve: Serve) -> None:
    server = serve(llama=True)
    drawn = policy(server)
    draw(drawn, count=2)  # here it shows itself
    candidates = draw(drawn, SEEDED, 8)
    assert [c.usage.completion_tokens for c in candidates if c.usage] == [len(c.text.split()) + 1 for c in candidates]
    assert server.bodies[-1]["logprobs"] is True
    assert all(candidate.logprobs is None for candidate in candidates)  # nobody asked


# ---- faults

PASSING = {
    "reset": ("reset",),
    "cut": ("cut",),
    "truncated JSON": ("truncated",),
    "no JSON": ("status", 200, b"<html>gateway</html>"),
    "500": ("status", 500, {"error": {"message": "boom"}}),
    "503": ("status", 503, b""),
    "408": ("status", 408, {}),
    "429": ("status", 429, {}, {"Retry-After": "0"}),
    "no choices": ("status", 200, {"choices": []}),
    "null choices": ("status", 200, {"choices": None}),
    "null message": ("status", 200, {"choices": [{"index": 0, "message": None}]}),
    "content is a number": ("status", 200, {"choices": [{"index": 0, "message": {"content": 7}}]}),
    "error in a 200": ("status", 200, {"error": {"message": "overloaded", "code": 503}}),
    "deep JSON": ("status", 200, b"[" * 100_000),
    "drip": ("drip", 0.05),
    "hang": ("hang", 2.0),
}


@pytest.mark.parametrize("fault", PASSING, ids=PASSING.keys())
def test_a_passing_fault_is_retried(serve: Serve, expected: list[str], fault: str) -> None:
    server = serve()
    server.replies.append(PASSING[fault])
    assert texts(draw(policy(server, timeout=0.5), SEEDED, 4)) == expected[:4]
    assert len(server.bodies) == 2


@pytest.mark.parametrize("fault", PASSING, ids=PASSING.keys())
def test_a_lasting_fault_ends_in_one_line(serve: Serve, fault: str) -> None:
    server = serve()
    server.replies.extend([PASSING[fault]] * 9)
    with pytest.raises(BackendFailed) as failure:
        draw(policy(server, timeout=0.3, retries=1, api_key=KEY))
    assert len(server.bodies) == 2
    assert "\n" not in str(failure.value)
    assert KEY[3:9] not in str(failure.value)
    assert "127.0.0.1" in str(failure.value)


FINAL = {
    "401": (401, {"error": {"message": "Incorrect API key", "code": "invalid_api_key"}}, "refused the credentials"),
    "403": (403, {}, "refused the credentials"),
    "404 flat": (
        404,
        {"object": "error", "message": "The model `x` does not exist.", "code": 404},
        r"\(404\): The model `x` does not exist",
    ),
    "400 string": (400, {"error": "context too long"}, "context too long"),
    "422 detail": (422, {"detail": [{"loc": ["body"], "msg": "field required"}]}, "field required"),
    "400 no JSON": (400, b"nope", r"refused the request \(400\)$"),
    "413 lines": (413, {"error": {"message": "too\n\x1b[31mlong " + "x" * 999}}, "too \\[31mlong x+…$"),
    "302": (302, {}, "redirects"),
    "501": (501, {}, "501"),
}


@pytest.mark.parametrize("fault", FINAL, ids=FINAL.keys())
def test_a_final_fault_is_not_retried(serve: Serve, fault: str) -> None:
    status, document, words = FINAL[fault]
    server = serve()
    server.replies.append(("status", status, document))
    with pytest.raises(UpstreamFailed, match=words) as failure:
        draw(policy(server), count=1)
    assert failure.value.status == status
    assert len(server.bodies) == 1
    assert str(failure.value).isprintable()
    assert len(str(failure.value)) < 300


@pytest.mark.parametrize("document", [{"error": {"message": "m", "code": 400}}, {"object": "error", "message": "m", "code": 400}])
def test_a_refusal_that_comes_as_a_200_is_a_refusal(serve: Serve, document: Any) -> None:
    server = serve()
    server.replies.append(("status", 200, document))
    with pytest.raises(UpstreamFailed, match=r"\(400\): m") as failure:
        draw(policy(server), count=1)
    assert failure.value.status == 400


def test_a_server_that_says_not_to_retry_is_believed(serve: Serve) -> None:
    server = serve()
    server.replies.append(("status", 429, {}, {"x-should-retry": "false", "Retry-After": "7"}))
    with pytest.raises(UpstreamFailed, match="quota") as failure:
        draw(policy(server))
    assert (failure.value.status, failure.value.retry_after, len(server.bodies)) == (429, 7.0, 1)


@pytest.mark.parametrize(
    ("headers", "least"),
    [
        ({"Retry-After": "0.4"}, 0.4),
        ({"retry-after-ms": "300", "Retry-After": "60"}, 0.3),
        ({"Retry-After": "soon"}, 0.0),
        ({"Retry-After": "nan"}, 0.0),
        ({"Retry-After": formatdate(0, usegmt=True)}, 0.0),
    ],
)
def test_retry_after_is_kept(serve: Serve, headers: dict[str, str], least: float) -> None:
    server = serve()
    server.replies.append(("status", 429, {}, headers))
    assert len(draw(policy(server))) == 4
    assert least <= server.times[1] - server.times[0] < least + 1.0


@pytest.mark.parametrize("asked", ["121", formatdate(time.time() + 9999, usegmt=True)], ids=["seconds", "date"])
def test_a_server_that_asks_for_too_much_patience_is_given_up(serve: Serve, asked: str) -> None:
    server = serve()
    server.replies.append(("status", 503, {}, {"Retry-After": asked}))
    with pytest.raises(UpstreamFailed) as failure:
        draw(policy(server))
    assert (failure.value.retry_after or 0) > 120
    assert len(server.bodies) == 1


def test_a_refused_connection(serve: Serve) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(UpstreamFailed, match="cannot be reached") as failure:
        draw(OpenAIPolicy(f"http://127.0.0.1:{port}/v1", "m", retries=1))
    assert failure.value.status is None


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
def test_no_error_repeats_the_key(serve: Serve, status: int) -> None:
    server = serve(api_key=KEY)
    drawn = policy(server, api_key=KEY, retries=0)
    server.replies.append(("echo_key", status))
    with pytest.raises(UpstreamFailed) as failure:
        draw(drawn, count=1)
    shown = f"{failure.value!s} {failure.value!r} {drawn!r} {drawn.name} {failure.value.__cause__}"
    assert not any(KEY[start : start + 6] in shown for start in range(len(KEY) - 5))
    assert len(draw(drawn)) == 4
    with pytest.raises(UpstreamFailed, match="refused the credentials"):
        draw(policy(server, api_key="wrong-key"))


def test_cancellation_ends_the_requests_and_leaves_the_policy_usable(serve: Serve) -> None:
    server = serve()
    server.replies.append(("hang", 1.0))

    async def cancelled() -> float:
        async with policy(server) as drawn:
            task = asyncio.create_task(drawn.draw(REQUEST, 4))
            await asyncio.sleep(0.2)
            task.cancel()
            started = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await task
            took = time.monotonic() - started
            assert len(await drawn.draw(REQUEST, 4)) == 4
            return took

    assert asyncio.run(cancelled()) < 0.5


def test_connections_are_kept_in_a_context_and_every_loop_may_draw(serve: Serve) -> None:
    server = serve()
    drawn = policy(server)

    async def twice() -> None:
        async with drawn:
            await drawn.draw(REQUEST, 2)
            await asyncio.gather(*(drawn.draw(REQUEST, 2) for _ in range(8)))

    asyncio.run(twice())
    asyncio.run(twice())
    assert len(draw(drawn)) == 4


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("base_url", {"base_url": "ftp://host/v1"}),
        ("base_url", {"base_url": "127.0.0.1:8000"}),
        ("base_url", {"base_url": f"http://user:{KEY}@host/v1"}),
        ("base_url", {"base_url": f"http://host/v1?key={KEY}"}),
        ("model", {"model": ""}),
        ("api_key", {"api_key": f"{KEY}\n"}),
        ("api_key", {"api_key": ""}),
        ("timeout", {"timeout": 0.0}),
        ("timeout", {"timeout": float("nan")}),
        ("retries", {"retries": -1}),
        ("concurrency", {"concurrency": 0}),
    ],
)
def test_settings_out_of_range_are_refused(field: str, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refusal:
        OpenAIPolicy(**{"base_url": "http://host/v1", "model": "m", **change})
    assert refusal.value.field == field
    assert KEY not in str(refusal.value)


@pytest.mark.parametrize("parameters", [{"seed": "x"}, {"seed": True}, {"temperature": float("nan")}, {"user": object()}])
def test_parameters_that_no_server_could_read_are_refused(serve: Serve, parameters: dict[str, Any]) -> None:
    server = serve()
    with pytest.raises(InvalidInput):
        draw(policy(server), Request(REQUEST.messages, parameters), 1)
    assert server.bodies == []


def test_the_name_tells_model_host_and_parameters() -> None:
    named = OpenAIPolicy("https://Models.example:8443/v1/", "org/m", api_key=KEY, parameters={"top_p": 0.5, "max_tokens": 9})
    assert named.name == 'openai org/m at models.example:8443 {"max_tokens": 9, "top_p": 0.5}'
