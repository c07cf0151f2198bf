"""The letter that an answer to a multiple-choice question ends on."""

from __future__ import annotations

import re

# from the surest form to the least sure; of each the last occurrence counts, since models change their minds on the way
_FORMS = (
    re.compile(r"\\boxed\s*\{\s*(?:\\(?:text|mathrm|textbf|mathbf)\s*\{\s*)?\(?([A-D])\)?\b"),
    re.compile(r"(?i:\b(?:final|correct|best|right)?\s*answer\s*(?:is|:|=)\s*(?:option|choice)?)[\s:*_$\"'(\[{]*([A-D])(?![A-Za-z0-9'’])"),
    re.compile(r"(?i:\b(?:option|choice))\s*[*_(\[]*([A-D])[*_)\]]*(?i:\s+is\s+(?:the\s+)?(?:correct|right|best))"),
    re.compile(r"^[\s*_]*\(?([A-D])[).:*_\s]*$", re.MULTILINE),
)


def letter_of(answer: str) -> str | None:
    """The letter A, B, C or D that the text chooses; None where it chooses none.

    Recognised, in this order: `\\boxed{B}`, "the answer is (B)", "option B is correct", a line with nothing but the letter.
    A letter inside running text is not taken for an answer.
    """
    for form in _FORMS:
        found = form.findall(answer)
        if found:
            return str(found[-1])
    return None
