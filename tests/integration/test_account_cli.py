"""`account …` and `key …`: the documents of the contract, exit codes, and what must not happen by a slip of the hand."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from privalign.accounting.rules import TwoCounter
from privalign.events import GumbelMax
from privalign.ledger import Ledger, Reservation
from privalign.secret import secret_path
from privalign.sensitivity import Certificate, Relation, RewardRange, Sensitivity

Run = Callable[..., tuple[int, str, str]]
LEDGER = "sqlite:///privalign.db"
BUDGET = ("--epsilon", 8, "--delta", 1e-6)
EVENT = GumbelMax(Sensitivity.of_range(RewardRange(0.0, 1.0)), 10.0, 16)
ACCOUNT_KEYS = {
    "name": str,
    "rule": str,
    "epsilon": float,
    "delta": float,
    "order": (int, float, type(None)),
    "rho": (float, type(None)),
    "delta_per_query": (float, type(None)),
    "relation": str,
    "records_per_person": int,
    "protects": str,
    "dataset": str,
    "also": list,
    "sum": dict,
    "spent": dict,
    "spent_is": str,
    "remaining": dict,
    "queries": dict,
    "guarantee": str,
    "raises": list,
    "raw": dict,
    "created": str,
    "head": str,
    "length": int,
}


@pytest.fixture
def refused(run: Run) -> Callable[..., str]:
    """The one line of a command that must fail with the code given."""

    def refused(code: int, *arguments: object) -> str:
        outcome = run(*arguments)
        assert outcome[:2] == (code, "")
        assert outcome[2].count("\n") == 1
        assert outcome[2].startswith("privalign: ")
        return outcome[2]

    return refused


def spend(queries: int, name: str = "prefs", url: str = "sqlite:///privalign.db") -> None:
    ledger = Ledger(url)
    for _ in range(queries):
        reservation = ledger.reserve(name, [EVENT])
        assert isinstance(reservation, Reservation)
        ledger.settle(reservation, [EVENT])
    ledger.close()


# Accounts


def test_create_show_and_list_are_one_document(document: Any) -> None:
    made = document("account", "create", "prefs", *BUDGET)
    assert set(made) == set(ACCOUNT_KEYS)
    for key, kind in ACCOUNT_KEYS.items():
        assert isinstance(made[key], kind), key
    assert document("account", "show", "prefs") == made
    assert document("account", "list") == {"accounts": [made]}
    assert (made["name"], made["epsilon"], made["delta"]) == ("prefs", 8.0, 1e-6)
    assert made["queries"] == {"settled": 0, "open": 0, "refused": 0}
    assert set(made["raw"]) == {"units", "limit", "debited", "open"}


def test_what_is_spent_is_said_to_be_no_odometer(document: Any, run: Run) -> None:
    made = document("account", "create", "prefs", *BUDGET)
    assert "no guarantee of its own" in made["spent_is"]
    assert "promised the whole budget" in " ".join(run("account", "show", "prefs")[1].split())


def test_the_defaults_of_the_contract(document: Any) -> None:
    made = document("account", "create", "prefs", *BUDGET)
    assert (made["rule"], made["relation"], made["records_per_person"]) == ("renyi", "replace", 1)
    assert (made["rho"], made["delta_per_query"]) == (None, None)
    orders = [document("account", "create", f"order-{order}", *BUDGET, "--order", order) for order in (3, made["order"])]
    offset = [8.0 - account["raw"]["limit"]["rdp"] * 1e-12 for account in orders]
    assert offset[1] <= 4.0 < offset[0]  # the smallest default order that leaves half of ε
    assert made["spent"] == {"epsilon": 0.0, "delta": 0.0}
    assert made["remaining"] == {"epsilon": 8.0, "delta": 1e-6}
    for rule in ("basic", "fsrc"):
        assert document("account", "create", rule, *BUDGET, "--rule", rule)["delta_per_query"] == pytest.approx(1e-10)
    halved = document("account", "create", "two", *BUDGET, "--rule", "two-counter")
    assert TwoCounter(8.0, 1e-6, halved["rho"])._offset(halved["rho"]) == pytest.approx(4.0, abs=1e-6)
    assert halved["raw"]["limit"]["epsilon"] * 1e-12 == pytest.approx(4.0, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--order", 12], {"rule": "renyi", "order": 12}),
        (["--rule", "two-counter", "--rho", 0.01], {"rule": "two-counter", "rho": 0.01, "order": None}),
        (["--rule", "fsrc", "--delta-per-query", 1e-9], {"rule": "fsrc", "delta_per_query": 1e-9}),
        (["--relation", "flip", "--records-per-person", 3], {"relation": "flip", "records_per_person": 3}),
    ],
)
def test_options_of_create_are_kept(document: Any, options: list[object], expected: dict[str, object]) -> None:
    made = document("account", "create", "prefs", *BUDGET, *options)
    assert {key: made[key] for key in expected} == expected


def test_an_account_names_its_data_set(document: Any, refused: Any, run: Run) -> None:
    made = document("account", "create", "prefs", *BUDGET)
    assert (made["dataset"], made["also"], made["sum"]) == ("prefs", [], {"epsilon": 8.0, "delta": 1e-6})
    assert document("account", "create", "other", *BUDGET, "--dataset", "votes")["dataset"] == "votes"
    second = ("account", "create", "second", "--epsilon", 0.7, "--delta", 1e-5, "--rule", "basic", "--dataset", "prefs")
    error = refused(2, *second)
    assert "--dataset: prefs is the data set of account prefs too" in error
    assert "--also prefs" in error
    assert "--also: 'other' is not an account over data set prefs" in refused(2, *second, "--also", "prefs", "--also", "other")
    assert "--dataset: " in refused(2, *second[:-1], "a b")
    made = document(*second, "--also", "prefs")
    assert (made["also"], made["sum"]) == (["prefs"], {"epsilon": 8.7, "delta": 1.1e-5})
    first = document("account", "show", "prefs")
    assert (first["also"], first["sum"]) == (["second"], made["sum"])
    assert "(8.7, 1.1e-5)-indistinguishable" in " ".join(run("account", "show", "prefs")[1].split())


def test_the_order_can_be_chosen_for_a_mechanism(document: Any) -> None:
    served = ("--mechanism", "privbon", "--scale", 0.5)
    chosen = document("account", "create", "chosen", *BUDGET, *served)
    default = document("account", "create", "default", *BUDGET)
    assert chosen["order"] != default["order"]
    answers = []
    for name in ("chosen", "default"):
        rule = Ledger("sqlite:///privalign.db").account(name).rule
        event = GumbelMax(Sensitivity.of_range(RewardRange(0.0, 1.0)), 0.5, 16)
        answers.append(rule.limit.rdp // rule.charge(event).rdp)
    assert answers[0] > answers[1]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--epsilon", -1, "--delta", 1e-6], "--epsilon"),
        (["--epsilon", "nan", "--delta", 1e-6], "--epsilon"),
        (["--epsilon", "inf", "--delta", 1e-6], "--epsilon"),
        (["--epsilon", "x", "--delta", 1e-6], "--epsilon"),
        (["--epsilon", 8], "--delta"),
        (["--epsilon", 8, "--delta", 0], "--delta"),
        (["--epsilon", 8, "--delta", 1], "--delta"),
        ([*BUDGET, "--rule", "nosuch"], "--rule"),
        ([*BUDGET, "--rule", "basic", "--order", 4], "--order"),
        ([*BUDGET, "--rho", 1], "--rho"),
        ([*BUDGET, "--delta-per-query", 1e-9], "--delta-per-query"),
        ([*BUDGET, "--rule", "basic", "--delta-per-query", 3], "--delta-per-query"),
        ([*BUDGET, "--rule", "two-counter", "--rho", 100], "--rho"),
        ([*BUDGET, "--order", 1], "--order"),
        ([*BUDGET, "--order", 1.01], "--order"),  # its conversion alone exceeds ε
        ([*BUDGET, "--relation", "nosuch"], "--relation"),
        ([*BUDGET, "--records-per-person", 0], "records-per-person"),
        ([*BUDGET, "--scale", 1], "--mechanism"),
        ([*BUDGET, "--mechanism", "privbon", "--scale", 1, "--order", 4], "--mechanism"),
        ([*BUDGET, "--mechanism", "bon"], "mechanism"),
        (["--epsilon", 0.01, "--delta", 1e-6], "--epsilon"),  # too small for rule renyi
    ],
)
def test_create_refuses_what_cannot_be_an_account_and_makes_no_file(
    refused: Any, tmp_path: Path, options: list[object], names: str
) -> None:
    assert names in refused(2, "account", "create", "prefs", *options)
    assert list(tmp_path.iterdir()) == []


def test_terms_are_immutable(document: Any, refused: Any) -> None:
    before = document("account", "create", "prefs", *BUDGET)
    assert "exists already" in refused(2, "account", "create", "prefs", "--epsilon", 100, "--delta", 1e-6)
    assert "not above" in refused(2, "account", "raise", "prefs", "--epsilon", 7, "--reason", "a mistake")
    assert "not above" in refused(2, "account", "raise", "prefs", "--epsilon", 8, "--reason", "a mistake")
    assert "not above" in refused(2, "account", "raise", "prefs", "--epsilon", "nan", "--reason", "a mistake")
    assert "finite" in refused(2, "account", "raise", "prefs", "--epsilon", "inf", "--reason", "a mistake")
    assert "reason" in refused(2, "account", "raise", "prefs", "--epsilon", 9, "--reason", " ")
    assert "--reason" in refused(2, "account", "raise", "prefs", "--epsilon", 9)
    assert document("account", "show", "prefs") == before


def test_a_raise_is_shown_ever_after(document: Any, run: Run) -> None:
    document("account", "create", "prefs", *BUDGET)
    spend(1)
    reason = "the board [bold]agreed[/bold] [/x] :smile: \x1b[31m"  # nothing of it may steer the terminal
    raised = document("account", "raise", "prefs", "--epsilon", 9, "--reason", reason)
    assert raised["epsilon"] == 9.0
    assert [(rise["before"], rise["after"], rise["reason"]) for rise in raised["raises"]] == [(8.0, 9.0, reason)]
    assert "raised from 8" in raised["guarantee"]
    assert "operator's word" in raised["guarantee"]
    spend(1)
    assert document("account", "show", "prefs")["raises"] == raised["raises"]
    assert document("account", "journal", "prefs")["entries"][-3]["note"]["reason"] == reason
    code, out, error = run("account", "show", "prefs")
    assert (code, error) == (0, "")
    plain = " ".join(out.split())
    assert "the board [bold]agreed[/bold] [/x] :smile:" in plain
    assert "\x1b" not in out


def test_spending_is_shown(document: Any) -> None:
    made = document("account", "create", "prefs", *BUDGET)
    spend(3)
    ledger = Ledger("sqlite:///privalign.db")
    ledger.reserve("prefs", [EVENT])
    shown = document("account", "show", "prefs")
    assert shown["queries"] == {"settled": 3, "open": 1, "refused": 0}
    one = ledger.account("prefs").rule.charge(EVENT)
    assert shown["raw"]["debited"] == dataclasses.asdict(one * 4)
    assert shown["raw"]["open"] == dataclasses.asdict(one)
    assert 0 < shown["spent"]["epsilon"] < 8
    assert shown["spent"]["epsilon"] + shown["remaining"]["epsilon"] == pytest.approx(8)
    assert shown["spent"]["delta"] == 1e-6  # from the first debit on
    assert shown["remaining"]["delta"] == 0
    assert shown["head"] != made["head"]
    assert shown["length"] == made["length"] + 7


def test_the_journal(document: Any, run: Run, refused: Any) -> None:
    made = document("account", "create", "prefs", *BUDGET)
    spend(2)
    whole = document("account", "journal", "prefs")
    assert whole["account"] == "prefs"
    assert [(row["seq"], row["kind"], row["reservation"], row["queries"]) for row in whole["entries"]] == [
        (1, "create", None, 0),
        (2, "reserve", None, 1),
        (3, "settle", 2, 0),
        (4, "reserve", None, 1),
        (5, "settle", 4, 0),
    ]
    for row in whole["entries"]:
        assert set(row) == {"seq", "time", "kind", "reservation", "debit", "queries", "note", "hash"}
        assert datetime.fromisoformat(row["time"]).tzinfo is not None
        assert set(row["debit"]) == {"epsilon", "delta", "rho", "rdp"}
        assert len(row["hash"]) == 64
    assert whole["entries"][0]["hash"] == made["head"]
    assert document("account", "journal", "prefs", "--after", 3)["entries"] == whole["entries"][3:]
    assert "--after" in refused(2, "account", "journal", "prefs", "--after", -1)
    code, out, _ = run("account", "journal", "prefs")
    assert code == 0
    assert out.count("reserve") == 2


def test_verify_and_a_head_that_was_written_down(document: Any, refused: Any) -> None:
    made = document("account", "create", "prefs", *BUDGET)
    spend(2)
    checked = document("account", "verify", "prefs")
    shown = document("account", "show", "prefs")
    assert checked == {"account": "prefs", "verified": True, "rows": 5, "head": shown["head"], "spent": shown["spent"], "anchored": 5}
    spend(1)
    for head in (made["head"], checked["head"]):  # older heads of the same chain are fine
        assert document("account", "verify", "prefs", "--expect-head", head)["rows"] == 7
    assert "older copy" in refused(5, "account", "verify", "prefs", "--expect-head", "0" * 64, "--json")


def test_verify_finds_an_old_backup_that_was_put_back(document: Any, refused: Any, tmp_path: Path) -> None:
    document("account", "create", "prefs", *BUDGET)
    spend(1)
    with sqlite3.connect(tmp_path / "privalign.db") as source, sqlite3.connect(tmp_path / "backup.db") as target:
        source.backup(target)
    source.close()
    target.close()
    spend(5)
    head = document("account", "verify", "prefs")["head"]
    for name in ("privalign.db", "privalign.db-wal", "privalign.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / "backup.db").rename(tmp_path / "privalign.db")
    assert "`privalign ledger moved --ledger sqlite:///privalign.db`" in refused(4, "account", "verify", "prefs")
    assert "older copy" in refused(4, "ledger", "moved")
    shutil.rmtree(secret_path().with_name("anchors"))  # on a host without the anchor nothing speaks against it
    document("ledger", "moved")
    assert document("account", "verify", "prefs")["verified"]  # by itself an old copy is a good journal
    assert head in refused(5, "account", "verify", "prefs", "--expect-head", head)


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("UPDATE ledger_accounts SET debited_rdp = 0", "debited rdp"),
        ("UPDATE ledger_accounts SET limit_rdp = limit_rdp + 1", "limit of rdp"),
    ],
)
def test_verify_finds_a_tampered_account(document: Any, refused: Any, tmp_path: Path, statement: str, names: str) -> None:
    document("account", "create", "prefs", *BUDGET)
    spend(2)
    tamper(tmp_path / "privalign.db", statement)
    assert names in refused(5, "account", "verify", "prefs")
    assert names in refused(5, "account", "verify", "prefs", "--json")


def test_verify_names_the_row_that_was_changed(document: Any, refused: Any, tmp_path: Path) -> None:
    document("account", "create", "prefs", *BUDGET)
    spend(2)
    tamper(tmp_path / "privalign.db", """UPDATE ledger_journal SET record = replace(record, '"queries":1', '"queries":0') WHERE seq = 4""")
    assert "row 4" in refused(5, "account", "verify", "prefs")


def tamper(file: Path, statement: str) -> None:
    """Changes rows behind the ledger's back: whoever owns the file can take its triggers off first."""
    connection = sqlite3.connect(file)
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    assert connection.execute(statement).rowcount == 1
    connection.commit()
    connection.close()


def test_export_is_lines_that_verify_themselves(document: Any, run: Run, tmp_path: Path) -> None:
    import hashlib

    document("account", "create", "prefs", *BUDGET)
    spend(2)
    code, out, error = run("account", "export", "prefs")
    assert (code, error) == (0, "")
    first, *rows = out.splitlines()
    head = json.loads(first)
    assert (head["account"], head["length"], len(rows)) == ("prefs", 5, 5)
    for line in rows:
        record = line.partition('"record":')[2][:-1]
        assert hashlib.sha256(record.encode()).hexdigest() == json.loads(line)["hash"]
    assert json.loads(rows[-1])["hash"] == head["head"]
    assert document("account", "export", "prefs") == {"account": "prefs", "lines": out.splitlines()}
    written = document("account", "export", "prefs", "--out", tmp_path / "backup.jsonl")
    assert written == {"account": "prefs", "file": str(tmp_path / "backup.jsonl"), "lines": 6}
    assert (tmp_path / "backup.jsonl").read_text() == out


@pytest.mark.parametrize(
    "command",
    [
        ["account", "list"],
        ["account", "show", "prefs"],
        ["account", "journal", "prefs"],
        ["account", "verify", "prefs"],
        ["account", "export", "prefs"],
        ["account", "raise", "prefs", "--epsilon", "9", "--reason", "r"],
        ["key", "list"],
        ["key", "revoke", "abc"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("url", ["sqlite:///typo.db", "sqlite+pysqlite:///typo.db", "sqlite:///typo.db?timeout=5"])
def test_a_mistyped_ledger_makes_no_file(refused: Any, tmp_path: Path, command: list[str], url: str) -> None:
    assert "typo.db" in refused(2, *command, "--ledger", url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["show", "journal", "verify", "export"])
def test_an_unknown_account_is_named(document: Any, refused: Any, command: str) -> None:
    document("account", "create", "prefs", *BUDGET)
    assert "'prfs'" in refused(2, "account", command, "prfs")


@pytest.mark.parametrize("url", ["nonsense", "mysql://host/db", "sqlite://", "sqlite:///:memory:", "http://x"])
def test_what_is_no_ledger_is_refused(refused: Any, url: str) -> None:
    assert "ledger" in refused(2, "account", "create", "prefs", *BUDGET, "--ledger", url)


def test_a_database_that_fails_is_exit_4_without_the_password(refused: Any, tmp_path: Path) -> None:
    away = refused(4, "account", "list", "--ledger", "postgresql+psycopg://me:s3cret@127.0.0.1:1/none")
    assert "s3cret" not in away
    (tmp_path / "text.db").write_text("this is no database, but it is longer than a header of one " * 20)
    assert "not a ledger" in refused(4, "account", "list", "--ledger", "sqlite:///text.db")


def test_tables_for_people(document: Any, run: Run) -> None:
    for name in ("one", "two"):
        document("account", "create", name, *BUDGET)
    code, out, error = run("account", "list")
    assert (code, error) == (0, "")
    assert "one" in out
    assert "two" in out
    code, out, _ = run("account", "show", "one")
    assert code == 0
    for name in ("rule", "epsilon", "spent.epsilon", "remaining.epsilon", "queries.settled", "guarantee"):
        assert name in out
    code, out, _ = run("account", "verify", "one")
    assert code == 0
    assert "head" in out


def test_accounts_on_postgresql(document: Any, refused: Any, postgresql_url: str) -> None:
    url = ("--ledger", postgresql_url)
    made = document("account", "create", "prefs", *BUDGET, *url)
    spend(2, url=postgresql_url)
    shown = document("account", "show", "prefs", *url)
    assert shown["queries"]["settled"] == 2
    assert set(shown) == set(made)
    assert document("account", "verify", "prefs", *url)["rows"] == 5
    assert "older copy" in refused(5, "account", "verify", "prefs", "--expect-head", "1" * 64, *url)


# Certificates


def test_an_empty_file_is_no_ledger(refused: Any) -> None:
    """The database would make a new one of it, in which nothing was ever spent."""
    Path("empty.db").touch()
    for command in (["list"], ["show", "prefs"], ["verify", "prefs"], ["raise", "prefs", "--epsilon", 9, "--reason", "r"]):
        assert "empty.db is empty" in refused(2, "account", *command, "--ledger", "sqlite:///empty.db")
    assert Path("empty.db").stat().st_size == 0


def test_a_model_that_is_not_in_the_file_is_told_by_the_option(refused: Any) -> None:
    Path("file.toml").write_text("")
    error = refused(2, "account", "create", "prefs", *BUDGET, "--for-model", "nosuch", "--config", "file.toml")
    assert error.startswith("privalign: --for-model: 'nosuch' is not in file.toml")


def test_create_reads_the_sensitivity_of_a_certificate(
    document: Any, refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "secret"))
    from privalign.secret import make_installation_key

    certificate = Certificate("declared", Relation.REPLACE, 1, RewardRange(0.0, 1.0), 0.01, reason="a test").signed(make_installation_key())
    file = tmp_path / "certificate.json"
    file.write_text(json.dumps(certificate.to_json()))
    served = ("--mechanism", "privbon", "--scale", 1.0)
    by_certificate = document("account", "create", "a", *BUDGET, *served, "--certificate", file)
    assert by_certificate["order"] == document("account", "create", "b", *BUDGET, *served, "--sensitivity", 0.01)["order"]
    assert by_certificate["order"] != document("account", "create", "c", *BUDGET, *served)["order"]
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "another"))
    make_installation_key()
    assert "signature" in refused(2, "account", "create", "d", *BUDGET, *served, "--certificate", file)


# Keys

KEY_KEYS = {"id", "role", "models", "expires", "revoked", "account", "share", "query_limit", "queries", "rate"}


def test_a_key_from_its_making_to_its_end(document: Any, tmp_path: Path) -> None:
    document("account", "create", "prefs", *BUDGET)
    made = document(
        "key", "create", "--models", "a, b", "--expires", "2099-01-31", "--account", "prefs", "--share", 0.5, "--queries", 10, "--rate", 90
    )
    assert set(made) == KEY_KEYS | {"key"}
    secret = made.pop("key")
    assert secret.startswith(f"pa_{made['id']}_")
    assert made == {
        "id": made["id"],
        "role": "client",
        "models": ["a", "b"],
        "expires": "2099-01-31T00:00:00+00:00",
        "revoked": None,
        "account": "prefs",
        "share": 0.5,
        "query_limit": 10,
        "queries": 0,
        "rate": 90.0,
    }
    assert document("key", "list") == {"keys": [made]}
    stored = b"".join(file.read_bytes() for file in tmp_path.glob("privalign.db*"))
    assert secret.rpartition("_")[2].encode() not in stored
    revoked = document("key", "revoke", made["id"])
    assert datetime.fromisoformat(revoked["revoked"]) <= datetime.now(UTC)
    assert revoked | {"revoked": None} == made
    assert document("key", "revoke", made["id"]) == revoked  # twice keeps the first date


def test_an_officer_without_limits(document: Any, run: Run) -> None:
    made = document("key", "create", "--ledger", LEDGER, "--role", "officer")
    assert (made["role"], made["models"], made["expires"], made["account"]) == ("officer", None, None, None)
    code, out, error = run("key", "list")
    assert (code, error) == (0, "")
    assert made["id"] in out
    assert made["key"] not in out


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--role", "king"], "--role"),
        (["--rate", "0"], "rate"),
        (["--rate", "nan"], "rate"),
        (["--expires", "soon"], "--expires"),
        (["--expires", "2001-01-01"], "expires"),
        (["--expires", "9999-12-31T23:59:59-23:59"], "--expires"),
        (["--expires", "0001-01-01T00:00:00+23:59"], "expires"),
        (["--share", 0.5], "share"),
        (["--account", "prefs"], "share"),
        (["--account", "prefs", "--share", 0], "share"),
        (["--account", "prefs", "--share", 1.5], "share"),
        (["--account", "prefs", "--share", "nan"], "share"),
        (["--account", "nosuch", "--share", 0.5], "account"),
        (["--queries", 0], "queries"),
        (["--queries", -3], "queries"),
        (["--queries", 10**30], "queries"),
        (["--models", ""], "--models"),
        (["--models", "a,,b"], "--models"),
    ],
)
def test_a_key_that_cannot_be_is_refused(document: Any, refused: Any, options: list[object], names: str) -> None:
    document("account", "create", "prefs", *BUDGET)
    assert names in refused(2, "key", "create", *options)
    assert document("key", "list") == {"keys": []}


def test_an_unknown_key_is_named(document: Any, refused: Any) -> None:
    document("key", "create", "--ledger", LEDGER)
    assert "'nosuch'" in refused(2, "key", "revoke", "nosuch")
    assert "\x1b" not in refused(2, "key", "revoke", "\x1b[31m")


# Which ledger

DEPLOYMENT = """
[ledger]
url = "{url}"
[accounts.prefs]
epsilon = 8.0
delta = 1e-6
[accounts.other]
epsilon = 8.0
delta = 1e-6
[models.aligned]
account = "prefs"
[models.second]
account = "other"
"""  # the rest is missing: where the ledger is does not depend on it


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A deployment file in another folder, with its ledger beside it."""
    folder = tmp_path / "deployment"
    folder.mkdir()
    file = folder / "privalign.toml"
    file.write_text(DEPLOYMENT.format(url="sqlite:///ledger.db"))
    return file


def test_the_ledger_of_a_deployment_file_is_found_from_any_folder(document: Any, refused: Any, tmp_path: Path, elsewhere: Path) -> None:
    config = ("--config", elsewhere)
    document("account", "create", "prefs", *BUDGET, *config)
    assert sorted(path.name for path in elsewhere.parent.glob("*.db")) == ["ledger.db"]
    key = document("key", "create", *config)["id"]
    assert [each["id"] for each in document("key", "list", *config)["keys"]] == [key]
    document("key", "revoke", key, *config)
    for command in (["show", "prefs"], ["list"], ["journal", "prefs"], ["verify", "prefs"], ["export", "prefs"]):
        document("account", *command, *config)
    document("account", "raise", "prefs", "--epsilon", 9, "--reason", "r", *config)
    assert "nothing was changed" in refused(2, "ledger", "moved", *config)
    assert list(tmp_path.glob("*.db")) == []
    assert "nosuch.toml" in refused(2, "account", "list", "--config", "nosuch.toml")


@pytest.mark.parametrize("kind", ["env", "file"])
def test_the_url_may_stand_elsewhere(document: Any, refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """It may hold a password, which neither a deployment file nor a command line may."""
    monkeypatch.setenv("LEDGER_URL", "sqlite:///secret.db")
    (tmp_path / "url").write_text("sqlite:///secret.db\n")
    reference = {"env": "env:LEDGER_URL", "file": f"file:{tmp_path / 'url'}"}[kind]
    document("account", "create", "prefs", *BUDGET, "--ledger", reference)
    assert (tmp_path / "secret.db").exists()
    (tmp_path / "file.toml").write_text(DEPLOYMENT.format(url=reference))
    for option in (("--ledger", reference), ("--config", "file.toml")):
        assert document("account", "show", "prefs", *option)["name"] == "prefs"
        document("key", "create", *option)
    assert "LEDGER_NONE" in refused(2, "account", "list", "--ledger", "env:LEDGER_NONE")


def test_a_key_makes_no_ledger_in_a_folder_that_nobody_named(document: Any, refused: Any, tmp_path: Path, run: Run) -> None:
    assert "--ledger: privalign.db does not exist" in refused(2, "key", "create")
    assert list(tmp_path.iterdir()) == []
    run("init")
    document("key", "create")  # beside its deployment file
    assert (tmp_path / "privalign.db").exists()


def test_a_model_that_is_not_served_gets_no_key(
    document: Any, refused: Any, run: Run, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ("--config", elsewhere)
    document("account", "create", "prefs", *BUDGET, *config)
    error = refused(2, "key", "create", "--models", "alinged", *config)
    assert f"--models: 'alinged' is not a model of {elsewhere}; known are aligned, second" in error
    share = ("--account", "prefs", "--share", 0.5)
    assert "'second' is paid by account other" in refused(2, "key", "create", "--models", "aligned,second", *share, *config)
    assert document("key", "create", "--models", "aligned,second", *config)["models"] == ["aligned", "second"]
    monkeypatch.chdir(elsewhere.parent)
    code, _, error = run("key", "create", "--models", "alinged", "--ledger", "sqlite:///ledger.db")
    assert code == 0
    assert error == "privalign: warning: 'alinged' is not a model of privalign.toml; known are aligned, second\n"


def test_a_key_with_a_share_shows_whose_models_it_may_ask(document: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    document("account", "create", "prefs", *BUDGET)
    assert "those of account prefs" in run("key", "create", "--account", "prefs", "--share", 0.5)[1]
    assert "those of account prefs" in " ".join(run("key", "list")[1].split())
    assert document("key", "list")["keys"][0]["models"] is None


# In words


def test_the_journal_in_words_says_who_and_what_and_how_much(document: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    document("account", "create", "prefs", *BUDGET)
    key = document("key", "create")["id"]
    ledger = Ledger(LEDGER)
    for model in ("aligned", "second"):
        reservation = ledger.reserve("prefs", [EVENT], api_key=key, model=model)
        assert isinstance(reservation, Reservation)
        ledger.settle(reservation, [EVENT])
    rule = ledger.account("prefs").rule
    code, out, _ = run("account", "journal", "prefs")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == ["row", "time", "kind", "of", "queries", "key", "model", "ε", "spent", "hash"]
    assert (key in lines[3], "second" in lines[5]) == (True, True)
    assert repr(rule.spent(rule.charge(EVENT) * 2)[0]) in lines[5]
    later = run("account", "journal", "prefs", "--after", 4)[1].splitlines()
    assert later[1].split() == lines[5].split()  # the ε of the whole journal, not of the rows that are shown


def test_a_raise_says_that_the_deployment_file_must_follow(document: Any, run: Run) -> None:
    document("account", "create", "prefs", *BUDGET)
    out = run("account", "raise", "prefs", "--epsilon", 9, "--reason", "r")[1]
    assert "Now write epsilon = 9.0 under [accounts.prefs] of every deployment file" in " ".join(out.split())


def test_what_is_left_of_delta_does_not_read_as_exhausted(document: Any, run: Run) -> None:
    document("account", "create", "prefs", *BUDGET)
    document("account", "create", "other", *BUDGET, "--rule", "basic")
    assert "spends its δ once" not in run("account", "show", "prefs")[1]
    for name in ("prefs", "other"):
        spend(1, name)
    assert "0.0: rule renyi spends its δ once, with the first answer" in " ".join(run("account", "show", "prefs")[1].split())
    assert "spends its δ once" not in run("account", "show", "other")[1]
    assert document("account", "show", "prefs")["remaining"]["delta"] == 0.0
