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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from privalign.aligner.model import ServedModel
from privalign.aligner.steps import Steps
from privalign.randomness import Randomness
from privalign.rewards.protocol import scores_in_process
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
    """The deadlines of one served model: its `padding` where it states one, else measured once, before the first answer.

    Attributes:
        here: whether scoring belongs to the section, since it runs in this process.
    """

    def __init__(self, model: ServedModel, noise: Randomness) -> None:
        padding = model.performance.padding
        self._deadline = None if padding is None else Deadline(padding)
        self._model, self._noise = model, noise
        self.here = scores_in_process(model.reward)  # and scoring belongs to the section
        self._measuring = threading.Lock()

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
        per_character = max(0.0, long - one) / (LONG - SHORT)
    return Deadline(
        _rounded_up(sys.getswitchinterval() + SAFETY * seconds), _rounded_up(SAFETY * per_candidate), _rounded_up(SAFETY * per_character)
    )


def _section_times(model: ServedModel, noise: Randomness) -> dict[int, float]:
    """Median seconds of a section, by its size; low scores, so that rejection goes on."""
    sensitivity = model.reward.sensitivity

    def once() -> Iterator[tuple[int, float]]:
        steps = Steps(model.mechanism, sensitivity, noise, model.performance.chunk)
        while steps.wanted:
            scores = np.full(steps.wanted, sensitivity.range.low)
            began = time.perf_counter()
            steps.take(scores)
            yield len(scores), time.perf_counter() - began

    return _medians(lambda: list(once())) or {1: 0.0}  # the base policy reads none


def _scoring_times(model: ServedModel, most: int) -> tuple[float, float, float]:
    """Median seconds of scoring one short text, `most` short ones, and one long one, of letters by chance: no two alike."""
    dice, request = random.Random(0), Request.of_prompt("")
    sizes = ((1, SHORT), (most, SHORT), (1, LONG))
    batches = [[Candidate("".join(dice.choices(string.ascii_lowercase + " ", k=length))) for _ in range(count)] for count, length in sizes]

    async def scored() -> list[tuple[int, float]]:
        times = []
        await model.reward.score(request, batches[0])  # starts what a new loop starts once
        for number, batch in enumerate(batches):
            began = time.perf_counter()
            await model.reward.score(request, batch)
            times.append((number, time.perf_counter() - began))
        return times

    def once() -> list[tuple[int, float]]:
        return _threads(os.getpid()).submit(asyncio.run, scored()).result()  # a loop may be running in this thread

    medians = _medians(once)
    return medians[0], medians[1], medians[2]


def _medians(once: Callable[[], list[tuple[int, float]]]) -> dict[int, float]:
    """The median of each kind of time over `ROUNDS` rounds, or as many as begin within `PATIENCE` seconds; the round before them
    loads what is loaded once.
    """
    once()
    times: dict[int, list[float]] = {}
    end = time.perf_counter() + PATIENCE
    for _ in range(ROUNDS):
        for kind, seconds in once():
            times.setdefault(kind, []).append(seconds)
        if time.perf_counter() > end:
            break
    return {kind: statistics.median(taken) for kind, taken in times.items()}


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
    value, unit = (seconds * 1e3, "ms") if seconds >= 1e-5 or seconds == 0 else (seconds * 1e6, "µs")
    return f"{float(f'{value:.4g}'):g} {unit}"
