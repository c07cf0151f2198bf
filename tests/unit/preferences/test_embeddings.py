"""Embeddings of a tiny transformers model that the test makes itself, and of the embedded GGUF model."""

from __future__ import annotations

import hashlib
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
from privalign.secret import make_installation_key
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


@pytest.mark.slow
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
    description = json.loads(json.dumps(features.describe()))
    assert feature_map(description).describe() == description == head.certificate.features
    scores = HeadReward(head.weights, head.certificate).score("hi", ["yes", "no"])
    assert scores[0] > scores[1]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"model": ""},
        {"model": "m", "pooling": "max"},
        {"model": "m", "longest": 0},
        {"model": "m", "x": 1},
        {"model": "m", "digest": "12"},
    ],
)
@pytest.mark.parametrize("kind", ["transformers", "llamacpp"])
def test_settings_out_of_range_are_refused(kind: str, settings: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="features"):
        feature_map({"kind": kind, **settings})


def test_a_longer_text_is_refused_and_not_cut(model: str) -> None:
    features = TransformersEmbeddings(model, longest=4)
    assert features.rows(["hi"], ["yes no why"], 1.0).shape == (1, 16)
    with pytest.raises(BackendFailed, match="longer than the model reads") as error:
        features.rows(["hi"], ["yes no why hi"], 1.0)
    assert "why" not in str(error.value)
    with pytest.raises(BackendFailed, match="longer than the model reads"):
        TransformersEmbeddings(model, longest=1 << 20).rows(["hi"], ["no " * 2048], 1.0)


@pytest.mark.parametrize("changed", ["model.safetensors", "tokenizer.json", "config.json", "chat_template.jinja"])
def test_a_head_is_bound_to_the_content_of_its_model(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "secret"))
    make_installation_key()
    folder = tmp_path / "model"
    folder.mkdir()
    for file in Path(model).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    features = TransformersEmbeddings(str(folder))
    assert features.describe()["digest"] == TransformersEmbeddings(model).describe()["digest"]  # wherever it lies
    lines = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(folder.iterdir()))
    assert features.describe()["digest"] == hashlib.sha256(lines.encode()).hexdigest()
    pairs = [PreferencePair("hi", "yes", "no")] * 10
    fit_head(pairs, features, regularisation=1.0, relation=Relation.FLIP, range=RewardRange(-1.0, 1.0)).save(tmp_path / "head.json")
    (folder / "README.md").write_text("about it")
    HeadReward.load(tmp_path / "head.json").score("hi", ["yes"])
    content = (folder / changed).read_bytes() if (folder / changed).exists() else b""
    (folder / changed).write_bytes(content[:-1] + b" ")
    with pytest.raises(InvalidInput, match="not the model that they were made with"):
        HeadReward.load(tmp_path / "head.json")


def test_a_model_is_read_once_for_its_digest(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    TransformersEmbeddings(model).describe()
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert TransformersEmbeddings(model).describe() == TransformersEmbeddings(model).describe()


def test_the_digest_of_a_gguf_file_is_of_its_bytes_or_its_parts(tmp_path: Path) -> None:
    (tmp_path / "one.gguf").write_bytes(b"abcd")
    for number, part in ((1, b"ab"), (2, b"cd")):
        (tmp_path / f"two-0000{number}-of-00002.gguf").write_bytes(part)
    expected = hashlib.sha256(b"abcd").hexdigest()
    for name in ("one.gguf", "two-00001-of-00002.gguf"):
        assert LlamaCppEmbeddings(str(tmp_path / name)).describe()["digest"] == expected
    (tmp_path / "one.gguf").write_bytes(b"abcde")
    other = LlamaCppEmbeddings(str(tmp_path / "one.gguf"), digest=expected)
    for use in (other.describe, lambda: other.rows(["a"], ["b"], 1.0)):
        with pytest.raises((InvalidInput, MissingDependency), match=r"not the model|xllamacpp"):
            use()


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
