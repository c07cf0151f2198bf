"""Which letter an answer ends on."""

from __future__ import annotations

import pytest

from privalign.experiments.stages.letters import letter_of


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("The answer is (B).", "B"),
        ("Steps.\nThe answer is **C**", "C"),
        ("the final answer: D", "D"),
        ("Answer: A. k = 0 and n = 1", "A"),
        ("The correct answer is option (B), since …", "B"),
        ("So it is \\boxed{D}.", "D"),
        ("So it is $\\boxed{\\text{(C)}}$.", "C"),
        ("Option B is correct.", "B"),
        ("After some thought:\n\n**A**\n", "A"),
        ("C", "C"),
        ("The answer is (A). No, wait. The answer is (C).", "C"),
        ("First \\boxed{A}, then the answer is (B), which is \\boxed{B}", "B"),
    ],
)
def test_a_letter_that_is_chosen_is_found(answer: str, letter: str) -> None:
    assert letter_of(answer) == letter


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "A group of order 16 is abelian.",
        "Let B be the set of polynomials.",
        "The answer is A's inverse.",
        "The answer is Abelian.",
        "The answer is (E).",
        "the answer is a number",
        "Plan A fails, plan B works.",
    ],
)
def test_a_letter_in_running_text_is_no_answer(answer: str) -> None:
    assert letter_of(answer) is None
