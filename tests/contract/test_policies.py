"""What every policy owes its caller, over every policy that there is.

`PRIVALIGN_VLLM_URL` (`http://host:8000/v1`) adds a vLLM server; its model is the first that it lists.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from privalign.errors import InvalidInput, MissingDependency, PrivalignError
from privalign.policies.callables import CallablePolicy
from privalign.policies.llamacpp import embedded_model
from privalign.policies.llamacpp_chat import LlamaCppChatPolicy
from privalign.policies.openai import OpenAIPolicy
from privalign.policies.protocol import Policy
from privalign.policies.transformers import TransformersPolicy
from privalign.types import Candidate, Message, Request

KEY = "sk-proj-0123456789abcdef"
SLOTS = 4


@dataclass(frozen=True)
class Subject:
    """A policy, and what it can: keep to seeds exactly, and know sampling parameters at all."""

    policy: Policy
    seeded: bool = True
    parameters: bool = True


def _strict_server(rule: str) -> Callable[[], Iterator[Subject]]:
    def start() -> Iterator[Subject]:
        path = Path(__file__).parents[1] / "integration" / "policies" / "fake_openai.py"
        spec = importlib.util.spec_from_file_location("strict_openai", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with module.FakeOpenAI(rule, api_key=KEY, delay=0.02).running() as server:
            yield Subject(OpenAIPolicy(server.url, module.MODEL, api_key=KEY))

    return start


def _llama_server() -> Iterator[Subject]:
    xllamacpp = pytest.importorskip("xllamacpp", reason="needs xllamacpp; get it with: pip install 'privalign[llamacpp]'")
    params = xllamacpp.CommonParams()
    params.model.path = str(embedded_model())
    params.n_parallel, params.n_ctx, params.port = SLOTS, SLOTS * 256, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_ram_mib, params.warmup, params.verbosity = 0, False, -1
    server = xllamacpp.Server(params)
    yield Subject(OpenAIPolicy(f"{server.listening_address}/v1", "any", timeout=60.0), seeded=False)
    del server


def _llama_in_process() -> Iterator[Subject]:
    with LlamaCppChatPolicy(slots=SLOTS, context=256) as policy:
        yield Subject(policy, seeded=False)


def _transformers(folder: Path) -> Iterator[Subject]:
    _save_tiny_model(folder)
    yield Subject(TransformersPolicy(folder, device="cpu", batch=SLOTS))


def _save_tiny_model(folder: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs torch; get it with: pip install torch transformers jinja2")
    transformers = pytest.importorskip("transformers", reason="needs transformers; get it with: pip install torch transformers jinja2")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: number for number, token in enumerate(["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    letters = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    letters.pre_tokenizer, letters.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=letters, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = "{% for turn in messages %}{{ turn.role }}: {{ turn.content }}\n{% endfor %}assistant: "
    tokenizer.save_pretrained(folder)
    torch.set_num_threads(1)  # more of them wait for one another on a busy machine
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.LlamaConfig(vocab_size=len(vocabulary), max_position_embeddings=512, bos_token_id=0, eos_token_id=1, **shape)
        transformers.LlamaForCausalLM(config).save_pretrained(folder)


def _vllm() -> Iterator[Subject]:
    import httpx

    url = os.environ.get("PRIVALIGN_VLLM_URL")
    if not url:
        pytest.skip("no vLLM here; set PRIVALIGN_VLLM_URL to test against one")
    model = httpx.get(f"{url}/models").json()["data"][0]["id"]
    yield Subject(OpenAIPolicy(url, model, api_key=os.environ.get("PRIVALIGN_VLLM_KEY")), seeded=False)


def _words(request: Request, count: int) -> list[str | Candidate]:
    if not isinstance(request.parameters.get("temperature", 1.0), int | float):
        raise TypeError
    seed = request.parameters.get("seed")
    drawn = [random.Random(None if seed is None else seed + number).randbytes(4).hex() for number in range(count)]
    time.sleep(0.02)
    return [Candidate(text, "stop") for text in drawn]


def _callable() -> Iterator[Subject]:
    yield Subject(CallablePolicy(_words, "words"), parameters=False)


def _async_callable() -> Iterator[Subject]:
    async def words(request: Request, count: int) -> list[str | Candidate]:
        await asyncio.sleep(0.02)
        return _words(request, count)

    yield Subject(CallablePolicy(words, "words"), parameters=False)


SUBJECTS: dict[str, Callable[..., Iterator[Subject]]] = {
    "callable": _callable,
    "async callable": _async_callable,
    "strict server": _strict_server("honoured"),
    "strict server that ignores n": _strict_server("ignored"),
    "strict server that refuses n": _strict_server("refused"),
    "strict server with 4 slots": _strict_server("at most 4"),
    "llama.cpp over HTTP": _llama_server,
    "llama.cpp in process": _llama_in_process,
    "transformers": _transformers,
    "vLLM": _vllm,
}


@contextmanager
def _started(name: str, folder: Path) -> Iterator[Subject]:
    running = SUBJECTS[name](folder) if SUBJECTS[name] is _transformers else SUBJECTS[name]()
    try:
        yield next(running)
    except MissingDependency as missing:
        pytest.skip(str(missing))
    finally:
        next(running, None)


@pytest.fixture(scope="module", params=SUBJECTS)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    with _started(request.param, tmp_path_factory.mktemp("tiny")) as subject:
        yield subject


def asking(text: str = "Name a colour.", **parameters: Any) -> Request:
    return Request((Message("user", text),), {"max_tokens": 6, **parameters})


def draw(subject: Subject, request: Request, count: int) -> list[Candidate]:
    return asyncio.run(subject.policy.draw(request, count))


def texts(candidates: list[Candidate]) -> list[str]:
    return [candidate.text for candidate in candidates]


@pytest.mark.parametrize("count", [1, 3, 11])
def test_as_many_candidates_as_asked_for(subject: Subject, count: int) -> None:
    drawn = draw(subject, asking(), count)
    assert len(drawn) == count
    assert all(type(candidate) is Candidate and isinstance(candidate.text, str) for candidate in drawn)


def test_candidates_are_fresh_and_differ(subject: Subject) -> None:
    first, second = texts(draw(subject, asking(), 8)), texts(draw(subject, asking(), 8))
    assert len({*first}) > 1
    assert first != second


def test_every_candidate_of_a_seeded_request_has_a_seed_of_its_own(subject: Subject) -> None:
    request = asking(seed=7)
    drawn = texts(draw(subject, request, 9))
    assert len({*drawn}) > 1
    if subject.seeded:  # elsewhere up to the rounding of batched arithmetic
        assert texts(draw(subject, request, 9)) == drawn
        assert texts(draw(subject, request, 5)) + texts(draw(subject, request.after(5), 4)) == drawn


def test_limits_and_stops_are_kept(subject: Subject) -> None:
    if not subject.parameters:
        pytest.skip("a function keeps to parameters as it likes")
    for limit in ("max_tokens", "max_completion_tokens"):
        cut = draw(subject, Request(asking().messages, {limit: 1}), 5)
        assert [candidate.finish_reason for candidate in cut].count("length") >= 4  # one may be nothing but an end
        assert all(candidate.usage is not None and candidate.usage.completion_tokens == 1 for candidate in cut)
    stop = ["a", "e", "i", "o"]
    stopped = draw(subject, asking(max_tokens=30, stop=stop), 5)
    assert not any(letter in candidate.text for candidate in stopped for letter in stop)
    assert any(candidate.finish_reason == "stop" for candidate in stopped)


def test_temperature_0_draws_the_same(subject: Subject) -> None:
    if not subject.parameters:
        pytest.skip("a function keeps to parameters as it likes")
    assert len({*texts(draw(subject, asking(temperature=0, max_tokens=3), 5))}) == 1


def test_logprobs_are_kept_where_they_are_asked_for(subject: Subject) -> None:
    if not subject.parameters:
        pytest.skip("a function keeps to parameters as it likes")
    for candidate in draw(subject, asking(logprobs=True, top_logprobs=2), 6):
        assert candidate.logprobs is not None
        assert all(token["logprob"] <= 0 for token in candidate.logprobs["content"])
    assert all(candidate.logprobs is None for candidate in draw(subject, asking(), 6))


def test_whole_conversations_are_accepted(subject: Subject) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    turns = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "12 °C"},
        {"role": "user", "content": "And now?"},
    ]
    assert len(draw(subject, Request(tuple(map(Message.from_openai, turns)), {"max_tokens": 4}), 2)) == 2


def test_concurrent_draws_do_not_mix(subject: Subject) -> None:
    requests = [asking(seed=100 * number) for number in range(4)]

    async def together() -> list[list[Candidate]]:
        return await asyncio.gather(*(subject.policy.draw(request, 3) for request in requests))

    mixed = [texts(drawn) for drawn in asyncio.run(together())]
    assert len({*map(tuple, mixed)}) == 4
    if subject.seeded:
        assert mixed == [texts(draw(subject, request, 3)) for request in requests]


def test_a_cancelled_draw_returns_at_once_and_the_next_one_works(subject: Subject) -> None:
    async def cancelled() -> float:
        task = asyncio.create_task(subject.policy.draw(asking("Count to thirty.", max_tokens=30), 8))
        await asyncio.sleep(0.01)
        started = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - started

    assert asyncio.run(cancelled()) < 0.5
    assert len(draw(subject, asking(), 2)) == 2


@pytest.mark.parametrize("count", [0, -1])
def test_no_candidates_are_refused(subject: Subject, count: int) -> None:
    with pytest.raises(InvalidInput) as refusal:
        draw(subject, asking(), count)
    assert refusal.value.field == "count"


def test_a_wrong_parameter_fails_in_one_line(subject: Subject) -> None:
    with pytest.raises(PrivalignError) as refusal:
        draw(subject, asking(temperature="hot"), 3)
    assert str(refusal.value).isprintable()
    assert len(draw(subject, asking(), 3)) == 3


def test_its_name_is_one_public_line(subject: Subject) -> None:
    name = subject.policy.name
    assert name
    assert name.isprintable()
    assert KEY not in name
    assert name == subject.policy.name
