"""Unmodified clients against `privalign serve`: openai, langchain-openai and curl. Behind it are a real llama.cpp server with
the small model and a certified head. The OpenAPI document is held against what is served by schemathesis."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import pytest

from privalign.ledger import Ledger, Role
from privalign.preferences.bradley_terry import fit_head
from privalign.preferences.features import CharacterCrosses, Cross, Pick
from privalign.preferences.pairs import PreferencePair
from privalign.secret import make_installation_key
from privalign.sensitivity import Relation, RewardRange

pytestmark = pytest.mark.model
pytest.importorskip("xllamacpp", reason="needs xllamacpp; get it with: pip install 'privalign[llamacpp]'")
SLOTS = 4
SERVE = [sys.executable, "-c", "from privalign.cli import main; main()", "serve"]
DEPLOYMENT = """
[ledger]
url = "sqlite:///ledger.db"

[gateway]
ping_every = 0.2
requests_per_minute = 60000.0

[accounts.prefs]
epsilon = 1000.0
delta = 1e-6

[accounts.tiny]
epsilon = 0.02
delta = 1e-6
rule = "basic"

[accounts.few]
epsilon = 0.02
delta = 1e-6
rule = "basic"

[policies.local]
independent_of_accounts = true
kind = "openai"
base_url = "URL"
model = "any"
parameters = { max_tokens = 8, temperature = 1.0 }
retries = 1

[policies.away]
independent_of_accounts = true
kind = "openai"
base_url = "http://127.0.0.1:9/v1"
model = "any"
retries = 1

[rewards.learned]
kind = "head"
certificate = "head.json"

[models.aligned]
policy = "local"
reward = "learned"
account = "prefs"
mechanism = { kind = "privbon", n = 4, scale = 1.0 }

[models.aligned-itp]
policy = "local"
reward = "learned"
account = "prefs"
mechanism = { kind = "privitp", n = 4, n2 = 4, beta = 0.05, sigma_x = 0.5, sigma_z = 0.5 }

[models.exhausted]
policy = "local"
reward = "learned"
account = "tiny"
mechanism = { kind = "privbon", n = 4, scale = 1.0 }

[models.fallback]
policy = "local"
reward = "learned"
account = "few"
mechanism = { kind = "privbon", n = 4, scale = 1.0 }
on_exhausted = "base"

[models.broken]
policy = "away"
reward = "learned"
account = "prefs"
mechanism = { kind = "privbon", n = 4, scale = 1.0 }
"""
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@dataclass
class Served:
    """The gateway under test."""

    url: str
    ledger: Ledger
    key: str
    officer: str
    upstream: str
    clients: list[openai.OpenAI] = field(default_factory=list)

    def client(self, key: str | None = None, **options: Any) -> openai.OpenAI:
        made = openai.OpenAI(base_url=f"{self.url}/v1", api_key=key or self.key, **{"max_retries": 0, "timeout": 60.0, **options})
        self.clients.append(made)
        return made

    def journal(self, since: int = 0, account: str = "prefs") -> list[str]:
        return [entry.kind for entry in self.ledger.journal(account, after=since)]

    @property
    def length(self) -> int:
        return self.ledger.account("prefs").length


@pytest.fixture(scope="module")
def upstream(llamacpp_server: Callable[[int, int], AbstractContextManager[str]]) -> Iterator[str]:
    with llamacpp_server(SLOTS, 512) as url:
        yield url


@pytest.fixture(scope="module")
def served(upstream: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("gateway")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVALIGN_SECRET_FILE", str(folder / "secret"))
        make_installation_key()
        features = CharacterCrosses((Cross(1.0, (Pick("answer", 0, 0),)),), cells=31)
        pairs = [PreferencePair("hello", "a", "b")] * 20
        head = fit_head(pairs, features, regularisation=40.0, relation=Relation.REPLACE, range=RewardRange(0.0, 1.0), records_per_person=1)
        head.save(folder / "head.json")
        (folder / "privalign.toml").write_text(DEPLOYMENT.replace("URL", upstream))
        ledger = Ledger(f"sqlite:///{folder / 'ledger.db'}")
        key, officer = ledger.create_key(Role.CLIENT).secret, ledger.create_key(Role.OFFICER).secret
        log = (folder / "log").open("w")
        command = [*SERVE, "--config", str(folder / "privalign.toml"), "--port", "0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("listening on ").strip()
        assert url, (folder / "log").read_text()
        yield Served(url, ledger, key, officer, upstream)
        process.terminate()
        assert process.wait(30) == 0
        process.stdout.close()
        log.close()
        ledger.verify("prefs")
        ledger.close()
        assert "Traceback" not in (folder / "log").read_text()
        for line in (folder / "log").read_text().splitlines():
            assert json.loads(line)["event"] in ("request", "library", "failure", "not ready", "ready", "start", "stopping", "stop")


@pytest.fixture(autouse=True)
def _close_clients(served: Served) -> Iterator[None]:
    yield
    while served.clients:
        served.clients.pop().close()


def hello(text: str = "Say hello.") -> list[Any]:
    return [{"role": "user", "content": text}]


# openai


@pytest.mark.parametrize("model", ["aligned", "aligned-itp"])
def test_plain(served: Served, model: str) -> None:
    before = served.length
    answer = served.client().chat.completions.create(model=model, messages=hello(), max_tokens=6, seed=3)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.completion_tokens >= 4  # of all candidates
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens is not None
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens <= 7
    assert answer.privalign["mechanism"] == model.replace("aligned-itp", "privitp").replace("aligned", "privbon")  # type: ignore[attr-defined]
    assert served.journal(before) == ["reserve", "settle"]


@pytest.mark.parametrize("model", ["aligned", "aligned-itp"])
def test_streaming(served: Served, model: str) -> None:
    with served.client().chat.completions.create(
        model=model, messages=hello(), max_tokens=16, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1] if chunk.choices[0].finish_reason] in (["stop"], ["length"])
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0


def test_three_answers_stop_and_logprobs(served: Served) -> None:
    before = served.ledger.account("prefs").settled_queries
    answer = served.client().chat.completions.create(
        model="aligned", messages=hello("Count: one two three."), n=3, max_tokens=12, stop=[" ", "\n"], logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        assert " " not in (choice.message.content or "")
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
    assert served.ledger.account("prefs").settled_queries == before + 3


def test_tools_and_response_format(served: Served) -> None:
    client = served.client()
    before = served.ledger.account("prefs").settled_queries
    with pytest.raises(openai.BadRequestError, match=r"does not keep it.*nothing was charged") as refusal:  # nor does the server say so
        client.chat.completions.create(
            model="aligned", messages=hello("Weather in Paris?"), tools=[TOOL], tool_choice="required", max_tokens=30
        )  # type: ignore[list-item]
    assert (refusal.value.param, served.ledger.account("prefs").settled_queries) == ("tool_choice", before)
    assert client.chat.completions.create(model="aligned", messages=hello("Weather?"), tools=[TOOL], max_tokens=6).choices  # type: ignore[list-item]
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"], "additionalProperties": False}
    bound = client.chat.completions.create(
        model="aligned",
        messages=hello("Where?"),
        max_tokens=40,
        response_format={"type": "json_schema", "json_schema": {"name": "place", "schema": schema}},
    ).choices[0]
    if bound.finish_reason == "stop":
        assert json.loads(bound.message.content or "")["city"] in ("Paris", "Rome")


def test_models(served: Served) -> None:
    names = [model.id for model in served.client().models.list()]
    assert names == ["aligned", "aligned-itp", "broken", "exhausted", "fallback"]
    assert served.client().models.retrieve("aligned").owned_by == "privalign"


def test_error_classes(served: Served) -> None:
    def ask(client: openai.OpenAI | None = None, **options: Any) -> Any:
        return (client or served.client()).chat.completions.create(**{"model": "aligned", "messages": hello(), **options})

    before = served.length
    with pytest.raises(openai.BadRequestError) as bad:
        ask(n=100)
    assert bad.value.param == "n"
    with pytest.raises(openai.BadRequestError, match="nothing was charged"):  # llama.cpp's own refusal
        ask(messages=hello("word " * 3000))
    with pytest.raises(openai.AuthenticationError) as unknown:
        ask(served.client("sk-wrong"))
    assert unknown.value.code == "invalid_api_key"
    with pytest.raises(openai.PermissionDeniedError):
        ask(served.client(served.officer))
    with pytest.raises(openai.NotFoundError) as missing:
        ask(model="gpt-4")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.RateLimitError) as exhausted:
        ask(model="exhausted")
    assert (exhausted.value.code, exhausted.value.response.headers["x-should-retry"]) == ("insufficient_quota", "false")
    with pytest.raises(openai.InternalServerError):
        ask(model="broken")
    ask(temperature=0.5, extra_headers={"Idempotency-Key": "conflict"})
    with pytest.raises(openai.UnprocessableEntityError):
        ask(temperature=0.6, extra_headers={"Idempotency-Key": "conflict"})
    kinds = served.journal(before)
    assert kinds.count("settle") == 1  # the first of the conflict
    assert kinds.count("reserve") == 1 + kinds.count("void")


def test_an_exhausted_budget_is_not_retried(served: Served) -> None:
    refused = served.ledger.account("tiny").refused_queries
    with pytest.raises(openai.RateLimitError):
        served.client(max_retries=5).chat.completions.create(model="exhausted", messages=hello())
    assert served.ledger.account("tiny").refused_queries == refused + 1


def test_the_base_policy_where_configured(served: Served) -> None:
    answer = served.client().chat.completions.create(model="fallback", messages=hello())
    assert answer.privalign["mechanism"] == "base"  # type: ignore[attr-defined]
    assert served.ledger.account("few").settled_queries == 0


def test_a_replay_costs_nothing(served: Served) -> None:
    client, headers = served.client(), {"Idempotency-Key": "contract"}
    first = client.chat.completions.create(model="aligned", messages=hello(), extra_headers=headers)
    before = served.length
    again = client.chat.completions.create(model="aligned", messages=hello(), extra_headers=headers)
    assert again.choices == first.choices
    assert again.privalign["replayed"] is True  # type: ignore[attr-defined]
    assert served.length == before


def test_a_timed_out_client_that_retries_with_its_key_is_charged_once(served: Served) -> None:
    before = served.ledger.account("prefs").settled_queries
    impatient = served.client(timeout=0.3, max_retries=8)
    answer = impatient.chat.completions.create(
        model="aligned", messages=hello("Tell a story."), max_tokens=40, extra_headers={"Idempotency-Key": "retried"}
    )
    assert answer.choices[0].message.content
    assert served.ledger.account("prefs").settled_queries == before + 1


def test_a_cancelled_request_stops_its_generation(served: Served) -> None:
    before = served.length
    with pytest.raises(openai.APITimeoutError):
        served.client(timeout=0.5).chat.completions.create(model="aligned", messages=hello("Tell a long story."), max_tokens=400)
    end = time.monotonic() + 5
    while served.journal(before) != ["reserve", "void"] and time.monotonic() < end:
        time.sleep(0.05)
    assert served.journal(before) == ["reserve", "void"]
    began = time.monotonic()
    httpx.post(f"{served.upstream}/completions", json={"prompt": "a", "max_tokens": 1}, timeout=30.0).raise_for_status()
    assert time.monotonic() - began < 3  # its slots are free again


# langchain


@pytest.fixture
def chat(served: Served) -> Iterator[Any]:
    from langchain_openai import ChatOpenAI

    with httpx.Client(timeout=60.0) as client:
        yield ChatOpenAI(base_url=f"{served.url}/v1", api_key=served.key, model="aligned", max_retries=0, http_client=client)  # type: ignore[arg-type]


def test_langchain(served: Served, chat: Any) -> None:
    answer = chat.invoke([("system", "be brief"), ("human", "Say hello.")], max_tokens=8)
    assert answer.content
    assert answer.usage_metadata["output_tokens"] >= 4
    streamed = list(chat.stream("Say hello.", stream_usage=True))
    assert "".join(chunk.content for chunk in streamed)
    assert any(chunk.usage_metadata for chunk in streamed)
    assert sum(chunk.response_metadata.get("finish_reason") is not None for chunk in streamed) == 1
    assert chat.bind_tools([TOOL]).invoke("Weather in Paris?") is not None
    with pytest.raises(openai.RateLimitError):
        chat.bind(model="exhausted").invoke("hello")
    with pytest.raises(openai.RateLimitError):
        list(chat.bind(model="exhausted").stream("hello"))


# curl


def test_curl(served: Served) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("needs curl; get it with: apt-get install curl")
    body = json.dumps({"model": "aligned", "messages": hello(), "stream": True, "max_tokens": 6})
    common = [curl, "-sS", "-i", f"{served.url}/v1/chat/completions", "-H", f"Authorization: Bearer {served.key}"]
    out = subprocess.run([*common, "-H", "Content-Type: application/json", "-d", body], capture_output=True, text=True, check=True).stdout
    assert "text/event-stream" in out
    assert out.rstrip().endswith("data: [DONE]")
    out = subprocess.run([*common, "-d", body], capture_output=True, text=True, check=True).stdout  # as a form, its default
    assert out.startswith("HTTP/1.1 415")


def test_ready(served: Served) -> None:
    response = httpx.get(f"{served.url}/readyz", timeout=60.0)
    document = response.json()
    assert (response.status_code, document["status"], document["away"]) == (200, "ready", ["policy"])
    states = {name: model["status"] for name, model in document["models"].items()}
    assert {name for name, state in states.items() if state != "ready"} == {"broken"}


def test_many_at_once(served: Served) -> None:
    before = served.ledger.account("prefs").settled_queries
    failures: list[BaseException] = []

    def ask(number: int) -> None:
        try:
            served.client().chat.completions.create(model="aligned", messages=hello(), n=1 + number % 2, max_tokens=3)
        except openai.OpenAIError as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert served.ledger.account("prefs").settled_queries == before + 12
