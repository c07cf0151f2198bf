"""The one path: what is charged when, what a failure costs, what is drawn ahead, and what may be said outside."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privalign.accounting.rules import Basic, Debit, Fsrc, Renyi
from privalign.aligner import Aligner, Performance, ScoringFailed, ServedModel
from privalign.errors import BackendFailed, BudgetExhausted, IdempotencyConflict, InvalidInput
from privalign.ledger import IdempotencyKey, KeyExhausted, KeyRefused, Ledger, Role
from privalign.mechanisms.base import Base
from privalign.mechanisms.bon import BoN
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privbon_gaussian import PrivBoNGaussian
from privalign.mechanisms.privitp import PrivITP
from privalign.mechanisms.protocol import Mechanism
from privalign.policies.protocol import BasePolicy
from privalign.randomness import SeededRandomness
from privalign.rewards.protocol import ScorerUntouched
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.types import Candidate, Request, Usage

SENSITIVITY = Sensitivity(0.05, RewardRange(0.0, 1.0))
PRIVITP = PrivITP(n=4, n2=6, beta=0.05, sigma_x=0.2, sigma_z=0.2, tail=3.0)
REQUEST = Request.of_prompt("hello")
PLANTED = 0.123456789


class FakePolicy(BasePolicy):
    name = "fake-policy"

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.before: Callable[[int], Any] = lambda call: None

    async def draw(self, request: Request, count: int) -> list[Candidate]:
        outcome = self.before(len(self.counts))
        if asyncio.iscoroutine(outcome):
            await outcome
        start = sum(self.counts)
        self.counts.append(count)
        return [Candidate(f"text {index}") for index in range(start, start + count)]


class FakeReward:
    name = "fake-reward"
    sensitivity = SENSITIVITY

    def __init__(self) -> None:
        self.calls = self.probes = 0
        self.answer: Callable[[int], Any] = lambda count: np.full(count, PLANTED)
        self.probe_fails = False

    async def score(self, request: Request, candidates: Sequence[Candidate]) -> Any:
        self.calls += 1
        outcome = self.answer(len(candidates))
        return await outcome if asyncio.iscoroutine(outcome) else outcome

    async def probe(self) -> None:
        self.probes += 1
        if self.probe_fails:
            raise BackendFailed("the scorer is still away")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    book = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    book.create_account("prefs", Fsrc(1000.0, 1e-2, 1e-6))
    yield book
    book.close()


def served(mechanism: Mechanism = PRIVITP, **changes: Any) -> tuple[ServedModel, FakePolicy, FakeReward]:
    policy, reward = FakePolicy(), FakeReward()
    options = {"performance": Performance(padding=0.0), **changes}
    return ServedModel("aligned", policy, reward, mechanism, "prefs", **options), policy, reward


def ask(ledger: Ledger, model: ServedModel, **options: Any) -> Any:
    return Aligner(ledger, model, prompt_key=b"k" * 32).answer_blocking(REQUEST, **options)


def failing(error: BaseException) -> Callable[[int], Any]:
    def fail(_: int) -> Any:
        raise error

    return fail


@pytest.mark.parametrize("mechanism", [PRIVITP, PrivBoN(4, 0.3), PrivBoNGaussian(4, 0.3), Base()], ids=lambda m: m.name)
def test_an_answer_is_a_candidate_and_its_price_is_journalled(ledger: Ledger, mechanism: Mechanism) -> None:
    model, policy, _ = served(mechanism)
    (release,) = ask(ledger, model)
    assert release.text == f"text {release.index}"
    assert release.mechanism == mechanism.name
    assert sum(policy.counts) > release.index
    account = ledger.account("prefs")
    assert (account.settled_queries, account.open_queries) == (1, 0)
    assert (account.debited == Debit()) == (mechanism.name == "base")
    assert [entry.kind for entry in ledger.journal("prefs")] == ["create", "reserve", "settle"]
    ledger.verify("prefs")


def test_the_worst_case_is_debited_before_the_first_score(ledger: Ledger) -> None:
    model, _, reward = served()
    seen: list[Debit] = []

    def watch(count: int) -> Any:
        seen.append(ledger.account("prefs").debited)
        return np.full(count, PLANTED)

    reward.answer = watch
    ask(ledger, model)
    worst = ledger.account("prefs").rule.charge(PRIVITP.event(SENSITIVITY))
    assert seen[0] == worst
    assert ledger.account("prefs").debited.fits(worst)


def test_bon_can_never_be_paid_for(ledger: Ledger) -> None:
    model, policy, _ = served(BoN(4))
    with pytest.raises(InvalidInput, match="no privacy guarantee"):
        ask(ledger, model)
    assert policy.counts == []


def test_seeded_noise_never_charges_an_account(ledger: Ledger) -> None:
    model, _, _ = served()
    with pytest.raises(InvalidInput, match="seeded noise"):
        Aligner(ledger, model, SeededRandomness(0))


def test_a_policy_that_fails_costs_nothing(ledger: Ledger) -> None:
    model, policy, reward = served()
    policy.before = failing(BackendFailed("the policy is away"))
    with pytest.raises(BackendFailed, match="the policy is away"):
        ask(ledger, model)
    assert reward.calls == 0
    assert ledger.account("prefs").debited == Debit()
    assert [entry.kind for entry in ledger.journal("prefs")][1:] == ["reserve", "void"]


def test_a_policy_that_returns_too_few_costs_nothing(ledger: Ledger) -> None:
    model, policy, _ = served()

    async def short(request: Request, count: int) -> list[Candidate]:
        return [Candidate("one")]

    policy.draw = short  # type: ignore[method-assign]
    with pytest.raises(BackendFailed, match="1 candidates"):
        ask(ledger, model)
    assert ledger.account("prefs").debited == Debit()


def test_an_untouched_scorer_costs_nothing(ledger: Ledger) -> None:
    model, _, reward = served()
    reward.answer = failing(ScorerUntouched("the scorer refuses connections"))
    with pytest.raises(ScorerUntouched):
        ask(ledger, model)
    assert ledger.account("prefs").debited == Debit()


def test_an_untouched_scorer_after_a_score_stays_spent(ledger: Ledger) -> None:
    model, _, reward = served(performance=Performance(padding=0.0, chunk=1))

    def second_call_fails(count: int) -> Any:
        if reward.calls > 1:
            raise ScorerUntouched("the scorer refuses connections")
        return np.zeros(count)  # low rewards: phase 2 goes on for long

    reward.answer = second_call_fails
    spent = 0
    for _ in range(8):
        reward.calls = 0
        with contextlib.suppress(ScoringFailed):
            ask(ledger, model)
        account = ledger.account("prefs")
        assert account.debited.epsilon > spent
        spent = account.debited.epsilon


@pytest.mark.parametrize(
    "answer",
    [
        failing(BackendFailed(f"upstream said {PLANTED}")),
        failing(RuntimeError(f"upstream said {PLANTED}")),
        failing(TimeoutError()),
        lambda count: np.full(count, np.nan),
        lambda count: np.full(count, np.inf),
        lambda count: np.full(count + 1, PLANTED),
        lambda count: np.full(count - 1, PLANTED),
        lambda count: np.full((count, 1), PLANTED),
        lambda count: [None] * count,
        lambda count: [str(PLANTED)] * count,
        lambda count: None,
    ],
    ids=["error", "bug", "time-out", "nan", "inf", "too many", "too few", "vectors", "null", "strings", "nothing"],
)
def test_every_other_failure_of_scoring_stays_spent_and_says_nothing(ledger: Ledger, answer: Callable[[int], Any]) -> None:
    model, _, reward = served()
    reward.answer = answer
    with pytest.raises(ScoringFailed) as failure:
        ask(ledger, model)
    assert str(PLANTED) not in str(failure.value)
    assert failure.value.__cause__ is None
    assert failure.value.__context__ is None  # whose frames would hold scores
    account = ledger.account("prefs")
    assert account.debited == account.rule.charge(PRIVITP.event(SENSITIVITY))
    assert account.open_queries == 0
    ledger.verify("prefs")


def test_a_suspect_scorer_must_answer_a_probe_before_anything_is_reserved(ledger: Ledger) -> None:
    model, policy, reward = served()
    aligner = Aligner(ledger, model)
    reward.answer = failing(BackendFailed("down"))
    with pytest.raises(ScoringFailed):
        aligner.answer_blocking(REQUEST)
    spent, reward.probe_fails = ledger.account("prefs").debited, True
    for _ in range(5):
        with pytest.raises(BackendFailed, match="still away"):
            aligner.answer_blocking(REQUEST)
    assert ledger.account("prefs").debited == spent
    assert reward.calls == 1
    reward.probe_fails, reward.answer = False, lambda count: np.full(count, PLANTED)
    aligner.answer_blocking(REQUEST)
    aligner.answer_blocking(REQUEST)
    assert reward.probes == 6  # none after it has recovered
    assert len(policy.counts) >= 3


def test_cancelled_before_scoring_costs_nothing_and_after_it_stays_spent(ledger: Ledger) -> None:
    async def cancel(model: ServedModel, started: asyncio.Event) -> None:
        task = asyncio.create_task(Aligner(ledger, model).answer(REQUEST))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def main() -> None:
        for slow in ("policy", "reward"):
            started = asyncio.Event()

            async def hang(started: asyncio.Event = started) -> Any:
                started.set()
                await asyncio.sleep(60)

            model, policy, reward = served()
            if slow == "policy":
                policy.before = lambda call, hang=hang: hang()
            else:
                reward.answer = lambda count, hang=hang: hang()
            await cancel(model, started)
            debited = ledger.account("prefs").debited
            assert (debited == Debit()) == (slow == "policy")

    asyncio.run(main())
    assert ledger.account("prefs").open_queries == 0
    assert [entry.kind for entry in ledger.journal("prefs")][1:] == ["reserve", "void", "reserve", "expire"]


def test_n_answers_are_reserved_all_or_none(ledger: Ledger) -> None:
    model, _, _ = served(PrivBoN(4, 0.3))
    releases = ask(ledger, model, n=3)
    assert len(releases) == 3
    rule = ledger.account("prefs").rule
    one = rule.charge(PrivBoN(4, 0.3).event(SENSITIVITY))
    assert ledger.account("prefs").debited == one * 3
    left = (rule.limit.epsilon - one.epsilon * 3) // one.epsilon
    with pytest.raises(BudgetExhausted):
        ask(ledger, model, n=left + 1)
    assert ledger.account("prefs").debited == one * 3


def test_an_exhausted_account_refuses_or_answers_from_the_base_policy(tmp_path: Path) -> None:
    poor = Ledger(f"sqlite:///{tmp_path / 'poor.db'}")
    poor.create_account("prefs", Basic(1e-3, 1e-9, 1e-12))
    model, policy, reward = served()
    with pytest.raises(BudgetExhausted) as refusal:
        ask(poor, model)
    assert refusal.value.requested > refusal.value.remaining > 0
    assert policy.counts == []
    model, policy, reward = served(on_exhausted="base")
    (release,) = ask(poor, model)
    assert (release.mechanism, release.epsilon, release.delta) == ("base", 0.0, 0.0)
    assert reward.calls == 0
    assert poor.account("prefs").debited == Debit()


def test_a_repeated_request_is_replayed_for_free(ledger: Ledger) -> None:
    model, policy, _ = served()
    key = IdempotencyKey("client", "abc", "body")
    first = ask(ledger, model, idempotency=key)
    debited, drawn = ledger.account("prefs").debited, list(policy.counts)
    assert ask(ledger, model, idempotency=key) == first
    assert ledger.account("prefs").debited == debited
    assert policy.counts == drawn
    with pytest.raises(IdempotencyConflict) as conflict:
        ask(ledger, model, idempotency=IdempotencyKey("client", "abc", "another body"))
    assert conflict.value.mismatch


def test_equal_requests_at_once_are_charged_once(ledger: Ledger) -> None:
    model, _, reward = served(PrivBoN(4, 0.3), performance=Performance(padding=0.0, poll=0.01))

    async def slow(count: int) -> Any:
        await asyncio.sleep(0.1)
        return np.linspace(0, 1, count)

    reward.answer = slow
    key = IdempotencyKey("client", "abc", "body")

    async def crowd() -> list[Any]:
        aligner = Aligner(ledger, model)
        return await asyncio.gather(*(aligner.answer(REQUEST, idempotency=key) for _ in range(8)))

    answers = asyncio.run(crowd())
    assert all(answer == answers[0] for answer in answers)
    assert reward.calls == 1
    assert ledger.account("prefs").settled_queries == 1


def test_a_remembered_threshold_costs_phase_2_only(ledger: Ledger) -> None:
    model, policy, _ = served(reuse_threshold=True)
    aligner = Aligner(ledger, model, prompt_key=b"k" * 32)
    aligner.answer_blocking(REQUEST)
    delta = ledger.account("prefs").debited.delta
    assert delta > 0
    policy.counts.clear()
    aligner.answer_blocking(REQUEST)
    assert ledger.account("prefs").debited.delta == delta  # phase 2 is pure
    assert policy.counts[0] == PRIVITP.n2  # no phase-1 candidates
    aligner.answer_blocking(Request.of_prompt("another"))
    assert ledger.account("prefs").debited.delta == 2 * delta


def test_phase_2_is_drawn_ahead_in_whole_chunks_and_the_fallback_only_when_needed(ledger: Ledger) -> None:
    model, policy, reward = served(performance=Performance(padding=0.0, chunk=2))
    reward.answer = np.zeros
    seen = set()
    for _ in range(60):
        policy.counts.clear()
        (release,) = ask(ledger, model)
        assert policy.counts[0] == PRIVITP.n + 2
        assert policy.counts[1:] in ([], [2], [2, 2], [2, 2, 1])
        assert (policy.counts[1:] == [2, 2, 1]) == release.fallback
        seen.add(len(policy.counts))
    assert len(seen) > 1


def test_a_seeded_request_never_draws_a_candidate_twice(ledger: Ledger) -> None:
    model, policy, reward = served(performance=Performance(padding=0.0, chunk=2))
    reward.answer = np.zeros
    seeds: list[int] = []
    draw = policy.draw

    async def watch(request: Request, count: int) -> list[Candidate]:
        seeds.extend(range(request.parameters["seed"], request.parameters["seed"] + count))
        return await draw(request, count)

    policy.draw = watch  # type: ignore[method-assign]
    seeded = Request.of_prompt("hello").with_defaults({"seed": 7})
    Aligner(ledger, model).answer_blocking(seeded, n=3)
    assert len(seeds) == len(set(seeds))
    assert min(seeds) == 7


def test_selection_takes_a_public_multiple_of_time(ledger: Ledger) -> None:
    model, _, _ = served(PrivBoN(4, 0.3), performance=Performance(padding=0.05))
    aligner = Aligner(ledger, model)
    started = time.perf_counter()
    for _ in range(5):
        aligner.answer_blocking(REQUEST)
    assert time.perf_counter() - started >= 5 * 0.05


def test_a_lease_is_kept_alive_while_its_owner_works(ledger: Ledger) -> None:
    model, _, reward = served(PrivBoN(4, 0.3), performance=Performance(padding=0.0, lease=0.6))

    async def slow(count: int) -> Any:
        await asyncio.sleep(1.5)
        return np.linspace(0, 1, count)

    reward.answer = slow
    ask(ledger, model)
    assert ledger.account("prefs").settled_queries == 1


def test_renyi_accounts_answer_too(tmp_path: Path) -> None:
    book = Ledger(f"sqlite:///{tmp_path / 'renyi.db'}")
    book.create_account("prefs", Renyi(8.0, 1e-6, 4.0))
    model, _, _ = served()
    ask(book, model)
    worst = book.account("prefs").rule.charge(PRIVITP.event(SENSITIVITY))
    assert 0 < book.account("prefs").debited.rdp <= worst.rdp


def test_what_a_debugger_finds_behind_a_failure_holds_no_score(ledger: Ledger) -> None:
    model, _, reward = served(performance=Performance(padding=0.0, chunk=1))
    reward.answer = lambda count: np.full(count, PLANTED) if reward.calls == 1 else np.full(count, np.nan)
    for _ in range(10):
        reward.calls = 0
        try:
            ask(ledger, model)
        except ScoringFailed as failure:
            frames, trace = [], failure.__traceback__
            while trace is not None:
                frames.append(trace.tb_frame)
                trace = trace.tb_next
            inside = [str(vars(query)) for frame in frames for query in frame.f_locals.get("queries", ())]
            assert inside
            assert not any(str(PLANTED) in text for text in inside)
            return
    raise AssertionError("no query went on to a second chunk")


def test_a_paid_answer_is_replayed_and_an_exhausted_account_is_served_while_the_scorer_is_down(ledger: Ledger) -> None:
    model, _, reward = served(PrivBoN(4, 0.3))
    aligner = Aligner(ledger, model)
    key = IdempotencyKey("client", "abc", "body")
    first = aligner.answer_blocking(REQUEST, idempotency=key)
    reward.answer, reward.probe_fails = failing(BackendFailed("down")), True
    with pytest.raises(ScoringFailed):
        aligner.answer_blocking(REQUEST)
    assert aligner.answer_blocking(REQUEST, idempotency=key) == first


def test_a_scorer_that_only_answers_probes_is_left_alone_for_longer_and_longer(ledger: Ledger) -> None:
    model, _, reward = served(PrivBoN(4, 0.3))
    aligner = Aligner(ledger, model)
    reward.answer = failing(BackendFailed("down"))
    charged = 0
    for _ in range(30):
        before = ledger.account("prefs").debited
        with pytest.raises(BackendFailed):
            aligner.answer_blocking(REQUEST)
        charged += ledger.account("prefs").debited != before
    assert 3 <= charged <= 5


def test_only_one_query_at_a_time_tries_a_suspect_scorer(ledger: Ledger) -> None:
    model, _, reward = served(PrivBoN(4, 0.3))
    aligner = Aligner(ledger, model, probe_first=True)

    async def crowd() -> list[Any]:
        others_refused = asyncio.Event()

        async def dies(count: int) -> Any:
            await others_refused.wait()
            raise BackendFailed("reset")

        reward.answer = dies
        waiting = [asyncio.create_task(aligner.answer(REQUEST)) for _ in range(20)]
        async with asyncio.timeout(60):
            while sum(task.done() for task in waiting) < 19:
                await asyncio.sleep(0.01)
        others_refused.set()
        return await asyncio.gather(*waiting, return_exceptions=True)

    outcomes = asyncio.run(crowd())
    assert sum(isinstance(outcome, ScoringFailed) for outcome in outcomes) == 1
    account = ledger.account("prefs")
    assert account.debited == account.rule.charge(PrivBoN(4, 0.3).event(SENSITIVITY))


@pytest.mark.parametrize("n", [1, 2])
def test_a_seed_that_is_none_is_refused_before_anything_is_reserved(ledger: Ledger, n: int) -> None:
    model, _, _ = served()
    with pytest.raises(InvalidInput, match="seed"):
        Aligner(ledger, model).answer_blocking(Request.of_prompt("hello").with_defaults({"seed": "x"}), n=n)
    assert [entry.kind for entry in ledger.journal("prefs")] == ["create"]


def test_the_limit_of_a_key_is_no_reason_to_answer_from_the_base_policy(ledger: Ledger) -> None:
    model, _, _ = served(PrivBoN(4, 0.3), on_exhausted="base")
    client = ledger.create_key(Role.CLIENT, queries=1).key.id
    officer = ledger.create_key(Role.OFFICER).key.id
    ask(ledger, model, api_key=client)
    with pytest.raises(KeyExhausted):
        ask(ledger, model, api_key=client)
    with pytest.raises(KeyRefused):
        ask(ledger, model, api_key=officer)


def test_slow_scorers_in_threads_do_not_starve_leases(ledger: Ledger) -> None:
    model, _, reward = served(PrivBoN(4, 0.3), performance=Performance(padding=0.0, lease=0.6))
    one_at_a_time = threading.Lock()

    def slow(count: int) -> Any:
        with one_at_a_time:
            time.sleep(0.06)
        return np.linspace(0, 1, count)

    reward.answer = lambda count: asyncio.to_thread(slow, count)

    async def crowd() -> list[Any]:
        aligner = Aligner(ledger, model)
        return await asyncio.gather(*(aligner.answer(REQUEST) for _ in range(24)))

    assert len(asyncio.run(crowd())) == 24
    assert ledger.account("prefs").settled_queries == 24


def test_what_came_with_the_chosen_candidate_is_released_and_replayed(ledger: Ledger) -> None:
    model, policy, _ = served(PrivBoN(4, 0.3))
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}

    async def draw(request: Request, count: int) -> list[Candidate]:
        return [Candidate("", "tool_calls", (call,), {"content": []}, Usage(3, 2)) for _ in range(count)]

    policy.draw = draw  # type: ignore[method-assign]
    key = IdempotencyKey("client", "abc", "body")
    (release,) = ask(ledger, model, idempotency=key)
    assert (release.finish_reason, release.tool_calls, release.logprobs) == ("tool_calls", (call,), {"content": []})
    assert (release.usage, release.drawn) == (Usage(12, 8), 4)
    assert ask(ledger, model, idempotency=key) == [release]


def test_clients_that_leave_say_nothing_about_the_scorer(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever hangs up three times shuts the model for everybody; but a scorer that lets all of them wait too long is dead."""
    model, _, reward = served(PrivBoN(4, 0.3))
    aligner = Aligner(ledger, model)

    async def leave() -> None:
        started = asyncio.Event()

        async def hang() -> Any:
            started.set()
            await asyncio.sleep(60)

        reward.answer = lambda count: hang()
        task = asyncio.create_task(aligner.answer(REQUEST))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for _ in range(5):
        asyncio.run(leave())
    reward.answer = lambda count: np.full(count, PLANTED)
    aligner.answer_blocking(REQUEST)
    assert reward.probes == 0
    monkeypatch.setattr("privalign.aligner.query.LONG_FOR_SCORES", 0.0)
    asyncio.run(leave())
    reward.probe_fails, spent = True, ledger.account("prefs").debited
    with pytest.raises(BackendFailed, match="still away"):
        aligner.answer_blocking(REQUEST)
    assert ledger.account("prefs").debited == spent


@pytest.mark.parametrize("begun", [True, False])
def test_what_is_reserved_for_who_has_left_is_given_back_even_without_their_loop(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """As when a gateway ends while its ledger is locked: cancelled twice, and the loop is gone before the lock is."""
    model, policy, _ = served(PrivBoN(4, 0.3))
    reserve, reached, unlocked, done = ledger.reserve, threading.Event(), threading.Event(), threading.Event()
    blocked = ThreadPoolExecutor(1)

    def slowly(*arguments: Any, **options: Any) -> Any:
        reached.set()
        assert unlocked.wait(30)
        return reserve(*arguments, **options)

    async def main() -> None:
        task = asyncio.create_task(Aligner(ledger, model).answer(REQUEST))
        if begun:
            await asyncio.to_thread(reached.wait)
        await asyncio.sleep(0.05)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task

    monkeypatch.setattr("privalign.aligner.async_ledger.ledger_threads", lambda process: blocked)
    monkeypatch.setattr(ledger, "reserve", slowly)
    if not begun:
        blocked.submit(unlocked.wait, 30)  # the request waits for a thread behind others
    asyncio.run(main())
    unlocked.set()
    blocked.submit(done.set)
    assert done.wait(30)
    blocked.shutdown()
    assert reached.is_set() == begun
    assert [entry.kind for entry in ledger.journal("prefs")] == ["create", *(["reserve", "void"] if begun else [])]
    assert policy.counts == []


@pytest.mark.parametrize("account", ["prefs", "poor"])
def test_whatever_a_model_writes_is_scored_stored_and_can_be_sent(ledger: Ledger, account: str) -> None:
    """Half surrogate pairs and log-probabilities of −∞ (Python's json writes and reads both) cost no paid answer."""
    ledger.create_account("poor", Basic(1e-3, 1e-9, 1e-12))
    model, policy, reward = served(PrivBoN(2, 0.3), on_exhausted="base")
    model = dataclasses.replace(model, account=account)
    half = "\ud83d"
    call = {"id": "1", "type": "function", "function": {"name": f"f{half}", "arguments": f'{{"{half}": 1}}'}}
    logprobs = {"content": [{"token": half, "logprob": -math.inf, "bytes": None, "top_logprobs": [{"token": "é😀", "logprob": math.nan}]}]}
    scored: list[str] = []

    async def draw(request: Request, count: int) -> list[Candidate]:
        return [Candidate(f"é😀{half}", f"stop{half}", (call,), logprobs)] * count

    async def score(request: Request, candidates: Sequence[Candidate]) -> Any:
        scored.extend(candidate.scored_text for candidate in candidates)
        return np.zeros(len(candidates))

    policy.draw, reward.score = draw, score  # type: ignore[method-assign]
    (release,) = ask(ledger, model, idempotency=IdempotencyKey("client", "abc", "body"))
    json.dumps([release.to_json(), *scored], ensure_ascii=False, allow_nan=False).encode()
    assert (release.text, release.finish_reason) == ("é😀\ufffd", None)
    assert release.tool_calls[0]["function"] == {"name": "f\ufffd", "arguments": '{"\ufffd": 1}'}
    token = {"token": "\ufffd", "logprob": -9999.0, "bytes": None, "top_logprobs": [{"token": "é😀", "logprob": None}]}
    assert release.logprobs == {"content": [token]}
    assert (release.mechanism == "base") == (account == "poor")
