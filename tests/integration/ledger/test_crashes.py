"""SIGKILL at every statement of reserve and settle, before and after every commit and anchor, and at random moments.

A forked process reserves, settles and then says what it released. Afterwards the chain must verify without any repair,
and every released answer must be covered by a journalled debit.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import random
import signal
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import TextIO

import pytest

from privalign.accounting.rules import Renyi
from privalign.events import GumbelMax
from privalign.ledger import IdempotencyKey, Ledger, Replay
from privalign.sensitivity import RewardRange, Sensitivity

EVENT = GumbelMax(Sensitivity.of_range(RewardRange(0.0, 1.0)), 10.0, 16)
FORK = multiprocessing.get_context("fork")
RULE = Renyi(1e6, 1e-6, 2.0)  # more than the workers can spend before they are killed
KILLS = int(os.environ.get("PRIVALIGN_KILLS", "8"))  # at random moments, on each database; `make soak` asks for more

# Where the worker kills itself: at the n-th call of a function of the ledger, before or after it runs.
POINTS = [
    "begin:before:5",
    "begin:after:5",
    "begin:after:6",
    "change:before:9",
    "change:after:9",
    "change:after:10",
    "change:after:11",
    "change:after:12",
    "change:after:13",
    "change:after:14",
    "change:after:15",
    "change:after:16",
    "rows:after:9",
    "rows:after:10",
    "rows:after:11",
    "commit:before:5",
    "commit:after:5",
    "commit:before:6",
    "commit:after:6",
    "anchor:before:5",
    "anchor:after:6",
    "slot:before:9",
    "slot:after:10",
    "slot:after:11",
]


def _worker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("crashing_ledger_worker", Path(__file__).with_name("crashing_worker.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WORKER = _worker()


@dataclass
class Worker:
    """A process, and the lines that it wrote down."""

    process: BaseProcess
    lines: TextIO

    def end(self) -> list[str]:
        """The lines left when it was killed."""
        with self.lines:
            left = self.lines.read().split("\n")[:-1]
        self.process.join(60)
        assert self.process.exitcode == -signal.SIGKILL
        return left


def start(url: str, point: str) -> Worker:
    reading, writing = os.pipe()
    process = FORK.Process(target=WORKER.main, args=(url, point, writing))
    process.start()
    os.close(writing)
    return Worker(process, os.fdopen(reading))


def check(url: str, released: list[str]) -> None:
    """Nothing to repair: the chain verifies, and each released answer was debited, settled and can be replayed."""
    ledger = Ledger(url)
    verified = ledger.verify("prefs")
    account = ledger.account("prefs")
    assert verified.debited == account.debited
    assert account.debited == RULE.charge(EVENT) * (account.settled_queries + account.open_queries)
    settled = {entry.reservation for entry in ledger.journal("prefs") if entry.kind == "settle"}
    for line in released:
        number, key = line.split()
        assert int(number) in settled
        assert ledger.reserve("prefs", [EVENT], idempotency=IdempotencyKey("test", key, "body")) == Replay({"text": key})
    ledger.close()


@pytest.fixture
def url(ledger_url: str) -> str:
    ledger = Ledger(ledger_url)
    ledger.create_account("prefs", RULE)
    ledger.close()
    return ledger_url


def test_killed_at_every_point_of_a_query(url: str) -> None:
    released: list[str] = []
    for first in range(0, len(POINTS), 2):  # two at once, so that crashes meet
        workers = [start(url, point) for point in POINTS[first : first + 2]]
        for worker in workers:
            released += worker.end()
    assert len(released) > len(POINTS)
    check(url, released)


def test_killed_at_random_moments(url: str) -> None:
    released: list[str] = []
    dice = random.Random(0)
    for _ in range(KILLS // 2):
        workers = [start(url, "never") for _ in range(2)]
        released += [worker.lines.readline().strip() for worker in workers]  # they have begun
        time.sleep(dice.uniform(0, 0.05))
        for worker in workers:
            worker.process.kill()
            released += worker.end()
    check(url, released)
