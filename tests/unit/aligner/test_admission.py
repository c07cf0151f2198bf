"""What the gateway asks of the aligner: how a request was let in, what the chosen candidate took, and a warm start."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privalign.accounting.rules import Debit, Fsrc
from privalign.aligner import Admission, Aligner, How, Performance, ServedModel
from privalign.errors import BackendFailed, BudgetExhausted, InvalidInput
from privalign.ledger import IdempotencyKey, Ledger, UnknownAccount
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privitp import PrivITP
from privalign.policies.protocol import BasePolicy
from privalign.rewards.protocol import ScorerUntouched
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.types import Candidate, Release, Request, Usage

REQUEST = Request.of_prompt("hello")


class Policy(BasePolicy):
    name = "policy"

    async def draw(self, request: Request, count: int) -> list[Candidate]:
        return [Candidate(f"text {place}", usage=Usage(0, place + 1)) for place in range(count)]


class Reward:
    name = "reward"
    sensitivity = Sensitivity(0.05, RewardRange(0.0, 1.0))
    failure: Exception | None = None

    async def score(self, request: Request, candidates: Sequence[Candidate]) -> Any:
        if self.failure is not None:
            raise self.failure
        return np.zeros(len(candidates))

    async def probe(self) -> None:
        raise BackendFailed("it is not asked unless it is suspect")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    book = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    book.create_account("prefs", Fsrc(0.4, 1e-2, 1e-6))  # one query
    yield book
    book.close()


def served(on_exhausted: str = "refuse", account: str = "prefs") -> ServedModel:
    return ServedModel("aligned", Policy(), Reward(), PrivBoN(2, 0.3), account, on_exhausted, performance=Performance(padding=0.0))


def how(aligner: Aligner, key: str | None = None) -> How | None:
    async def ask() -> How | None:
        idempotency = None if key is None else IdempotencyKey("scope", key, "body")
        try:
            admission = await aligner.admit(REQUEST, idempotency=idempotency)
        except BudgetExhausted:
            return None
        (release,) = await admission.answer()
        assert (release.mechanism == "base") == (admission.how is How.BASE)
        return admission.how

    return asyncio.run(ask())


def test_how_a_request_was_let_in(ledger: Ledger) -> None:
    aligner = Aligner(ledger, served())
    assert aligner.model.name == "aligned"
    assert how(aligner, "a") is How.RESERVED
    assert how(aligner, "a") is How.REPLAYED
    assert how(aligner) is None
    assert how(Aligner(ledger, served("base"))) is How.BASE


def test_what_the_chosen_candidate_took(ledger: Ledger) -> None:
    (release,) = Aligner(ledger, served()).answer_blocking(REQUEST)
    assert release.own_usage == Usage(0, release.index + 1)
    assert release.usage == Usage(0, 3)
    assert Release.from_json(release.to_json()) == release
    old = {name: value for name, value in release.to_json().items() if name != "own_usage"}
    assert Release.from_json(old).own_usage is None  # stored before there was one


def test_a_warm_start_charges_nothing_and_finds_a_missing_account(ledger: Ledger) -> None:
    Aligner(ledger, served()).warm_up()
    assert ledger.account("prefs").length == 1
    with pytest.raises(UnknownAccount):
        Aligner(ledger, served(account="none")).warm_up()
    itp = PrivITP(n=4, n2=4, beta=0.05, sigma_x=0.5, sigma_z=0.5, tail=3.0)
    ledger.create_account("more", Fsrc(1000.0, 1e-2, 1e-6))
    Aligner(ledger, ServedModel("itp", Policy(), Reward(), itp, "more")).warm_up()


def test_a_request_that_cannot_be_scored_makes_no_suspect_of_the_scorer(ledger: Ledger) -> None:
    model = served()
    reward = model.reward
    assert isinstance(reward, Reward)
    aligner = Aligner(ledger, model)
    for status in (413, 422):
        reward.failure = ScorerUntouched("too long", status)
        with pytest.raises(ScorerUntouched):
            aligner.answer_blocking(REQUEST)
    reward.failure = None
    aligner.answer_blocking(REQUEST)  # without a probe
    assert ledger.account("prefs").settled_queries == 1


def kinds(ledger: Ledger) -> list[str]:
    return [entry.kind for entry in ledger.journal("prefs")][1:]


def given_back(ledger: Ledger) -> bool:
    """Within a moment: another thread does it."""
    end = time.monotonic() + 10
    while kinds(ledger) != ["reserve", "void"] and time.monotonic() < end:
        time.sleep(0.01)
    return kinds(ledger) == ["reserve", "void"] and ledger.account("prefs").debited == Debit()


@pytest.mark.parametrize("way", ["dropped", "never started", "cancelled before it began", "its loop is gone", "in a cycle"])
def test_an_admission_that_nobody_answers_gives_back_what_it_reserved(ledger: Ledger, way: str) -> None:
    aligner = Aligner(ledger, served())

    async def main() -> Admission | None:
        admission = await aligner.admit(REQUEST)
        assert ledger.account("prefs").debited != Debit()
        if way == "never started":
            admission.answer().close()
        elif way == "cancelled before it began":
            task = asyncio.create_task(admission.answer())
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        elif way == "in a cycle":
            admission.itself = admission  # type: ignore[attr-defined]
        return admission if way == "its loop is gone" else None

    asyncio.run(main())
    gc.collect()
    assert given_back(ledger)


def test_an_admission_that_is_answered_once_is_neither_given_back_nor_answered_again(ledger: Ledger) -> None:
    async def main() -> None:
        admission = await Aligner(ledger, served()).admit(REQUEST)
        assert len(await admission.answer()) == 1
        with pytest.raises(InvalidInput, match="admission: is answered already"):
            await admission.answer()
        del admission
        gc.collect()
        await asyncio.sleep(0.05)

    asyncio.run(main())
    assert kinds(ledger) == ["reserve", "settle"]


def test_an_admission_cancelled_while_candidates_are_drawn_costs_nothing(ledger: Ledger) -> None:
    async def main() -> None:
        model, drawing = served(), asyncio.Event()

        async def draw(request: Request, count: int) -> list[Candidate]:
            drawing.set()
            await asyncio.sleep(60)
            return []

        model.policy.draw = draw  # type: ignore[method-assign]
        admission = await Aligner(ledger, model).admit(REQUEST)
        task = asyncio.create_task(admission.answer())
        await drawing.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert kinds(ledger) == ["reserve", "void"]


def test_a_mechanism_that_fails_before_it_asks_for_anything_costs_nothing(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any) -> Any:
        raise ArithmeticError("no curve")

    monkeypatch.setattr(PrivBoN, "run", run)
    with pytest.raises(ArithmeticError):
        Aligner(ledger, served()).answer_blocking(REQUEST)
    assert kinds(ledger) == ["reserve", "void"]


def test_a_base_policy_that_returns_another_number_is_refused(ledger: Ledger) -> None:
    ledger.create_account("poor", Fsrc(1e-3, 1e-9, 1e-12))
    model = served("base", "poor")

    async def draw(request: Request, count: int) -> list[Candidate]:
        return []

    model.policy.draw = draw  # type: ignore[method-assign]
    with pytest.raises(BackendFailed, match="0 candidates where 1"):
        Aligner(ledger, model).answer_blocking(REQUEST)
