"""Answers in JSON and in tags, as lines."""

from __future__ import annotations

import pytest

from privalign.stages.fields import as_lines


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('{"answer": "B"}', ["{", "answer: B"]),
        ("{'final answer': 'B', 'why': 'A is odd'}", ["{", "answer: B"]),
        ('{"why": "A is odd", "answer": "B"}', ["{", "why: A is odd", "answer: B"]),
        ('{"answer": "B", "why": "A is odd"}', ["{", "answer: B"]),
        ('{"answer": ["A", "C"]}', ["{", "answer: A, C"]),
        ('{"result": {"letter": "B"}}', ["{", "answer:", "{", "answer: B"]),
        ('{"answer": "\\\\frac{1}{2} \\"half\\""}', ["{", 'answer: \\frac{1}{2} "half"']),
        ('{"answer": "\\frac{1}{2}\\q"}', ["{", "answer: \\frac{1}{2}\\q"]),
        ('{"answer": 5}', ["{", "answer: 5"]),
        ("<answer>B</answer>", ["answer: B"]),
        ("<final_answer>B</final_answer> done", ["answer: B", "done"]),
        ("[ANSWER]B[/ANSWER]", ["answer: B"]),
        ("no fields", ["no fields"]),
    ],
)
def test_fields_are_lines_up_to_the_answer(text: str, lines: list[str]) -> None:
    assert [line.strip() for line in as_lines(text).split("\n") if line.strip()] == lines
