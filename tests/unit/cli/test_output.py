"""Tables for people: what is to be copied, and numbers, stay whole on a narrow terminal."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

import pytest

from privalign.cli.output import print_facts, print_table, replacing
from privalign.errors import InvalidInput
from privalign.report.wording import terms
from privalign.sensitivity import HeadRelease, Relation, RewardRange, Sensitivity
from privalign.statements import basis

SECRET = "pa_065557d71f6b_" + "a6e1da24" * 8


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")


def test_a_key_longer_than_the_terminal_is_one_word(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts("keep the key", {"id": "065557d71f6b", "key": SECRET})
    assert capsys.readouterr().out == f"keep the key\nid   065557d71f6b\nkey  {SECRET}\n"


def test_long_values_are_wrapped_between_words(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts("t", {"reason": "nobody can say what this is about"})
    assert capsys.readouterr().out == "t\nreason  nobody can say what this is\n        about\n"


def test_values_from_outside_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts("\x1b[2J", {"\x1b[1m": "\x1b[0m"})
    assert "\x1b" not in capsys.readouterr().out


def test_numbers_of_a_table_are_never_broken_in_two(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = [f"0.{digit}23456789012" for digit in range(6)]
    print_table(("name", "ε spent", "b", "c", "d", "e", "f"), [["prefs", *numbers]])
    assert set(numbers) <= set(capsys.readouterr().out.split())


# Files that take the place of others


def test_a_file_is_replaced_when_all_went_well_and_else_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("before")
    with contextlib.suppress(KeyError), replacing(path) as file:
        file.write("half")
        raise KeyError
    assert (path.read_text(), list(tmp_path.iterdir())) == ("before", [path])
    with replacing(path) as file:
        file.write("after")
    assert (path.read_text(), list(tmp_path.iterdir())) == ("after", [path])


def test_what_may_not_be_replaced_is_refused_by_the_name_of_its_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, ledger, log = tmp_path / "in.jsonl", tmp_path / "ledger.db", tmp_path / "log"
    source.write_text("{}")
    ledger.write_bytes(b"SQLite format 3\0" + b"spent")
    (tmp_path / "link").symlink_to(ledger)
    (tmp_path / "linked").symlink_to(source)
    with log.open("w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        for path, why in (
            (source, "the file to read"),
            (tmp_path / "linked", "the file to read"),
            (ledger, "a database"),
            (tmp_path / "link", "a database"),
            (log, "where stdout goes"),
            (tmp_path, "not a regular file"),
            (tmp_path / "nosuch" / "file", "cannot be written"),
            (source / "file", "cannot be written"),
        ):
            with pytest.raises(InvalidInput, match=f"^--export: .*{why}"), replacing(path, source, field="--export"):
                raise AssertionError
    assert (source.read_text(), ledger.read_bytes(), log.read_text()) == ("{}", b"SQLite format 3\0spent", "")


def test_studies_say_the_terms_of_a_released_head() -> None:
    release = HeadRelease(1.0, 1e-5, 2.0, 0.4, Relation.FLIP, 1, "prefs", "votes")
    stated = Sensitivity(1.0, RewardRange(0.0, 1.0), "released", release=release).stated()
    for words in (basis(stated), terms(stated)):
        assert f"no query costs anything: the head itself was {release.words}" in words


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_what_is_written_is_its_users_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    """Answers, exports and scores hold what the ledger was paid for."""
    (tmp_path / "shared").touch(mode=0o640)
    (tmp_path / "shared").chmod(0o640)
    before = os.umask(umask)
    try:
        for name in ("new", "shared"):
            with replacing(tmp_path / name) as file:
                file.write("x")
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new", "shared")] == [0o600, 0o640]  # one that is shared stays so
