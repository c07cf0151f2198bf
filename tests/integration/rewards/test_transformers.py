"""Sequence classification in this process, on tiny random models of the real architectures that the tests build and save."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privalign.errors import BackendFailed, InvalidInput
from privalign.rewards.conversation import OASST_TEMPLATE, ChatTemplate
from privalign.rewards.protocol import ScorerUntouched
from privalign.rewards.scores import AffineMap
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.types import Candidate, Message, Request

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from privalign.rewards.architectures import GPTNeoXRewardConfig, GPTNeoXRewardModel, LlamaForRewardModelWithGating  # noqa: E402
from privalign.rewards.sequence_classification import Reading, TransformersReward  # noqa: E402

WHOLE = Sensitivity.of_range(RewardRange(-1.0, 1.0))
REQUEST = Request((Message("system", "be brief"), Message("user", "name a city")))
CANDIDATES = [Candidate("a " * (1 + index * 5 % 23) + "city " * (index % 3)) for index in range(11)]
TEMPLATE = "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}</s>{% endfor %}"
SIZES: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
WORDS = ["<unk>", "<s>", "</s>", "<pad>", "<|system|>", "<|user|>", "<|assistant|>", "<|prompter|>", "<|endoftext|>"]
LONGEST = 64
ASSISTANT = WORDS.index("<|assistant|>")

OWN_CODE = """
import torch
from dataclasses import dataclass
from transformers import LlamaConfig, LlamaModel, LlamaPreTrainedModel
from transformers.utils import ModelOutput


class GatedConfig(LlamaConfig):
    model_type = "gated_reward"


@dataclass
class GatedOutput(ModelOutput):
    rewards: torch.Tensor = None
    score: torch.Tensor = None


class GatedReward(LlamaPreTrainedModel):
    config_class = GatedConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = LlamaModel(config)
        self.objectives = torch.nn.Linear(config.hidden_size, 3, bias=False)
        self.gate = torch.nn.Linear(config.hidden_size, 3)
        self.post_init()

    def forward(self, input_ids, attention_mask=None):
        if self.config.pad_token_id is None and len(input_ids) > 1:
            raise ValueError("no padding token")
        hidden = self.model(input_ids, attention_mask=attention_mask).last_hidden_state
        last = (input_ids != self.config.pad_token_id).int().flip(1).argmax(1)
        hidden = hidden[torch.arange(len(hidden)), input_ids.shape[1] - 1 - last]
        rewards = self.objectives(hidden)
        return GatedOutput(rewards=rewards, score=(self.gate(hidden).softmax(-1) * rewards).sum(-1))
"""


def save_tokenizer(folder: Path, *, pad: bool, template: str | None) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = [*WORDS, "be", "brief", "name", "a", "city", "the"]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>" if pad else None,
        extra_special_tokens=WORDS[4:], model_max_length=10**30,
    )  # fmt: skip
    fast.chat_template = template
    fast.save_pretrained(folder)


def save_llama(folder: Path, *, pad: bool = True, labels: int = 1, template: str | None = TEMPLATE) -> Path:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32, num_key_value_heads=1, max_position_embeddings=LONGEST, num_labels=labels, pad_token_id=3 if pad else None,
        eos_token_id=2, initializer_range=0.5, **SIZES,
    )  # fmt: skip
    transformers.LlamaForSequenceClassification(config).save_pretrained(folder)
    save_tokenizer(folder, pad=pad, template=template)
    return folder


def save_neox(folder: Path) -> Path:
    torch.manual_seed(1)
    config = GPTNeoXRewardConfig(vocab_size=32, max_position_embeddings=LONGEST, initializer_range=0.5, **SIZES)
    GPTNeoXRewardModel(config).save_pretrained(folder)
    save_tokenizer(folder, pad=False, template=None)
    return folder


def save_gated(folder: Path) -> Path:
    """A model that brings its own code and calls its output `score`."""
    import importlib.util

    folder.mkdir()
    code = folder / "gated.py"
    code.write_text(OWN_CODE)
    spec = importlib.util.spec_from_file_location("gated_for_saving", code)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(2)
    config = module.GatedConfig(
        vocab_size=32, num_key_value_heads=1, max_position_embeddings=LONGEST, pad_token_id=3, initializer_range=0.5, **SIZES
    )
    module.GatedReward(config).save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text())
    settings["auto_map"] = {"AutoConfig": "gated.GatedConfig", "AutoModelForSequenceClassification": "gated.GatedReward"}
    (folder / "config.json").write_text(json.dumps(settings))
    save_tokenizer(folder, pad=True, template=TEMPLATE)
    return folder


def save_armo(folder: Path) -> Path:
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=32, num_key_value_heads=1, max_position_embeddings=LONGEST, pad_token_id=3, initializer_range=0.5, num_objectives=5,
        gating_temperature=2, gating_hidden_dim=12, gating_n_hidden=2, **SIZES,
    )  # fmt: skip
    model = LlamaForRewardModelWithGating(config)
    with torch.no_grad():
        model.reward_transform_matrix.normal_()
        model.gating.logit_scale.fill_(1.5)
    model.save_pretrained(folder)
    save_tokenizer(folder, pad=True, template=TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("models")
    return {
        "llama": save_llama(base / "llama"),
        "no-pad": save_llama(base / "no-pad", pad=False),
        "classes": save_llama(base / "classes", labels=3),
        "untemplated": save_llama(base / "untemplated", template=None),
        "neox": save_neox(base / "neox"),
        "gated": save_gated(base / "gated"),
        "armo": save_armo(base / "armo"),
    }


@pytest.fixture(autouse=True)
def _tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LlamaForRewardModelWithGating, "END_OF_PROMPT", (2, ASSISTANT))  # the tiny tokenizer's
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))


def load(folders: dict[str, Path], kind: str, **settings: Any) -> TransformersReward:
    if kind == "neox":
        settings = {"template": ChatTemplate(OASST_TEMPLATE)} | settings
    if kind == "gated":
        settings = {"trust_remote_code": True, "reading": Reading(output="score")} | settings
    if kind == "classes":
        settings = {"reading": Reading(label=1)} | settings
    return TransformersReward.load(str(folders[kind]), sensitivity=WHOLE, **settings)


def score(reward: TransformersReward, candidates: Sequence[Candidate] = CANDIDATES, request: Request = REQUEST) -> np.ndarray[Any, Any]:
    return asyncio.run(reward.score(request, candidates))


KINDS = ("llama", "no-pad", "classes", "neox", "gated", "armo")


@pytest.mark.parametrize("kind", KINDS)
def test_scores_do_not_depend_on_the_batch(folders: dict[str, Path], kind: str) -> None:
    alone = score(load(folders, kind, batch_size=1))
    assert np.ptp(alone) > 1e-3
    for batch_size in (2, 3, 11, 64):
        assert score(load(folders, kind, batch_size=batch_size)) == pytest.approx(alone, abs=1e-5)
    assert score(load(folders, kind, batch_size=4), CANDIDATES[::-1]) == pytest.approx(alone[::-1], abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_model_on_the_bare_tokens(folders: dict[str, Path], kind: str) -> None:
    reward = load(folders, kind)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders[kind])
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "name a city"},
        {"role": "assistant", "content": "the city"},
    ]
    if kind == "neox":
        text = "<|system|>be brief<|endoftext|><|prompter|>name a city<|endoftext|><|assistant|>the city<|endoftext|>"
    else:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    assert ids[0, 0] == (4 if kind == "neox" else 1)
    assert (ids == 1).sum() == (0 if kind == "neox" else 1)  # the beginning of the text is marked once
    model = reward._model
    with torch.inference_mode():
        backbone = model.gpt_neox if kind == "neox" else model.model
        last = backbone(ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0, -1]
        if kind == "neox":
            wanted = model.out_proj(last)[0]
        elif kind == "armo":
            hidden = backbone(ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0, ids[0].tolist().index(ASSISTANT) - 1]
            for layer in model.gating.layers[:2]:
                hidden = torch.relu(layer.weight @ hidden + layer.bias)
            gate = torch.softmax((model.gating.layers[2].weight @ hidden + model.gating.layers[2].bias) / 2, 0) * 1.5
            wanted = gate @ (model.reward_transform_matrix.T @ (model.regression_layer.weight @ last))
        elif kind == "gated":
            wanted = (model.gate(last).softmax(-1) * model.objectives(last)).sum()
        else:
            wanted = model.score(last)[1 if kind == "classes" else 0]
    assert score(reward, [Candidate("the city")]) == pytest.approx([float(wanted)], abs=1e-5)


def test_activations_and_the_map_are_explicit(folders: dict[str, Path]) -> None:
    raw = score(load(folders, "llama"))
    assert score(load(folders, "llama", reading=Reading(activation="sigmoid"))) == pytest.approx(1 / (1 + np.exp(-raw)), abs=1e-6)
    assert score(load(folders, "llama", mapping=AffineMap(2.0, -1.0))) == pytest.approx(2 * raw - 1, abs=1e-6)
    logits = np.stack([score(load(folders, "classes", reading=Reading(label=label))) for label in range(3)])
    softmax = score(load(folders, "classes", reading=Reading(label=2, activation="softmax")))
    assert softmax == pytest.approx(np.exp(logits[2]) / np.exp(logits).sum(axis=0), abs=1e-6)
    names = {load(folders, "llama").name, load(folders, "llama", reading=Reading(activation="sigmoid")).name}
    assert len(names) == 2
    assert all(str(folders["llama"].parent) not in name for name in names)


def test_class_scores_without_a_choice_fail_closed(folders: dict[str, Path]) -> None:
    with pytest.raises(BackendFailed) as caught:
        score(load(folders, "classes", reading=Reading(output="score", label=0)))
    assert type(caught.value) is BackendFailed


@pytest.mark.parametrize(("reading", "said"), [(Reading(), "missing; .* has 3 outputs"), (Reading(label=3), "3 is no output of .* has 3")])
def test_which_output_is_the_reward_is_settled_before_anything_is_scored(folders: dict[str, Path], reading: Reading, said: str) -> None:
    with pytest.raises(InvalidInput, match=f"label: {said}"):
        load(folders, "classes", reading=reading)


@pytest.mark.parametrize("kind", KINDS)
def test_nan_weights_fail_closed(folders: dict[str, Path], kind: str) -> None:
    reward = load(folders, kind)
    head = {"neox": "out_proj", "gated": "objectives", "armo": "regression_layer"}.get(kind, "score")
    with torch.no_grad():
        getattr(reward._model, head).weight.fill_(torch.nan)
    with pytest.raises(BackendFailed, match="the scorer failed") as caught:
        score(reward)
    assert type(caught.value) is BackendFailed


@pytest.mark.parametrize("kind", KINDS)
def test_long_inputs_are_refused_before_the_model_runs(folders: dict[str, Path], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reward = load(folders, kind)
    monkeypatch.setattr(reward._model, "forward", lambda **_: pytest.fail("the model ran"))
    with pytest.raises(ScorerUntouched, match=f"longer than the reward model's {LONGEST} tokens"):
        score(reward, [*CANDIDATES, Candidate("city " * LONGEST)])
    shorter = load(folders, kind, max_tokens=10)
    with pytest.raises(ScorerUntouched, match="10 tokens"):
        score(shorter, [Candidate("city " * 12)])


def test_a_conversation_that_the_template_cannot_write_is_untouched(folders: dict[str, Path]) -> None:
    strict = load(folders, "neox")
    with pytest.raises(ScorerUntouched, match="chat template"):
        score(strict, request=Request((Message("tool", "x"),)))
    own = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ScorerUntouched, match="chat template"):
        score(load(folders, "llama", template=own))


def test_a_model_without_a_template_needs_one(folders: dict[str, Path]) -> None:
    with pytest.raises(InvalidInput, match="template"):
        load(folders, "untemplated")
    assert score(load(folders, "untemplated", template=ChatTemplate(TEMPLATE, {"bos_token": "<s>"}))) == pytest.approx(
        score(load(folders, "llama")), abs=1e-6
    )


def test_what_is_no_reward_model_is_not_loaded(folders: dict[str, Path], tmp_path: Path) -> None:
    config = transformers.LlamaConfig(vocab_size=32, num_key_value_heads=1, max_position_embeddings=LONGEST, pad_token_id=3, **SIZES)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "causal")
    save_tokenizer(tmp_path / "causal", pad=True, template=TEMPLATE)
    with pytest.raises(InvalidInput, match="no weights for score"):
        TransformersReward.load(str(tmp_path / "causal"), sensitivity=WHOLE)
    with pytest.raises(BackendFailed, match="cannot load"):
        TransformersReward.load(str(tmp_path / "nothing"), sensitivity=WHOLE)
    with pytest.raises(InvalidInput, match="'float31' is none of torch's"):
        load(folders, "llama", dtype="float31")


def test_code_of_a_model_runs_only_when_trusted(folders: dict[str, Path]) -> None:
    with pytest.raises(BackendFailed, match="cannot load"):
        load(folders, "gated", trust_remote_code=False)


def test_concurrent_scorings_do_not_mix(folders: dict[str, Path]) -> None:
    reward = load(folders, "no-pad", batch_size=3)
    alone = score(reward)

    async def both() -> list[Any]:
        return await asyncio.gather(*(reward.score(REQUEST, [candidate]) for candidate in CANDIDATES))

    assert np.concatenate(asyncio.run(both())) == pytest.approx(alone, abs=1e-5)
    asyncio.run(reward.probe())


def test_weights_have_the_names_of_the_published_checkpoints(folders: dict[str, Path]) -> None:
    neox = {name.split(".")[0] for name in load(folders, "neox")._model.state_dict()}
    assert neox == {"gpt_neox", "out_proj"}
    armo = load(folders, "armo")._model.state_dict()
    assert {name for name in armo if not name.startswith("model.")} == {
        "regression_layer.weight", "reward_transform_matrix", "gating.logit_scale",
        *(f"gating.layers.{layer}.{part}" for layer in range(3) for part in ("weight", "bias")),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "field"), [({"output": "x"}, "output"), ({"activation": "relu"}, "activation"), ({"activation": "softmax"}, "label")]
)
def test_readings_that_make_no_sense_are_refused(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        Reading(**settings)
