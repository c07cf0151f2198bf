"""Prompts: rows of the benchmarks as prompts with their right answers, and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from privalign.errors import InvalidFile
from privalign.stages.settings import GRADE_KINDS
from privalign.stages.tasks import TASKS, Prompt, load_file


@pytest.mark.parametrize(
    ("task", "row", "answer", "asked"),
    [
        ("gsm8k", {"question": "1000 + 234?", "answer": "1000+234=1234\n#### 1,234"}, "1234", "\\boxed{}"),
        ("math500", {"problem": "Half?", "solution": "…", "answer": "\\frac{1}{2}"}, "\\frac{1}{2}", "\\boxed{}"),
        ("mmlu-college-mathematics", {"question": "Which?", "choices": ["a", "b", "c", "d"], "answer": 2}, "C", "(C) c"),
        ("mmlu-college-chemistry", {"question": "Which?", "choices": ["a", "b", "c", "{d}"], "answer": 0}, "A", "(D) {d}"),
    ],
)
def test_a_row_becomes_a_prompt(task: str, row: dict[str, Any], answer: str, asked: str) -> None:
    prompt = TASKS[task].read(row)
    assert prompt.gt_answer == answer
    assert prompt.text.startswith(row.get("question", row.get("problem")))
    assert asked in prompt.text
    assert "step by step" in prompt.text


def test_an_instruction_is_asked_as_it_stands() -> None:
    assert TASKS["alpaca-eval"].read({"instruction": "Write {x}.", "output": "x"}) == Prompt("Write {x}.", "x")


def test_braces_in_a_question_mean_nothing() -> None:
    assert TASKS["math500"].read({"problem": "{0} \\frac{1}{2}", "answer": "1"}).text.startswith("{0} \\frac{1}{2}\n")


def test_every_task_names_a_grading() -> None:
    assert all(task.grade in GRADE_KINDS for task in TASKS.values())


def test_a_file_of_prompts(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        '\ufeff{"prompt": "a", "gt_answer": "1"}\n\n{"prompt": "b", "more": 1}\n{"prompt": "c", "gt_answer": null}\n', encoding="utf-8"
    )
    assert load_file(file) == [Prompt("a", "1"), Prompt("b", None), Prompt("c", None)]
    assert load_file(file, limit=1) == [Prompt("a", "1")]


@pytest.mark.parametrize(
    "line", ["{", "[]", "{}", '{"prompt": ""}', '{"prompt": 1}', '{"prompt": "a", "gt_answer": 1}', '{"prompt": "\\ud800"}']
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"prompt": "a"}) + "\n" + line + "\n")
    with pytest.raises(InvalidFile, match=r"prompts\.jsonl, line 2: "):
        load_file(file)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe"])
def test_a_file_without_prompts_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(content)
    with pytest.raises(InvalidFile, match=r"prompts\.jsonl: "):
        load_file(file)
    with pytest.raises(InvalidFile, match="cannot be read"):
        load_file(tmp_path / "none.jsonl")
