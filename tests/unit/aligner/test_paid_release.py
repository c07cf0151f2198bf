"""Paid releases across versions: what an earlier version paid is found again, and not paid twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privalign.accounting.rules import Basic
from privalign.aligner.paid_release import PaidRelease
from privalign.errors import InvalidInput
from privalign.ledger import Ledger
from privalign.preferences.bradley_terry import HeadSettings
from privalign.preferences.ngrams import HashedNgrams
from privalign.sensitivity import Relation, RewardRange

OLD = Path(__file__).parents[2] / "fixtures" / "certificates"
SETTINGS = HeadSettings(HashedNgrams(bits=6, longest=2), 10.0, Relation.FLIP, RewardRange(0.0, 1.0), 2, dataset="prefs")


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    (tmp_path / "secret").write_bytes((OLD / "secret").read_bytes())  # the ledger keeps its anchors beside it
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "secret"))
    book = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    book.create_account("prefs", Basic(3.0, 1e-4, 1e-6), relation=Relation.FLIP, records_per_person=2)
    return book


def paid(ledger: Ledger, settings: HeadSettings) -> PaidRelease:
    reading: dict[str, object] = {"clip": False, "most": 2}
    return PaidRelease(ledger, "prefs", settings, 1.0, 1e-5, OLD / "prefs.jsonl.gz", reading, Path("/deployment/head.json"))


def test_a_release_that_version_1_paid_has_the_same_name(ledger: Ledger) -> None:
    assert paid(ledger, SETTINGS)._key().hex() == json.loads((OLD / "expected.json").read_text())["release_key"]


def test_an_account_pays_for_its_own_data_set_only(ledger: Ledger) -> None:
    with pytest.raises(InvalidInput, match="account: prefs protects data set prefs, not other"):
        paid(ledger, HeadSettings(HashedNgrams(bits=6), 10.0, Relation.FLIP, RewardRange(0.0, 1.0), 2, dataset="other"))
