"""What every policy owes its caller, over every policy that there is.

`PRIVALIGN_VLLM_URL` (`http://host:8000/v1`) adds a vLLM server; its model is the first that it lists.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from privalign.errors import MissingDependency
from privalign.policies.callables import CallablePolicy
from privalign.policies.llamacpp import embedded_model
from privalign.policies.llamacpp_chat import LlamaCppChatPolicy
from privalign.policies.openai import OpenAIPolicy
from privalign.policies.transformers import TransformersPolicy
from privalign.testing import fake_openai
from privalign.testing.policies import PolicyContract, Subject, asking, draw
from privalign.types import Candidate, Request

KEY = "sk-proj-0123456789abcdef"
SLOTS = 4


def _strict_server(rule: str) -> Callable[[], Iterator[Subject]]:
    def start() -> Iterator[Subject]:
        with fake_openai.FakeOpenAI(rule, api_key=KEY, delay=0.02).running() as server:
            yield Subject(OpenAIPolicy(server.url, fake_openai.MODEL, api_key=KEY))

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
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    with _started(request.param, tmp_path_factory.mktemp("tiny")) as subject:
        yield subject


class TestEveryPolicy(PolicyContract):
    @pytest.fixture
    def subject(self, started: Subject) -> Subject:
        return started

    def test_its_name_holds_no_key(self, subject: Subject) -> None:
        assert KEY not in subject.policy.name

    def test_it_may_be_closed_and_drawn_from_again_or_refuses(self, subject: Subject) -> None:
        """Nothing hangs, and closing twice is no error; that of llama.cpp is for good, and the others' subjects go on."""
        if "llamacpp" not in subject.policy.name:
            for _ in range(2):
                asyncio.run(subject.policy.aclose())
            assert len(draw(subject, asking(), 1)) == 1
