"""Answers compared by math-verify in a process of its own, which no answer can hold up or bring down."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from privalign.experiments.stages.mathematics import Verifier


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier(10.0) as made:
        yield made


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("18", "She makes $18 every day. The answer is \\boxed{18}."),
        ("1234", "\\boxed{1,234}"),
        ("70000", "His profit is \\boxed{\\$70,000}."),
        ("\\frac{1}{2}", "\\boxed{0.5}"),
        ("\\left( 3, \\frac{\\pi}{2} \\right)", "\\boxed{(3, \\pi/2)}"),
        ("p - q", "$\\boxed{p-q}$"),
        ("18", "First we get $\\boxed{3}$ but, checking, it is $\\boxed{18}$."),
        ("18", "No box, but 18"),
    ],
)
def test_right_answers(verifier: Verifier, gold: str, answer: str) -> None:
    assert verifier.is_right(gold, answer) is True


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("18", "\\boxed{26}"),
        ("18", "18 eggs are laid, so the answer is \\boxed{9}."),
        ("18", "I do not know."),
        ("18", ""),
        ("\\frac{1}{2}", "\\boxed{\\frac{1}{3}}"),
        ("18", "\\boxed{" * 3000),
        ("18", "\x00\ud83d [ready] right"),
    ],
)
def test_wrong_answers(verifier: Verifier, gold: str, answer: str) -> None:
    assert verifier.is_right(gold, answer) is False


def test_an_answer_that_takes_too_long_is_undecided_and_holds_up_no_other() -> None:
    with Verifier(2.0) as impatient:
        assert impatient.is_right("3", "\\boxed{3}") is True
        start = time.monotonic()
        assert impatient.is_right("3", "\\boxed{9^{9^{9^{9}}}}") is None
        assert time.monotonic() - start < 10
        assert impatient.is_right("3", "\\boxed{3}") is True


def test_it_works_outside_the_main_thread(verifier: Verifier) -> None:
    found: list[bool | None] = []
    thread = threading.Thread(target=lambda: found.append(verifier.is_right("2", "\\boxed{2}")))
    thread.start()
    thread.join()
    assert found == [True]


def test_a_child_that_died_is_replaced(verifier: Verifier) -> None:
    verifier.is_right("2", "\\boxed{2}")
    child = verifier._child
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert verifier.is_right("2", "\\boxed{2}") in (True, None)  # None: the pipe took the question before the end was seen
    assert verifier.is_right("2", "\\boxed{2}") is True
