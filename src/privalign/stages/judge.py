"""A model as a judge, in the format that Prometheus 2 was trained on: absolute grading, feedback and then `[RESULT] 1…5`.

Format: Kim et al., arXiv:2405.01535, for prometheus-eval/prometheus-7b-v2.0. The section titles and the result mark are the model's;
the wording of the rubric is ours. The system text goes in front of the user turn: the model's chat template has no system role.
"""

from __future__ import annotations

import re
import unicodedata

from privalign.types import Message

CRITERION = "Is the response helpful: does it do what the instruction asks, correctly, completely and clearly?"
_LEVELS = (
    "It does not do what was asked, or is wrong or harmful throughout.",
    "It touches on what was asked, but most of it is wrong, missing or beside the point.",
    "It does part of what was asked; there are gaps or errors that a reader would notice.",
    "It does what was asked; what is wrong or missing is minor.",
    "It does all that was asked, correctly and completely, and is easy to follow.",
)
_TASK = """\
You are a fair judge. Give clear feedback on a response, and a score, by one rubric only.

###Task Description:
You are given an instruction, a response to it, {reference}and a score rubric.
1. Write feedback that judges the response strictly by the rubric, not in general.
2. After the feedback, give a score that is a whole number from 1 to 5, following the rubric.
3. The output must look like this: "Feedback: (feedback by the rubric) [RESULT] (a whole number from 1 to 5)"
4. Write nothing before, between or after these.

###The instruction to evaluate:
{instruction}

###Response to evaluate:
{response}

"""
_REFERENCE = """\
###Reference Answer (Score 5):
{reference}

"""
_RUBRIC = """\
###Score Rubrics:
[{criterion}]
{levels}

###Feedback: """
_RESULT = re.compile(r"\\?[\[【]\s*RESULT\s*\\?[\]】]", re.IGNORECASE)
_OPENED, _CLOSED = r"""[\s*_`"'$:#=<>→⇒(\[{\\]*""", r"""[*_`"'$>)\]}\\]*"""
_SCORE = re.compile(
    rf"{_OPENED}(?:[-–—]\s+)?{_OPENED}(?:(?:the\s+)?(?:final\s+|overall\s+)?(?:score|rating|result|grade)\b(?:\s+(?:is|of))?{_OPENED})?(?:boxed)?{_OPENED}"
    rf"(?P<score>[1-5])(?:\.0+)?{_CLOSED}(?:\s*(?:points?|stars?)\b)?(?:\s*(?:/|out\s+of|of)\s*(?P<most>\d+(?:\.\d+)?))?{_CLOSED}"
    r"(?!\.?\d|\s*%|\w|\s*(?:[-–—,/]|to|or|and|of)\s*\d)",
    re.IGNORECASE,
)


def judge_messages(instruction: str, response: str, reference: str | None, criterion: str = CRITERION) -> tuple[Message, ...]:
    """The conversation that asks for a score. Texts are put in as they stand, so braces in them mean nothing."""
    pieces = [
        _TASK.format(
            reference="" if reference is None else "a reference answer that gets a score of 5, ", instruction=instruction, response=response
        )
    ]
    if reference is not None:
        pieces.append(_REFERENCE.format(reference=reference))
    levels = "\n".join(f"Score {score}: {text}" for score, text in enumerate(_LEVELS, start=1))
    pieces.append(_RUBRIC.format(criterion=criterion, levels=levels))
    return (Message("user", "".join(pieces)),)


def judged_score(feedback: str) -> float | None:
    """The score 1 … 5 brought to [0, 1] by (k − 1)/4; None where there is none, or it is no whole number from 1 to 5, or another scale's.

    Marks and brackets around it, "Score:" before it and "/5" behind mean nothing. The last `[RESULT]` that anything follows counts: a
    response that quotes the mark, and is quoted in the feedback, must not decide.
    """
    answers = [answer for answer in _RESULT.split(unicodedata.normalize("NFKC", feedback))[1:] if re.search(r"\w", answer)]
    found = _SCORE.match(answers[-1]) if answers else None
    return (int(found["score"]) - 1) / 4 if found and found["most"] in (None, "5") else None
