"""The demo's task: sums of two two-digit numbers, whose truth can be checked. Public.

Unordered pairs of numbers are split once and for all, by a hash, into three parts: problems that preferences are about,
problems on which settings were chosen, and problems of the demo. No problem is in two parts, nor is its mirror image.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Final

OPERANDS: Final = range(10, 100)
EXAMPLES: Final = ((34, 15), (67, 38), (21, 47))  # shown in every prompt, asked in none
STOP: Final = ("\n",)
MOST_TOKENS: Final = 6
PREFERENCES: Final = slice(0, 2000)
VALIDATION: Final = slice(2000, 2300)
DEMO: Final = slice(2300, None)


@dataclass(frozen=True, slots=True)
class Problem:
    """`first` + `second`."""

    first: int
    second: int

    @property
    def question(self) -> str:
        """The question, as a person would ask it."""
        return f"What is {self.first} + {self.second}?"

    @property
    def prompt(self) -> str:
        """The question after three solved examples, up to the point where the answer's digits follow."""
        solved = (f"{_opening(Problem(*pair))}{sum(pair)}\n" for pair in EXAMPLES)
        return "".join(solved) + _opening(self)

    def is_right(self, answer: str) -> bool:
        """Whether the answer is the sum and nothing else, white space aside."""
        return answer.strip() == str(self.first + self.second)


def problems(part: slice) -> list[Problem]:
    """The problems of one part, in their public order."""
    shown = {tuple(sorted(pair)) for pair in EXAMPLES}
    keyed = []
    for pair in combinations_with_replacement(OPERANDS, 2):
        if pair not in shown:
            digest = hashlib.sha256(f"privalign {pair[0]}+{pair[1]}".encode()).digest()
            keyed.append((digest, Problem(*(pair if digest[-1] % 2 else pair[::-1]))))
    return [problem for _, problem in sorted(keyed, key=lambda entry: entry[0])[part]]


def _opening(problem: Problem) -> str:
    """Writing the sum out before its result makes a small model right far more often."""
    return f"Question: {problem.question}\nAnswer: {problem.first} + {problem.second} = "
