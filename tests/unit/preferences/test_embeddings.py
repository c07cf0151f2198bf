"""Embeddings of a tiny transformers model that the test makes itself, and of the embedded GGUF model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from privalign.errors import BackendFailed, InvalidInput, MissingDependency
from privalign.policies.llamacpp import embedded_model
from privalign.preferences.bradley_terry import fit_head
from privalign.preferences.embeddings import LlamaCppEmbeddings, TransformersEmbeddings
from privalign.preferences.features import feature_map
from privalign.preferences.pairs import PreferencePair
from privalign.rewards.head import HeadReward
from privalign.sensitivity import Relation, RewardRange


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("tiny")
    words = {word: number for number, word in enumerate(["<unk>", "<s>", "hi", "yes", "no", "why", "user", "assistant"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2
    )
    transformers.LlamaModel(config).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_rows_depend_on_the_text_alone(model: str, pooling: str) -> None:
    features = TransformersEmbeddings(model, pooling)
    rows = features.rows(["hi", "hi", "why"], ["yes", "no", "yes"], 1.0).toarray()
    assert rows.shape == (3, features.dimension) == (3, 16)
    assert (np.linalg.norm(rows, axis=1) <= 1).all()
    assert len({row.tobytes() for row in rows}) == 3
    assert (features.rows(["why"], ["yes"], 1.0).toarray()[0] == rows[2]).all()


def test_a_chat_template_is_used_where_there_is_one(model: str, tmp_path: Path) -> None:
    for file in Path(model).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    pytest.importorskip("jinja2")
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}")
    plain, chat = (TransformersEmbeddings(folder).rows(["hi"], ["yes"], 1.0).toarray() for folder in (model, str(tmp_path)))
    assert (plain != chat).any()


def test_a_head_on_embeddings_can_be_fitted_and_scored(model: str) -> None:
    features = TransformersEmbeddings(model)
    pairs = [PreferencePair("hi", "yes", "no"), PreferencePair("why", "yes", "no")] * 10
    head = fit_head(pairs, features, regularisation=1.0, relation=Relation.FLIP, range=RewardRange(-1.0, 1.0))
    assert feature_map(json.loads(json.dumps(features.describe()))) == features
    scores = HeadReward(head.weights, head.certificate).score("hi", ["yes", "no"])
    assert scores[0] > scores[1]


@pytest.mark.parametrize(
    "settings", [{}, {"model": ""}, {"model": "m", "pooling": "max"}, {"model": "m", "longest": 0}, {"model": "m", "x": 1}]
)
@pytest.mark.parametrize("kind", ["transformers", "llamacpp"])
def test_settings_out_of_range_are_refused(kind: str, settings: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="features"):
        feature_map({"kind": kind, **settings})


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(BackendFailed, match="cannot load"):
        TransformersEmbeddings(str(tmp_path / "none")).rows(["a"], ["b"], 1.0)


@pytest.mark.model
def test_embeddings_of_the_embedded_model() -> None:
    try:
        features = LlamaCppEmbeddings(str(embedded_model()), longest=256)
        rows = features.rows(["2 + 2?"] * 3, ["4", "five", "4"], 0.5).toarray()
    except MissingDependency as missing:
        pytest.skip(str(missing))
    assert rows.shape == (3, features.dimension)
    assert (rows[0] == rows[2]).all()
    assert (rows[0] != rows[1]).any()
    with pytest.raises(BackendFailed, match="longer than the context"):
        features.rows(["word " * 2000], ["x"], 1.0)
