"""Answers requests until it is killed: at a named point of the one path, or at a random moment. Run by test_crashes.

    crashing_worker.py LEDGER_URL LOG POINT...

For every POINT a process is forked that answers request after request and ends itself with SIGKILL there; two at a time, so
that crashes meet. A point is `NAME:before|after:COUNT`, the COUNT-th call of a function of the path in that process, or
`random:SECONDS`, so long after its first answer. What a client would have received is synced to LOG before the next request.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from privalign.accounting.rules import Renyi
from privalign.aligner import Aligner, Performance, ScoringFailed, ServedModel
from privalign.aligner.clock import Clock
from privalign.aligner.query import Query
from privalign.errors import BackendFailed
from privalign.ledger import IdempotencyKey, Ledger, Reservation
from privalign.ledger.terms import Terms
from privalign.ledger.transaction import Transaction
from privalign.mechanisms.driver import select_from_pool
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privitp import PrivITP
from privalign.mechanisms.protocol import Mechanism
from privalign.policies.recorded import RecordedPolicy
from privalign.randomness import SecureRandomness
from privalign.rewards.recorded import RecordedReward
from privalign.sensitivity import Relation, RewardRange, Sensitivity
from privalign.types import Candidate, Request

SENSITIVITY = Sensitivity(0.01, RewardRange(0.0, 1.0))
MECHANISMS: tuple[Mechanism, ...] = (PrivBoN(4, 0.5), PrivITP(n=4, n2=6, beta=0.05, sigma_x=0.5, sigma_z=0.5, tail=3.0))
RULE = Renyi(1e5, 1e-6, 2.0)  # that of the account
PERFORMANCE = Performance(chunk=1, padding=1e-4, lease=2.0, poll=0.01)
FAILING = {5: "policy", 7: "scorer"}  # what is broken in every tenth request
LONGEST = 30  # seconds after which a process that was not killed gives up


class Killer:
    """Counts calls by name and ends the process at one of them, without any warning."""

    def __init__(self, point: str) -> None:
        self._point = point
        self._calls: dict[str, int] = {}

    def at(self, name: str) -> None:
        self._calls[name] = self._calls.get(name, 0) + 1
        if f"{name}:{self._calls[name]}" == self._point:
            os.kill(os.getpid(), signal.SIGKILL)

    def patch(self, owner: type, attribute: str, name: str) -> None:
        """Puts a point before and after a function, which may be asynchronous."""
        inner = getattr(owner, attribute)

        def call(*arguments: Any, **named: Any) -> Any:
            self.at(f"{name}:before")
            outcome = inner(*arguments, **named)
            self.at(f"{name}:after")
            return outcome

        async def wait(*arguments: Any, **named: Any) -> Any:
            self.at(f"{name}:before")
            outcome = await inner(*arguments, **named)
            self.at(f"{name}:after")
            return outcome

        setattr(owner, attribute, wait if inspect.iscoroutinefunction(inner) else call)


class Policy(RecordedPolicy):
    """Recorded candidates; further chunks and the fallback have points of their own."""

    def __init__(self, killer: Killer, texts: Sequence[str], broken: bool) -> None:
        super().__init__("recorded", texts)
        self._killer, self._broken, self._name = killer, broken, "draw"

    async def draw(self, request: Request, count: int) -> list[Candidate]:
        name, self._name = self._name, "chunk-draw"
        self._killer.at(f"{name}:before")
        await asyncio.sleep(0)
        if self._broken:
            raise BackendFailed("the policy is away")
        drawn = await super().draw(request, count)
        self._killer.at(f"{name}:after")
        return drawn


class Reward(RecordedReward):
    """Recorded scores, likewise."""

    def __init__(self, killer: Killer, scores: Sequence[float], broken: bool) -> None:
        super().__init__("recorded", scores, SENSITIVITY)
        self._killer, self._broken, self._name = killer, broken, "score"

    async def score(self, request: Request, candidates: Sequence[Candidate]) -> Sequence[float]:
        name, self._name = self._name, "chunk-score"
        self._killer.at(f"{name}:before")
        await asyncio.sleep(0)
        if self._broken:
            raise BackendFailed("the scorer is away")
        scores = await super().score(request, candidates)
        self._killer.at(f"{name}:after")
        return scores


class Log:
    """Lines that are on the disk once `write` returns."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, **facts: object) -> None:
        os.write(self._descriptor, (json.dumps(facts) + "\n").encode())
        os.fsync(self._descriptor)


def served(number: int, killer: Killer) -> ServedModel:
    """The model that answers request `number`; scores are low, so that PrivITP asks for many chunks."""
    mechanism = MECHANISMS[number % len(MECHANISMS)]
    broken = FAILING.get(number % 10)
    size = mechanism.pool_size
    policy = Policy(killer, [f"answer {place}" for place in range(size)], broken == "policy")
    reward = Reward(killer, [0.01 * place for place in range(size)], broken == "scorer")
    return ServedModel("aligned", policy, reward, mechanism, "prefs", performance=PERFORMANCE)


def patch_path(killer: Killer) -> list[Any]:
    """Puts points around every step; returns what `reserve` and `settle` handed out in this process, newest last."""
    handed: list[Any] = []
    for name in ("reserve", "settle"):
        inner = getattr(Ledger, name)

        def keep(*arguments: Any, inner: Callable[..., Any] = inner, **named: Any) -> Any:
            handed.append(inner(*arguments, **named))
            return handed[-1]

        setattr(Ledger, name, keep)
    for name in ("reserve", "settle", "void", "forfeit"):
        killer.patch(Ledger, name, name)
    for name in ("commit", "change"):
        killer.patch(Transaction, name, name)
    killer.patch(Query, "run", "select")
    killer.patch(Clock, "section", "section")
    killer.patch(Aligner, "_release", "release")
    return handed


async def answer_for_ever(url: str, log: Log, point: str) -> None:
    killer = Killer(point)
    handed = patch_path(killer)
    ledger = Ledger(url)
    for number in range(10**6):
        key = f"{os.getpid()}-{number}"
        log.write(started=key, number=number)
        aligner = Aligner(ledger, served(number, killer))
        try:
            (release,) = await aligner.answer(Request.of_prompt("hello"), idempotency=IdempotencyKey("crash", key, key))
        except (ScoringFailed, BackendFailed):
            log.write(failed=key)
            continue
        reservation, debit = handed[-2:]
        assert isinstance(reservation, Reservation)
        killer.at("respond:before")
        log.write(released=key, number=number, text=release.text, index=release.index, reservation=reservation.number, rdp=debit.rdp)
        killer.at("respond:after")


def start(url: str, log: str, point: str) -> int:
    """Forks a process that answers requests."""
    child = os.fork()
    if child == 0:
        signal.alarm(LONGEST)
        try:
            asyncio.run(answer_for_ever(url, Log(log), point))
        finally:
            os._exit(1)
    return child


def finish(child: int, log: str, point: str) -> None:
    """Waits until the process is dead; kills it where that is up to us."""
    name, _, seconds = point.partition(":")
    if name == "random":
        while f'"released": "{child}-' not in Path(log).read_text():
            time.sleep(0.005)
        time.sleep(float(seconds))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
        sys.exit(f"{point}: the process was not killed there but ended with {os.waitstatus_to_exitcode(status)}")


def main(url: str, log: str, *points: str) -> None:
    for mechanism in MECHANISMS:  # loads the samplers and remembers the prices, once for all processes
        Terms(RULE, Relation.REPLACE, 1, "prefs").charge((mechanism.event(SENSITIVITY),))
        select_from_pool(mechanism, SENSITIVITY, SecureRandomness(), [0.0] * mechanism.pool_size)
    for first in range(0, len(points), 2):
        pair = points[first : first + 2]
        children = [start(url, log, point) for point in pair]
        for child, point in zip(children, pair, strict=True):
            finish(child, log, point)


if __name__ == "__main__":
    main(*sys.argv[1:])
