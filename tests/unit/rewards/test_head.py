"""Loading a saved head: what is signed together is used together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from privalign.errors import InvalidFile, InvalidInput
from privalign.preferences.bradley_terry import Head, fit_head
from privalign.preferences.features import CharacterCrosses, Cross, Pick
from privalign.preferences.pairs import PreferencePair
from privalign.rewards.head import HeadReward
from privalign.secret import make_installation_key
from privalign.sensitivity import Relation, RewardRange

FEATURES = CharacterCrosses((Cross(1.0, (Pick("answer", 0, 0),)),), cells=31)


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Head:
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "key" / "secret"))
    make_installation_key()
    pairs = [PreferencePair("x", "a", "b")] * 20
    return fit_head(pairs, FEATURES, regularisation=1.0, relation=Relation.FLIP, range=RewardRange(-1.0, 1.0))


@pytest.fixture
def path(head: Head, tmp_path: Path) -> Path:
    head.save(tmp_path / "head.json")
    return tmp_path / "head.json"


def test_a_saved_head_scores_as_before(head: Head, path: Path) -> None:
    loaded = HeadReward.load(path)
    answers = ["a", "b", "c"]
    scores = loaded.score("x", answers)
    assert (scores == HeadReward(head.weights, head.certificate).score("x", answers)).all()
    assert scores[0] == 1.0
    assert scores[1] == -1.0
    assert scores[2] == 0.0
    assert loaded.score("x", []).shape == (0,)


def test_the_sensitivity_is_the_certified_one(head: Head, path: Path) -> None:
    sensitivity = HeadReward.load(path).sensitivity
    assert sensitivity.value == head.certificate.sensitivity
    assert (sensitivity.relation, sensitivity.records_per_person, sensitivity.source) == (Relation.FLIP, 1, "certificate")


def test_other_weights_are_refused(head: Head, path: Path) -> None:
    weights = head.weights.copy()
    weights[0] += 1e-12
    path.with_suffix(".safetensors").write_bytes(save({"weights": weights}))
    with pytest.raises(InvalidFile, match="signature"):
        HeadReward.load(path)


def test_missing_weights_are_refused(path: Path) -> None:
    path.with_suffix(".safetensors").unlink()
    with pytest.raises(InvalidFile):
        HeadReward.load(path)


@pytest.mark.parametrize("change", [{"sensitivity": 1e-9}, {"relation": "replace"}, {"records_per_person": 5}, {"range": [-9.0, 9.0]}])
def test_a_changed_certificate_is_refused(path: Path, change: dict[str, object]) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InvalidFile, match="signature"):
        HeadReward.load(path)


def test_another_installation_is_refused(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "other"))
    with pytest.raises(InvalidFile, match="no installation key"):  # and none is made: a new one fits nothing
        HeadReward.load(path)
    assert not (tmp_path / "other").exists()
    make_installation_key()
    with pytest.raises(InvalidFile, match="signature"):
        HeadReward.load(path)


def test_a_certificate_without_weights_is_no_head(head: Head) -> None:
    with pytest.raises(InvalidInput, match="not of a head"):
        HeadReward(head.weights, replace(head.certificate, kind="declared"))


def test_weights_of_another_shape_are_refused(head: Head) -> None:
    with pytest.raises(InvalidInput, match="shape"):
        HeadReward(np.zeros(7), head.certificate)


def test_the_fields_of_the_certificate_decide_how_scores_are_made(head: Head) -> None:
    weights = np.stack([head.weights, -head.weights, 3 * head.weights])
    mean = HeadReward(weights, replace(head.certificate, kind="ensemble", shards=3)).score("x", ["a", "b", "c"])
    assert mean == pytest.approx([1 / 3, -1 / 3, 0.0])
    raw = head.weights.max()
    sigmoid = HeadReward(head.weights, replace(head.certificate, output="sigmoid")).score("x", ["a", "c"])
    assert sigmoid == pytest.approx([-1 + 2 / (1 + np.exp(-raw)), 0.0])


@pytest.mark.parametrize("change", [{"shards": 2}, {"kind": "declared"}, {"features": None}, {"feature_norm": None}])
def test_certificates_that_do_not_fit_the_weights_are_refused(head: Head, change: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        HeadReward(head.weights, replace(head.certificate, **change))  # type: ignore[arg-type]


def test_a_released_head_has_public_scores(head: Head, tmp_path: Path) -> None:
    released = Head(head.weights, replace(head.certificate, released={"epsilon": 1.0, "delta": 1e-6, "account": "a", "scale": 2.0}))
    released.save(tmp_path / "released.json")
    sensitivity = HeadReward.load(tmp_path / "released.json").sensitivity
    assert sensitivity.public
    assert sensitivity.release is not None
    assert sensitivity.release.words == (
        "released with (1.0, 1e-06)-differential privacy against turning round the label of one person's record (prompt and answers are "
        "public), paid once by account a"
    )
    assert not HeadReward(head.weights, head.certificate).sensitivity.public
