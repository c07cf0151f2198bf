"""The ends of a protected head's scores, from Python: paid once, found again under the key of earlier versions."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from privalign.accounting.rules import Basic
from privalign.aligner.paid_range import PaidRange, RangeTerms
from privalign.errors import InvalidFile, InvalidInput
from privalign.ledger import Ledger
from privalign.preferences.bradley_terry import fit_head
from privalign.preferences.ngrams import HashedNgrams
from privalign.preferences.pairs import PreferencePair
from privalign.rewards.head import HeadReward
from privalign.secret import installation_key, make_installation_key
from privalign.sensitivity import Relation, RewardRange


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HeadReward:
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "secret"))
    make_installation_key()
    fitted = fit_head(
        [PreferencePair("q", "good", "bad")],
        HashedNgrams(bits=6),
        regularisation=10.0,
        relation=Relation.REPLACE,
        range=RewardRange(0.0, 1.0),
        dataset="prefs",
    )
    fitted.save(tmp_path / "head.json")
    return HeadReward.load(tmp_path / "head.json")


@pytest.fixture
def ledger(head: HeadReward, tmp_path: Path) -> Iterator[Ledger]:
    with contextlib.closing(Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")) as opened:
        opened.create_account("prefs", Basic(9.0, 1e-4, 1e-6))
        yield opened


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"prompt": "q", "responses": [{"text": f"{n} {n * n}"}]}) + "\n" for n in range(20)))
    return path


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"epsilon": None, "scale": None}, "epsilon"),
        ({"epsilon": 1.0, "scale": 1.0}, "epsilon"),
        ({"epsilon": 0.0, "scale": None}, "release_epsilon"),
        ({"epsilon": None, "scale": -1.0}, "scale"),
    ],
)
def test_a_fault_names_the_setting(head: HeadReward, given: dict[str, float | None], field: str) -> None:
    with pytest.raises(InvalidInput) as fault:
        RangeTerms.of(head, 0.9, delta=1e-6, **given)  # type: ignore[arg-type]
    assert fault.value.field == field


def test_ends_are_paid_once_and_stay(head: HeadReward, ledger: Ledger, texts: Path, tmp_path: Path) -> None:
    paid = PaidRange(ledger, "prefs", RangeTerms.of(head, 0.9, epsilon=1.0, scale=None, delta=1e-6), texts, tmp_path / "range.json")
    ends = paid.make()
    assert ends["epsilon"] <= 1.0
    spent = ledger.account("prefs").spent
    assert paid.make() == ends
    assert ledger.account("prefs").spent == spent
    assert (tmp_path / "range.json").stat().st_mode & 0o777 == 0o600
    (tmp_path / "range.json").write_text("{}")
    with pytest.raises(InvalidInput, match=r"out: .* was paid and written before and is no longer there"):
        paid.make()
    assert not list(tmp_path.glob(".*"))


def test_a_link_keeps_pointing_to_the_file_that_it_names(head: HeadReward, ledger: Ledger, texts: Path, tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "named.json")
    terms = RangeTerms.of(head, 0.9, epsilon=None, scale=0.5, delta=1e-6)
    PaidRange(ledger, "prefs", terms, texts, tmp_path / "link.json").make()
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "named.json").read_text())["scale"] == 0.5


def test_an_account_pays_for_its_own_data_set_only(head: HeadReward, ledger: Ledger, texts: Path, tmp_path: Path) -> None:
    ledger.create_account("other", Basic(9.0, 1e-4, 1e-6))
    terms = RangeTerms.of(head, 0.9, epsilon=1.0, scale=None, delta=1e-6)
    with pytest.raises(InvalidInput, match="account: other protects data set other, not prefs"):
        PaidRange(ledger, "other", terms, texts, tmp_path / "range.json")


def test_a_damaged_draw_is_not_paid(head: HeadReward, ledger: Ledger, texts: Path, tmp_path: Path) -> None:
    terms = RangeTerms.of(head, 0.9, epsilon=1.0, scale=None, delta=1e-6)
    paid = PaidRange(ledger, "prefs", terms, texts, tmp_path / "range.json")
    draft = tmp_path / f".{hashlib.sha256(paid._key()).hexdigest()[:24]}.draft"
    draft.write_text('{"range": [0, 1]}')
    with pytest.raises(InvalidFile, match="the kept draw is damaged"):
        paid.make()
    assert ledger.account("prefs").spent == (0.0, 0.0)


def test_the_key_is_that_of_earlier_versions(head: HeadReward, ledger: Ledger, texts: Path, tmp_path: Path) -> None:
    terms = RangeTerms.of(head, 0.9, epsilon=None, scale=0.5, delta=1e-6)
    stated: dict[str, Any] = terms.stated("prefs")
    about = [hashlib.sha256(texts.read_bytes()).hexdigest(), stated, str((tmp_path / "range.json").resolve())]
    written = json.dumps(about, sort_keys=True).encode()  # as it was written first
    expected = hmac.digest(installation_key(), b"range" + written, "sha256")
    assert PaidRange(ledger, "prefs", terms, texts, tmp_path / "range.json")._key() == expected
