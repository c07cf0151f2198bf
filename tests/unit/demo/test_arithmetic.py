"""The demo's task: parts that share no sum, and what counts as right."""

from __future__ import annotations

import pytest

from privalign.demo.arithmetic import DEMO, EXAMPLES, PREFERENCES, VALIDATION, Problem, problems


def test_no_problem_nor_its_mirror_image_is_in_two_parts_or_shown_as_an_example() -> None:
    parts = [{frozenset((p.first, p.second)) for p in problems(part)} for part in (PREFERENCES, VALIDATION, DEMO)]
    shown = {frozenset(pair) for pair in EXAMPLES}
    assert [len(part) for part in parts] == [2000, 300, 90 * 91 // 2 - 2300 - len(EXAMPLES)]
    assert len(set().union(*parts)) == sum(map(len, parts))
    assert not shown & set().union(*parts)


def test_the_parts_stay_what_they_are() -> None:
    assert problems(PREFERENCES)[0] == Problem(50, 88)
    assert problems(DEMO)[:2] == [Problem(36, 22), Problem(44, 71)]


def test_the_prompt_ends_where_the_digits_follow() -> None:
    prompt = Problem(36, 22).prompt
    assert prompt.endswith("Question: What is 36 + 22?\nAnswer: 36 + 22 = ")
    assert "34 + 15 = 49\n" in prompt
    assert "58" not in prompt


@pytest.mark.parametrize(("answer", "right"), [("58", True), (" 58 ", True), ("58.", False), ("058", False), ("85", False), ("", False)])
def test_right_is_the_sum_and_nothing_else(answer: str, right: bool) -> None:
    assert Problem(36, 22).is_right(answer) is right
