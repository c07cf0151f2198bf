"""Which letter an answer settles on.

Endings in the formats that models use, in our own words. `letters-seen` was labelled before the parser was written, `letters-later` while
it was; `letters-forms`, `letters-held`, `letters-fresh` and `letters-last` before it was mended, the latter three without a look at what
it made of them until it was; `letters-other` by another hand;
`letters-third` by a third one, who saw neither the parser nor the others: first contact precision .987, recall .867;
`letters-fourth` by a fourth, after it was mended by that: precision .982, recall .938;
`letters-tuned` meanwhile, without the endings that it still gets wrong.
A label of null: no letter is chosen, several are, or it cannot be told.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privalign.stages.letters import LONGEST, letter_of
from privalign.stages.tasks import ALPHABET

FILES = sorted(Path(__file__).parent.glob("letters-*.jsonl"))


def labelled(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_precision_and_recall_on_labelled_endings(file: Path) -> None:
    found = [(row["label"], letter_of(row["text"], row.get("options", 4)), row["text"]) for row in labelled(file)]
    missed = [case for case in found if case[0] != case[1]]
    right = sum(label == letter is not None for label, letter, _ in found)
    precision = right / sum(letter is not None for _, letter, _ in found)
    recall = right / sum(label is not None for label, _, _ in found)
    least = {"letters-third": 0.93, "letters-fourth": 0.97}.get(file.stem, 0.99)  # what is missed there is null, no wrong letter
    assert (precision >= 0.99, recall >= least) == (True, True), (precision, recall, missed)


def test_the_endings_are_many_and_of_both_kinds() -> None:
    first = labelled(next(file for file in FILES if file.stem == "letters-seen"))
    assert len(first) >= 300
    assert sum(row["label"] is None for row in first) >= 100


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        (r"We need \boxed{A^{-1}}. The answer is (B)", "B"),
        (r"We get \boxed{D = 3}. The answer is (B)", "B"),
        (r"It is \boxed{A \cup C}. The answer is (B)", "B"),
        (r"The answer is (B), or, after all, \boxed{C}", "C"),
        ("The answer is (b).", "B"),
        (r"The answer is \(B\).", "B"),
        ("The correct option is B.", "B"),
        ("The answer is (A). No, wait. The answer is (C).", "C"),
        ("The answer is (A). Wait, that is wrong.", None),
        ("The answer is (A) and (C).", None),
        ("The answer is (A). No, it is (E).", None),
        ("A group of order 16 is abelian.", None),
        ("", None),
    ],
)
def test_the_last_statement_counts(answer: str, letter: str | None) -> None:
    assert letter_of(answer) == letter


def test_of_a_long_text_the_end_is_read() -> None:
    assert letter_of("The answer is (A). " + "So on. " * 150_000 + "The answer is (C).") == "C"
    assert letter_of("(A) 1. " * 150_000) is None
    assert letter_of(" " * 900_000 + "B) water" + " so on" * (LONGEST // 6)) is None


@pytest.mark.parametrize("letter", ALPHABET[:10])
@pytest.mark.parametrize("form", ["The answer is ({}).", "Answer: {}", "\\boxed{{{}}}", "**{}**", "Option {} is correct.", "I choose {}."])
def test_every_letter_that_is_offered_can_be_chosen_and_no_other(form: str, letter: str) -> None:
    assert letter_of(form.format(letter), 10) == letter
    assert letter_of(form.format(letter), max(2, ALPHABET.index(letter))) == (letter if letter in "AB" else None)


@given(st.text(), st.sampled_from("ABCD"))
def test_nothing_before_hides_a_last_statement(reasoning: str, letter: str) -> None:
    assert letter_of(f"{reasoning}\n\nThe answer is ({letter}).") in (letter, None)  # None: an unclosed mark takes the end with it


@given(st.text(st.sampled_from("ABab()[]{}\\$*_`.:,;? \n→boxed answer is not wait")))
def test_any_text_is_read(text: str) -> None:
    assert letter_of(text) in (None, *"ABCD")


@pytest.mark.parametrize(
    "piece",
    [
        '"a": ',
        "respuesta es ",
        "\ufdfa",
        "a ",
        "A. ",
        "(",
        "\n",
        " ",
        "$a",
        "\\boxed{",
        "\\text{a",
        "B\n",
        "B. x\n",
        "wait, that is ",
        "answer that to ",
        "| ",
        "*a",
        "'a",
    ],
)
def test_no_text_takes_long(piece: str) -> None:
    started = time.process_time()
    letter_of(piece * (LONGEST // len(piece)))
    assert time.process_time() - started < 10  # 2 s at most on a slow machine; without bounds it is minutes
