"""Released heads and certificates meet accounts: free for whoever paid, on the terms of the release, about one data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privalign.accounting.rules import Debit, Fsrc
from privalign.aligner import Aligner, Performance, ServedModel
from privalign.errors import InvalidInput
from privalign.events import release_event
from privalign.ledger import Ledger, Reservation
from privalign.mechanisms.bon import BoN
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privitp import PrivITP
from privalign.mechanisms.protocol import Mechanism
from privalign.sensitivity import HeadRelease, Relation, RewardRange, Sensitivity
from privalign.types import Candidate, Release, Request

PRIVITP = PrivITP(n=4, n2=6, beta=0.05, sigma_x=0.2, sigma_z=0.2, tail=3.0)


class Counted:
    """A policy and a reward in one, which say how often they were asked."""

    name = "counted"

    def __init__(self, sensitivity: Sensitivity) -> None:
        self.sensitivity = sensitivity
        self.asked = 0

    async def draw(self, request: Request, count: int) -> list[Candidate]:
        self.asked += 1
        return [Candidate(f"text {number}") for number in range(count)]

    async def score(self, request: Request, candidates: Sequence[Candidate]) -> list[float]:
        self.asked += 1
        return [0.5] * len(candidates)

    async def probe(self) -> None:
        """It always answers."""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    book = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    book.create_account("prefs", Fsrc(1000.0, 1e-2, 1e-6))
    yield book
    book.close()


def ask(ledger: Ledger, scorer: Counted, mechanism: Mechanism) -> list[Release]:
    model = ServedModel("m", scorer, scorer, mechanism, "prefs", performance=Performance(padding=0.0))
    return Aligner(ledger, model).answer_blocking(Request.of_prompt("hello"))


PAID = HeadRelease(1.0, 1e-6, 40.0, 0.4, Relation.REPLACE, 1, "prefs", "prefs")


def released(terms: HeadRelease) -> Sensitivity:
    return Sensitivity(1.0, RewardRange(0.0, 1.0), source="released", release=terms)


def pay(ledger: Ledger) -> Debit:
    """Pays for `PAID`, as `reward fit` does."""
    reservation = ledger.reserve("prefs", [release_event(PAID)])
    assert isinstance(reservation, Reservation)
    return ledger.settle(reservation, [release_event(PAID)], {})


def test_a_released_head_costs_nothing_whatever_the_mechanism(ledger: Ledger) -> None:
    paid = pay(ledger)
    for mechanism in (PRIVITP, PrivBoN(4, 0.3), BoN(4)):
        (release,) = ask(ledger, Counted(released(PAID)), mechanism)
        assert (release.epsilon, release.delta) == (0.0, 0.0)
        assert release.head == PAID.stated()  # what the answer's guarantee is, in place of an ε of its own
        assert Release.from_json(release.to_json()) == release
    account = ledger.account("prefs")
    assert account.debited == paid
    assert account.settled_queries == 4


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"relation": Relation.FLIP}, "relation: the head was released for flip, the account protects replace"),
        ({"relation": Relation.ADD_REMOVE}, "relation: the head was released for add-remove, the account protects replace"),
        ({"dataset": "others"}, "dataset: the certificate is about data set others, the account protects prefs"),
        ({"account": "others"}, "account: the head was released with .* paid once by account others; prefs promises nothing about it"),
        ({"scale": 4.0}, "account: the head was released with .* which prefs of this ledger did not pay"),
    ],
)
def test_a_released_head_is_free_on_its_own_terms_only(ledger: Ledger, change: dict[str, Any], says: str) -> None:
    paid = pay(ledger)
    scorer = Counted(released(replace(PAID, **change)))
    with pytest.raises(InvalidInput, match=says):
        ask(ledger, scorer, BoN(4))
    assert scorer.asked == 0
    assert ledger.account("prefs").debited == paid


def test_an_account_of_that_name_that_did_not_pay_serves_no_released_head(ledger: Ledger) -> None:
    """A new ledger knows nothing of what was paid from another: its account would show that nothing was spent."""
    with pytest.raises(InvalidInput, match="which prefs of this ledger did not pay"):
        ask(ledger, Counted(released(PAID)), BoN(4))


def test_a_certificate_of_another_data_set_is_refused(ledger: Ledger) -> None:
    for dataset, accepted in (("prefs", True), (None, True), ("survey", False)):  # version 1 certificates state none
        scorer = Counted(Sensitivity(0.05, RewardRange(0.0, 1.0), "certificate", Relation.REPLACE, 1, dataset=dataset))
        if accepted:
            assert len(ask(ledger, scorer, PrivBoN(4, 0.3))) == 1
            continue
        with pytest.raises(InvalidInput, match="data set survey, the account protects prefs; charge the account of survey"):
            ask(ledger, scorer, PrivBoN(4, 0.3))
        assert scorer.asked == 0


def test_scores_are_free_by_terms_only() -> None:
    for source, release in (("released", None), ("certificate", PAID), ("declared", PAID)):
        with pytest.raises(InvalidInput, match="by the terms of a released head"):
            Sensitivity(1.0, RewardRange(0.0, 1.0), source, release=release)
