"""One contract for every reward back-end, and strict fakes of the servers that the remote ones talk to.

The fakes are real HTTP servers on loopback that refuse what vLLM, SGLang and TEI refuse. Where `PRIVALIGN_VLLM_REWARD_URL`
or `PRIVALIGN_TEI_URL` is set, the part of the suite that needs no fault runs against that server too.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import logging
import math
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import pytest

from privalign.errors import BackendFailed
from privalign.preferences.bradley_terry import fit_head
from privalign.preferences.features import CharacterCrosses, Cross, Pick
from privalign.preferences.pairs import PreferencePair
from privalign.preferences.persons import ShardBy
from privalign.rewards import remote
from privalign.rewards.certified_head import CertifiedHeadReward
from privalign.rewards.conversation import ChatTemplate
from privalign.rewards.ensemble import EnsembleReward, disjoint_shards
from privalign.rewards.function import FunctionReward
from privalign.rewards.head import HeadReward
from privalign.rewards.protocol import Reward, ScorerUntouched
from privalign.rewards.remote import Dialect, RemoteReward, Server
from privalign.rewards.scores import SCORER_FAILED, AffineMap
from privalign.rewards.sequence_classification import TransformersReward
from privalign.rewards.sglang import SglangClassify, SglangV1Classify
from privalign.rewards.tei import TeiPredict, TeiRerank
from privalign.rewards.vllm import VllmClassify, VllmPooling, VllmScore
from privalign.sensitivity import Relation, RewardRange, Sensitivity
from privalign.testing.rewards import RewardContract
from privalign.types import Candidate, Message, Request

RANGE = RewardRange(-1.0, 1.0)
WHOLE = Sensitivity.of_range(RANGE)
REQUEST = Request((Message("system", "Be brief."), Message("user", "Name a {city}.")))
TEMPLATE = ChatTemplate("{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}", {"bos_token": "<s>"})
BARE_TEMPLATE = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}")
KEY = "key-of-the-scorer"
SECRET = "0.31415926"  # in every error body: must appear nowhere
MAX_TOKENS = 64
TLS = httpx.create_ssl_context()
FAST = 0.4  # seconds that a call may take where a test waits for the time-out


def answers(count: int) -> list[Candidate]:
    return [Candidate(f"answer {'x' * (index % 7)} {index}") for index in range(count)]


def logit(text: str) -> float:
    """What the fakes' models compute: any fixed function of the whole text, in (−4, 4)."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) / 2**32 * 8 - 4


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def tokens(text: str) -> int:
    return len(text.split()) + 2


# ---------------------------------------------------------------- servers


@dataclass
class Reply:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, document: object, status: int = 200, **headers: str) -> Reply:
        return cls(status, json.dumps(document).encode(), headers)


Fault = Callable[["LoopbackServer", Reply, asyncio.StreamWriter], Any]


class Refused(Exception):
    def __init__(self, reply: Reply) -> None:
        self.reply = reply


class LoopbackServer:
    """HTTP/1.1 on loopback in a thread of its own. `faults[i]` spoils the i-th request; `fault` all of them."""

    def __init__(self, fake: Fake) -> None:
        self.fake = fake
        self.fault: Fault | None = None
        self.faults: dict[int, Fault] = {}
        self.requests = 0
        self.most_at_once = 0
        self.aborted = threading.Event()
        self._at_once = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._ready.wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/prefix"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first = await reader.readexactly(1)
            if first == b"\x16":  # a TLS handshake
                return
            head = (first + await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, path, _ = head[0].split()
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            number, self.requests = self.requests, self.requests + 1
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            await asyncio.sleep(0.002)
            self._at_once -= 1
            fault = self.faults.get(number, self.fault)
            reply = self.fake.reply(method, path, headers, body)
            if fault is None:
                await self.send(writer, reply)
            else:
                await fault(self, reply, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.aborted.set()
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()

    async def send(self, writer: asyncio.StreamWriter, reply: Reply, sent: int | None = None) -> None:
        """The reply, or its head and the first `sent` bytes of its body."""
        lines = [f"HTTP/1.1 {reply.status} X", f"content-length: {len(reply.body)}", "content-type: application/json"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in reply.headers.items()]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + reply.body[:sent])
        await writer.drain()


@dataclass
class Fake:
    """What the strict fakes share. `flat_errors`: the older of the two forms of error bodies."""

    flat_errors: bool = False
    longest_batch: int = 0

    def refuse(self, status: int, message: str) -> Refused:
        text = f"{message} {SECRET}"
        if self.flat_errors:
            return Refused(Reply.of({"object": "error", "message": text, "type": "BadRequestError", "code": status}, status))
        return Refused(Reply.of({"error": {"message": text, "type": "BadRequestError", "param": None, "code": status}}, status))

    def reply(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Reply:
        try:
            if headers.get("authorization") != f"Bearer {KEY}":
                raise self.refuse(401, "Unauthorized")
            if method != "POST" or not path.startswith("/prefix/"):
                raise self.refuse(404, "Not Found")
            return Reply.of(self.answer(path.removeprefix("/prefix"), json.loads(body)))
        except Refused as refused:
            return refused.reply

    def answer(self, path: str, body: Any) -> object:
        raise NotImplementedError

    def batch(self, texts: Sequence[object]) -> None:
        self.longest_batch = max(self.longest_batch, len(texts))


def texts_of(value: object) -> list[str] | None:
    """A text or a list of texts as vLLM takes them; None for anything else."""
    if isinstance(value, str):
        return [value]
    return value if isinstance(value, list) and value and all(isinstance(text, str) for text in value) else None


class FakeVllm(Fake):
    """`/classify`, `/pooling`, `/score` of one model with one label: sigmoid unless told otherwise, never cuts, 400 for all bad input."""

    model = "armo"

    def answer(self, path: str, body: Any) -> object:
        if body.get("model") not in (None, self.model):
            raise self.refuse(404, "The model does not exist")
        if path == "/score":
            return self._scored(body)
        if path not in ("/classify", "/pooling"):
            raise self.refuse(404, "Not Found")
        texts = self._texts(body)
        self.batch(texts)
        values = [self._value(text, body) for text in texts]
        if path == "/pooling":
            if body.get("task") != "classify" or body.get("encoding_format", "float") != "float":
                raise self.refuse(400, "Unsupported task")
            return self._listed([{"object": "pooling", "data": [value]} for value in values])
        return self._listed([{"label": "LABEL_0", "probs": [value], "num_classes": 1} for value in values])

    def _texts(self, body: Any) -> list[str]:
        if "messages" in body:
            messages = body["messages"]
            if "input" in body or not messages or not all(isinstance(turn, dict) and "role" in turn for turn in messages):
                raise self.refuse(400, "messages is one conversation")
            return [TEMPLATE.render(messages)]
        texts = texts_of(body.get("input"))
        if texts is None:
            raise self.refuse(400, "input is a string or a list of strings")
        return ["<s>" + text for text in texts] if body.get("add_special_tokens", True) else texts

    def _value(self, text: str, body: Any) -> float:
        if tokens(text) > MAX_TOKENS:
            raise self.refuse(400, f"This model's maximum context length is {MAX_TOKENS} tokens")
        return logit(text) if body.get("use_activation") is False else sigmoid(logit(text))

    def _scored(self, body: Any) -> object:
        first, second = (texts_of(body.get(new, body.get(old))) for new, old in (("queries", "text_1"), ("documents", "text_2")))
        if first is None or second is None or len(first) not in (1, len(second)):
            raise self.refuse(400, "1:1, 1:N and N:N pairs only")
        self.batch(second)
        pairs = zip(first * (len(second) // len(first)), second, strict=True)
        return self._listed([{"object": "score", "score": self._value("\0".join(pair), body)} for pair in pairs])

    def _listed(self, items: list[dict[str, Any]]) -> object:
        items = [{"index": index, **item} for index, item in enumerate(items)]
        random.Random(0).shuffle(items)  # only `index` tells which is which
        return {"id": "1", "object": "list", "created": 1, "model": self.model, "data": items, "usage": {"prompt_tokens": 1}}


class FakeSglang(Fake):
    """The native `/classify` (raw, named by `rid`) and `/v1/classify` (always softmax, of two classes)."""

    def answer(self, path: str, body: Any) -> object:
        if path == "/classify":
            return self._native(body)
        if path != "/v1/classify":
            raise self.refuse(404, "Not Found")
        texts = texts_of(body.get("input"))
        if texts is None or not all(text.strip() for text in texts):
            raise self.refuse(400, "Input cannot be empty or whitespace only")
        self.batch(texts)
        return {
            "object": "list",
            "data": [
                {"index": index, "label": "x", "probs": [sigmoid(-logit(text)), sigmoid(logit(text))], "num_classes": 2}
                for index, text in enumerate(map(self._fits, texts))
            ],
        }

    def _native(self, body: Any) -> object:
        text, names = body.get("text"), body.get("rid")
        texts = texts_of(text)
        if texts is None or "input" in body or "messages" in body:
            raise self.refuse(400, "Either text or input_ids should be provided.")
        if isinstance(text, list) and (not isinstance(names, list) or len(names) != len(texts) or len(set(names)) != len(names)):
            raise self.refuse(400, "rid must be a list of as many different ids as there are texts")
        self.batch(texts)
        items = [{"embedding": [logit(self._fits(one))], "meta_info": {"id": name}} for one, name in zip(texts, names, strict=True)]
        random.Random(1).shuffle(items)
        return items if isinstance(text, list) else items[0]

    def _fits(self, text: str) -> str:
        if tokens(text) > MAX_TOKENS:
            raise self.refuse(400, f"The input ({tokens(text)} tokens) is longer than the model's context length")
        return text


@dataclass
class FakeTei(Fake):
    """`/predict` and `/rerank`: at most 32 inputs, two strings are one pair, sorted results, cuts unless told not to."""

    labels: tuple[str, ...] = ("reward",)
    reranker: bool = False

    def refuse(self, status: int, message: str) -> Refused:
        kind = {413: "validation", 422: "tokenizer", 424: "backend"}.get(status, "unhealthy")
        return Refused(Reply(401, b"") if status == 401 else Reply.of({"error": f"{message} {SECRET}", "error_type": kind}, status))

    def answer(self, path: str, body: Any) -> object:
        if path == "/rerank":
            return self._ranked(body)
        if path != "/predict":
            raise self.refuse(404, "Not Found")
        inputs = body.get("inputs")
        if isinstance(inputs, str):
            return self._classes([inputs], body)
        if not isinstance(inputs, list) or not inputs:
            raise self.refuse(422, "data did not match any variant")
        if isinstance(inputs[0], str):  # one text, or one pair: never a batch of texts
            if len(inputs) > 2 or not all(isinstance(text, str) for text in inputs):
                raise self.refuse(422, "invalid length")
            return self._classes(inputs, body)
        if not all(isinstance(one, list) and len(one) in (1, 2) and all(isinstance(text, str) for text in one) for one in inputs):
            raise self.refuse(422, "invalid length")
        self._limit(inputs)
        return [self._classes(one, body) for one in inputs]

    def _limit(self, inputs: Sequence[object]) -> None:
        self.batch(inputs)
        if len(inputs) > 32:
            raise self.refuse(413, f"batch size {len(inputs)} > maximum allowed batch size 32")

    def _logit(self, parts: list[str], body: Any) -> float:
        text = "\0".join(parts)
        if tokens(text) > MAX_TOKENS:
            if body.get("truncate", True):
                text = text[:10]
            else:
                raise self.refuse(413, f"`inputs` must have less than {MAX_TOKENS} tokens")
        return logit(text)

    def _classes(self, parts: list[str], body: Any) -> list[dict[str, Any]]:
        raw = [self._logit(parts, body), *[0.5] * (len(self.labels) - 1)]
        scores = raw
        if not body.get("raw_scores", False):
            total = sum(map(math.exp, raw))
            scores = [sigmoid(raw[0])] if len(raw) == 1 else [math.exp(value) / total for value in raw]
        classes = [{"score": score, "label": label} for score, label in zip(scores, self.labels, strict=True)]
        return sorted(classes, key=lambda item: -item["score"])

    def _ranked(self, body: Any) -> object:
        if not self.reranker:
            raise self.refuse(424, "model is not a re-ranker model")
        texts = body.get("texts")
        if not isinstance(body.get("query"), str) or texts_of(texts) is None or isinstance(texts, str):
            raise self.refuse(422, "missing field")
        self._limit(texts)
        values = [self._logit([body["query"], text], body) for text in texts]
        values = values if body.get("raw_scores", False) else [sigmoid(value) for value in values]
        return sorted([{"index": index, "score": value} for index, value in enumerate(values)], key=lambda item: -item["score"])


# ---------------------------------------------------------------- the back-ends under test


def templated(template: ChatTemplate) -> Callable[[str], str]:
    return lambda answer: template.render(
        [*({"role": turn.role, "content": turn.content} for turn in REQUEST.messages), {"role": "assistant", "content": answer}]
    )


def paired(answer: str) -> str:
    return f"system: Be brief.\n\nuser: Name a {{city}}.\0{answer}"


@dataclass(frozen=True)
class Wire:
    """A remote back-end: its dialect, the fake of its server, and the text that its model must have seen."""

    name: str
    dialect: Dialect
    fake: Callable[[], Fake]
    shown: Callable[[str], str]
    activation: Callable[[float], float] = lambda value: value
    one_a_call: bool = False
    has_index: bool = True
    too_long: type[BackendFailed] = BackendFailed  # vLLM and SGLang answer 400


WIRES = [
    Wire("vllm-messages", VllmClassify("armo"), FakeVllm, templated(TEMPLATE), one_a_call=True),
    Wire("vllm-classify", VllmClassify("armo", template=TEMPLATE), FakeVllm, templated(TEMPLATE)),
    Wire("vllm-sigmoid", VllmClassify("armo", activation=True, template=TEMPLATE), FakeVllm, templated(TEMPLATE), sigmoid),
    Wire("vllm-pooling", VllmPooling("armo", template=TEMPLATE), lambda: FakeVllm(flat_errors=True), templated(TEMPLATE)),
    Wire("vllm-score", VllmScore("armo"), FakeVllm, paired),
    Wire("sglang", SglangClassify("armo", BARE_TEMPLATE), FakeSglang, templated(BARE_TEMPLATE)),
    Wire("sglang-v1", SglangV1Classify("armo", BARE_TEMPLATE, label=1), FakeSglang, templated(BARE_TEMPLATE), sigmoid),
    Wire(
        "sglang-v1-first", SglangV1Classify("armo", BARE_TEMPLATE, label=0), FakeSglang, templated(BARE_TEMPLATE),
        lambda value: sigmoid(-value),
    ),
    Wire("tei-pairs", TeiPredict("armo"), FakeTei, paired, has_index=False, too_long=ScorerUntouched),
    Wire(
        "tei-texts", TeiPredict("armo", template=BARE_TEMPLATE), FakeTei, templated(BARE_TEMPLATE), has_index=False,
        too_long=ScorerUntouched,
    ),
    Wire(
        "tei-labels", TeiPredict("armo", label="good"), lambda: FakeTei(labels=("good", "bad", "so-so")), paired, has_index=False,
        too_long=ScorerUntouched,
    ),
    Wire("tei-rerank", TeiRerank("armo", activation=True), lambda: FakeTei(reranker=True), paired, sigmoid, too_long=ScorerUntouched),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(httpx, "create_ssl_context", lambda: TLS)  # reading the certificate store 800 times takes half the suite


@pytest.fixture(params=WIRES, ids=lambda wire: wire.name)
def wire(request: pytest.FixtureRequest) -> Wire:
    wire: Wire = request.param
    return wire


@pytest.fixture
def server(wire: Wire) -> Iterator[LoopbackServer]:
    server = LoopbackServer(wire.fake())
    yield server
    server.close()


def connect(wire: Wire, server: LoopbackServer, mapping: AffineMap | None = None, **settings: Any) -> RemoteReward:
    return RemoteReward(wire.dialect, Server(server.url, **({"api_key": KEY} | settings)), WHOLE, mapping)


def score(reward: Reward, candidates: Sequence[Candidate]) -> np.ndarray[Any, Any]:
    return np.asarray(asyncio.run(reward.score(REQUEST, candidates)))


def failure(reward: Reward, candidates: Sequence[Candidate]) -> BackendFailed:
    """What scoring raises, checked to be silent about its reason."""
    with pytest.raises(BackendFailed) as caught:
        score(reward, candidates)
    error = caught.value
    assert error.__context__ is None
    assert error.__cause__ is None
    assert "\n" not in str(error)
    for private in (SECRET, KEY, "answer", "127.0.0.1"):
        assert private not in str(error)
    return error


def touched(reward: Reward, candidates: Sequence[Candidate]) -> str:
    error = failure(reward, candidates)
    assert type(error) is BackendFailed
    return str(error)


def untouched(reward: Reward, candidates: Sequence[Candidate]) -> str:
    error = failure(reward, candidates)
    assert type(error) is ScorerUntouched
    return str(error)


def toy(text: str) -> float:
    return math.tanh(logit(text))


def plain_function(request: Request, candidates: Sequence[Candidate]) -> list[float]:
    return [toy(candidate.scored_text) for candidate in candidates]


async def async_function(request: Request, candidates: Sequence[Candidate]) -> np.ndarray[Any, Any]:
    await asyncio.sleep(0.001)
    return np.array(plain_function(request, candidates))


class AsyncCallable:
    async def __call__(self, request: Request, candidates: Sequence[Candidate]) -> list[float]:
        return plain_function(request, candidates)


@functools.cache
def head() -> HeadReward:
    features = CharacterCrosses((Cross(1.0, (Pick("answer", -1, 0),)),), cells=31)
    pairs = [PreferencePair("x", first, second) for first in "135" for second in "246"]
    fitted = fit_head(pairs, features, regularisation=1.0, relation=Relation.REPLACE, range=RANGE)
    return HeadReward(fitted.weights, fitted.certificate)


def ensemble() -> EnsembleReward:
    def member(shift: float) -> FunctionReward:
        return FunctionReward(
            lambda request, candidates: [3 * toy(candidate.text) + shift for candidate in candidates],
            name="member", sensitivity=WHOLE,
        )  # fmt: skip

    members = [member(shift) for shift in (-0.5, 0.0, 0.75)]
    sensitivity = disjoint_shards(
        [one.sensitivity for one in members], sharding=ShardBy.PERSON, relation=Relation.REPLACE, records_per_person=3, reason="a test"
    )
    return EnsembleReward(members, sensitivity, name="three")


@functools.cache
def tiny_model() -> TransformersReward:
    """A random Llama that reads characters."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    letters = {chr(code): code for code in range(1, 128)} | {"<unk>": 0}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, max_position_embeddings=256,
        num_labels=1, initializer_range=0.5,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForSequenceClassification(config)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    return TransformersReward(model, fast, name="tiny", sensitivity=WHOLE, template=BARE_TEMPLATE)


def tolerance(reward: Reward) -> float:
    """How far batching may move a score: not at all, but for the rounding of floating-point models."""
    if isinstance(reward, TransformersReward):
        return 1e-5
    return 1e-3 if reward.name in {build().name for build in REAL.values()} else 1e-12


LOCAL: dict[str, Callable[[], Reward]] = {
    "transformers": tiny_model,
    "function": lambda: FunctionReward(plain_function, name="plain", sensitivity=WHOLE),
    "async": lambda: FunctionReward(async_function, name="async", sensitivity=WHOLE),
    "callable": lambda: FunctionReward(AsyncCallable(), name="callable", sensitivity=WHOLE),
    "head": lambda: CertifiedHeadReward(head(), name="head"),
    "ensemble": ensemble,
}


def real_vllm() -> RemoteReward:
    url = os.environ["PRIVALIGN_VLLM_REWARD_URL"]
    model = httpx.get(f"{url}/v1/models", timeout=10).json()["data"][0]["id"]
    return RemoteReward(VllmClassify(model), Server(url), WHOLE)


def real_tei() -> RemoteReward:
    url = os.environ["PRIVALIGN_TEI_URL"]
    (kind,) = httpx.get(f"{url}/info", timeout=10).json()["model_type"].items()
    if kind[0] == "reranker":
        return RemoteReward(TeiRerank("real"), Server(url), WHOLE)
    labels = list(kind[1]["id2label"].values())
    return RemoteReward(TeiPredict("real", label=labels[0] if len(labels) > 1 else None), Server(url), WHOLE)


REAL: dict[str, Callable[[], Reward]] = {}
if "PRIVALIGN_VLLM_REWARD_URL" in os.environ:
    REAL["real-vllm"] = real_vllm
if "PRIVALIGN_TEI_URL" in os.environ:
    REAL["real-tei"] = real_tei


@pytest.fixture(params=[*LOCAL, *REAL, *(wire.name for wire in WIRES)])
def every_reward(request: pytest.FixtureRequest) -> Iterator[Reward]:
    for builders in (LOCAL, REAL):
        if request.param in builders:
            yield builders[request.param]()
            return
    wire = next(wire for wire in WIRES if wire.name == request.param)
    server = LoopbackServer(wire.fake())
    yield connect(wire, server)
    server.close()


# ---------------------------------------------------------------- what every back-end does


class TestEveryReward(RewardContract):
    @pytest.fixture
    def reward(self, every_reward: Reward) -> Reward:
        return every_reward

    def tolerance(self, reward: Reward) -> float:
        return tolerance(reward)

    def test_nothing_of_the_server_is_shown(self, reward: Reward, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG):
            score(reward, answers(3))
        for text in (reward.name, repr(reward)):
            assert KEY not in text
            assert "127.0.0.1" not in text
        assert KEY not in caplog.text
        assert reward.sensitivity.range == RANGE


# ---------------------------------------------------------------- what remote back-ends send and read


def test_the_model_sees_the_whole_conversation(wire: Wire, server: LoopbackServer) -> None:
    candidates = answers(70)
    wanted = [wire.activation(logit(wire.shown(candidate.text))) for candidate in candidates]
    assert score(connect(wire, server), candidates) == pytest.approx(wanted)


def test_tool_calls_are_scored_as_their_canonical_text(wire: Wire, server: LoopbackServer) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "find", "arguments": '{"b": 1, "a": 2}'}}
    wanted = wire.activation(logit(wire.shown('[{"arguments":{"a":2,"b":1},"name":"find"}]')))
    assert score(connect(wire, server), [Candidate("", tool_calls=(call,))]) == pytest.approx([wanted])


def test_batches_keep_to_the_servers_limit(wire: Wire, server: LoopbackServer) -> None:
    score(connect(wire, server), answers(70))
    assert server.fake.longest_batch == (1 if wire.one_a_call else 32)
    assert server.requests == (70 if wire.one_a_call else 3)
    assert server.most_at_once <= 8
    server.most_at_once = 0
    score(connect(wire, server, batch_size=5, concurrency=2), answers(70))
    assert server.most_at_once == 2


def test_batch_sizes_do_not_change_scores(wire: Wire, server: LoopbackServer) -> None:
    candidates = answers(20)
    scores = score(connect(wire, server), candidates)
    for batch_size in (1, 2, 7, 20):
        assert score(connect(wire, server, batch_size=batch_size), candidates) == pytest.approx(scores)


def test_the_public_map_is_applied(wire: Wire, server: LoopbackServer) -> None:
    scores = score(connect(wire, server), answers(9))
    mapped = connect(wire, server, AffineMap(-2.0, 0.25))
    assert score(mapped, answers(9)) == pytest.approx(scores * -2 + 0.25)
    assert mapped.name != connect(wire, server).name


def test_long_inputs_are_refused_and_never_cut(wire: Wire, server: LoopbackServer) -> None:
    long = [*answers(2), Candidate("word " * 2 * MAX_TOKENS)]
    assert type(failure(connect(wire, server), long[2:])) is wire.too_long
    assert type(failure(connect(wire, server), long)) is wire.too_long
    seen = server.requests
    assert "max_characters" in untouched(connect(wire, server, max_characters=100), long)
    assert "max_characters" in untouched(connect(wire, server, max_characters=3), answers(1))
    assert server.requests == seen


def test_an_image_is_refused_before_anything_is_sent(wire: Wire, server: LoopbackServer) -> None:
    request = Request((Message("user", ({"type": "image_url", "image_url": {"url": "data:"}},)),))
    with pytest.raises(ScorerUntouched, match="text only"):
        asyncio.run(connect(wire, server).score(request, answers(2)))
    assert server.requests == 0


# ---------------------------------------------------------------- faults: what voids, and what stays spent


def status(code: int, **headers: str) -> Fault:
    async def fault(server: LoopbackServer, reply: Reply, writer: asyncio.StreamWriter) -> None:
        await server.send(writer, Reply.of({"error": f"because {SECRET}"}, code, **headers))

    return fault


def cut(code: int) -> Fault:
    async def fault(server: LoopbackServer, reply: Reply, writer: asyncio.StreamWriter) -> None:
        await server.send(writer, Reply.of({"error": f"because {SECRET}"}, code), 10)

    return fault


async def reset(server: LoopbackServer, reply: Reply, writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def reset_mid_body(server: LoopbackServer, reply: Reply, writer: asyncio.StreamWriter) -> None:
    await server.send(writer, reply, len(reply.body) // 2)
    await asyncio.sleep(0.02)
    await reset(server, reply, writer)


async def close_unanswered(server: LoopbackServer, reply: Reply, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def short_body(server: LoopbackServer, reply: Reply, writer: asyncio.StreamWriter) -> None:
    await server.send(writer, reply, len(reply.body) // 2)


async def no_http(server: LoopbackServer, reply: Reply, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")
    await writer.drain()


async def slow_body(server: LoopbackServer, reply: Reply, writer: asyncio.StreamWriter) -> None:
    await server.send(writer, reply, 0)
    for byte in reply.body:  # faster than any limit on single reads
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.05)


async def silence(server: LoopbackServer, reply: Reply, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        await asyncio.sleep(30)


def spoiled(change: Callable[[bytes], bytes]) -> Fault:
    async def fault(server: LoopbackServer, reply: Reply, writer: asyncio.StreamWriter) -> None:
        await server.send(writer, Reply(200, change(reply.body)))

    return fault


def rewritten(change: Callable[[list[Any]], Any]) -> Fault:
    """Spoils the list of results, wherever the server keeps it."""

    def edit(body: bytes) -> bytes:
        document = json.loads(body)
        if isinstance(document, list):
            return json.dumps(change(document)).encode()
        return json.dumps({**document, "data": change(document["data"])}).encode()

    return spoiled(edit)


def with_score(change: Callable[[Any], Any]) -> Fault:
    """Puts something else in the place of every result's score (or class scores, where the server sends a list)."""

    def edit(items: list[Any]) -> list[Any]:
        for item in items:
            for one in item if isinstance(item, list) else [item]:
                for name in ("probs", "embedding", "data"):
                    if name in one:
                        one[name] = [change(value) for value in one[name]]
                if "score" in one:
                    one["score"] = change(one["score"])
        return items

    return rewritten(edit)


STAY_SPENT: dict[str, Fault] = {
    **{f"status {code}": status(code) for code in (204, 302, 400, 408, 409, 424, 500, 502, 503)},
    **{f"cut {code}": cut(code) for code in (401, 429)},
    "reset": reset,
    "reset mid-body": reset_mid_body,
    "closed unanswered": close_unanswered,
    "short body": short_body,
    "no HTTP": no_http,
    "truncated JSON": spoiled(lambda body: body[: len(body) // 2]),
    "empty body": spoiled(lambda body: b""),
    "no UTF-8": spoiled(lambda body: b"\xff\xfe\xff"),
    "deep JSON": spoiled(lambda body: b"[" * 100_000),
    "an error under 200": spoiled(lambda body: json.dumps({"object": "error", "message": SECRET, "code": 500}).encode()),
    "null under 200": spoiled(lambda body: b"null"),
    "NaN": with_score(lambda value: math.nan),
    "infinity": with_score(lambda value: -math.inf),
    "null": with_score(lambda value: None),
    "text": with_score(str),
    "boolean": with_score(lambda value: True),
    "vector": with_score(lambda value: [value, value]),
    "beyond a float": with_score(lambda value: 10**400),
    "half a batch": rewritten(lambda items: items[: len(items) // 2]),
    "one missing": rewritten(lambda items: items[1:]),
    "one too many": rewritten(lambda items: [*items, items[0]]),
    "all twice": rewritten(lambda items: items * 2),
    "empty results": rewritten(lambda items: [{} for _ in items]),
    "no list": rewritten(lambda items: {"0": items}),
}


@pytest.mark.parametrize("name", STAY_SPENT)
def test_these_faults_stay_spent_in_silence(wire: Wire, server: LoopbackServer, name: str) -> None:
    server.fault = STAY_SPENT[name]
    count = 1 if wire.one_a_call else 4
    assert touched(connect(wire, server), answers(count)) == SCORER_FAILED
    assert server.requests == 1  # never asked again


def test_class_scores_without_a_choice_are_refused(wire: Wire, server: LoopbackServer) -> None:
    def edit(items: list[Any]) -> list[Any]:
        for place, item in enumerate(items):
            if isinstance(item, list):
                items[place] = [{**one, "label": "good"} for one in item * 2]
            for field_name in ("probs", "embedding", "data"):
                if field_name in item:
                    item[field_name] = [0.5] if isinstance(wire.dialect, SglangV1Classify) else [0.25, 0.75]
            if "score" in item:
                item["score"] = [0.25, 0.75]
        return items

    server.fault = rewritten(edit)
    touched(connect(wire, server), answers(1))


def test_indices_that_are_no_order_are_refused(wire: Wire, server: LoopbackServer) -> None:
    if not wire.has_index:
        pytest.skip("this server sends no index")

    def renamed(change: Callable[[Any], Any]) -> Fault:
        def edit(items: list[Any]) -> list[Any]:
            for item in items:
                if "index" in item:
                    item["index"] = change(item["index"])
                else:
                    item["meta_info"]["id"] = change(item["meta_info"]["id"])
            return items

        return rewritten(edit)

    for change in (lambda name: 7, lambda name: name + name + type(name)(1), lambda name: None, lambda name: 0.0):
        server.fault = renamed(change)
        touched(connect(wire, server), answers(1))
    if not wire.one_a_call:
        server.fault = renamed(lambda index: 0 if isinstance(index, int) else "x")  # all the same
        touched(connect(wire, server), answers(4))


@pytest.mark.parametrize("code", [401, 403, 404, 413, 422, 429])
def test_these_answers_leave_the_scorer_untouched(wire: Wire, server: LoopbackServer, code: int) -> None:
    server.fault = status(code)
    assert str(code) in untouched(connect(wire, server), answers(3))
    tries = server.requests / (3 if wire.one_a_call else 1)
    assert tries == (3 if code == 429 else 1)


def test_a_wrong_key_is_untouched(wire: Wire, server: LoopbackServer) -> None:
    assert "API key" in untouched(connect(wire, server, api_key="wrong"), answers(40))
    assert "API key" in untouched(connect(wire, server, api_key=None), answers(40))


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_connection_that_never_opened_is_untouched(wire: Wire, scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    reward = RemoteReward(wire.dialect, Server(f"{scheme}://127.0.0.1:{port}"), WHOLE)
    assert "cannot be reached" in untouched(reward, answers(40))
    with pytest.raises(ScorerUntouched):
        asyncio.run(reward.probe())


def test_a_connection_that_takes_too_long_to_open_is_untouched() -> None:
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):  # fills the queue that nobody accepts from, so that the next one is not answered
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        reward = RemoteReward(VllmScore("armo"), Server(address, timeout=FAST), WHOLE)
        assert "cannot be reached" in untouched(reward, answers(2))


def test_a_failed_handshake_is_untouched(wire: Wire, server: LoopbackServer) -> None:
    reward = RemoteReward(wire.dialect, Server(server.url.replace("http:", "https:")), WHOLE)
    assert "cannot be reached" in untouched(reward, answers(2))
    assert server.requests == 0


def test_an_overloaded_server_is_asked_again_as_it_says(wire: Wire, server: LoopbackServer) -> None:
    scores = score(connect(wire, server), answers(1))
    server.faults = {1: status(429, retry_after="0.1"), 2: status(429, retry_after="Thu, 01 Jan 2026 00:00:00 GMT")}
    started = time.perf_counter()
    assert score(connect(wire, server), answers(1)) == pytest.approx(scores)
    assert time.perf_counter() - started >= 0.1
    server.fault = status(429, retry_after="3600")
    seen = server.requests
    assert "overloaded" in untouched(connect(wire, server), answers(1))
    assert server.requests == seen + 1


def test_a_refusal_after_a_scored_batch_stays_spent(wire: Wire, server: LoopbackServer) -> None:
    for code in (401, 413, 429):
        server.fault, server.requests = status(code), 0
        server.faults = {0: spoiled(lambda body: body)}
        touched(connect(wire, server, batch_size=2, concurrency=1), answers(6))
        assert server.requests == (4 if code == 429 else 2)


def test_a_refused_batch_is_repeated_though_another_was_scored(wire: Wire, server: LoopbackServer) -> None:
    scores = score(connect(wire, server, batch_size=2, concurrency=1), answers(6))
    server.requests, server.faults = 0, {1: status(429)}
    assert score(connect(wire, server, batch_size=2, concurrency=1), answers(6)) == pytest.approx(scores)


def test_batches_under_way_count_as_touched(wire: Wire, server: LoopbackServer) -> None:
    server.faults = {0: status(401)}
    touched(connect(wire, server, batch_size=2, concurrency=4), answers(8))
    server.requests, server.faults = 0, {index: status(401) for index in range(1, 4)} | {0: status(500)}
    touched(connect(wire, server, batch_size=2, concurrency=4), answers(8))
    server.requests, server.faults, server.fault = 0, {}, status(401)
    untouched(connect(wire, server, batch_size=2, concurrency=4), answers(80))
    assert server.requests <= 8  # nothing is started after a refusal


@pytest.mark.parametrize("fault", [slow_body, silence])
def test_a_slow_answer_stays_spent(wire: Wire, server: LoopbackServer, fault: Fault) -> None:
    server.fault = fault
    started = time.perf_counter()
    touched(connect(wire, server, timeout=FAST / 2), answers(1))
    assert time.perf_counter() - started < 2 * FAST
    assert server.requests == 1


def test_cancellation_passes_and_drops_the_connection(wire: Wire, server: LoopbackServer) -> None:
    server.fault = silence

    async def cancelled() -> None:
        task = asyncio.create_task(connect(wire, server).score(REQUEST, answers(8)))
        while server.requests == 0:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(cancelled())


def test_a_failing_probe_says_so_and_a_healed_server_works_again(wire: Wire, server: LoopbackServer) -> None:
    reward = connect(wire, server)
    scores = score(reward, answers(2))
    server.fault = status(500)
    with pytest.raises(BackendFailed):
        asyncio.run(reward.probe())
    server.fault = None
    asyncio.run(reward.probe())
    assert score(reward, answers(2)) == pytest.approx(scores)


# ---------------------------------------------------------------- faults of local back-ends


@pytest.mark.parametrize(
    "returned",
    [
        [0.5], [0.5] * 3, [0.5, math.nan], [0.5, math.inf], [0.5, None], ["0.5", "0.5"], [True, False], [[0.5], [0.5]], [[0.5], [1, 2]],
        None, 0.5, {"0": 1}, np.zeros((2, 1)), np.array([0.5, 1j]), [10**400, 1], object(),
    ],
)  # fmt: skip
def test_a_function_that_returns_something_else_fails_closed(returned: object) -> None:
    touched(FunctionReward(lambda request, candidates: returned, name="bad", sensitivity=WHOLE), answers(2))
    members = [FunctionReward(plain_function, name="good", sensitivity=WHOLE)] * 2
    bad = FunctionReward(lambda request, candidates: returned, name="bad", sensitivity=WHOLE)
    touched(EnsembleReward([*members, bad], WHOLE, name="mixed"), answers(2))


@pytest.mark.parametrize("kind", [ValueError, StopIteration, BackendFailed, MemoryError, TimeoutError])
def test_a_function_that_raises_says_nothing(kind: type[Exception]) -> None:
    def raises(request: Request, candidates: Sequence[Candidate]) -> list[float]:
        raise kind(f"score was {SECRET}")

    async def raises_later(request: Request, candidates: Sequence[Candidate]) -> list[float]:
        return raises(request, candidates)

    touched(FunctionReward(raises_later, name="bad", sensitivity=WHOLE), answers(2))
    touched(FunctionReward(raises, name="bad", sensitivity=WHOLE), answers(2))


def test_a_function_may_say_that_it_refused() -> None:
    def refuses(request: Request, candidates: Sequence[Candidate]) -> list[float]:
        raise ScorerUntouched(f"details {SECRET}")

    refusing = FunctionReward(refuses, name="refuses", sensitivity=WHOLE)
    untouched(refusing, answers(2))
    untouched(EnsembleReward([refusing, refusing], WHOLE, name="both"), answers(2))
    scoring = FunctionReward(async_function, name="scores", sensitivity=WHOLE)
    touched(EnsembleReward([refusing, scoring], WHOLE, name="mixed"), answers(2))
    touched(EnsembleReward([scoring, refusing], WHOLE, name="mixed"), answers(2))


def test_a_head_sees_the_prompt_and_the_answers() -> None:
    candidates = answers(20)
    wanted = head().score("system: Be brief.\n\nuser: Name a {city}.", [candidate.text for candidate in candidates])
    reward = CertifiedHeadReward(head(), name="head")
    assert score(reward, candidates).tolist() == wanted.tolist()
    assert reward.sensitivity == head().sensitivity


def test_a_map_beyond_floats_fails_closed() -> None:
    touched(FunctionReward(lambda request, candidates: [1e300] * 2, name="big", sensitivity=WHOLE, mapping=AffineMap(1e300)), answers(2))


def test_cancellation_passes_through_an_ensemble() -> None:
    started = []

    async def waits(request: Request, candidates: Sequence[Candidate]) -> list[float]:
        started.append(1)
        await asyncio.sleep(30)
        return []

    async def cancelled() -> None:
        slow = FunctionReward(waits, name="slow", sensitivity=WHOLE)
        task = asyncio.create_task(EnsembleReward([slow, slow], WHOLE, name="slow").score(REQUEST, answers(2)))
        while len(started) < 2:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(cancelled())
