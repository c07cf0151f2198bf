"""Mathematical answers compared by math-verify, in a process of its own that is ended when an answer takes too long.

math-verify's own time limits are alarm signals: they work in the main thread only, and do not interrupt a computation inside C
(an answer of 9^(9^9), say). So they are off, and the parent process keeps the time.

What is compared is the last statement of the text (`last_statement`), and numbers by their size: math-verify rounds to six decimals,
where 1.6e-19 and 9.1e-31 are both 0.

The child (`serve`) reads a JSON `[gold, answer]` a line, and writes one word; without an answer, whether the gold one can be read.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from privalign.errors import BackendFailed, MissingDependency
from privalign.stages.fields import as_lines
from privalign.stages.wording import retractions

START = 120.0  # seconds that a child may take to import sympy on a busy machine
LONGEST = 20_000  # letters from the end of an answer that are looked at: final answers stand there, and some patterns are slow
CLOSE = 1e-6  # relative distance up to which a number with decimals equals another
PLACEHOLDERS = frozenset({"n/a", "na", "nan", "none", "null", "nil", "unknown", "undefined", "tbd", "todo"})  # read as symbols otherwise
_READY, _RIGHT, _WRONG, _UNTOLD = "ready", "right", "wrong", "untold"


class Verifier:
    """Tells whether a text arrives at the gold answer. Use it as a context manager.

    Args:
        timeout: seconds that one answer may take.

    Raises:
        MissingDependency: math-verify is not installed.
    """

    def __init__(self, timeout: float) -> None:
        from importlib.util import find_spec

        if find_spec("math_verify") is None:
            raise MissingDependency("math-verify is not installed; get it with: pip install 'privalign[experiments]'")
        self._timeout = timeout
        self._child: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def is_right(self, gold: str, answer: str) -> bool | None:
        """Whether the last answer in the text equals the gold one; None: there is none that can be read, or no verdict in time.

        Args:
            gold: a number or an expression in LaTeX, without delimiters.

        Raises:
            BackendFailed: no child can be started.
        """
        return {_RIGHT: True, _WRONG: False}.get(self._ask(gold, answer[-LONGEST:]) or _UNTOLD)

    def can_read(self, gold: str) -> bool:
        """Whether a gold answer is an expression that answers can be compared with, and stands for no missing one.

        Raises:
            BackendFailed: as `is_right`.
        """
        return gold.strip().lower() not in PLACEHOLDERS and self._ask(gold, None) == _RIGHT

    def _ask(self, gold: str, answer: str | None) -> str | None:
        """The child's word; None: it had none in time."""
        line = json.dumps([gold, answer]).encode() + b"\n"
        for _ in range(2):  # a second child where the first one died between two answers
            child = self._child or self._start()
            try:
                assert child.stdin is not None
                child.stdin.write(line)
                child.stdin.flush()
            except OSError:
                self._end()
                continue
            word = self._word(child, self._timeout)
            if word is None:  # too slow, out of memory, or too deep: this answer's own doing
                self._end()
                return None
            return word
        raise BackendFailed("the process that runs math-verify ends at once; try: python -c 'import math_verify'")

    def _start(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(  # noqa: S603 — this module, no shell
            [sys.executable, "-c", f"from {__name__} import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._child, self._rest = child, b""
        if self._word(child, START) != _READY:
            self._end()
            raise BackendFailed("the process that runs math-verify does not start; try: python -c 'import math_verify'")
        return child

    def _word(self, child: subprocess.Popen[bytes], seconds: float) -> str | None:
        """The child's next line; None: it ended, or said nothing in time."""
        assert child.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([child.stdout], [], [], left)[0]:
                return None
            piece = os.read(child.stdout.fileno(), 1 << 12)
            if not piece:
                return None
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


# ---- the last statement

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)")
_BETWEEN = re.compile(r"(?:[\s,;$&]|\\\\|\\[()\[\],; ]|\\q?quad|\\text\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b)*")  # parts of one answer
_PHRASE = re.compile(
    r"(?:\banswer\b[*_]*\s*(?:is|=|:|would be|should be|must be)[*_:\s]*(?:therefore|thus|then|simply|now|actually|equal to|"
    r"approximately|about|exactly|the)?"
    r"[*_\s]*|####\s*)(?=(?P<value>[-+(−]?\s*(?:\\?\$|\\[(\[]|\\d?frac|\\sqrt|\\pi|[£€]?\s*\.?\d)))",
    re.IGNORECASE,
)
_CHECK = re.compile(r"\b(?:check|verify|confirm|test)(?:ing)? (?:our|the|this|that|my)(?: final)? $", re.IGNORECASE)
_WORDS_IN_BRACKETS = re.compile(r"(?<!\\)\[[A-Za-z][A-Za-z ,.']+\]")  # math-verify would take them for a formula
_LEAD = re.compile(r"^\s*\\text\s*\{[^{}]*\banswer\b[^{}]*\}")  # "The answer is", in the box
_STOP = re.compile(r"\n|[.!?](?=\s|$)")
_SCIENTIFIC = re.compile(r"(?<![\w.\\])(\d+(?:\.\d+)?)(?:[eE]([-+]?\d+)(?![\w.]*\w)|\s+[x×*]\s+10\^\{?([-+]?\d+)\}?)")


def last_statement(text: str) -> str | None:
    """The part of an answer that math-verify is to read; None: the last statement is taken back.

    That is the last box, with those in front of it that belong to one answer (a comma, "and", or a line end between); or "the answer is"
    with a value, where it comes after the last box; or, without either, all of the text.
    """
    text = as_lines(text)
    boxes = list(_boxes(text))
    phrases = [phrase for phrase in _PHRASE.finditer(text) if not _CHECK.search(text, max(0, phrase.start() - 30), phrase.start())]
    phrase = phrases[-1] if phrases else None
    if phrase and (not boxes or phrase.start() > boxes[-1][1]):
        stop = _STOP.search(text, phrase.end())
        end = len(text) if stop is None else stop.start()
        found = f"The answer is {_in_latex(text[phrase.start('value') : end].replace(chr(92) + '$', ''))}"
    elif boxes:
        first = len(boxes) - 1
        while first and _BETWEEN.fullmatch(text, boxes[first - 1][1], boxes[first][0]):
            first -= 1
        found, end = ", ".join(f"$\\boxed{{{scientific(_LEAD.sub('', content))}}}$" for _, _, content in boxes[first:]), boxes[-1][1]
    else:
        return _in_latex(_WORDS_IN_BRACKETS.sub(" ", text))
    return None if _taken_back(text[end : end + 160]) else found


def scientific(expression: str) -> str:
    """1.6e-19, which LaTeX would take for 1.6·e − 19, and 1.6 x 10^-19 as powers of ten."""
    return _SCIENTIFIC.sub(_power, expression)


def _power(found: re.Match[str]) -> str:
    return f"{found[1]}\\times 10^{{{found[2] or found[3]}}}"


def _in_latex(text: str) -> str:
    """Text in which powers of ten are formulas, where it has no others."""
    return text if "$" in text or "\\(" in text else _SCIENTIFIC.sub(lambda found: f"${_power(found)}$", text)


def _boxes(text: str) -> Iterator[tuple[int, int, str]]:
    """Start, end and content of every box that is closed; of boxes in boxes the outer one."""
    end = 0
    for box in _BOX.finditer(text):
        if box.start() < end:
            continue
        depth, place = 0, box.end()
        while place < len(text):
            depth += {"{": 1, "}": -1}.get(text[place], 0) if text[place - 1] != "\\" else 0
            place += 1
            if depth == 0:
                yield box.start(), place, text[box.end() + 1 : place - 1]
                end = place
                break
        else:
            return  # nor can a later one be closed


def _taken_back(rest: str) -> bool:
    found = next(retractions(rest), None)
    return found is not None and not found.letter and not re.search(r"\d", rest[: found.start])


# ---- the child


def serve() -> None:
    """The child: answers until its input ends."""
    import logging
    from functools import lru_cache

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not look like an answer
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    logging.disable(logging.CRITICAL)  # "timeouts are disabled", once a process, and answers quoted in errors

    forms = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())

    @lru_cache(maxsize=16)
    def parsed(gold: str) -> Any:
        return parse(f"$\\boxed{{{scientific(gold)}}}$", parsing_timeout=None)

    def verdict(gold: str, answer: str | None) -> str:
        if answer is None:
            return _RIGHT if _is_read(parsed(gold)) and _equal(parsed(gold), parsed(gold)) else _UNTOLD
        statement = last_statement(answer)
        found = [] if statement is None else parse(statement, forms, parsing_timeout=None)
        if found and _equal(parsed(gold), found):
            return _RIGHT
        return _WRONG if _is_read(found) else _UNTOLD

    answers.write(f"{_READY}\n")
    for line in sys.stdin.buffer:
        try:
            word = verdict(*json.loads(line))
        except (Exception, RecursionError):
            word = _UNTOLD
        answers.write(f"{word}\n")


def _is_read(parsed: list[Any]) -> bool:
    """Whether there is an expression with a value, and not only the text of one."""
    return bool(parsed) and not isinstance(parsed[0], str) and not _has_no_value(parsed[0])


def _has_no_value(expression: Any) -> bool:
    from sympy import nan, zoo

    return bool(expression.has(nan, zoo))


def _equal(gold: list[Any], answer: list[Any]) -> bool:
    from math_verify import verify

    agreed = _agree(gold[0], answer[0])
    return bool(verify(gold, answer, timeout_seconds=None)) if agreed is None else agreed  # gold first: not symmetric


def _agree(one: Any, other: Any) -> bool | None:
    """Whether numbers with decimals, also in sets, intervals and matrices of one shape, agree to `CLOSE` of their size; None: no such."""
    from sympy import Eq, Float, MatrixBase, N, UnevaluatedExpr

    if isinstance(one, str) or isinstance(other, str):
        return None
    one, other = (side.rhs if isinstance(side, Eq) and side.lhs.is_Symbol else side for side in (one, other))
    if not (one.has(Float) or other.has(Float)) or one.has(UnevaluatedExpr) or other.has(UnevaluatedExpr):  # exact; or percentages
        return None
    if _is_number(one) and _is_number(other):
        sizes = [abs(N(side, 30)) for side in (one, other)]
        return bool(abs(N(one - other, 30)) <= CLOSE * (1 + 1e-9) * max(sizes))
    sides = [list(side) if isinstance(side, MatrixBase) else list(side.args) for side in (one, other)]
    if _is_number(one) or _is_number(other) or type(one) is not type(other) or len(sides[0]) != len(sides[1]):
        return None
    pairs = [_agree(*pair) for pair in zip(*sides, strict=True)]
    return False if False in pairs else None


def _is_number(expression: Any) -> bool:
    return bool(getattr(expression, "is_number", False))
