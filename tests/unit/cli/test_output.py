"""Tables for people: what is to be copied, and numbers, stay whole on a narrow terminal."""

from __future__ import annotations

import pytest

from privalign.cli.output import print_facts, print_table

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
