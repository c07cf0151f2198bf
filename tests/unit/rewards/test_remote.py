"""Settings of remote rewards, and what their names give away."""

from __future__ import annotations

import email.utils
import time
from typing import Any

import httpx
import pytest

from privalign.errors import InvalidInput
from privalign.rewards import remote
from privalign.rewards.conversation import ChatTemplate
from privalign.rewards.remote import Server
from privalign.rewards.sglang import SglangClassify, SglangV1Classify
from privalign.rewards.tei import TeiPredict, TeiRerank
from privalign.rewards.vllm import VllmClassify, VllmPooling, VllmScore
from privalign.types import Request

TEMPLATE = ChatTemplate("x")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"base_url": "http://user:secret@host"}, "base_url"), ({"base_url": "ftp://host"}, "base_url"),
        ({"base_url": "host:80"}, "base_url"), ({"base_url": "http://"}, "base_url"), ({"base_url": "http://host/?key=secret"}, "base_url"),
        ({"batch_size": 0}, "batch_size"),
        ({"concurrency": 0}, "concurrency"), ({"timeout": 0.0}, "timeout"), ({"timeout": float("inf")}, "timeout"),
        ({"max_characters": 0}, "max_characters"),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_named(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput, match=field) as caught:
        Server(**{"base_url": "http://host", **settings})
    assert "secret" not in str(caught.value)


def test_a_server_does_not_show_its_key() -> None:
    assert "secret" not in repr(Server("http://host", api_key="secret"))


def test_names_tell_models_and_settings_apart() -> None:
    dialects = [
        VllmClassify("m"), VllmClassify("m", activation=True), VllmClassify("m", label=1), VllmPooling("m"), VllmScore("m"),
        SglangClassify("m", TEMPLATE), SglangV1Classify("m", TEMPLATE, 1), TeiPredict("m"), TeiPredict("m", label="good"), TeiRerank("m"),
    ]  # fmt: skip
    assert len({dialect.name for dialect in dialects}) == len(dialects)
    with pytest.raises(InvalidInput, match="label"):
        SglangV1Classify("m", TEMPLATE, -1)


def test_only_an_overloaded_server_is_worth_another_attempt() -> None:
    def wait(status: int, **headers: str) -> float | None:
        return remote._wait(httpx.Response(status, headers={name.replace("_", "-"): value for name, value in headers.items()}))

    assert wait(401, retry_after="1") is None
    assert wait(429) == 0.0
    assert wait(429, retry_after="2.5") == 2.5
    assert wait(429, retry_after="11") is None
    assert wait(429, retry_after="nan") is None
    assert wait(429, retry_after="soon") == 0.0
    soon = wait(429, retry_after=email.utils.formatdate(time.time() + 5, usegmt=True))
    assert soon is not None
    assert 3 < soon <= 5
    assert wait(429, retry_after=email.utils.formatdate(time.time() + 3600, usegmt=True)) is None


@pytest.mark.parametrize("dialect", [VllmClassify(None), VllmPooling(None), VllmScore(None)], ids=lambda dialect: dialect.name)
def test_a_vllm_server_of_one_model_needs_no_name(dialect: VllmClassify | VllmPooling | VllmScore) -> None:
    for call in dialect.calls(Request.of_prompt("hello"), ["a", "b"], 8):
        assert "model" not in call.body
        assert call.body["use_activation"] is False
    assert "its only model" in dialect.name
