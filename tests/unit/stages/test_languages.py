"""Formulas of other languages, in the English that the grammar of letters reads."""

from __future__ import annotations

import pytest

from privalign.stages.languages import in_english


@pytest.mark.parametrize(
    ("text", "english"),
    [
        ("Die richtige Antwort ist B.", "the correct answer is B."),
        ("La réponse n'est pas B.", "the answer is not B."),
        ("A resposta correta é a letra B.", "the answer correct is the letter B."),
        ("因此正确答案是B", "so correct answer is B"),
        ("B是错误的选项", "B is wrong option"),
        ("正解はBではありません", "correct answer is B is wrong"),
        ("Ответ не B.", "answer not B."),
        ("the answer is B\nAntwort: B", "the answer is B\nanswer : B"),
        (
            "An English line on the solution, the option and the alternative is B.",
            "An English line on the solution, the option and the alternative is B.",
        ),
        ("Die Zahl ist gerade.", "Die Zahl ist gerade."),
    ],
)
def test_lines_with_a_word_for_the_answer_are_translated(text: str, english: str) -> None:
    assert in_english(text) == english
