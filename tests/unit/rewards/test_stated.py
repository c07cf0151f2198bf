"""Δ from a certificate file, or on the operator's word."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privalign.errors import InvalidFile, InvalidInput
from privalign.rewards.stated import certified_sensitivity, declared_sensitivity
from privalign.secret import make_installation_key
from privalign.sensitivity import Certificate, Relation, RewardRange

RANGE = RewardRange(0.0, 2.0)
PAID = {"epsilon": 1.0, "delta": 1e-6, "account": "prefs", "scale": 0.5}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "secret"))
    certificate = Certificate("ensemble", Relation.FLIP, 2, RANGE, 0.25, shards=8).signed(make_installation_key())
    (tmp_path / "ensemble.json").write_text(json.dumps(certificate.to_json()))
    return tmp_path / "ensemble.json"


def test_a_certificate_states_delta_for_its_own_range(path: Path) -> None:
    stated = certified_sensitivity(path, RANGE)
    assert (stated.delta, stated.source, stated.relation, stated.records_per_person) == (0.25, "certificate", Relation.FLIP, 2)
    with pytest.raises(InvalidInput, match="range"):
        certified_sensitivity(path, RewardRange(0.0, 1.0))


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "head"},
        {"features": {"kind": "hashed-ngrams"}},
        {"released": PAID, "movement": 0.1},
        {"kind": "declared", "released": PAID, "movement": 0.1},
    ],
)
def test_a_certificate_of_weights_is_refused_for_any_other_model(path: Path, change: dict[str, Any]) -> None:
    certificate = replace(Certificate("ensemble", Relation.FLIP, 2, RANGE, 0.25, shards=8), **change).signed(make_installation_key())
    path.write_text(json.dumps(certificate.to_json()))
    with pytest.raises(InvalidInput, match='kind "head"'):
        certified_sensitivity(path, RANGE)


def test_a_declared_certificate_states_delta(path: Path) -> None:
    certificate = Certificate("declared", Relation.FLIP, 2, RANGE, 0.25, reason="audited").signed(make_installation_key())
    path.write_text(json.dumps(certificate.to_json()))
    stated = certified_sensitivity(path, RANGE)
    assert (stated.delta, stated.source, stated.reason) == (0.25, "declared", "audited")


def test_a_changed_certificate_is_refused(path: Path) -> None:
    path.write_text(path.read_text().replace("0.25", "0.125"))
    with pytest.raises(InvalidFile, match="signature"):
        certified_sensitivity(path, RANGE)


def test_a_declaration_needs_a_reason() -> None:
    stated = declared_sensitivity(0.1, RANGE, reason="audited", relation=Relation.REPLACE, records_per_person=1)
    assert (stated.delta, stated.source, stated.reason) == (0.1, "declared", "audited")
    for value, reason, k, field in ((0.1, "", 1, "reason"), (0.1, "x", 0, "records_per_person"), (0.0, "x", 1, "sensitivity")):
        with pytest.raises(InvalidInput, match=field):
            declared_sensitivity(value, RANGE, reason=reason, relation=Relation.REPLACE, records_per_person=k)
