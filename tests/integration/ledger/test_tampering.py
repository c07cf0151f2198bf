"""Someone changes the database behind the ledger's back: `verify` says what, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from privalign.accounting.rules import Renyi
from privalign.errors import CheckFailed
from privalign.events import GumbelMax
from privalign.ledger import Ledger, LedgerBehind, LedgerFailed, Reservation
from privalign.sensitivity import RewardRange, Sensitivity

EVENT = GumbelMax(Sensitivity.of_range(RewardRange(0.0, 1.0)), 10.0, 16)
TRIGGERS = {
    "sqlite": [
        "DROP TRIGGER ledger_journal_no_update",
        "DROP TRIGGER ledger_journal_no_delete",
        "DROP TRIGGER ledger_accounts_fixed",
        "DROP TRIGGER ledger_accounts_no_delete",
    ],
    "postgresql": ["DROP FUNCTION ledger_refuse CASCADE"],
}


@pytest.fixture
def ledger(ledger_url: str) -> Ledger:
    """Rows 1 create, 2–7 three settled queries, 8 reserved and voided 9, 10 open, 11 raised."""
    ledger = Ledger(ledger_url)
    ledger.create_account("prefs", Renyi(50.0, 1e-6, 2.0))
    for _ in range(3):
        ledger.settle(reserve(ledger), [EVENT])
    ledger.void(reserve(ledger))
    reserve(ledger)
    ledger.raise_budget("prefs", 60.0, "more traffic")
    return ledger


def reserve(ledger: Ledger) -> Reservation:
    outcome = ledger.reserve("prefs", [EVENT])
    assert isinstance(outcome, Reservation)
    return outcome


def tamper(ledger: Ledger, *statements: str) -> None:
    """As someone who may do anything with the database."""
    engine = ledger._database._engine
    with engine.begin() as connection:
        for statement in (*TRIGGERS[engine.dialect.name], *statements):
            connection.exec_driver_sql(statement.replace("%", "%%") if engine.dialect.name == "postgresql" else statement)


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE ledger_journal SET record = replace(record, '\"queries\":1', '\"queries\":2') WHERE seq = 4", "row 4 was changed"),
        ("UPDATE ledger_journal SET hash = 'x' || substr(hash, 2) WHERE seq = 5", "row 5 was changed"),
        ("DELETE FROM ledger_journal WHERE seq = 6", "row 6 is missing"),
        ("DELETE FROM ledger_journal WHERE seq = 1", "row 1 is missing"),
        ("DELETE FROM ledger_journal WHERE seq = 11", "its length is 11, the journal says 10"),
        ("UPDATE ledger_journal SET seq = 12 WHERE seq = 11", "row 12 is beyond the end"),
        ("INSERT INTO ledger_journal SELECT account, 12, record, hash FROM ledger_journal WHERE seq = 11", "row 12 is beyond the end"),
        ("UPDATE ledger_accounts SET debited_rdp = debited_rdp - 1", "debited rdp is .* the journal says"),
        ("UPDATE ledger_accounts SET limit_rdp = limit_rdp + 1", "limit of rdp is"),
        ("UPDATE ledger_accounts SET queries = 1", "queries is 1, the journal says 4"),
        ("UPDATE ledger_accounts SET raises = '[]'", "raises is"),
        ("UPDATE ledger_accounts SET parameters = replace(parameters, 'replace', 'flip')", "terms is"),
        ("UPDATE ledger_accounts SET dataset = 'another'", "data set is another, the journal says prefs"),
        ("UPDATE ledger_accounts SET head = hash FROM ledger_journal WHERE seq = 3", "head is"),
        ("UPDATE ledger_reservations SET debit_rdp = debit_rdp * 2", "reservation 10 is not as journalled"),
        ("DELETE FROM ledger_reservations", "reservation 10 is not as journalled"),
        ("UPDATE ledger_reservations SET number = 2", "reservation 2 is not as journalled"),
    ],
)
def test_verify_says_what_was_changed(ledger: Ledger, statement: str, found: str) -> None:
    ledger.verify("prefs")
    tamper(ledger, statement)
    with pytest.raises(CheckFailed, match=found):
        ledger.verify("prefs")


def test_a_journal_rewritten_with_a_right_chain_is_caught_by_the_head(
    ledger: Ledger, ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = ledger.account("prefs").head
    tamper(ledger, *(f"DELETE FROM ledger_{table}" for table in ("reservations", "journal", "accounts")))
    with pytest.raises(LedgerBehind, match=rf"the hash {head} is not in its journal of 0 rows"):
        ledger.create_account("prefs", Renyi(50.0, 1e-6, 2.0))
    monkeypatch.setenv("PRIVALIGN_ANCHOR_FOLDER", str(tmp_path))  # a host that has no anchor of it
    elsewhere = Ledger(ledger_url)
    elsewhere.create_account("prefs", Renyi(50.0, 1e-6, 2.0))
    assert elsewhere.verify("prefs").length == 1
    with pytest.raises(CheckFailed, match=r"the hash .* is not in its journal of 1 rows"):
        elsewhere.verify("prefs", expect_head=head)


def test_a_damaged_account_row_is_one_line(ledger: Ledger) -> None:
    tamper(ledger, "UPDATE ledger_accounts SET raises = '[{}]'")
    with pytest.raises(LedgerFailed, match="its row in the ledger is damaged"):
        ledger.account("prefs")
    with pytest.raises(LedgerFailed, match="its row in the ledger is damaged"):
        ledger.raise_budget("prefs", 70.0, "more")


def test_a_damaged_journal_row_is_one_line(ledger: Ledger) -> None:
    tamper(ledger, "UPDATE ledger_journal SET record = '[]' WHERE seq = 3")
    with pytest.raises(CheckFailed, match="row 3 is not a journal record"):
        list(ledger.journal("prefs"))


def test_terms_that_change_under_an_open_ledger_are_refused(ledger: Ledger) -> None:
    tamper(ledger, "UPDATE ledger_accounts SET parameters = replace(parameters, '\"order\":2.0', '\"order\":4.0')")
    with pytest.raises(LedgerFailed, match="its terms changed"):
        ledger.reserve("prefs", [EVENT])
