"""A ledger whose clock the tests turn, with an account that answers for about half of its budget."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from privalign.accounting.rules import Renyi
from privalign.errors import BudgetExhausted
from privalign.events import Event, GumbelMax
from privalign.ledger import Ledger, Role
from privalign.sensitivity import RewardRange, Sensitivity

EVENT = GumbelMax(Sensitivity(0.01, RewardRange(0.0, 1.0)), 0.2, 16)
TOO_MUCH = GumbelMax(Sensitivity(1.0, RewardRange(0.0, 1.0)), 0.01, 16)


@dataclass
class Clock:
    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Town:
    """The ledger, its clock, an officer's secret and a client's; `answer` lets queries happen."""

    url: str
    clock: Clock
    ledger: Ledger
    officer: str
    client: str
    event: Event = EVENT
    seed: random.Random = field(default_factory=lambda: random.Random(7))

    def answer(self, count: int, *, account: str = "prefs", every: float = 60.0) -> None:
        """So many queries, of which some are void, expire at once or stay open."""
        for _ in range(count):
            self.clock.now += every
            key = self.client.split("_")[1] if self.seed.random() < 0.6 else None
            reservation = self.ledger.reserve(account, [self.event], api_key=key, lease=600)
            end = self.seed.choice(["settle"] * 6 + ["void", "forfeit", "open"])
            if end == "settle":
                self.ledger.settle(reservation, [self.event])
            elif end != "open":
                getattr(self.ledger, end)(reservation)

    def refuse(self, account: str = "prefs") -> None:
        with pytest.raises(BudgetExhausted):
            self.ledger.reserve(account, [TOO_MUCH])


@pytest.fixture
def town(sqlite_url: str) -> Iterator[Town]:
    clock = Clock()
    ledger = Ledger(sqlite_url, clock=clock)
    ledger.create_account("prefs", Renyi.default(8.0, 1e-6))
    yield Town(sqlite_url, clock, ledger, ledger.create_key(Role.OFFICER).secret, ledger.create_key(Role.CLIENT).secret)
    ledger.close()
