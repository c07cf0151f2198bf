"""The journal's latest rows against all of its rows, filtered in Python, on both databases."""

from __future__ import annotations

import random

import pytest

from privalign.accounting.rules import Fsrc
from privalign.events import GumbelMax
from privalign.ledger import Ledger, Role
from privalign.sensitivity import RewardRange, Sensitivity

EVENT = GumbelMax(Sensitivity(0.001, RewardRange(0.0, 1.0)), 1.0, 4)


def test_latest_rows_are_those_of_the_journal(ledger_url: str) -> None:
    ledger, choose = Ledger(ledger_url), random.Random(3)
    for name in ("prefs", "other"):
        ledger.create_account(name, Fsrc(8.0, 1e-6, 1e-10))
    keys = [ledger.create_key(Role.CLIENT).key.id for _ in range(2)]
    for _ in range(40):
        name = choose.choice(["prefs", "prefs", "other"])
        reservation = ledger.reserve(name, [EVENT], api_key=choose.choice([*keys, None]))
        end = choose.choice(["settle", "void", "open"])
        if end == "settle":
            ledger.settle(reservation, [EVENT])
        elif end == "void":
            ledger.void(reservation)
    ledger.raise_budget("prefs", 9.0, f'a reason that says "kind":"void" and "api_key":"{keys[0]}", 100 % of_it')
    rows = list(ledger.journal("prefs"))[::-1]
    for kind in (None, "create", "reserve", "settle", "void", "raise", "theft", "VOID", "%"):
        for key in (None, *keys, "no", "_" * 12):
            for before in (2**62, rows[0].seq, 20, 1):
                expected = [
                    row
                    for row in rows
                    if (kind is None or row.kind == kind) and (key is None or row.note.get("api_key") == key) and row.seq < before
                ]
                assert ledger.latest("prefs", before=before, most=7, kind=kind, api_key=key) == expected[:7]
    assert ledger.latest("nobody") == []
    assert ledger.latest("prefs", model="any") == []
    ledger.close()


@pytest.mark.parametrize("text", ["\x00", "é", "'; DROP TABLE ledger_journal; --", '"', "\\"])
def test_any_text_may_be_looked_for(ledger_url: str, text: str) -> None:
    ledger = Ledger(ledger_url)
    ledger.create_account("prefs", Fsrc(8.0, 1e-6, 1e-10))
    assert ledger.latest("prefs", api_key=text) == ledger.latest("prefs", model=text) == []
    assert len(ledger.latest("prefs")) == 1
    ledger.close()
