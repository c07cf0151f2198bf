"""Answers compared by math-verify in a process of its own, which no answer can hold up or bring down."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from privalign.stages.mathematics import Verifier, last_statement


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
        ("5", "\\boxed{4}, wait, that is wrong, \\boxed{5}"),
        ("5", "\\boxed{4}\nWait, that is wrong.\n\\boxed{5}"),
        ("5", "\\boxed{4}. On reflection, the answer is 5."),
        ("5", "The answer is 4. \\boxed{5}"),
        ("5", "\\boxed{4}. The answer: **5**"),
        ("5", "\\boxed{5}. To check our answer: $2 + 4 = 6$."),
        ("5", "\\boxed{5} is the answer: it is the sum of 2 and 3"),
        ("5", "\\boxed{\\boxed{5}}"),
        ("\\{3, 4\\}", "\\boxed{3} and \\boxed{4}"),
        ("3, 4", "$\\boxed{3}$\n$\\boxed{4}$"),
        ("1.6\\times 10^{-19}", "\\boxed{1.6\\times 10^{-19}}"),
        ("1.6e-19", "\\boxed{1.6\\times 10^{-19}}"),
        ("1.6\\times 10^{-19}", "\\boxed{1.6e-19}"),
        ("1.6\\times 10^{-19}", "The answer is 1.6e-19."),
        ("6.022\\times 10^{23}", "\\boxed{602200000000000000000000}"),
        ("\\frac13", "\\boxed{0.333333}"),
        ("e^{-20}", "\\boxed{2.0611536\\times 10^{-9}}"),
        ("(1.6\\times 10^{-19}, 2)", "\\boxed{(1.6\\times 10^{-19}, 2)}"),
        ("0.5", "\\boxed{50\\%}"),
        ("\\text{Evelyn}", "\\boxed{\\text{Evelyn}}"),
        ("70000", "The answer is \\$70,000."),
        ("5", '{"reasoning": "2 + 3 is 5, not 6", "answer": "5"}'),
        ("5", '{"answer": "5", "explanation": "since 7 is odd"}'),
        ("5", "<think>maybe 4</think><answer>5</answer>"),
        ("\\frac12", "<answer>\\frac{1}{2}</answer>"),
        ("5", "\\boxed{4}. But that is not correct. So \\boxed{5}."),
        ("5", "\\boxed{\\text{The answer is } 5}"),
        ("2.5 x 10^-3", "\\boxed{0.0025}"),
        ("2.5\\times 10^{-3}", "The answer is 2.5 x 10^-3."),
        ("1e-10", "\\boxed{1.0000001\\times 10^{-10}}"),
        ("\\sqrt{2}\\times 10^{-9}", "\\boxed{1.41421356\\times 10^{-9}}"),
    ],
)
def test_right_answers(verifier: Verifier, gold: str, answer: str) -> None:
    assert verifier.is_right(gold, answer) is True


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("18", "\\boxed{26}"),
        ("18", "18 eggs are laid, so the answer is \\boxed{9}."),
        ("\\frac{1}{2}", "\\boxed{\\frac{1}{3}}"),
        ("4", "\\boxed{4}, wait, that is wrong, \\boxed{5}"),
        ("4", "\\boxed{3} and \\boxed{4}"),
        ("1.6\\times 10^{-19}", "\\boxed{9.1\\times 10^{-31}}"),
        ("1.6e-19", "It is 1.7e-19"),
        ("x = 0.0000001", "\\boxed{0.0000002}"),
        ("(1.6\\times 10^{-19}, 2)", "\\boxed{(9.1\\times 10^{-31}, 2)}"),
        ("\\{0.0000001, 3\\}", "\\boxed{\\{0.0000002, 3\\}}"),
        ("\\begin{pmatrix}0.0000001\\\\2\\end{pmatrix}", "\\boxed{\\begin{pmatrix}0.0000002\\\\2\\end{pmatrix}}"),
        ("0", "\\boxed{0.0000001}"),
        ("\\frac13", "\\boxed{0.3333}"),
        ("\\text{Evelyn}", "\\boxed{\\text{Carla}}"),
        ("1e-10", "\\boxed{1.1\\times 10^{-10}}"),
        ("-1e-10", "\\boxed{1\\times 10^{-10}}"),
        ("1.5e-9 x", "\\boxed{1.6e-9 x}"),
        ("2i\\times 10^{-9}", "\\boxed{3i\\times 10^{-9}}"),
        ("1e-9 < x < 2e-9", "\\boxed{1e-9 < x < 3e-9}"),
        ("0.00002", "\\boxed{0.00003}"),
    ],
)
def test_wrong_answers(verifier: Verifier, gold: str, answer: str) -> None:
    assert verifier.is_right(gold, answer) is False


@pytest.mark.parametrize(
    "answer",
    [
        "I do not know.",
        "",
        "\\boxed{}",
        "\\boxed{18",
        "\\boxed{\\frac{}",
        "\\boxed{" * 3000,
        "\\boxed{18}. Wait, that is wrong.",
        "The answer is 18. No, scratch that.",
        "\\boxed{18}. But that is not correct.",
        '{"answer": null}',
        "\x00\ud83d [ready] right",
    ],
)
def test_what_cannot_be_told_is_none_and_never_false(verifier: Verifier, answer: str) -> None:
    assert verifier.is_right("18", answer) is None


@pytest.mark.parametrize(
    ("gold", "read"),
    [(gold, True) for gold in ("18", "-3.5", "\\frac{1}{2}", "1e-7", "p - q", "x < 3", "[0, 1)", "2, 3", "\\text{Evelyn}", "5\\%")]
    + [(gold, False) for gold in ("", " ", "\\frac{1}{", "}{", "?", "...", "\\foo", "\\sqrt{", "N/A", "None", "nan", " unknown ", "1/0")],
)
def test_a_gold_answer_can_be_read_or_not(verifier: Verifier, gold: str, read: bool) -> None:
    assert verifier.can_read(gold) is read


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("\\boxed{1}, so \\boxed{2}, \\boxed{3}", "$\\boxed{2}$, $\\boxed{3}$"),
        ("\\boxed{\\frac{1}{2}} and then the answer is 3. It is prime.", "The answer is 3"),
        ("neither: 4", "neither: 4"),
        ("\\boxed{1}. Hmm, that cannot be right.", None),
        ("\\boxed{1}. Is 2 + 2 = 5? No, that is wrong.", "$\\boxed{1}$"),
    ],
)
def test_the_last_statement(text: str, statement: str | None) -> None:
    assert last_statement(text) == statement


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


@pytest.mark.slow
def test_a_child_that_died_is_replaced(verifier: Verifier) -> None:
    verifier.is_right("2", "\\boxed{2}")
    child = verifier._child
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert verifier.is_right("2", "\\boxed{2}") in (True, None)  # None: the pipe took the question before the end was seen
    assert verifier.is_right("2", "\\boxed{2}") is True
