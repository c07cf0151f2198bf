"""SIGKILL at every await and commit of the one path, and at random moments, on both databases.

Afterwards, without any repair: the journal verifies; every answer that a client had in hand is covered by a journalled
debit and is replayed free under its key; the requests that were cut off are answered under theirs.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from privalign.accounting.rules import Renyi
from privalign.aligner import Aligner, Performance, ServedModel
from privalign.ledger import IdempotencyKey, Ledger
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privitp import PrivITP
from privalign.policies.recorded import RecordedPolicy
from privalign.rewards.recorded import RecordedReward
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.types import Release, Request

WORKER = Path(__file__).with_name("crashing_worker.py")
KILLS = int(os.environ.get("PRIVALIGN_KILLS", "8"))  # at random moments, on each database; `make soak` asks for more
SENSITIVITY = Sensitivity(0.01, RewardRange(0.0, 1.0))
MECHANISMS = (PrivBoN(4, 0.5), PrivITP(n=4, n2=6, beta=0.05, sigma_x=0.5, sigma_z=0.5, tail=3.0))
RULE = Renyi(1e5, 1e-6, 2.0)  # more than the workers can spend before they are killed

# The third and fourth call of every step: one is PrivBoN's, the other PrivITP's.
STEPS = ("reserve", "draw", "score", "select", "section", "release", "settle", "respond")
SIDES = ("before", "after")
POINTS = [
    *(f"{step}:{side}:{count}" for step in STEPS for side in SIDES for count in (3, 4)),
    *(f"{step}:{side}:2" for step in ("chunk-draw", "chunk-score") for side in SIDES),
    *(f"{step}:{side}:1" for step in ("void", "forfeit") for side in SIDES),  # of a query that failed
    *(f"commit:{side}:{count}" for side in SIDES for count in (5, 6, 7, 8)),  # of reserve and of settle
    *(f"change:after:{count}" for count in range(12, 18)),
]


@pytest.fixture
def url(ledger_url: str) -> str:
    ledger = Ledger(ledger_url)
    ledger.create_account("prefs", RULE)
    ledger.close()
    return ledger_url


def crash(url: str, log: Path, points: list[str]) -> list[dict[str, Any]]:
    """Runs the worker through the points and returns what it wrote down."""
    run = subprocess.run([sys.executable, str(WORKER), url, str(log), *points], capture_output=True, text=True, timeout=3600)
    assert (run.returncode, run.stderr) == (0, "")
    return [json.loads(line) for line in log.read_text().splitlines()]


def ask(ledger: Ledger, key: str, number: int) -> Release:
    """The request that the worker made under that key, from candidates with other texts."""
    mechanism = MECHANISMS[number % 2]
    texts = [f"another answer {place}" for place in range(mechanism.pool_size)]
    reward = RecordedReward("recorded", [0.5] * mechanism.pool_size, SENSITIVITY)
    model = ServedModel("aligned", RecordedPolicy("recorded", texts), reward, mechanism, "prefs", performance=Performance(padding=0.0))
    return Aligner(ledger, model).answer_blocking(Request.of_prompt("hello"), idempotency=IdempotencyKey("crash", key, key))[0]


def check(url: str, log: list[dict[str, Any]], kills: int) -> None:
    ledger = Ledger(url)
    verified = ledger.verify("prefs")
    account = ledger.account("prefs")
    assert verified.debited == account.debited

    # every answer that left is covered by its own debit
    paid: dict[int, int] = {}
    settled = set()
    for entry in ledger.journal("prefs"):
        row = entry.seq if entry.reservation is None else entry.reservation
        paid[row] = paid.get(row, 0) + entry.debit.rdp
        if entry.kind == "settle":
            settled.add(entry.reservation)
    released = [line for line in log if "released" in line]
    numbers = [line["reservation"] for line in released]
    assert len(set(numbers)) == len(numbers)
    assert set(numbers) <= settled
    for line in released:
        assert paid[line["reservation"]] == line["rdp"] > 0
    assert account.debited.rdp >= sum(line["rdp"] for line in released)

    # what was not released is spent as well, at most one request for each kill (and those that failed at the scorer)
    failed = [line["failed"] for line in log if "failed" in line]
    assert account.settled_queries + account.open_queries <= len(released) + len(failed) + kills

    # replays are equal and free
    for line in released:
        again = ask(ledger, line["released"], line["number"])
        assert (again.text, again.index) == (line["text"], line["index"])
    assert ledger.account("prefs").debited == account.debited

    # what was cut off goes on under its own key, replayed or anew
    done = {line["released"] for line in released} | set(failed)
    for line in log:
        if "started" in line and line["started"] not in done:
            assert "answer" in ask(ledger, line["started"], line["number"]).text
    ledger.verify("prefs")
    assert ledger.account("prefs").open_queries == 0
    ledger.close()


def test_killed_at_every_step_of_the_path_and_at_random_moments(url: str, tmp_path: Path) -> None:
    dice = random.Random(1)
    points = [*POINTS, *(f"random:{dice.uniform(0.0, 0.05)}" for _ in range(KILLS))]
    log = crash(url, tmp_path / "log", points)
    assert sum("released" in line for line in log) > len(points)
    check(url, log, len(points))


@pytest.mark.parametrize("times", [1, 2])
def test_cancelled_while_reserving_gives_the_debit_back(url: str, times: int) -> None:
    """A client that hangs up while its query is being reserved: nobody will answer it, so nothing stays spent."""
    ledger = Ledger(url)
    inner = ledger.reserve

    async def main() -> None:
        loop, began = asyncio.get_running_loop(), asyncio.Event()

        def reserve(*arguments: Any, **named: Any) -> Any:
            loop.call_soon_threadsafe(began.set)
            time.sleep(0.1)
            return inner(*arguments, **named)

        ledger.reserve = reserve  # type: ignore[method-assign]
        mechanism = MECHANISMS[0]
        policy = RecordedPolicy("recorded", ["a"] * mechanism.pool_size)
        model = ServedModel("aligned", policy, RecordedReward("recorded", [0.0] * 4, SENSITIVITY), mechanism, "prefs")
        aligner = Aligner(ledger, model)
        task = asyncio.create_task(aligner.answer(Request.of_prompt("hello")))
        await began.wait()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.01)
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.gather(*aligner._ledger.unfinished)

    asyncio.run(main())
    account = ledger.account("prefs")
    assert (account.debited.rdp, account.open_queries) == (0, 0)
    assert [entry.kind for entry in ledger.journal("prefs")] == ["create", "reserve", "void"]
    ledger.close()
