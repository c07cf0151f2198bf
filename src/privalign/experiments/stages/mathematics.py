"""Mathematical answers compared by math-verify, in a process of its own that is ended when an answer takes too long.

math-verify's own time limits are alarm signals: they work in the main thread only, and do not interrupt a computation inside C
(an answer of 9^(9^9), say). So they are off, and the parent process keeps the time.

As a program (`python -m privalign.experiments.stages.mathematics`) this is the child: a JSON `[gold, answer]` a line in, one word out.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from types import TracebackType
from typing import Any, Self

from privalign.errors import BackendFailed, MissingDependency

START = 120.0  # seconds that a child may take to import sympy on a busy machine
LONGEST = 20_000  # letters from the end of an answer that are looked at: final answers stand there, and some patterns are slow
_READY, _RIGHT, _WRONG = "ready", "right", "wrong"


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
        """Whether the last answer in the text equals the gold one; False where there is none; None: undecided within the time.

        Args:
            gold: a number or an expression in LaTeX, without delimiters.

        Raises:
            BackendFailed: no child can be started.
        """
        line = json.dumps([gold, answer[-LONGEST:]]).encode() + b"\n"
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
            return word == _RIGHT
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


def serve() -> None:
    """The child: answers until its input ends."""
    import logging
    from functools import lru_cache

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not look like an answer
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    logging.disable(logging.CRITICAL)  # "timeouts are disabled", once a process, and answers quoted in errors

    forms = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())  # \\boxed is what the templates ask for

    @lru_cache(maxsize=16)
    def parsed(gold: str) -> Any:
        return parse(f"$\\boxed{{{gold}}}$", parsing_timeout=None)

    answers.write(f"{_READY}\n")
    for line in sys.stdin.buffer:
        gold, answer = json.loads(line)
        try:
            right = verify(parsed(gold), parse(answer, forms, parsing_timeout=None), timeout_seconds=None)  # gold first: not symmetric
        except (Exception, RecursionError):
            right = False
        answers.write(f"{_RIGHT if right else _WRONG}\n")
