"""Models in transformers: a tiny one is made, saved and loaded; what it draws has the law that its logits say."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from privalign.deployment.policies import read_policy
from privalign.deployment.tables import Table
from privalign.errors import BackendFailed, InvalidFile, InvalidInput, MissingDependency
from privalign.policies.transformers import TransformersPolicy
from privalign.types import Candidate, Message, Request, Usage

torch = pytest.importorskip("torch", reason="needs torch; get it with: pip install torch transformers jinja2")
transformers = pytest.importorskip("transformers", reason="needs transformers; get it with: pip install torch transformers jinja2")
pytest.importorskip("jinja2", reason="needs jinja2; get it with: pip install torch transformers jinja2")

torch.set_num_threads(1)  # more of them wait for one another on a busy machine

TEMPLATE = (
    "{% for turn in messages %}{% if turn.role == 'villain' %}{{ raise_exception('no villains\nhere') }}{% endif %}"
    "{{ turn.role }}: {{ turn.content }}\n{% endfor %}assistant: "
)
CONTEXT = 256


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: number for number, token in enumerate(["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    letters = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    letters.pre_tokenizer, letters.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=letters, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = TEMPLATE
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary), max_position_embeddings=CONTEXT, bos_token_id=0, eos_token_id=1, initializer_range=0.3, **shape
    )
    saved = tmp_path_factory.mktemp("models") / "tiny-llama"
    tokenizer.save_pretrained(saved)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.LlamaForCausalLM(config).save_pretrained(saved)
    return saved


@pytest.fixture(scope="module")
def policy(folder: Path) -> TransformersPolicy:
    return TransformersPolicy(folder, device="cpu", batch=4)


def asking(text: str = "hi", **parameters: Any) -> Request:
    return Request((Message("user", text),), {"max_tokens": 12, **parameters})


def draw(policy: TransformersPolicy, request: Request, count: int) -> list[Candidate]:
    return asyncio.run(policy.draw(request, count))


def encoded(policy: TransformersPolicy) -> Any:
    return policy._tokenizer("user: hi\nassistant: ", return_tensors="pt")


def test_greedy_agrees_with_generate(policy: TransformersPolicy) -> None:
    inputs = encoded(policy)
    generated = policy._model.generate(**inputs, do_sample=False, max_new_tokens=12, pad_token_id=1)
    text = policy._tokenizer.decode(generated[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert [candidate.text for candidate in draw(policy, asking(temperature=0), 6)] == [text] * 6


@pytest.mark.statistical
@pytest.mark.parametrize("parameters", [{}, {"temperature": 0.7, "top_k": 20}, {"top_p": 0.8}, {"min_p": 0.05, "logit_bias": {"70": 2}}])
def test_the_first_token_has_the_law_of_the_logits(folder: Path, parameters: dict[str, Any]) -> None:
    """χ² at a false-alarm rate of 1e-6 each, over the tokens expected 5 times or more and the rest."""
    from scipy import stats
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    policy = TransformersPolicy(folder, device="cpu", batch=2000)
    with torch.inference_mode():
        scores = policy._model(**encoded(policy)).logits[:, -1].float()
    scores = scores.clone()
    for token, bias in parameters.get("logit_bias", {}).items():
        scores[:, int(token)] += bias
    scores = scores / parameters.get("temperature", 1.0)
    for name, warper in (("top_k", TopKLogitsWarper), ("top_p", TopPLogitsWarper), ("min_p", MinPLogitsWarper)):
        if name in parameters:
            scores = warper(parameters[name])(None, scores)
    law = torch.softmax(scores[0].double(), dim=-1).numpy()
    count = 4000
    drawn = draw(policy, asking(max_tokens=1, seed=1, logprobs=True, **parameters), count)
    tokens = [candidate.logprobs["content"][0]["logprob"] for candidate in drawn if candidate.logprobs]
    raw = torch.log_softmax(policy._model(**encoded(policy)).logits[0, -1].float(), dim=-1).tolist()
    near = Counter(min(range(len(raw)), key=lambda token: abs(raw[token] - logprob)) for logprob in tokens)
    common = [token for token in range(len(law)) if law[token] * count >= 5]
    assert all(law[token] > 0 for token in near)
    observed = [near[token] for token in common]
    expected = [law[token] * count for token in common]
    rest = count - sum(expected)
    if rest > 1:
        observed.append(count - sum(observed))
        expected.append(rest)
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    assert stats.chi2.sf(statistic, len(expected) - 1) > 1e-6


def test_a_candidate_depends_on_its_seed_and_not_on_its_neighbours(folder: Path, policy: TransformersPolicy) -> None:
    wide = TransformersPolicy(folder, device="cpu", batch=64)
    texts = [candidate.text for candidate in draw(policy, asking(seed=5), 10)]
    assert [candidate.text for candidate in draw(wide, asking(seed=5), 10)] == texts
    assert [draw(wide, asking(seed=5 + number), 1)[0].text for number in range(10)] == texts


def test_global_random_state_is_left_alone(policy: TransformersPolicy) -> None:
    before = torch.random.get_rng_state()
    draw(policy, asking(), 3)
    assert torch.equal(before, torch.random.get_rng_state())


def test_one_prefill_serves_all_candidates(policy: TransformersPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[tuple[int, ...]] = []
    forward = policy._model.forward

    def counting(*args: Any, **kwargs: Any) -> Any:
        lengths.append(tuple(kwargs["input_ids"].shape))
        return forward(*args, **kwargs)

    monkeypatch.setattr(policy._model, "forward", counting)
    drawn = draw(policy, asking(max_tokens=3, logit_bias={"1": -100}), 10)
    prompt = encoded(policy)["input_ids"].shape[1]
    assert lengths == [(1, prompt), (4, 1), (4, 1), (4, 1), (4, 1), (2, 1), (2, 1)]
    assert [candidate.usage for candidate in drawn] == [Usage(prompt, 3), *[Usage(0, 3)] * 9]


def test_candidates_that_end_leave_the_batch_and_change_no_other(policy: TransformersPolicy) -> None:
    drawn = draw(policy, asking(max_tokens=60, seed=2, logit_bias={"1": 6}), 12)
    ended = [candidate for candidate in drawn if candidate.finish_reason == "stop"]
    assert len(ended) > 2
    assert len({candidate.usage.completion_tokens for candidate in drawn if candidate.usage}) > 2
    assert all("</s>" not in candidate.text for candidate in drawn)
    alone = [draw(policy, asking(max_tokens=60, seed=2 + number, logit_bias={"1": 6}), 1)[0].text for number in range(12)]
    assert [candidate.text for candidate in drawn] == alone


def test_stop_strings_cut_before_their_first_place(policy: TransformersPolicy) -> None:
    (whole,) = draw(policy, asking(max_tokens=40, seed=3, logit_bias={"1": -100}), 1)
    stop = whole.text[10:12]
    (cut,) = draw(policy, asking(max_tokens=40, seed=3, logit_bias={"1": -100}, stop=[stop, "never seen"]), 1)
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason == "stop"
    assert cut.usage is not None
    assert cut.usage.completion_tokens < 40


def test_penalties_and_biases_change_what_is_drawn(policy: TransformersPolicy) -> None:
    plain = draw(policy, asking(temperature=0, max_tokens=40), 1)[0].text
    for name, value in (("presence_penalty", 2.0), ("frequency_penalty", 2.0), ("repetition_penalty", 1.5)):
        penalised = draw(policy, asking(temperature=0, max_tokens=40, **{name: value}), 1)[0].text
        assert len(set(penalised)) >= len(set(plain))
        assert penalised != plain
    letter = policy._tokenizer.convert_tokens_to_ids("z")
    assert draw(policy, asking(max_tokens=5, logit_bias={str(letter): 100}), 1)[0].text == "zzzzz"


def test_logprobs_are_those_of_the_model(policy: TransformersPolicy) -> None:
    (candidate,) = draw(policy, asking(temperature=0.5, top_k=5, max_tokens=1, logprobs=True, top_logprobs=3), 1)
    assert candidate.logprobs is not None
    (entry,) = candidate.logprobs["content"]
    with torch.inference_mode():
        raw = torch.log_softmax(policy._model(**encoded(policy)).logits[0, -1].float(), dim=-1)
    assert [other["logprob"] for other in entry["top_logprobs"]] == pytest.approx(raw.topk(3).values.tolist(), abs=1e-4)


def test_cancellation_stops_between_two_tokens(folder: Path) -> None:
    policy = TransformersPolicy(folder, device="cpu", batch=1)

    async def cancelled() -> None:
        long = asyncio.create_task(policy.draw(asking(max_tokens=200, logit_bias={"1": -100}), 500))
        await asyncio.sleep(0.1)
        queued = asyncio.create_task(policy.draw(asking(), 1))
        long.cancel()
        started = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await long
        assert len(await queued) == 1  # the worker was set free
        assert time.monotonic() - started < 2.0

    asyncio.run(cancelled())


@pytest.mark.parametrize(
    ("field", "parameters"),
    [
        ("temperature", {"temperature": -1}),
        ("temperature", {"temperature": float("nan")}),
        ("temperature", {"temperature": True}),
        ("top_p", {"top_p": 1.1}),
        ("top_k", {"top_k": 1.5}),
        ("min_p", {"min_p": 2}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": CONTEXT}),
        ("seed", {"seed": "x"}),
        ("stop", {"stop": [""]}),
        ("stop", {"stop": 7}),
        ("logit_bias", {"logit_bias": {"a": 1}}),
        ("logit_bias", {"logit_bias": {"1": 101}}),
        ("logit_bias", {"logit_bias": {"99999": 1}}),
        ("logit_bias", {"logit_bias": [1]}),
        ("top_logprobs", {"top_logprobs": 21}),
        ("tools", {"tools": [{"type": "function"}]}),
        ("response_format", {"response_format": {"type": "json_object"}}),
    ],
)
def test_parameters_out_of_range_or_not_supported_are_refused(policy: TransformersPolicy, field: str, parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refusal:
        draw(policy, asking(**parameters), 1)
    assert refusal.value.field == field


def test_what_changes_nothing_is_accepted(policy: TransformersPolicy) -> None:
    neutral = {"user": "u", "n": 3, "tools": [], "response_format": {"type": "text"}, "top_k": -1, "top_p": 0, "metadata": {}}
    assert len(draw(policy, asking(**neutral), 2)) == 2


def test_conversations_that_do_not_fit_are_refused(policy: TransformersPolicy) -> None:
    with pytest.raises(InvalidInput, match=r"messages: .*where the context has 256"):
        draw(policy, asking("x" * 300), 1)
    with pytest.raises(InvalidInput, match="no villains here"):
        draw(policy, Request((Message("villain", "x"),)), 1)
    with pytest.raises(InvalidInput, match="image_url"):
        draw(policy, Request((Message("user", [{"type": "image_url"}]),)), 1)


def test_logits_that_are_no_numbers_fail(folder: Path) -> None:
    broken = TransformersPolicy(folder, device="cpu")
    with torch.no_grad():
        broken._model.lm_head.weight.fill_(float("nan"))
    for temperature in (0, 1):
        with pytest.raises(BackendFailed, match="no numbers"):
            draw(broken, asking(temperature=temperature), 2)


def test_a_default_limit_is_what_the_context_leaves(policy: TransformersPolicy) -> None:
    (candidate,) = draw(policy, Request((Message("user", "hi"),), {"logit_bias": {"1": -100}}), 1)
    assert candidate.usage == Usage(20, CONTEXT - 20)
    assert candidate.finish_reason == "length"


def test_what_cannot_be_loaded_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    with pytest.raises(BackendFailed, match="cannot load") as failure:
        TransformersPolicy(tmp_path)
    assert str(failure.value).isprintable()
    with pytest.raises(InvalidInput, match="batch"):
        TransformersPolicy(folder, batch=0)
    with pytest.raises(InvalidInput, match="'fp8' is none of torch's"):
        TransformersPolicy(folder, dtype="fp8")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependency, match="pip install torch transformers jinja2"):
        TransformersPolicy(folder)


def test_a_model_without_a_chat_template_needs_one(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        if file.name != "chat_template.jinja":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(InvalidInput, match="chat_template"):
        TransformersPolicy(tmp_path)
    given = TransformersPolicy(tmp_path, chat_template=TEMPLATE, device="cpu", parameters={"max_tokens": 2})
    assert given.name == f'transformers {tmp_path.name} {{"max_tokens": 2}}'
    assert len(draw(given, Request.of_prompt("hi"), 1)) == 1
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    table = {"independent_of_accounts": True, "kind": "transformers", "model": str(tmp_path), "chat_template": "template.jinja"}
    configured = read_policy("local", Table(tmp_path / "privalign.toml", "policies.local", table))
    assert len(draw(configured.make(), Request.of_prompt("hi"), 1)) == 1
    (tmp_path / "template.jinja").unlink()
    with pytest.raises(InvalidFile, match="the chat template cannot be read"):
        configured.make()
