"""The file format of certificates: version 2 as it is written, version 1 as the code of that time wrote it, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privalign.errors import InvalidFile
from privalign.preferences.bradley_terry import HeadSettings
from privalign.preferences.ngrams import HashedNgrams
from privalign.rewards.head import HeadReward
from privalign.rewards.stated import certified_sensitivity
from privalign.secret import installation_key
from privalign.sensitivity import Certificate, Relation, RewardRange, load_certificate

OLD = Path(__file__).parents[1] / "fixtures" / "certificates"  # made by the last code that wrote version 1, under the key beside them
EXPECTED = json.loads((OLD / "expected.json").read_text())
SETTINGS = HeadSettings(HashedNgrams(bits=6), 10.0, Relation.REPLACE, RewardRange(0.0, 1.0), 2, dataset="survey-2026")


@pytest.fixture
def old_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(OLD / "secret"))


@pytest.mark.parametrize("name", EXPECTED["scores"])
def test_a_head_of_version_1_serves_as_before(old_key: None, name: str) -> None:
    head = HeadReward.load(OLD / f"{name}.json")
    scores = head.score("prompt", EXPECTED["answers"])
    assert scores == pytest.approx(EXPECTED["scores"][name], abs=1e-12)
    document = json.loads((OLD / f"{name}.json").read_text())
    assert head.certificate.to_json() == document  # written as it was read, so that its signature stays valid
    assert (head.certificate.dataset, head.certificate.movement) == (None, document["weight_bound"])
    assert head.sensitivity.value == document["sensitivity"]


def test_a_declared_certificate_of_version_1_states_what_it_did(old_key: None) -> None:
    stated = certified_sensitivity(OLD / "declared.json", RewardRange(0.0, 2.0))
    assert (stated.delta, stated.source, stated.relation, stated.records_per_person) == (0.125, "declared", Relation.REPLACE, 3)


@pytest.mark.parametrize("change", [{"sensitivity": 1e-9}, {"weight_bound": 1e-9}, {"records_per_person": 9}])
def test_a_changed_certificate_of_version_1_is_refused(old_key: None, tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "clip.safetensors").write_bytes((OLD / "clip.safetensors").read_bytes())
    (tmp_path / "clip.json").write_text(json.dumps(json.loads((OLD / "clip.json").read_text()) | change))
    with pytest.raises(InvalidFile, match="signature"):
        HeadReward.load(tmp_path / "clip.json")


def test_version_2_carries_what_prices_by_differences_need() -> None:
    document = SETTINGS.certificate().to_json()
    assert {name: document[name] for name in ("version", "dataset", "relation", "records_per_person", "loss")} == {
        "version": 2,
        "dataset": "survey-2026",
        "relation": "replace",
        "records_per_person": 2,
        "loss": "logistic",
    }
    assert document["movement"] == SETTINGS.weight_bound
    assert 2**20 < document["weight_norm"] < 2**20 * (1 + 1e-5)  # type: ignore[operator]
    assert not {"clip", "weight_bound", "released", "mac"} & set(document)  # differences are not projected


def test_a_certificate_is_read_back(old_key: None, tmp_path: Path) -> None:
    for certificate in (SETTINGS.certificate(), replace(SETTINGS.certificate(), clip=1.5), replace(SETTINGS.certificate(), version=1)):
        signed = certificate.signed(installation_key())
        (tmp_path / "c.json").write_text(json.dumps(signed.to_json()))
        read = load_certificate(tmp_path / "c.json", installation_key())
        assert read.to_json() == signed.to_json()
        assert read.is_signed_by(installation_key())


def test_each_field_is_under_the_signature() -> None:
    signed = replace(SETTINGS.certificate(), clip=1.5).signed(b"k" * 32)
    for name, value in signed.to_json().items():
        if name not in ("mac", "version"):
            field: Any = {"relation": Relation.FLIP, "range": RewardRange(-9.0, 9.0)}.get(
                name, "another" if isinstance(value, str) else 12.5
            )
            assert not replace(signed, **{name: field}).is_signed_by(b"k" * 32), name
    assert not replace(signed, version=1).is_signed_by(b"k" * 32)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"version": 3}, "another version of privalign"),
    ({"version": 2.0}, "another version of privalign"),
    ({"version": True}, "another version of privalign"),
    ({"version": "2"}, "another version of privalign"),
    ({"version": None}, "another version of privalign"),
    ({"loss": "linear"}, "the loss of this head has no price"),
    ({"loss": ["logistic"]}, "the loss of this head has no price"),
    ({"loss": None}, "the loss of this head has no price"),
    ({"weight_bound": 1.0}, "unknown certificate field 'weight_bound'"),
    ({"grid": 1.0}, "unknown certificate field 'grid'"),
    ({"dataset": ""}, "out of its range"),
    ({"dataset": 7}, "out of its range"),
    ({"movement": 0}, "out of its range"),
    ({"movement": float("nan")}, "out of its range"),
    ({"movement": float("inf")}, "out of its range"),
    ({"movement": "1"}, "out of its range"),
    ({"clip": -1.0}, "out of its range"),
    ({"weight_norm": True}, "out of its range"),
    ({"kind": "anchored"}, "out of its range"),
    ({"output": "tanh"}, "out of its range"),
    ({"relation": "swap"}, "out of its range"),
    ({"records_per_person": None}, "out of its range"),
    ({"records_per_person": 1.5}, "out of its range"),
    ({"sensitivity": "range"}, "out of its range"),
    ({"sensitivity": float("nan")}, "out of its range"),
    ({"range": [1.0, 0.0]}, "out of its range"),
    ({"shards": 1}, "out of its range"),
    ({"features": "hashed-ngrams"}, "out of its range"),
    ({"released": True}, "out of its range"),
]


@pytest.mark.parametrize(("change", "says"), WRONG)
def test_what_a_reader_does_not_know_is_refused(change: dict[str, Any], says: str) -> None:
    document = json.loads(json.dumps(SETTINGS.certificate().to_json())) | change
    with pytest.raises(InvalidFile, match=says):
        Certificate.from_json(document, "c.json")


@pytest.mark.parametrize("name", ["version", "kind", "relation", "records_per_person", "range", "sensitivity"])
def test_what_is_missing_is_named(name: str) -> None:
    document = {key: value for key, value in SETTINGS.certificate().to_json().items() if key != name}
    with pytest.raises(InvalidFile, match=f"'{name}' is missing"):
        Certificate.from_json(document, "c.json")


@pytest.mark.parametrize("field", ["dataset", "loss", "clip", "weight_norm", "movement"])
def test_version_1_has_no_field_of_version_2(field: str) -> None:
    document = json.loads((OLD / "clip.json").read_text()) | {field: "logistic" if field == "loss" else 1.0}
    with pytest.raises(InvalidFile, match=f"unknown certificate field '{field}'"):
        Certificate.from_json(document, "c.json")


@pytest.mark.parametrize(("shards", "output"), [(1, "clip"), (1, "sigmoid"), (3, "clip")])
def test_a_certificate_never_says_more_than_the_width_of_its_range(shards: int, output: str) -> None:
    """At Λ = 10⁻⁹ weights may move by 4·10⁹, and clipped scores by the range at most: the number and the sentence agree."""
    certificate = replace(SETTINGS, regularisation=1e-9, shards=shards, output=output).certificate()
    assert certificate.sensitivity == certificate.to_sensitivity().delta == 1.0
    assert certificate.movement is not None
    assert certificate.movement > 4e9


def test_features_and_range_too_far_apart_are_refused() -> None:
    for norm in (1e-308, 1e300):
        with pytest.raises(ValueError, match="feature_norm"):
            replace(SETTINGS, feature_norm=norm)


def test_movement_is_the_one_of_the_weights(old_key: None) -> None:
    """S is in weight units: what two fits differ by, not what their scores do."""
    assert np.isclose(SETTINGS.certificate().movement or 0, (4 * 2 * 1.0 + 2 * 1e-3) / 10.0)
