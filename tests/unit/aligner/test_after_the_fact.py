"""After a failure no score can be reached: not from what is raised, nor from any task, thread, future, generator or log.

Scores are made anew at every call, from a whole number; whatever float, array or text shows one of them afterwards was kept
by the code under test. Looked through are everything that can be reached from the exception (frames of tracebacks, causes,
groups), all objects made during the test, and the frames of all threads.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privalign.accounting import costs
from privalign.accounting.rules import Fsrc
from privalign.aligner import Aligner, Performance, ScoringFailed, ServedModel
from privalign.errors import BackendFailed, LeaseExpired
from privalign.ledger import Ledger
from privalign.mechanisms.driver import select_from_pool
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privitp import PrivITP
from privalign.mechanisms.protocol import Draw, Run, Selection, admit
from privalign.policies.protocol import BasePolicy
from privalign.randomness import SecureRandomness
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.types import Candidate, Request

SENSITIVITY = Sensitivity(0.05, RewardRange(0.0, 1.0))
REQUEST = Request.of_prompt("hello")
BASE, COUNT = 6_654_061_218_113_871, 128  # score i is (BASE + i)·2⁻⁵³, about 0.7388
PRIVITP = PrivITP(n=4, n2=60, beta=0.05, sigma_x=0.2, sigma_z=0.02, tail=3.0)
PRIVBON = PrivBoN(4, 0.3)
LOW, HIGH = math.ldexp(BASE, -53) - 1e-15, math.ldexp(BASE + COUNT, -53) + 1e-15
DIGITS = "0.738749"  # how each of them begins


def scores(count: int) -> Any:
    return np.ldexp(np.arange(BASE, BASE + count, dtype=np.float64), -53)


def is_score(value: object) -> bool:
    """Whether it shows a score: as a float, in an array, or written out."""
    match value:
        case float():
            return LOW <= value < HIGH
        case np.ndarray() if value.dtype.kind == "f":
            return bool(np.any(np.logical_and(np.asarray(value) >= LOW, np.asarray(value) < HIGH)))
        case np.ndarray() if value.dtype.kind == "O":
            return any(map(is_score, value.ravel().tolist()))
        case str():
            return DIGITS in value and value != DIGITS
    return False


def referents(value: object) -> list[object]:
    if isinstance(value, types.FrameType):
        return list(value.f_locals.values())
    if isinstance(value, types.FunctionType):
        return [value.__closure__, value.__defaults__, value.__kwdefaults__]
    if isinstance(value, types.ModuleType | types.CodeType | type) or type(value).__module__.startswith(("_pytest", "pluggy")):
        return []
    return gc.get_referents(value)


def found(roots: Iterable[object]) -> list[str]:
    """The kinds of objects on the way to each score that can be reached from the roots."""
    modules = {id(vars(module)) for module in list(sys.modules.values()) if isinstance(module, types.ModuleType)}
    seen, ways = set(modules), []
    waiting: deque[tuple[object, str]] = deque((root, type(root).__name__) for root in roots)
    while waiting:
        value, way = waiting.popleft()
        if id(value) in seen or value is seen or value is waiting:
            continue
        seen.add(id(value))
        if is_score(value):
            ways.append(way)
        for inner in referents(value):
            waiting.append((inner, f"{way[-300:]} > {type(inner).__name__}"))
    return ways


@contextmanager
def nothing_kept(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> Iterator[list[BaseException]]:
    """Looks once the block is over; the block puts what was raised into the list."""
    gc.freeze()
    raised: list[BaseException] = []
    try:
        with caplog.at_level(logging.DEBUG):
            yield raised
        gc.collect()
        for error in raised:
            assert found([error, error.__traceback__, error.__context__, error.__cause__, error.args]) == []
        threads = [frame for thread, frame in sys._current_frames().items() if thread != threading.get_ident()]
        assert found([*threads, *gc.get_objects()]) == []
    finally:
        gc.unfreeze()
    written = caplog.text + "".join(capsys.readouterr()) + "".join(map(repr, raised))
    assert DIGITS not in written


def test_the_search_finds_what_is_there() -> None:
    def deep(kept: Any) -> None:
        raise ValueError

    def generator(kept: Any) -> Iterator[None]:
        yield

    def error_of(act: Callable[[], Any]) -> BaseException:
        try:
            act()
        except BaseException as error:
            return error
        raise AssertionError

    def chained() -> None:
        try:
            deep(scores(1)[0].item())
        except ValueError:
            raise KeyError from None  # hides it from readers, and leaves it in the context

    running = generator(scores(2))
    next(running)
    group = BaseExceptionGroup("", [error_of(lambda: deep(scores(1)))])
    cases = [
        error_of(lambda: deep(scores(3))),
        error_of(chained),
        group,
        running,
        f"it was {scores(1)[0]}",
        [{"a": (scores(1)[0].item(),)}],
    ]
    for case in cases:
        assert found([case]), case
    assert found([np.array([scores(1)[0].item()], dtype=object)])
    assert found([0.7388, "0.7", np.linspace(0, 1, 5), sys.modules, test_the_search_finds_what_is_there]) == []


class Policy(BasePolicy):
    name = "policy"

    def __init__(self, fails_below: int = 0) -> None:
        self.fails_below = fails_below

    async def draw(self, request: Request, count: int) -> list[Candidate]:
        if count < self.fails_below:
            raise BackendFailed("the policy is away")
        return [Candidate(f"text {index}") for index in range(count)]


class Reward:
    name = "reward"
    sensitivity = SENSITIVITY

    def __init__(self, answer: Callable[[int, int], Any]) -> None:
        self.calls, self.answer = 0, answer

    async def score(self, request: Request, candidates: Sequence[Candidate]) -> Any:
        self.calls += 1
        outcome = self.answer(self.calls, len(candidates))
        return await outcome if asyncio.iscoroutine(outcome) else outcome

    async def probe(self) -> None:
        pass


class FailingNoise(SecureRandomness):
    """Raises with all that it was given, whatever is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_") or name == "private":
            return super().__getattribute__(name)

        def fail(*arguments: Any, **options: Any) -> Any:
            kept = [arguments, options]
            raise ValueError(f"{kept} {arguments[0]!r}", kept)

        return fail


class Mechanism:
    """Reads scores and fails, or goes on and fails when it is closed."""

    name, pool_size, n = "fails", 8, 4

    def __init__(self, act: Callable[[Any], Any]) -> None:
        self._act = act

    def event(self, sensitivity: Sensitivity) -> Any:
        return PrivBoN(4, 0.3).event(sensitivity)

    def run(self, sensitivity: Sensitivity, noise: Any) -> Run:
        rewards = admit((yield Draw(4, 4)), sensitivity, 4)
        try:
            self._act(rewards)
            yield Draw(4, 4)
        finally:
            self._act(rewards)
        return Selection(0, self.event(sensitivity))


def raising(kind: type[BaseException]) -> Callable[[Any], Any]:
    def fail(rewards: Any) -> Any:
        first = float(rewards[0])
        try:
            raise LookupError(first)
        except LookupError as cause:
            raise kind(f"{first}") from cause

    return fail


def computed_and_failed(kind: type[BaseException]) -> Callable[[int, int], Any]:
    return lambda call, count: raising(kind)(scores(count))


async def grouped(count: int) -> Any:
    async def fail() -> None:
        raising(ValueError)(scores(count))

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(fail())


def second_is_bad(call: int, count: int) -> Any:
    return scores(count) if call == 1 else np.where(np.arange(count) == 0, np.nan, scores(count))


def first_is_bad(call: int, count: int) -> Any:
    return np.where(np.arange(count) == 0, np.nan, scores(count))


def good(call: int, count: int) -> Any:
    return scores(count)


FAILURES: dict[str, dict[str, Any]] = {
    "noise of one phase": {"mechanism": PRIVBON, "noise": FailingNoise()},
    "noise of two phases": {"mechanism": PRIVITP, "noise": FailingNoise()},
    "mechanism": {"mechanism": Mechanism(raising(ValueError))},
    "mechanism that ends the process": {"mechanism": Mechanism(raising(SystemExit))},
    "mechanism that fails when closed": {"mechanism": Mechanism(lambda rewards: None), "answer": second_is_bad},
    "no number": {"answer": first_is_bad},
    "no number later": {"mechanism": PRIVITP, "answer": second_is_bad},
    "strings": {"answer": lambda call, count: [str(score) for score in scores(count)]},
    "too many": {"answer": lambda call, count: scores(count + 1)},
    "scorer": {"answer": computed_and_failed(RuntimeError)},
    "scorer's own cancelling": {"answer": computed_and_failed(asyncio.CancelledError)},
    "scorer's interrupt": {"answer": computed_and_failed(KeyboardInterrupt)},
    "scorer's tasks": {"answer": lambda call, count: grouped(count)},
    "policy later": {"mechanism": PRIVITP, "policy": lambda: Policy(fails_below=4)},
}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    book = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    book.create_account("prefs", Fsrc(1e6, 1e-2, 1e-6))
    yield book
    book.close()


def aligner(
    ledger: Ledger,
    mechanism: Any = PRIVBON,
    noise: Any = None,
    answer: Callable[[int, int], Any] = good,
    policy: Callable[[], Policy] = Policy,
    padding: float = 0.002,
) -> Aligner:
    model = ServedModel("aligned", policy(), Reward(answer), mechanism, "prefs", performance=Performance(chunk=1, padding=padding))
    return Aligner(ledger, model, noise)


async def asked(aligner: Aligner, n: int) -> None:
    """A traceback as a service would keep it: of a task, without the frames of the test."""
    await asyncio.create_task(aligner.answer(REQUEST, n=n))


@pytest.mark.parametrize("padding", [0.0, 0.002])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("name", FAILURES)
def test_no_failure_of_a_query_leads_to_a_score(ledger: Ledger, caplog: Any, capsys: Any, name: str, n: int, padding: float) -> None:
    with nothing_kept(caplog, capsys) as raised:
        for _ in range(20):  # until the mechanism goes on to where the failure is
            try:
                asyncio.run(asked(aligner(ledger, padding=padding, **FAILURES[name]), n))
            except (ScoringFailed, asyncio.CancelledError, KeyboardInterrupt, SystemExit) as error:
                raised.append(error)
                break
        assert raised


@pytest.mark.parametrize("failure", [RuntimeError, LeaseExpired])
@pytest.mark.parametrize("place", ["settle", "price"])
def test_nor_does_one_after_the_selection(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: Any, capsys: Any, failure: type[Exception], place: str
) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise failure("no")

    if place == "settle":
        monkeypatch.setattr(ledger, "settle", fail)
    else:
        monkeypatch.setattr(costs, "epsilon", fail)
    with nothing_kept(caplog, capsys) as raised:
        try:
            asyncio.run(asked(aligner(ledger), 1))
        except (ScoringFailed, LeaseExpired) as error:
            raised.append(error)
    assert raised


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("place", ["scorer", "section"])
def test_nor_does_leaving(ledger: Ledger, caplog: Any, capsys: Any, place: str, times: int) -> None:
    async def main() -> None:
        reached, left = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        async def slow(count: int) -> Any:
            kept = scores(count)
            reached.set()
            await asyncio.sleep(60)
            return kept

        def waits(rewards: Any) -> None:
            loop.call_soon_threadsafe(reached.set)
            assert left.wait(30)

        mechanism = Mechanism(waits) if place == "section" else PRIVBON
        answer = good if place == "section" else lambda call, count: slow(count)
        task = asyncio.create_task(aligner(ledger, mechanism, answer=answer).answer(REQUEST))
        async with asyncio.timeout(30):
            await reached.wait()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.01)
        left.set()
        await task

    with nothing_kept(caplog, capsys) as raised:
        try:
            asyncio.run(main())
        except asyncio.CancelledError as error:
            raised.append(error)
    assert raised
    assert [entry.kind for entry in ledger.journal("prefs")] == ["create", "reserve", "expire"]


@pytest.mark.parametrize("mechanism", [PRIVITP, PRIVBON], ids=lambda mechanism: mechanism.name)
def test_an_answer_leaves_nothing_behind_either(ledger: Ledger, caplog: Any, capsys: Any, mechanism: Any) -> None:
    with nothing_kept(caplog, capsys):
        kept = aligner(ledger, mechanism)
        releases = asyncio.run(kept.answer(REQUEST, n=2))
        assert len(releases) == 2


POOL_FAILURES = {
    "noise of one phase": (PRIVBON, FailingNoise(), 0),
    "noise of two phases": (PRIVITP, FailingNoise(), 0),
    "mechanism": (Mechanism(raising(ValueError)), SecureRandomness(), 0),
    "mechanism that ends the process": (Mechanism(raising(SystemExit)), SecureRandomness(), 0),
    "interrupt": (Mechanism(raising(KeyboardInterrupt)), SecureRandomness(), 0),
    "no number": (PRIVBON, SecureRandomness(), 1),
}


@pytest.mark.parametrize("name", POOL_FAILURES)
def test_no_failure_over_a_recorded_pool_leads_to_a_score(caplog: Any, capsys: Any, name: str) -> None:
    mechanism, noise, bad = POOL_FAILURES[name]

    def pool() -> Any:
        return np.concatenate([np.full(bad, np.nan), scores(mechanism.pool_size - bad)])

    with nothing_kept(caplog, capsys) as raised:
        try:
            select_from_pool(mechanism, SENSITIVITY, noise, pool())
        except BaseException as error:
            raised.append(error)
    assert raised
