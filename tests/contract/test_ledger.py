"""What every ledger keeps to, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from privalign.accounting.rules import Basic, Debit, Fsrc, Renyi, Rule, TwoCounter
from privalign.errors import BudgetBusy, BudgetExhausted, IdempotencyConflict, InvalidInput, LeaseExpired
from privalign.events import FALLBACK, Composed, Event, Free, GaussianMax, GaussianRelease, GumbelMax, NonPrivate, RejectionRounds
from privalign.ledger import (
    IdempotencyKey,
    KeyExhausted,
    KeyRefused,
    Ledger,
    Pending,
    Replay,
    Reservation,
    Role,
    UnknownAccount,
)
from privalign.ledger.keys import FIND_KEY
from privalign.sensitivity import Relation, RewardRange, Sensitivity
from privalign.statements import of_rule

UNIT = RewardRange(0.0, 1.0)
RANGE = Sensitivity.of_range(UNIT)
SMALL = Sensitivity(0.1, UNIT, "certificate", Relation.REPLACE, 1)
EVENT = GumbelMax(RANGE, 10.0, 16)
ROUNDS = RejectionRounds(SMALL, beta=0.05, scale=0.5, tail=3.0, cap=8)
PHASES = Composed((GaussianRelease(SMALL, 0.5), ROUNDS))
RULE = Renyi(50.0, 1e-6, 2.0)
COST = RULE.charge(EVENT)


@dataclass
class Clock:
    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(ledger_url: str, clock: Clock) -> Ledger:
    ledger = Ledger(ledger_url, clock=clock, retain=1000.0)
    ledger.create_account("prefs", RULE)
    return ledger


def reserve(ledger: Ledger, *events: Event, account: str = "prefs", **options: object) -> Reservation:
    outcome = ledger.reserve(account, events or (EVENT,), **options)  # type: ignore[arg-type]
    assert isinstance(outcome, Reservation)
    return outcome


def account_for(queries: int) -> Rule:
    """A rule that holds `queries` of EVENT, and half of one more."""
    return Renyi(50.0 - (RULE.limit.rdp - COST.rdp * queries - COST.rdp // 2) / 1e12, 1e-6, 2.0)


def kinds(ledger: Ledger, account: str = "prefs") -> list[str]:
    return [entry.kind for entry in ledger.journal(account)]


# Accounts


@pytest.mark.parametrize(
    "rule", [Basic(3.0, 1e-5, 1e-9), Fsrc(3.0, 1e-5, 1e-9), TwoCounter(8.0, 1e-5, 0.01), Renyi(8.0, 1e-5, 4.0)], ids=lambda rule: rule.name
)
def test_an_account_reads_back_as_it_was_made(ledger: Ledger, clock: Clock, rule: Rule) -> None:
    ledger.create_account("another", rule, relation=Relation.FLIP, records_per_person=3)
    account = ledger.account("another")
    assert (account.rule, account.relation, account.records_per_person) == (rule, Relation.FLIP, 3)
    assert account.created == datetime.fromtimestamp(clock.now, UTC)
    assert (account.limit, account.debited, account.open) == (rule.limit, Debit(), Debit())
    assert (account.settled_queries, account.open_queries, account.refused_queries) == (0, 0, 0)
    assert account.spent == (0.0, 0.0)
    assert account.remaining == (rule.epsilon, rule.delta)
    assert account.guarantee == of_rule(rule)
    assert [each.name for each in ledger.accounts()] == ["another", "prefs"]


def test_a_name_is_taken_for_good(ledger: Ledger) -> None:
    with pytest.raises(InvalidInput, match="exists already"):
        ledger.create_account("prefs", Renyi(9.0, 1e-5, 4.0))
    assert ledger.account("prefs").rule == RULE


@pytest.mark.parametrize("name", ["", "a b", "-x", "ä", "x" * 101, "a\x00b"])
def test_names_are_plain(ledger: Ledger, name: str) -> None:
    with pytest.raises(InvalidInput, match="account"):
        ledger.create_account(name, RULE)


@pytest.mark.parametrize("use", ["account", "journal", "verify", "reserve", "raise"])
def test_an_unknown_account_is_named(ledger: Ledger, use: str) -> None:
    uses: dict[str, Callable[[], object]] = {
        "account": lambda: ledger.account("other"),
        "journal": lambda: list(ledger.journal("other")),
        "verify": lambda: ledger.verify("other"),
        "reserve": lambda: ledger.reserve("other", [EVENT]),
        "raise": lambda: ledger.raise_budget("other", 60.0, "why"),
    }
    with pytest.raises(UnknownAccount, match="'other' does not exist"):
        uses[use]()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger_journal SET record = '{}'",
        "DELETE FROM ledger_journal",
        "UPDATE ledger_accounts SET parameters = '{}'",
        "UPDATE ledger_accounts SET name = 'other'",
        "UPDATE ledger_accounts SET dataset = 'other'",
        "DELETE FROM ledger_accounts",
        "UPDATE ledger_accounts SET debited_rdp = limit_rdp + 1",
        "UPDATE ledger_accounts SET debited_rdp = -1",
    ],
)
def test_the_database_itself_refuses(ledger: Ledger, ledger_url: str, statement: str) -> None:
    engine = create_engine(ledger_url)
    with engine.connect() as connection, pytest.raises(DBAPIError):
        connection.execute(text(statement))
    engine.dispose()
    ledger.verify("prefs")


# One query


def test_the_worst_case_is_debited_before_reserve_returns(ledger: Ledger, ledger_url: str) -> None:
    reservation = reserve(ledger, EVENT, EVENT)
    account = Ledger(ledger_url).account("prefs")
    assert reservation.debit == account.debited == account.open == COST * 2
    assert (account.settled_queries, account.open_queries) == (0, 2)
    ledger.settle(reservation, [EVENT, EVENT])
    account = ledger.account("prefs")
    assert (account.debited, account.open) == (COST * 2, Debit())
    assert (account.settled_queries, account.open_queries) == (2, 0)


@pytest.mark.parametrize(
    ("rule", "lowered"),
    [
        (Basic(50.0, 1e-5, 1e-7), False),
        (Fsrc(50.0, 1e-5, 1e-7), True),
        (TwoCounter(50.0, 1e-5, 1.0), True),
        (Renyi(50.0, 1e-5, 2.0), True),
    ],
    ids=lambda value: getattr(value, "name", None),
)
@pytest.mark.parametrize("halt", [1, 8, FALLBACK])
def test_settle_lowers_to_what_the_rule_charges(ledger: Ledger, rule: Rule, lowered: bool, halt: int) -> None:
    ledger.create_account("phases", rule)
    realised = Composed((PHASES.events[0], ROUNDS.at(0.9375, halt)))
    reservation = reserve(ledger, PHASES, account="phases")
    stands = ledger.settle(reservation, [realised])
    assert stands == rule.charge(realised) == ledger.account("phases").debited
    assert stands.fits(reservation.debit)
    assert (stands != reservation.debit) == lowered
    assert stands.delta == reservation.debit.delta
    settled = list(ledger.journal("phases"))[-1]
    assert (settled.kind, settled.reservation, settled.debit) == ("settle", 2, stands - reservation.debit)


def test_settle_never_raises(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    reservation = reserve(ledger)
    monkeypatch.setattr("privalign.ledger.terms.Terms.charge", lambda self, events: COST * 5)
    assert ledger.settle(reservation, [EVENT]) == COST


@pytest.mark.parametrize(
    "realised",
    [[], [EVENT, EVENT], [Free()], [replace(EVENT, scale=20.0)], [GaussianMax(RANGE, 10.0, 16)], [Composed((EVENT,))]],
    ids=["none", "two", "free", "scale", "kind", "composed"],
)
def test_only_what_was_reserved_can_be_settled(ledger: Ledger, realised: list[Event]) -> None:
    reservation = reserve(ledger)
    with pytest.raises(InvalidInput, match="not the reserved events"):
        ledger.settle(reservation, realised)
    assert ledger.account("prefs").open == COST


def test_void_gives_everything_back(ledger: Ledger) -> None:
    reservation = reserve(ledger, EVENT, EVENT)
    ledger.void(reservation)
    account = ledger.account("prefs")
    assert (account.debited, account.settled_queries, account.open_queries, account.spent) == (Debit(), 0, 0, (0.0, 0.0))
    assert kinds(ledger) == ["create", "reserve", "void"]


@pytest.mark.parametrize("first", ["settle", "void"])
@pytest.mark.parametrize("second", ["settle", "void", "renew"])
def test_a_closed_reservation_stays_closed(ledger: Ledger, first: str, second: str) -> None:
    reservation = reserve(ledger)
    acts: dict[str, Callable[[], object]] = {
        "settle": lambda: ledger.settle(reservation, [EVENT]),
        "void": lambda: ledger.void(reservation),
        "renew": lambda: ledger.renew(reservation),
    }
    acts[first]()
    debited = ledger.account("prefs").debited
    with pytest.raises(LeaseExpired):
        acts[second]()
    assert ledger.account("prefs").debited == debited
    assert kinds(ledger) == ["create", "reserve", first]


def test_only_the_owner_can_close(ledger: Ledger) -> None:
    stranger = replace(reserve(ledger), owner="0" * 32)
    for act in (lambda: ledger.void(stranger), lambda: ledger.settle(stranger, [EVENT]), lambda: ledger.renew(stranger)):
        with pytest.raises(LeaseExpired):
            act()
    assert ledger.account("prefs").open == COST


def test_the_owner_is_not_printed(ledger: Ledger) -> None:
    reservation = reserve(ledger)
    assert reservation.owner not in repr(reservation)


def test_free_events_cost_nothing_and_are_journalled(ledger: Ledger) -> None:
    reservation = reserve(ledger, Free())
    ledger.settle(reservation, [Free()], None)
    account = ledger.account("prefs")
    assert (account.debited, account.settled_queries) == (Debit(), 1)
    assert kinds(ledger) == ["create", "reserve", "settle"]


@pytest.mark.parametrize("event", [NonPrivate(), GumbelMax(RANGE, 1e-300, 16), Composed((EVENT, NonPrivate()))])
def test_what_has_no_finite_cost_is_refused_before_any_write(ledger: Ledger, event: Event) -> None:
    before = ledger.account("prefs")
    with pytest.raises((InvalidInput, BudgetExhausted)) as refusal:
        ledger.reserve("prefs", [event])
    if isinstance(refusal.value, InvalidInput):
        assert ledger.account("prefs") == before
    assert ledger.account("prefs").debited == Debit()


def test_an_unknown_event_is_refused(ledger: Ledger) -> None:
    class Strange:
        pass

    with pytest.raises(TypeError, match="Strange"):
        ledger.reserve("prefs", [Strange()])  # type: ignore[list-item]


def test_nothing_to_reserve_is_an_error(ledger: Ledger) -> None:
    with pytest.raises(InvalidInput, match="nothing to reserve"):
        ledger.reserve("prefs", [])


# Refusals


def test_a_refusal_says_what_is_left_and_what_was_asked(ledger: Ledger) -> None:
    rule = account_for(3)
    ledger.create_account("small", rule)
    for _ in range(2):
        ledger.settle(reserve(ledger, account="small"), [EVENT])
    before = ledger.account("small")
    with pytest.raises(BudgetExhausted) as refusal:
        ledger.reserve("small", [EVENT, EVENT])
    after = ledger.account("small")
    assert not isinstance(refusal.value, BudgetBusy)
    assert refusal.value.remaining == before.remaining[0] > 0
    assert refusal.value.requested == rule.spent(COST * 4)[0] - rule.spent(COST * 2)[0]
    assert after == replace(before, refused_queries=2)
    reserve(ledger, account="small")


def test_only_open_reservations_in_the_way_is_busy(ledger: Ledger, clock: Clock) -> None:
    ledger.create_account("small", account_for(1))
    reservation = reserve(ledger, account="small")
    with pytest.raises(BudgetBusy, match="retry"):
        ledger.reserve("small", [EVENT])
    with pytest.raises(BudgetExhausted) as refusal:
        ledger.reserve("small", [EVENT, EVENT])
    assert not isinstance(refusal.value, BudgetBusy)
    clock.now += 121
    with pytest.raises(BudgetExhausted) as refusal:
        ledger.reserve("small", [EVENT])
    assert not isinstance(refusal.value, BudgetBusy)
    with pytest.raises(LeaseExpired):
        ledger.void(reservation)


def test_an_absurd_cost_is_refused_without_overflow(ledger: Ledger) -> None:
    dear = GumbelMax(RANGE, 1e-6, 16)
    with pytest.raises((BudgetExhausted, InvalidInput)):
        ledger.reserve("prefs", [dear] * 500)
    assert ledger.account("prefs").debited == Debit()


def test_every_counter_has_its_limit(ledger: Ledger) -> None:
    ledger.create_account("delta", Basic(1000.0, 2.5e-7, 1e-7))
    release = GaussianRelease(RANGE, 10.0)
    for _ in range(2):
        reserve(ledger, release, account="delta")
    with pytest.raises(BudgetBusy):
        ledger.reserve("delta", [release])
    reserve(ledger, EVENT, account="delta")


# Leases and time


def test_an_expired_reservation_counts_for_good(ledger: Ledger, clock: Clock) -> None:
    reservation = reserve(ledger, lease=60.0)
    clock.now += 60
    account = ledger.account("prefs")
    assert (account.debited, account.open, account.settled_queries, account.open_queries) == (COST, Debit(), 1, 0)
    with pytest.raises(LeaseExpired):
        ledger.settle(reservation, [EVENT])
    assert kinds(ledger) == ["create", "reserve", "expire"]
    assert ledger.verify("prefs").debited == COST


def test_the_owner_renews(ledger: Ledger, clock: Clock) -> None:
    reservation = reserve(ledger, lease=60.0)
    for _ in range(5):
        clock.now += 50
        reservation = ledger.renew(reservation)
    clock.now += 59
    ledger.settle(reservation, [EVENT])


def test_the_next_query_journals_what_has_expired(ledger: Ledger, clock: Clock) -> None:
    reserve(ledger)
    reserve(ledger)
    clock.now += 500
    reserve(ledger)
    assert kinds(ledger) == ["create", "reserve", "reserve", "expire", "expire", "reserve"]
    assert ledger.account("prefs").open == COST
    ledger.verify("prefs")


def test_a_clock_moved_back_revives_nothing(ledger: Ledger, clock: Clock) -> None:
    reservation = reserve(ledger)
    clock.now += 200
    with pytest.raises(LeaseExpired):
        ledger.settle(reservation, [EVENT])
    clock.now -= 10_000
    with pytest.raises(LeaseExpired):
        ledger.settle(reservation, [EVENT])
    assert ledger.account("prefs").open == Debit()
    later = reserve(ledger)
    assert later.expires > datetime.fromtimestamp(clock.now + 10_000, UTC)
    times = [entry.time for entry in ledger.journal("prefs")]
    assert times == sorted(times)


@pytest.mark.parametrize("lease", [0.0, -1.0, float("nan"), float("inf")])
def test_a_lease_is_a_time(ledger: Ledger, lease: float) -> None:
    with pytest.raises(InvalidInput, match="lease"):
        ledger.reserve("prefs", [EVENT], lease=lease)


# Idempotency

SAME = IdempotencyKey("client/model", "request-1", "digest")


def test_the_same_request_waits_then_replays(ledger: Ledger) -> None:
    reservation = reserve(ledger, idempotency=SAME)
    assert ledger.reserve("prefs", [EVENT], idempotency=SAME) == Pending(reservation.expires)
    release = {"text": "naïve \x00 \ud800 answer", "parts": [1, None]}
    ledger.settle(reservation, [EVENT], release)
    assert ledger.reserve("prefs", [EVENT], idempotency=SAME) == Replay(release)
    assert ledger.account("prefs").debited == COST


@pytest.mark.parametrize("settled", [False, True])
def test_another_body_or_account_under_the_key_is_refused(ledger: Ledger, settled: bool) -> None:
    ledger.create_account("other", RULE)
    reservation = reserve(ledger, idempotency=SAME)
    if settled:
        ledger.settle(reservation, [EVENT], {"text": "a"})
    for account, key in (("prefs", replace(SAME, body="another")), ("other", SAME)):
        with pytest.raises(IdempotencyConflict) as conflict:
            ledger.reserve(account, [EVENT], idempotency=key)
        assert conflict.value.mismatch
    assert ledger.account("other").debited == Debit()


def test_scopes_are_apart(ledger: Ledger) -> None:
    reserve(ledger, idempotency=SAME)
    reserve(ledger, idempotency=replace(SAME, scope="another client"))
    reserve(ledger, idempotency=IdempotencyKey("client/modelrequest", "-1", "digest"))


def test_a_voided_or_expired_request_is_made_anew(ledger: Ledger, clock: Clock) -> None:
    ledger.void(reserve(ledger, idempotency=SAME))
    late = reserve(ledger, idempotency=SAME)
    clock.now += 121
    again = reserve(ledger, idempotency=SAME)
    with pytest.raises(LeaseExpired):
        ledger.settle(late, [EVENT], {"text": "late"})
    ledger.settle(again, [EVENT], {"text": "again"})
    assert ledger.reserve("prefs", [EVENT], idempotency=SAME) == Replay({"text": "again"})
    assert ledger.account("prefs").debited == COST * 2
    assert kinds(ledger) == ["create", "reserve", "void", "reserve", "expire", "reserve", "settle"]


def test_an_old_text_is_deleted_and_the_fact_is_kept(ledger: Ledger, ledger_url: str, clock: Clock) -> None:
    ledger.settle(reserve(ledger, idempotency=SAME), [EVENT], {"text": "secret answer"})
    clock.now += 1000
    with pytest.raises(IdempotencyConflict) as conflict:
        ledger.reserve("prefs", [EVENT], idempotency=SAME)
    assert not conflict.value.mismatch
    ledger.settle(reserve(ledger), [EVENT])
    engine = create_engine(ledger_url)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT release FROM ledger_answers")).all() == [(None,)]
    engine.dispose()
    with pytest.raises(IdempotencyConflict):
        ledger.reserve("prefs", [EVENT], idempotency=SAME)


def test_a_refused_request_leaves_its_key_free(ledger: Ledger) -> None:
    ledger.create_account("small", account_for(1))
    first = reserve(ledger, account="small")
    with pytest.raises(BudgetBusy):
        ledger.reserve("small", [EVENT], idempotency=SAME)
    ledger.void(first)
    reserve(ledger, account="small", idempotency=SAME)


# Sensitivity


@pytest.mark.parametrize(
    "sensitivity",
    [
        RANGE,
        Sensitivity(2.0, UNIT, "certificate", Relation.FLIP, 1),
        Sensitivity(0.1, UNIT),
        Sensitivity(0.1, UNIT, "certificate", Relation.REPLACE, 2),
        Sensitivity(0.1, UNIT, "declared", Relation.REPLACE, 5),
    ],
)
def test_a_sensitivity_that_fits(ledger: Ledger, sensitivity: Sensitivity) -> None:
    ledger.create_account("pairs", RULE, relation=Relation.REPLACE, records_per_person=2)
    reserve(ledger, Composed((replace(EVENT, sensitivity=sensitivity), EVENT)), account="pairs")


@pytest.mark.parametrize(
    ("sensitivity", "named"),
    [
        (Sensitivity(0.1, UNIT, "certificate", Relation.FLIP, 2), "flip.*replace"),
        (Sensitivity(0.1, UNIT, "declared", Relation.ADD_REMOVE, 2), "add-remove.*replace"),
        (Sensitivity(0.1, UNIT, "certificate", Relation.REPLACE, 1), "1.*2"),
        (Sensitivity(0.1, UNIT, "certificate", Relation.REPLACE, None), "None.*2"),
        (Sensitivity(0.1, UNIT, "certificate", None, None), "none.*replace"),
    ],
)
def test_a_sensitivity_that_does_not_fit_names_both(ledger: Ledger, sensitivity: Sensitivity, named: str) -> None:
    ledger.create_account("pairs", RULE, relation=Relation.REPLACE, records_per_person=2)
    with pytest.raises(InvalidInput, match=named):
        ledger.reserve("pairs", [Composed((EVENT, replace(EVENT, sensitivity=sensitivity)))])


# Raising


def test_a_raise_is_journalled_and_shown_ever_after(ledger: Ledger) -> None:
    ledger.settle(reserve(ledger), [EVENT])
    account = ledger.raise_budget("prefs", 60.0, "more traffic")
    assert (account.rule, account.limit) == (Renyi(60.0, 1e-6, 2.0), Renyi(60.0, 1e-6, 2.0).limit)
    assert account.debited == COST
    assert [(each.before, each.after, each.reason) for each in account.raises] == [(50.0, 60.0, "more traffic")]
    assert "raised from 50" in account.guarantee
    assert kinds(ledger)[-1] == "raise"
    ledger.settle(reserve(ledger), [EVENT])
    ledger.verify("prefs")


@pytest.mark.parametrize(
    ("epsilon", "reason"), [(50.0, "same"), (40.0, "lower"), (float("nan"), "nan"), (60.0, " "), (float("inf"), "all")]
)
def test_a_budget_is_only_raised_and_for_a_reason(ledger: Ledger, epsilon: float, reason: str) -> None:
    with pytest.raises(InvalidInput):
        ledger.raise_budget("prefs", epsilon, reason)
    assert ledger.account("prefs").raises == ()


# The journal


def test_the_export_can_be_checked_by_hand(ledger: Ledger) -> None:
    ledger.settle(reserve(ledger, idempotency=SAME), [EVENT], {"text": "never in the journal"})
    head, *lines = ledger.export("prefs")
    previous = "0" * 64
    for line in lines:
        hashed, record = line.removeprefix('{"hash":"')[:64], line[len('{"hash":"') + 64 + len('","record":') : -1]
        assert hashlib.sha256(record.encode()).hexdigest() == hashed
        assert json.loads(record)["previous"] == previous
        previous = hashed
    assert json.loads(head)["head"] == previous == ledger.account("prefs").head
    assert "never in the journal" not in "".join([head, *lines])


def test_verify_re_adds_and_knows_every_head(ledger: Ledger) -> None:
    heads = []
    for _ in range(3):
        heads.append(ledger.account("prefs").head)
        ledger.settle(reserve(ledger), [EVENT])
    reserve(ledger)
    for head in heads:
        verified = ledger.verify("prefs", expect_head=head)
    account = ledger.account("prefs")
    assert (verified.head, verified.length, verified.debited, verified.spent) == (account.head, 8, COST * 4, account.spent)


def test_the_journal_can_be_read_from_a_row_on(ledger: Ledger) -> None:
    ledger.settle(reserve(ledger), [EVENT])
    assert [entry.seq for entry in ledger.journal("prefs", after=1)] == [2, 3]


# Keys


def test_a_key_is_shown_once_and_authenticates(ledger: Ledger, ledger_url: str) -> None:
    new = ledger.create_key(Role.CLIENT, models=["aligned"])
    assert ledger.authenticate(new.secret) == new.key == ledger.keys()[0] == ledger.valid_key(new.key.id)
    assert new.secret not in repr(new)
    assert new.key.allows("aligned")
    assert not new.key.allows("other")
    assert ledger.create_key(Role.OFFICER).key.allows("anything")
    engine = create_engine(ledger_url)
    with engine.connect() as connection:
        stored = str(connection.execute(text("SELECT * FROM ledger_keys")).all())
    engine.dispose()
    assert new.secret.rpartition("_")[2] not in stored


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s[:-1] + ("0" if s[-1] != "0" else "1"),
        lambda s: "",
        lambda s: "pa__",
        lambda s: s + "\x00",
        lambda s: "x" + s,
        lambda s: "pa_\x00_x",
        lambda s: "pa_é_\ud800",
    ],
)
def test_a_wrong_key_is_refused(ledger: Ledger, change: Callable[[str], str]) -> None:
    new = ledger.create_key(Role.CLIENT)
    with pytest.raises(KeyRefused):
        ledger.authenticate(change(new.secret))


def test_a_revoked_or_expired_key_is_refused_at_once(ledger: Ledger, clock: Clock) -> None:
    expiring = ledger.create_key(Role.CLIENT, expires=datetime.fromtimestamp(clock.now + 100, UTC))
    revoked = ledger.create_key(Role.CLIENT)
    ledger.authenticate(expiring.secret)
    ledger.revoke_key(revoked.key.id)
    clock.now += 100
    reserve(ledger)
    clock.now -= 100  # a clock moved back does not revive it
    for new in (expiring, revoked):
        with pytest.raises(KeyRefused):
            ledger.authenticate(new.secret)
        with pytest.raises(KeyRefused):
            ledger.valid_key(new.key.id)
        with pytest.raises(KeyRefused):
            ledger.reserve("prefs", [EVENT], api_key=new.key.id)
    with pytest.raises(KeyRefused):
        ledger.reserve("prefs", [EVENT], api_key="nobody")
    assert ledger.account("prefs").debited == COST


@pytest.mark.parametrize("identity", ["", "nobody", "\x00", "%", "é", "\ud800", "x" * 5000, "' OR 1=1--"])
def test_no_other_id_is_a_key(ledger: Ledger, identity: str) -> None:
    ledger.create_key(Role.OFFICER)
    with pytest.raises(KeyRefused):
        ledger.valid_key(identity)


def test_a_key_is_found_by_its_index(ledger: Ledger, ledger_url: str) -> None:
    """However many keys there are: every request and every page of the dashboard looks one up."""
    ledger.create_key(Role.CLIENT)
    engine = create_engine(ledger_url)
    question = FIND_KEY.params(key="some").compile(engine, compile_kwargs={"literal_binds": True})
    with engine.connect() as connection:
        explain = "EXPLAIN QUERY PLAN"
        if engine.dialect.name == "postgresql":
            connection.execute(text("SET enable_seqscan = off"))  # which it prefers while the table is small
            explain = "EXPLAIN"
        plan = str(connection.execute(text(f"{explain} {question}")).all())
    engine.dispose()
    assert re.search(r"SEARCH ledger_keys USING PRIMARY KEY|Index Scan using ledger_keys_pkey", plan)


def test_a_number_of_queries(ledger: Ledger) -> None:
    key = ledger.create_key(Role.CLIENT, queries=3).key
    ledger.void(reserve(ledger, EVENT, EVENT, api_key=key.id))
    reserve(ledger, EVENT, EVENT, api_key=key.id)
    with pytest.raises(KeyExhausted, match="1 queries left of its limit where 2 is requested"):
        ledger.reserve("prefs", [EVENT, EVENT], api_key=key.id)
    reserve(ledger, EVENT, api_key=key.id)
    assert ledger.keys()[0].queries == 3
    account = ledger.account("prefs")
    assert (account.debited, account.refused_queries) == (COST * 3, 2)
    assert [entry.note.get("api_key") for entry in ledger.journal("prefs") if entry.kind == "reserve"] == [key.id] * 3


def test_a_share_of_an_account(ledger: Ledger) -> None:
    ledger.create_account("phases", Fsrc(50.0, 1e-5, 1e-7))
    worst = ledger.account("phases").rule.charge(PHASES)
    share = 1.5 * worst.epsilon / ledger.account("phases").limit.epsilon
    key = ledger.create_key(Role.CLIENT, account="phases", share=share).key
    reservation = reserve(ledger, PHASES, account="phases", api_key=key.id)
    with pytest.raises(KeyExhausted, match="ε left of its limit") as refusal:
        ledger.reserve("phases", [PHASES], api_key=key.id)
    assert refusal.value.remaining < refusal.value.requested
    stands = ledger.settle(reservation, [Composed((PHASES.events[0], ROUNDS.at(0.9375, 1)))])
    assert ledger.keys()[0].debited == stands
    reserve(ledger, PHASES, account="phases")
    with pytest.raises(KeyRefused, match="account phases only"):
        ledger.reserve("prefs", [EVENT], api_key=key.id)


@pytest.mark.parametrize(
    "limits",
    [{"share": 0.5}, {"account": "prefs"}, {"account": "prefs", "share": 0.0}, {"account": "prefs", "share": 1.1}, {"queries": 0}],
)
def test_limits_of_a_key_are_checked(ledger: Ledger, limits: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        ledger.create_key(Role.CLIENT, **limits)  # type: ignore[arg-type]


def test_a_key_expires_in_the_future_and_in_a_time_zone(ledger: Ledger, clock: Clock) -> None:
    for expires in (datetime.fromtimestamp(clock.now, UTC), datetime(2999, 1, 1)):
        with pytest.raises(InvalidInput, match="expires"):
            ledger.create_key(Role.CLIENT, expires=expires)
    with pytest.raises(InvalidInput, match="no key"):
        ledger.revoke_key("nobody")
    with pytest.raises(UnknownAccount):
        ledger.create_key(Role.CLIENT, account="other", share=0.5)


def test_a_forfeited_query_is_spent_at_once_and_its_key_is_free(ledger: Ledger) -> None:
    key = IdempotencyKey("client", "key", "body")
    reservation = reserve(ledger, idempotency=key)
    ledger.forfeit(reservation)
    account = ledger.account("prefs")
    assert (account.open_queries, account.settled_queries, account.debited) == (0, 1, COST)
    for late in (ledger.void, ledger.forfeit):
        with pytest.raises(LeaseExpired):
            late(reservation)
    reserve(ledger, idempotency=key)
    assert ledger.account("prefs").debited == COST * 2
    assert kinds(ledger) == ["create", "reserve", "expire", "reserve"]
    ledger.verify("prefs")


# Data sets


def test_an_account_protects_the_data_set_of_its_name_unless_it_says_so(ledger: Ledger) -> None:
    assert ledger.account("prefs").dataset == ledger.account("prefs").terms.dataset == "prefs"
    votes = ledger.create_account("other", RULE, dataset="votes-2026")
    assert (votes.dataset, votes.also, votes.together) == ("votes-2026", (), (50.0, 1e-6))
    assert next(iter(ledger.journal("other"))).note["dataset"] == "votes-2026"
    assert json.loads(next(iter(ledger.export("other"))))["dataset"] == "votes-2026"
    for name in ("prefs", "other"):
        ledger.verify(name)


def test_two_accounts_over_one_data_set_add_up_and_say_so(ledger: Ledger) -> None:
    with pytest.raises(InvalidInput, match=r"dataset: prefs is the data set of account prefs too.*--also prefs"):
        ledger.create_account("second", RULE, dataset="prefs")
    second = ledger.create_account("second", Renyi(8.1, 1e-5, 4.0), dataset="prefs", also=["prefs"])
    first = ledger.account("prefs")
    assert ([each.account for each in first.also], [each.account for each in second.also]) == (["second"], ["prefs"])
    assert first.together == second.together == (58.1, 1.1e-5)
    assert "Data set prefs is protected by second too" in first.guarantee
    assert "(58.1, 1.1e-5)-indistinguishable" in second.guarantee
    with pytest.raises(InvalidInput, match="data set of account second too"):  # every one of them is named
        ledger.create_account("third", RULE, dataset="prefs", also=["prefs"])
    ledger.create_account("third", RULE, dataset="prefs", also=["second", "prefs", "prefs"])
    ledger.raise_budget("third", 51.0, "more traffic")
    assert [each.together for each in ledger.accounts()] == [(109.1, 1.2e-5)] * 3  # as raised, on each of them
    assert next(iter(ledger.journal("third"))).note["also"] == ["prefs", "second"]
    assert ledger.verify("third").length == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"also": ["prefs"]}, "'prefs' is not an account over data set second"),
        ({"dataset": "prefs", "also": ["prefs", "nobody"]}, "'nobody' is not an account over data set prefs"),
        ({"dataset": "prefs", "also": ["prefs", "second"]}, "'second' is not an account over"),
        ({"dataset": "a b"}, "dataset: 'a b' cannot be a name"),
        ({"dataset": ""}, "dataset: '' cannot be a name"),
        ({"dataset": "prefs", "also": ["prefs"], "relation": Relation.FLIP}, "only for the same neighbours"),
        ({"dataset": "prefs", "also": ["prefs"], "records_per_person": 2}, "only for the same neighbours"),
    ],
)
def test_what_cannot_share_a_data_set_is_refused(ledger: Ledger, options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ledger.create_account("second", RULE, **options)  # type: ignore[arg-type]
    assert [each.name for each in ledger.accounts()] == ["prefs"]


# Whether it can be written


def test_a_probe_commits_and_leaves_nothing(ledger: Ledger) -> None:
    before, rows = ledger.account("prefs"), kinds(ledger)
    for _ in range(3):
        ledger.check_writable("prefs")
    assert (ledger.account("prefs"), kinds(ledger)) == (before, rows)
    assert ledger.verify("prefs").head == before.head


def test_a_certificate_without_a_data_set_is_any_accounts(ledger: Ledger) -> None:
    """What it does not name cannot be compared; one that names another account's data set is refused."""
    ledger.create_account("elsewhere", RULE, dataset="other")
    unnamed = GumbelMax(SMALL, 10.0, 16)
    named = GumbelMax(replace(SMALL, dataset="prefs"), 10.0, 16)
    for account, events in (("prefs", [unnamed, named]), ("elsewhere", [unnamed])):
        ledger.settle(reserve(ledger, *events, account=account), events)
    with pytest.raises(InvalidInput, match="about data set prefs, the account protects other"):
        ledger.reserve("elsewhere", [named])
