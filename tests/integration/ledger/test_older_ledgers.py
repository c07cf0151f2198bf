"""Ledgers that an earlier version of privalign made go on: with every debit, key and answer, by a migration at their first use.

The fixtures are dumps of ledgers that the code of each version of the schema made on each database: `prefs-2026` with three settled queries
of one key, a voided and an open one and a raise; `Second` with other terms and no query.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from privalign.accounting.rules import Basic, Renyi
from privalign.errors import InvalidInput
from privalign.events import GumbelMax
from privalign.ledger import IdempotencyKey, Ledger, Replay, Reservation
from privalign.sensitivity import Relation, RewardRange, Sensitivity

EVENT = GumbelMax(Sensitivity.of_range(RewardRange(0.0, 1.0)), 10.0, 16)


@pytest.fixture(params=["0001", "0002"])
def older(
    request: pytest.FixtureRequest,
    older_ledger: Callable[[str, str], None],
    ledger_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    monkeypatch.setenv("PRIVALIGN_ANCHOR_FOLDER", str(tmp_path))  # each test restores the same ledgers anew
    older_ledger(ledger_url, request.param)
    return ledger_url


@pytest.fixture
def ledger(older: str) -> Ledger:
    return Ledger(older, clock=lambda: 1_790_000_100.0)


def test_it_goes_on_with_everything_that_was_there(ledger: Ledger) -> None:
    prefs, second = ledger.account("prefs-2026"), ledger.account("Second")
    assert (prefs.rule, second.rule) == (Renyi(60.0, 1e-6, 2.0), Basic(3.0, 1e-5, 1e-9))
    assert (second.relation, second.records_per_person) == (Relation.FLIP, 3)
    assert (prefs.settled_queries, prefs.open_queries, prefs.debited) == (3, 1, prefs.rule.charge(EVENT) * 4)
    assert [raise_.reason for raise_ in prefs.raises] == ["more traffic"]
    client, officer = sorted(ledger.keys(), key=lambda key: key.role)
    assert (client.models, client.share, client.queries) == (("aligned",), 0.5, 3)
    assert officer.rate in (None, 3.0)  # keys had none at first
    assert ledger.reserve("prefs-2026", [EVENT], idempotency=IdempotencyKey("client", "1", "body")) == Replay({"text": "answer 1"})
    for name in ("prefs-2026", "Second"):
        assert ledger.verify(name).head == ledger.account(name).head
    reservation = ledger.reserve("prefs-2026", [EVENT])
    assert isinstance(reservation, Reservation)
    ledger.settle(reservation, [EVENT])
    assert ledger.verify("prefs-2026", expect_head=prefs.head).length == prefs.length + 2


def test_its_accounts_protect_data_sets_of_their_own(ledger: Ledger) -> None:
    assert [(each.name, each.dataset, each.also) for each in ledger.accounts()] == [
        ("Second", "Second", ()),
        ("prefs-2026", "prefs-2026", ()),
    ]
    with pytest.raises(InvalidInput, match="is the data set of account prefs-2026 too"):
        ledger.create_account("third", Renyi(50.0, 1e-6, 2.0), dataset="prefs-2026")
    third = ledger.create_account("third", Renyi(50.0, 1e-6, 2.0), dataset="prefs-2026", also=["prefs-2026"])
    assert third.together == (110.0, 2e-6)
