"""From a file of preferences to what a fit needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privalign.errors import InvalidInput
from privalign.preferences.bradley_terry import HeadSettings
from privalign.preferences.ngrams import HashedNgrams
from privalign.preferences.preparing import read_differences, refuse_shared_pairs
from privalign.secret import make_installation_key
from privalign.sensitivity import Relation, RewardRange

SETTINGS = HeadSettings(HashedNgrams(bits=6), 10.0, Relation.REPLACE, RewardRange(0.0, 1.0), 2)


@pytest.fixture(autouse=True)
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "key" / "secret"))
    make_installation_key()


def write(path: Path, *annotators: str | None) -> Path:
    with path.open("w") as file:
        for number, annotator in enumerate(annotators):
            pair = {"prompt": f"q{number}", "chosen": "good", "rejected": "bad"}
            file.write(json.dumps(pair if annotator is None else pair | {"annotator": annotator}) + "\n")
    return path


def read(path: Path, *, most: int, clip: bool) -> tuple[int, int]:
    differences, owners, count = read_differences(path, SETTINGS, most=most, clip=clip, workers=1, progress=lambda share: None)
    assert len(owners.persons) == differences.records
    return differences.records, count


def test_more_records_than_one_person_may_have_are_refused_or_left_out(tmp_path: Path) -> None:
    prefs = write(tmp_path / "p.jsonl", "a", "a", "b", "a")
    with pytest.raises(InvalidInput):
        read(prefs, most=2, clip=False)
    assert read(prefs, most=3, clip=False) == (4, 4)
    assert read(prefs, most=2, clip=True) == (3, 4)
    assert read(prefs, most=1, clip=True) == (2, 4)


def test_annotators_are_needed_where_records_are_counted(tmp_path: Path) -> None:
    prefs = write(tmp_path / "p.jsonl", None, None)
    assert read(prefs, most=1, clip=False) == (2, 2)
    for most, clip in ((2, False), (1, True)):
        with pytest.raises(InvalidInput, match="annotator: missing in record 1"):
            read(prefs, most=most, clip=clip)


def test_public_preferences_share_no_pair_with_private_ones(tmp_path: Path) -> None:
    private, other = write(tmp_path / "p.jsonl", None, None, None), write(tmp_path / "o.jsonl", "someone")
    with pytest.raises(InvalidInput, match=r"public: .*o.jsonl holds pairs of the private preferences"):
        refuse_shared_pairs(private, other, lambda share: None)
    other.write_text(json.dumps({"prompt": "another", "chosen": "good", "rejected": "bad"}) + "\n")
    refuse_shared_pairs(private, other, lambda share: None)
