"""The ledger against a model of a dozen lines in memory, under whatever order of calls Hypothesis finds."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from privalign.accounting.rules import Debit, Fsrc
from privalign.errors import BudgetBusy, BudgetExhausted, IdempotencyConflict, LeaseExpired
from privalign.events import FALLBACK, Event, RejectionRounds
from privalign.ledger import IdempotencyKey, Ledger, Pending, Replay, Reservation
from privalign.sensitivity import RewardRange, Sensitivity

ROUNDS = RejectionRounds(Sensitivity(0.1, RewardRange(0.0, 1.0)), beta=0.05, scale=0.5, tail=3.0, cap=8)
WORST = Fsrc(1.0, 1e-6, 1e-9).charge(ROUNDS)
RULE = Fsrc(5.5 * WORST.epsilon / 1e12, 1e-6, 1e-9)
RETAIN = 500.0


@dataclass
class Open:
    cost: Debit
    queries: int
    expires: float
    key: int | None


@dataclass
class Answer:
    release: dict[str, object] | None
    settled: float


class LedgerAgainstModel(RuleBasedStateMachine):
    reservations = Bundle("reservations")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()
        self.now = self.time = 1000.0  # the clock, and the ledger's time
        self.ledger = Ledger(f"sqlite:///{self.folder}/ledger.db", clock=lambda: self.now, retain=RETAIN)
        self.ledger.create_account("prefs", RULE)
        self.limit, self.debited = RULE.limit, Debit()
        self.queries = self.refused = self.released = 0
        self.epsilon = RULE.epsilon
        self.open: dict[int, Open] = {}
        self.answers: dict[int, Answer] = {}

    def tick(self) -> None:
        self.time = max(self.time, self.now)
        self.open = {number: each for number, each in self.open.items() if each.expires > self.time}

    @rule(target=reservations, queries=st.integers(1, 3), lease=st.sampled_from([10.0, 100.0]), key=st.none() | st.integers(0, 2))
    def reserve(self, queries: int, lease: float, key: int | None) -> object:
        events, cost = [ROUNDS] * queries, WORST * queries
        options = {"lease": lease, "idempotency": None if key is None else IdempotencyKey("model", str(key), "body")}
        if key in self.answers:
            moment = max(self.time, self.now)
            answer = self.answers[key]
            if answer.release is None or moment - answer.settled >= RETAIN:
                with pytest.raises(IdempotencyConflict):
                    self.ledger.reserve("prefs", events, **options)
            else:
                self.tick_if_expired()
                assert self.ledger.reserve("prefs", events, **options) == Replay(answer.release)
            return multiple()
        moment = max(self.time, self.now)
        if key is not None and any(each.key == key and each.expires > moment for each in self.open.values()):
            self.tick_if_expired()
            assert isinstance(self.ledger.reserve("prefs", events, **options), Pending)
            return multiple()
        self.tick()
        if not (self.debited + cost).fits(self.limit):
            settled = self.debited
            for each in self.open.values():
                settled -= each.cost
            kind = BudgetBusy if (settled + cost).fits(self.limit) else BudgetExhausted
            with pytest.raises(BudgetExhausted) as refusal:
                self.ledger.reserve("prefs", events, **options)
            assert type(refusal.value) is kind
            self.refused += queries
            return multiple()
        reservation = self.ledger.reserve("prefs", events, **options)
        assert isinstance(reservation, Reservation)
        assert reservation.debit == cost
        self.debited += cost
        self.queries += queries
        self.open[reservation.number] = Open(cost, queries, self.time + lease, key)
        return reservation

    def tick_if_expired(self) -> None:
        """A replay or a wait is stored only when it found a lease that had run out."""
        if any(each.expires <= max(self.time, self.now) for each in self.open.values()):
            self.tick()

    @rule(reservation=consumes(reservations), halts=st.lists(st.sampled_from([1, 4, 8, FALLBACK]), min_size=3, max_size=3))
    def settle(self, reservation: Reservation, halts: list[int]) -> None:
        realised: list[Event] = [ROUNDS.at(0.9375, halt) for halt in halts[: len(reservation.events)]]
        self.released += 1
        release: dict[str, object] = {"text": self.released}
        self.tick()
        if reservation.number not in self.open:
            with pytest.raises(LeaseExpired):
                self.ledger.settle(reservation, realised, release)
            return
        closed = self.open.pop(reservation.number)
        stands = Debit(epsilon=sum(RULE.charge(event).epsilon for event in realised))
        assert self.ledger.settle(reservation, realised, release) == stands
        self.debited += stands - closed.cost
        if closed.key is not None:
            self.answers[closed.key] = Answer(release, self.time)

    @rule(reservation=consumes(reservations))
    def void(self, reservation: Reservation) -> None:
        self.tick()
        if reservation.number not in self.open:
            with pytest.raises(LeaseExpired):
                self.ledger.void(reservation)
            return
        closed = self.open.pop(reservation.number)
        self.ledger.void(reservation)
        self.debited -= closed.cost
        self.queries -= closed.queries

    @rule(reservation=reservations)
    def renew(self, reservation: Reservation) -> None:
        self.tick()
        if reservation.number not in self.open:
            with pytest.raises(LeaseExpired):
                self.ledger.renew(reservation)
            return
        self.ledger.renew(reservation)
        self.open[reservation.number].expires = self.time + reservation.lease

    @rule(seconds=st.sampled_from([5.0, 50.0, 200.0, -300.0]))
    def clock_moves(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def raise_budget(self) -> None:
        self.tick()
        self.epsilon += WORST.epsilon / 1e12
        self.ledger.raise_budget("prefs", self.epsilon, "the model says so")
        self.limit = Fsrc(self.epsilon, RULE.delta, RULE.delta_per_query).limit

    @invariant()
    def the_account_is_as_in_the_model(self) -> None:
        moment = max(self.time, self.now)
        live = [each for each in self.open.values() if each.expires > moment]
        account = self.ledger.account("prefs")
        assert (account.debited, account.limit) == (self.debited, self.limit)
        assert account.debited.fits(account.limit)
        assert account.open.epsilon == sum(each.cost.epsilon for each in live)
        assert account.open_queries == sum(each.queries for each in live)
        assert account.settled_queries + account.open_queries == self.queries
        assert account.refused_queries == self.refused

    def teardown(self) -> None:
        assert self.ledger.verify("prefs").debited == self.debited
        self.ledger.close()
        shutil.rmtree(self.folder)


LedgerAgainstModel.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLedgerAgainstModel = LedgerAgainstModel.TestCase
