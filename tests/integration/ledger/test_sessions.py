"""PostgreSQL whose defaults are not those of a fresh server: the ledger sets what it rests on, and behaves as everywhere."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import psycopg
import pytest

from privalign.accounting.rules import Renyi
from privalign.events import GumbelMax
from privalign.ledger import IdempotencyKey, Ledger, LedgerFailed, Pending, Replay, Reservation, Role
from privalign.ledger.failures import TransactionsMet
from privalign.ledger.presence import is_made
from privalign.sensitivity import RewardRange, Sensitivity

EVENT = GumbelMax(Sensitivity.of_range(RewardRange(0.0, 1.0)), 10.0, 16)
RULE = Renyi(50.0, 1e-6, 2.0)
_numbers = itertools.count()

ODD = {
    "serializable": ["default_transaction_isolation = 'serializable'"],
    "repeatable read": ["default_transaction_isolation = 'repeatable read'"],
    "deferrable": ["default_transaction_isolation = 'serializable'", "default_transaction_deferrable = on"],
    "time zone": ["timezone = 'Asia/Kathmandu'", "datestyle = 'SQL, DMY'"],
    "statement timeout": ["statement_timeout = 2"],
    "lock timeout": ["lock_timeout = 1"],
    "floats": ["extra_float_digits = -15"],
    "strings": ["standard_conforming_strings = off"],
    "SQL_ASCII": [],
    "LATIN1": [],
}


@pytest.fixture
def odd(postgresql: str) -> Callable[[str], str]:
    """The URL of a new database with one of the settings above."""

    def made(kind: str) -> str:
        name = f"odd_{next(_numbers)}"
        encoding = kind if kind in ("SQL_ASCII", "LATIN1") else "UTF8"
        with psycopg.connect(postgresql.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'")
            for setting in ODD[kind]:
                connection.execute(f"ALTER DATABASE {name} SET {setting}")
        return postgresql.replace("/postgres?", f"/{name}?")

    return made


@pytest.fixture(params=ODD)
def url(request: pytest.FixtureRequest, odd: Callable[[str], str]) -> str:
    return odd(request.param)


def test_everything_that_a_ledger_does(url: str) -> None:
    assert not is_made(url)
    ledger = Ledger(url, patience=20.0)
    account = ledger.create_account("prefs", RULE)
    key = ledger.create_key(Role.CLIENT, models=["aligned"], account="prefs", share=0.1 + 0.2, rate=1 / 3)
    assert (key.key.share, key.key.rate) == (0.1 + 0.2, 1 / 3)
    assert ledger.authenticate(key.secret) == key.key
    same = IdempotencyKey("client", "request", "body")
    reservation = ledger.reserve("prefs", [EVENT], idempotency=same, api_key=key.key.id)
    assert isinstance(reservation, Reservation)
    assert ledger.reserve("prefs", [EVENT], idempotency=same) == Pending(reservation.expires)
    release = {"text": "naïve \\ 'answer' \x00 \ud800 Ω"}
    ledger.settle(ledger.renew(reservation), [EVENT], release)
    assert ledger.reserve("prefs", [EVENT], idempotency=same) == Replay(release)
    ledger.void(ledger.reserve("prefs", [EVENT]))  # type: ignore[arg-type]
    ledger.raise_budget("prefs", 60.0, "more traffic, señor Ω")
    shown = ledger.account("prefs")
    assert (shown.created, shown.raises[0].reason) == (account.created, "more traffic, señor Ω")
    assert abs((datetime.now(UTC) - shown.created).total_seconds()) < 60
    assert [entry.kind for entry in ledger.latest("prefs")] == ["raise", "void", "reserve", "settle", "reserve", "create"]
    assert len(list(ledger.export("prefs"))) == 7
    assert ledger.verify("prefs").debited == RULE.charge(EVENT)
    ledger.revoke_key(key.key.id)
    ledger.close()
    assert is_made(url)


@pytest.mark.parametrize("kind", ["serializable", "repeatable read"])
def test_forty_requests_at_once_are_all_answered(odd: Callable[[str], str], kind: str) -> None:
    """Of forty, 24 were refused and 12 failed after they were charged."""
    ledger = Ledger(odd(kind))
    ledger.create_account("prefs", RULE)
    key = ledger.create_key(Role.CLIENT, queries=1000).key.id

    def ask(number: int) -> None:
        reservation = ledger.reserve("prefs", [EVENT], idempotency=IdempotencyKey("client", str(number), "body"), api_key=key)
        assert isinstance(reservation, Reservation)
        ledger.settle(reservation, [EVENT], {"text": str(number)})

    with ThreadPoolExecutor(16) as crowd:
        list(crowd.map(ask, range(40)))
    account = ledger.account("prefs")
    assert (account.settled_queries, account.open_queries, account.debited) == (40, 0, RULE.charge(EVENT) * 40)
    assert ledger.verify("prefs").length == 81
    ledger.close()


def test_a_deadlock_is_tried_again(postgresql_url: str) -> None:
    """Two transactions that each wait for the other: the server ends one, which begins anew."""
    ledger = Ledger(postgresql_url)
    for name in ("first", "second"):
        ledger.create_account(name, RULE)
    attempts: list[str] = []

    def lock(names: tuple[str, str]) -> None:
        def both(transaction: object) -> None:
            attempts.append(names[0])
            for name in names:
                transaction._cursor.execute("SELECT 1 FROM ledger_accounts WHERE name = %s FOR UPDATE", [name])  # type: ignore[attr-defined]
                time.sleep(0.2)

        ledger._write(both)

    with ThreadPoolExecutor(2) as pair:
        list(pair.map(lock, [("first", "second"), ("second", "first")]))
    assert len(attempts) > 2
    ledger.close()


def test_what_meets_others_without_end_is_given_up_in_time(postgresql_url: str) -> None:
    ledger = Ledger(postgresql_url, patience=0.5)
    ledger.accounts()
    attempts: list[float] = []

    def fail(transaction: object) -> None:
        attempts.append(time.monotonic())
        transaction._cursor.execute("DO $$ BEGIN RAISE EXCEPTION 'met' USING ERRCODE = '40001'; END $$")  # type: ignore[attr-defined]

    with pytest.raises(TransactionsMet, match="held up by other sessions for too long; retry"):
        ledger._write(fail)
    assert len(attempts) > 3
    assert attempts[-1] - attempts[0] < 5
    ledger.close()


def test_a_url_with_an_unknown_option_is_one_line(postgresql_url: str) -> None:
    with pytest.raises(LedgerFailed, match=r"the URL cannot be used: .*nosuch") as error:
        Ledger(f"{postgresql_url}&nosuch=1").accounts()
    assert "\n" not in str(error.value)


def test_settings_of_the_server_cannot_be_put_into_the_url_either(odd: Callable[[str], str]) -> None:
    ledger = Ledger(f"{odd('time zone')}&client_encoding=LATIN1")
    ledger.create_account("prefs", RULE)
    with ledger._database.read() as transaction:
        for setting, value in (("client_encoding", "UTF8"), ("TimeZone", "UTC"), ("transaction_isolation", "repeatable read")):
            transaction._cursor.execute(f"SHOW {setting}")
            assert transaction._cursor.fetchone() == (value,)
    with ledger._database.write() as transaction:
        transaction._cursor.execute("SHOW transaction_isolation")
        assert transaction._cursor.fetchone() == ("read committed",)
    ledger.close()
