"""What is printed is a bound, the parts add up as printed, and a straight line ends where arithmetic says."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from privalign.accounting.rules import Basic, Debit, Fsrc, Renyi, Rule, TwoCounter
from privalign.gateway.dashboard import chart, figures
from privalign.gateway.dashboard.followers import Followers
from privalign.gateway.dashboard.history import HORIZONS
from privalign.ledger import Account
from privalign.sensitivity import Relation

RULES: tuple[Rule, ...] = (
    Basic(8.0, 1e-6, 1e-10),
    Fsrc(0.3, 1e-6, 1e-10),
    TwoCounter.halved(2.0, 1e-6),
    Renyi.default(8.0, 1e-6),
    Renyi.default(123.456, 1e-5),
    Basic(1e6, 1e-6, 1e-10),
)


def account_of(rule: Rule, debited: float, opened: float) -> Account:
    """An account with these parts of its limit debited and open."""

    def part(of: Debit, share: float) -> Debit:
        return Debit(*(math.floor(getattr(of, counter) * share) for counter in figures.COUNTERS))

    whole = part(rule.limit, debited)
    created = datetime(2027, 1, 1, tzinfo=UTC)
    return Account("a", rule, Relation.REPLACE, 1, created, rule.limit, whole, part(whole, opened), 7, 1, 0, (), "0" * 64, 20, "a")


@given(rule=st.sampled_from(RULES), debited=st.floats(0, 1), opened=st.floats(0, 1))
@example(rule=RULES[0], debited=0.78, opened=0.0)  # 8 − 6.24 is 1.7599999999999998 in floats
def test_printed_figures_are_bounds_and_add_up(rule: Rule, debited: float, opened: float) -> None:
    account = account_of(rule, debited, opened)
    budget = figures.budget(account)
    spent, settled, still_open, remaining = (
        Decimal(amount.text) for amount in (budget.spent, budget.settled, budget.open, budget.remaining)
    )
    assert Decimal(repr(account.spent[0])) <= spent
    assert remaining <= Decimal(repr(account.remaining[0]))
    assert settled + still_open == spent
    last_digit = Decimal(1).scaleb(remaining.as_tuple().exponent)  # type: ignore[arg-type]
    assert 0 <= Decimal(budget.total.text) - spent - remaining < last_digit or remaining == 0
    assert (budget.spent.value, budget.remaining.value) == (account.spent[0], account.remaining[0])
    assert Decimal(budget.percent) * Decimal(budget.total.text) >= 100 * spent


@given(tiny=st.floats(1e-11, 1e-6))
def test_a_spent_budget_never_looks_untouched(tiny: float) -> None:
    budget = figures.budget(account_of(Basic(8.0, 1e-6, 1e-10), tiny, 0.0))
    assert budget.spent.text == "0.0001"
    assert budget.percent == "0.1"


@pytest.mark.parametrize("rule", RULES[:4])
def test_totals_of_few_digits_are_the_sum_as_printed(rule: Rule) -> None:
    budget = figures.budget(account_of(rule, 0.37, 0.01))
    assert Decimal(budget.spent.text) + Decimal(budget.remaining.text) == Decimal(budget.total.text)


def test_an_untouched_budget_looks_untouched() -> None:
    budget = figures.budget(account_of(Fsrc(0.3, 1e-6, 1e-10), 0.0, 0.0))
    assert (budget.spent.text, budget.remaining.text, budget.percent) == ("0.00000", "0.30000", "0.0")


@pytest.mark.parametrize("rule", RULES)
def test_the_binding_counter_tells_the_end(rule: Rule) -> None:
    account = account_of(rule, 0.5, 0.0)
    before = account_of(rule, 0.25, 0.0).debited
    left = figures.lasts(account, before, 100.0)
    assert left == pytest.approx(200.0, rel=1e-6)
    assert figures.lasts(account, account.debited, 100.0) is None
    assert figures.lasts(replace(account, debited=rule.limit), before, 100.0) == 0.0


@given(seconds=st.floats(0, 1e10))
def test_durations_never_promise_more(seconds: float) -> None:
    number, unit = figures.duration(seconds).replace(",", "").split()
    length = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}[unit]
    assert int(number) * length <= seconds < (int(number) + 1) * length


def test_the_pace_of_a_steady_stream_is_found_and_ends_in_time(town: Any) -> None:
    """Nothing is void here, so the stream is a straight line; its end is counted in queries."""
    event_cost = town.ledger.account("prefs").rule.charge(town.event)
    for _ in range(90):
        town.clock.now += 60
        town.ledger.settle(town.ledger.reserve("prefs", [town.event]), [town.event])
    now = datetime.fromtimestamp(town.clock.now, UTC)
    account = town.ledger.account("prefs")
    left = (account.limit.rdp - account.debited.rdp) // event_cost.rdp * 60.0
    for pace in Followers(town.ledger).look("prefs", lambda followed: figures.paces(followed, now)):
        assert pace.ends is not None
        assert pace.queries == (61 if pace.horizon.name == "hour" else 90)
        assert (pace.ends - now).total_seconds() == pytest.approx(left, rel=0.03)
        assert pace.verdict.startswith("in ")


def test_the_price_of_the_first_answer_is_no_pace(town: Any) -> None:
    town.answer(3)
    town.clock.now += 3600
    now = datetime.fromtimestamp(town.clock.now, UTC)
    day = Followers(town.ledger).look("prefs", lambda followed: figures.pace(followed, HORIZONS[1], now))
    budget = figures.budget(town.ledger.account("prefs"))
    assert budget.entry_price is not None
    assert day.epsilon.value < 0.1 < budget.entry_price.value
    assert day.epsilon.value == pytest.approx(budget.spent.value - budget.entry_price.value, abs=1e-9)


def test_a_new_account_is_too_young_for_a_pace(town: Any) -> None:
    town.answer(2, every=1.0)
    now = datetime.fromtimestamp(town.clock.now, UTC)
    assert {pace.verdict for pace in Followers(town.ledger).look("prefs", lambda each: figures.paces(each, now))} == {"too early to tell"}


def test_the_curve_ends_at_what_account_show_says(town: Any) -> None:
    town.answer(200, every=300)
    now = datetime.fromtimestamp(town.clock.now, UTC)
    for horizon in HORIZONS:
        points = Followers(town.ledger).look("prefs", lambda followed, horizon=horizon: figures.curve(followed, horizon, now))
        account = town.ledger.account("prefs")
        assert points[-1] == (now, account.spent[0], account.settled_queries + account.open_queries)
        assert [when for when, _, _ in points] == sorted(when for when, _, _ in points)
        assert now - points[0][0] >= timedelta(seconds=horizon.seconds)
        assert len(points) <= horizon.buckets + 3


@given(
    steps=st.lists(st.tuples(st.floats(0.001, 900), st.floats(0, 0.5)), max_size=60),
    ahead=st.none() | st.floats(1, 1e7),
)
def test_lines_stay_within_the_frame(steps: list[tuple[float, float]], ahead: float | None) -> None:
    begin, spent = datetime(2027, 1, 1, tzinfo=UTC), 0.0
    points, when = [(begin, 0.0, 0)], begin
    for wait, rise in steps:
        when, spent = when + timedelta(seconds=wait), spent + rise
        points.append((when, spent, len(points)))
    points.append((when + timedelta(seconds=60), spent, len(points)))
    ends = None if ahead is None else points[-1][0] + timedelta(seconds=ahead)
    drawn = chart.draw(points, 8.0, HORIZONS[0], ends)
    numbers = [float(number) for number in drawn.line.replace("M", " ").replace("H", " ").replace("V", " ").split()]
    assert all(0 <= number <= chart.WIDTH for number in numbers)
    assert drawn.rows[-1] == points[-1]
    assert len(drawn.rows) <= chart.ROWS
    assert (drawn.projection is None) == (ahead is None)
