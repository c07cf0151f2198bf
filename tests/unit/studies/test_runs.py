"""Which studies are stale: made for a run, and no longer what its list says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privalign.studies.runs import LIST, STUDIES, listing, stale
from privalign.studies.study import Study


def document(run: Path, name: str, **settings: str) -> Path:
    path = run / STUDIES / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(Study("budget", "T", settings, [], 1.0).to_json()))
    return path


def test_removed_renamed_and_changed_ones_are_stale_and_those_made_by_hand_are_not(tmp_path: Path) -> None:
    (tmp_path / LIST).write_text(json.dumps(listing({"kept": "a", "changed": "c", "new-name": "d"}, "notice")))
    removed, changed, renamed = (
        document(tmp_path, name, request=request) for name, request in (("removed", "b"), ("changed", "old"), ("old-name", "d"))
    )
    others = [document(tmp_path, "kept", request="a"), document(tmp_path, "new-name", request="d"), document(tmp_path, "by-hand")]
    assert stale([removed, *others, changed, renamed]) == [removed, changed, renamed]


def test_where_the_working_folder_is_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / LIST).write_text(json.dumps(listing({}, "notice")))
    document(tmp_path, "removed", request="b")
    monkeypatch.chdir(tmp_path / STUDIES)
    assert stale([Path("removed.json")]) == [Path("removed.json")]


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"studies": []}', '{"studies": 1}', "[" * 100_000])
def test_without_a_list_nothing_is_stale(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / LIST).write_text(content)
    assert stale([document(tmp_path, "any", request="b"), tmp_path / STUDIES / "missing.json"]) == []


def test_a_file_elsewhere_is_of_no_run(tmp_path: Path) -> None:
    (tmp_path / LIST).write_text(json.dumps(listing({}, "notice")))
    path = document(tmp_path, "any", request="b").rename(tmp_path / "any.json")
    assert stale([path]) == []
