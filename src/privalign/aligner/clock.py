"""When a selection leaves: at a moment that public settings and counts fix, not when its computing ends.

A *section* is all that reads the scores of a batch, from their arrival to the next fetch or the release. Its work is the
same for any scores (`randomness`), and it leaves at start + D, D = a + b·candidates + c·characters, however long the work took.
It runs in a thread that sleeps to the deadline: the event loop's own timers count whole milliseconds and would show the
rest. One that is late leaves when it is ready, and so tells of the machine's load.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import os
import random
import statistics
import string
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from privalign.aligner.model import ServedModel
from privalign.aligner.steps import Steps
from privalign.randomness import Randomness
from privalign.types import Candidate, Request

SAFETY = 4.0  # times the measured median, for machines that are busier than when it was measured
ROUNDS = 16  # of measuring
PATIENCE = 0.5  # seconds after which no further round begins
SHORT, LONG = 200, 4000  # characters of made-up texts


@dataclass(frozen=True, slots=True)
class Deadline:
    """D = seconds + per_candidate·candidates + per_character·characters, of one section."""

    seconds: float
    per_candidate: float = 0.0
    per_character: float = 0.0

    def after(self, candidates: int, characters: int) -> float:
        """Seconds from the start of a section."""
        return self.seconds + self.per_candidate * candidates + self.per_character * characters

    def __str__(self) -> str:
        slopes = ((self.per_candidate, "candidate"), (self.per_character, "character"))
        return " + ".join([_milliseconds(self.seconds), *(f"{_milliseconds(slope)} a {unit}" for slope, unit in slopes if slope)])


class Clock:
    """The deadlines of one served model: its `padding` where it states one, else measured once, before the first answer."""

    def __init__(self, model: ServedModel, noise: Randomness) -> None:
        padding = model.performance.padding
        self._deadline = None if padding is None else Deadline(padding)
        self._model, self._noise = model, noise
        self._measuring = threading.Lock()

    @property
    def here(self) -> bool:
        """Whether scoring runs in this process and belongs to the section; a reward that does not say so scores elsewhere."""
        return getattr(self._model.reward, "in_process", False)

    def deadline(self) -> Deadline:
        """D; takes up to a second where it is still to be measured."""
        with self._measuring:
            if self._deadline is None:
                self._deadline = measured(self._model, self._noise, scoring=self.here)
            return self._deadline

    async def ready(self) -> None:
        """Has D measured, where it was not."""
        if self._deadline is None:
            await asyncio.to_thread(self.deadline)

    async def section(self, work: Callable[[], None], start: float, candidates: int, characters: int) -> bool:
        """Does the work and waits for start + D, though cancelled meanwhile: nothing reads scores once this has ended.

        Args:
            start: by `time.perf_counter`, when the scores arrived, or when their scoring began where it runs here.

        Returns:
            Whether the work raised no `Exception`. What it raised is gone: its frames hold scores.
        """
        seconds = self.deadline().after(candidates, characters)
        if seconds == 0:  # nobody can time it
            return _succeeds(work)
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(_threads(os.getpid()), _until, start + seconds, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await _ended(running)
            raise


def measured(model: ServedModel, noise: Randomness, *, scoring: bool) -> Deadline:
    """D on this machine: `SAFETY` times what sections of made-up scores take, the worst over their sizes, and a switch interval
    of the interpreter, for which another thread may hold it.

    Rounded up to two digits: what was measured on a protected model does not show in full.

    Args:
        scoring: measures the reward as well, on made-up texts.
    """
    sections = _section_times(model, noise)
    least, most = min(sections), max(sections)
    seconds = sections[least]
    per_candidate = max((max(0.0, took - seconds) / (size - least) for size, took in sections.items() if size > least), default=0.0)
    per_character = 0.0
    if scoring:
        one, many, long = _scoring_times(model, most)
        seconds += one
        per_candidate += max(0.0, many - one) / most
        per_character = max(0.0, long - many) / (most * (LONG - SHORT))
    return Deadline(
        _rounded_up(sys.getswitchinterval() + SAFETY * seconds), _rounded_up(SAFETY * per_candidate), _rounded_up(SAFETY * per_character)
    )


def _section_times(model: ServedModel, noise: Randomness) -> dict[int, float]:
    """Median seconds of a section, by its size; low scores, so that rejection goes on."""
    sensitivity = model.reward.sensitivity
    times: dict[int, list[float]] = {}
    for _ in _rounds():
        steps = Steps(model.mechanism, sensitivity, noise, model.performance.chunk)
        while steps.wanted:
            scores = np.full(steps.wanted, sensitivity.range.low)
            began = time.perf_counter()
            steps.take(scores)
            times.setdefault(len(scores), []).append(time.perf_counter() - began)
    return {size: statistics.median(taken) for size, taken in times.items()} or {1: 0.0}  # the base policy reads none


def _scoring_times(model: ServedModel, most: int) -> tuple[float, float, float]:
    """Median seconds of scoring one short text, `most` short ones, and as many long ones, of letters by chance: no two alike."""
    dice = random.Random(0)
    request = Request.of_prompt("")

    def texts(count: int, length: int) -> list[Candidate]:
        return [Candidate("".join(dice.choices(string.ascii_lowercase + " ", k=length))) for _ in range(count)]

    async def score(candidates: Sequence[Candidate]) -> float:
        taken = []
        for _ in _rounds():
            began = time.perf_counter()
            await model.reward.score(request, candidates)
            taken.append(time.perf_counter() - began)
        return statistics.median(taken)

    def time_of(candidates: Sequence[Candidate]) -> float:
        return _threads(os.getpid()).submit(asyncio.run, score(candidates)).result()  # a loop may be running in this thread

    return time_of(texts(1, SHORT)), time_of(texts(most, SHORT)), time_of(texts(most, LONG))


def _rounds() -> Iterator[int]:
    """`ROUNDS` numbers, fewer when they take long; the first round loads what is loaded once, which the median leaves out."""
    end = time.perf_counter() + PATIENCE
    for number in range(ROUNDS):
        yield number
        if time.perf_counter() > end:
            return


def _until(end: float, work: Callable[[], None]) -> bool:
    """Does the work and sleeps until `end`."""
    try:
        done = _succeeds(work)
    except BaseException:  # ends no process from here, and a future would keep it
        done = False
    time.sleep(max(0.0, end - time.perf_counter()))
    return done


def _succeeds(work: Callable[[], None]) -> bool:
    try:
        work()
    except Exception:
        return False
    return True


async def _ended(running: asyncio.Future[bool]) -> None:
    """Waits for a thread, whoever cancels: it sleeps for milliseconds."""
    while not running.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({running})


@functools.lru_cache(maxsize=1)
def _threads(process: int) -> ThreadPoolExecutor:
    """Threads of their own, since most of them sleep; they do not survive a fork, so they belong to a process."""
    return ThreadPoolExecutor(32, f"privalign-section-{process}")


def _rounded_up(value: float) -> float:
    """`value` at two significant digits, never below it."""
    if value <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit) * unit


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2g} ms" if seconds >= 1e-5 else f"{seconds * 1e6:.2g} µs"
