"""Many processes on one account: never over budget, one answer for one request, one schema."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.queues import Queue
from typing import Any

import pytest

from privalign.accounting.rules import Renyi
from privalign.errors import BudgetBusy, BudgetExhausted
from privalign.events import GumbelMax
from privalign.ledger import IdempotencyKey, Ledger, Pending, Replay, Reservation
from privalign.sensitivity import RewardRange, Sensitivity

EVENT = GumbelMax(Sensitivity.of_range(RewardRange(0.0, 1.0)), 10.0, 16)
FORK = multiprocessing.get_context("fork")


def together(count: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `work(number, …)` returns in each of `count` processes that start at once."""
    start, answers = FORK.Event(), FORK.Queue()

    def run(number: int, queue: Queue[Any]) -> None:
        start.wait()
        try:
            queue.put((True, work(number, *arguments)))
        except BaseException as error:
            queue.put((False, repr(error)))

    processes = [FORK.Process(target=run, args=(number, answers)) for number in range(count)]
    for process in processes:
        process.start()
    start.set()
    results = [answers.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    failed = [what for good, what in results if not good]
    assert not failed, failed
    return [what for _, what in results]


def account_for(queries: int) -> Renyi:
    """An account that `queries` of EVENT fit, and not one more."""
    rule = Renyi(50.0, 1e-6, 2.0)
    cost = rule.charge(EVENT).rdp
    exact = Renyi(50.0 - (rule.limit.rdp - cost * queries - cost // 2) / 1e12, 1e-6, 2.0)
    assert exact.limit.rdp // cost == queries
    return exact


def test_sixteen_processes_never_exceed_the_budget(ledger_url: str) -> None:
    ledger = Ledger(ledger_url)
    rule = account_for(1500)
    ledger.create_account("prefs", rule)
    done = FORK.Event()

    def spend(number: int) -> dict[str, int]:
        dice, seen = random.Random(number), dict.fromkeys(("settled", "voided", "left", "exhausted", "busy"), 0)
        for _ in range(200):
            try:
                reservation = ledger.reserve("prefs", [EVENT])
            except BudgetExhausted as refusal:
                assert 0 <= refusal.remaining < refusal.requested  # noqa: PT017
                seen["busy" if isinstance(refusal, BudgetBusy) else "exhausted"] += 1
                continue
            assert isinstance(reservation, Reservation)
            what = dice.choices(("settled", "voided", "left"), (90, 5, 5))[0]
            if what == "settled":
                ledger.settle(reservation, [EVENT])
            elif what == "voided":
                ledger.void(reservation)
            seen[what] += 1
        return seen

    def watch(samples: Queue[int]) -> None:
        seen = 0
        while not done.is_set():
            account = ledger.account("prefs")
            assert account.debited.fits(account.limit)
            assert account.open.fits(account.debited)
            seen += 1
        samples.put(seen)

    samples = FORK.Queue()
    reader = FORK.Process(target=watch, args=(samples,))
    reader.start()
    totals = {name: sum(each[name] for each in results) for results in [together(16, spend)] for name in results[0]}
    done.set()
    assert samples.get(timeout=30) > 20
    reader.join()

    account = ledger.account("prefs")
    cost = rule.charge(EVENT).rdp
    assert sum(totals.values()) == 3200
    assert totals["settled"] + totals["left"] == account.debited.rdp // cost == 1500
    assert (account.settled_queries, account.open_queries) == (totals["settled"], totals["left"])
    assert account.refused_queries == totals["busy"] + totals["exhausted"] > 0
    assert ledger.verify("prefs").debited == account.debited


@pytest.mark.parametrize("round_", range(3))
def test_equal_requests_at_once_are_one_debit_and_one_release(ledger_url: str, round_: int) -> None:
    ledger = Ledger(ledger_url)
    rule = Renyi(50.0, 1e-6, 2.0)
    ledger.create_account("prefs", rule)

    def ask(number: int) -> str:
        while True:
            outcome = ledger.reserve("prefs", [EVENT], idempotency=IdempotencyKey("client", "request", "body"))
            if isinstance(outcome, Pending):
                time.sleep(0.01)
                continue
            if isinstance(outcome, Replay):
                return str(outcome.release["text"])
            time.sleep(0.05)
            ledger.settle(outcome, [EVENT], {"text": f"answer {number}"})
            return f"answer {number}"

    answers = together(8, ask)
    assert len(set(answers)) == 1
    assert ledger.account("prefs").debited == rule.charge(EVENT)
    assert [entry.kind for entry in ledger.journal("prefs")] == ["create", "reserve", "settle"]


def test_threads_share_a_ledger_while_it_is_verified(ledger_url: str) -> None:
    ledger = Ledger(ledger_url)
    rule = Renyi(50.0, 1e-6, 2.0)
    ledger.create_account("prefs", rule)

    def ask(_: int) -> None:
        for _ in range(25):
            reservation = ledger.reserve("prefs", [EVENT])
            assert isinstance(reservation, Reservation)
            ledger.settle(ledger.renew(reservation), [EVENT])

    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(ask, number) for number in range(8)]
        while not all(each.done() for each in running):
            ledger.verify("prefs")
        for each in running:
            each.result()
    assert ledger.verify("prefs").debited == rule.charge(EVENT) * 200
    assert ledger.verify("prefs").length == 401


def test_processes_that_open_a_new_ledger_at_once_agree(ledger_url: str) -> None:
    def open_it(number: int) -> int:
        ledger = Ledger(ledger_url)
        ledger.create_account(f"account-{number}", Renyi(50.0, 1e-6, 2.0))
        return ledger.account(f"account-{number}").length

    assert together(8, open_it) == [1] * 8
    assert len(Ledger(ledger_url).accounts()) == 8


def test_a_fork_in_the_middle_of_a_reservation_leaves_both_sides_right(ledger_url: str) -> None:
    ledger = Ledger(ledger_url)
    ledger.create_account("prefs", Renyi(50.0, 1e-6, 2.0))
    reservation = ledger.reserve("prefs", [EVENT])
    assert isinstance(reservation, Reservation)

    def in_child(number: int) -> int:
        ledger.settle(ledger.reserve("prefs", [EVENT]), [EVENT])  # type: ignore[arg-type]
        return ledger.account("prefs").length

    assert max(together(4, in_child)) == 10
    ledger.settle(reservation, [EVENT])
    assert ledger.verify("prefs").length == 11
