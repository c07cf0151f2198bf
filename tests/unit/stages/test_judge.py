"""The judge's format: what it is asked, and what of its answers counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privalign.stages.judge import CRITERION, judge_messages, judged_score


@pytest.mark.parametrize(
    ("feedback", "score"),
    [
        ("Feedback: fine. [RESULT] 5", 1.0),
        ("Weak. [RESULT] 1", 0.0),
        ("So so.\n[RESULT] 3\n", 0.5),
        ("[RESULT] (4)", 0.75),
        ("[RESULT] Score: 2", 0.25),
        ("[RESULT] **4**", 0.75),
        ("**[RESULT] 4**", 0.75),
        ("**[RESULT]** 4", 0.75),
        ("[RESULT] `4`", 0.75),
        ("[RESULT] [4]", 0.75),
        ("[RESULT] {4}", 0.75),
        ("[RESULT] <4>", 0.75),
        ("[RESULT]: 4", 0.75),
        ("[RESULT] = 4", 0.75),
        ("[RESULT] – 4", 0.75),
        ('[RESULT] "4"', 0.75),
        ("[RESULT] $\\boxed{4}$", 0.75),
        ("[RESULT]\n\n4", 0.75),
        ("[Result] 4.", 0.75),
        ("[RESULT] 4.0", 0.75),
        ("[RESULT] 4/5", 0.75),
        ("[RESULT] **4** / 5", 0.75),
        ("[RESULT] 4 out of 5.", 0.75),
        ("[RESULT] **Score: 4/5**", 0.75),
        ("[RESULT] The final score is 4", 0.75),
        ("[RESULT] (Score: **4**)", 0.75),
        ("[RESULT] 4 (it is short)", 0.75),
        ("[RESULT] 4, because it is short", 0.75),
        ("It quotes [RESULT] 5 itself. [RESULT] 2", 0.25),
        ("[RESULT] 3 — no, [RESULT] **4**", 0.75),
        ("[RESULT] 4 [RESULT]", 0.75),
        ("\\[RESULT\\] 4", 0.75),
        ("【RESULT】４", 0.75),
        ("[RESULT] → 4", 0.75),
        ("[RESULT] => #4", 0.75),
        ("[RESULT] 4 points out of 5", 0.75),
    ],
)
def test_a_score_is_brought_to_the_unit_interval(feedback: str, score: float) -> None:
    assert judged_score(feedback) == score


@pytest.mark.parametrize(
    "feedback",
    [
        "",
        "Score: 5",
        "Good. 5",
        "[RESULT]",
        "[RESULT] five",
        "[RESULT] 0",
        "[RESULT] 6",
        "[RESULT] -4",
        "[RESULT] 4.5",
        "[RESULT] 55",
        "[RESULT] **6**",
        "[RESULT] 4/10",
        "[RESULT] 4 points out of 10",
        "[RESULT] 4 out of 4",
        "[RESULT] 4%",
        "[RESULT] 4-5",
        "[RESULT] 4 or 5",
        "[RESULT] 3, 4",
        "[RESULT] 4th",
        "[RESULT] 4 [RESULT] none",
    ],
)
def test_what_is_no_score_is_none_and_never_zero(feedback: str) -> None:
    assert judged_score(feedback) is None


@given(st.text(), st.text(), st.none() | st.text())
def test_texts_stand_in_the_question_as_they_are(instruction: str, response: str, reference: str | None) -> None:
    (message,) = judge_messages(instruction, response, reference)
    asked = message.text
    titles = ["###Task Description:", "###The instruction to evaluate:", "###Response to evaluate:"]
    titles += [] if reference is None else ["###Reference Answer (Score 5):"]
    places = [asked.index(title) for title in [*titles, "###Score Rubrics:"]]
    assert message.role == "user"
    assert instruction in asked
    assert response in asked
    assert (reference or "") in asked
    assert CRITERION in asked
    assert asked.endswith("###Feedback: ")
    assert places == sorted(places)
