"""Composition rules: the cost matrix, units and rounding, what settling may lower, and validity of whole streams."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privalign.accounting import costs, gumbel, rejection
from privalign.accounting.composition import compose
from privalign.accounting.gaussian import analytic_gaussian_epsilon, gaussian_release_epsilon, gaussian_rho
from privalign.accounting.gaussian_max import privbon_gaussian_epsilon
from privalign.accounting.renyi import DEFAULT_ORDERS, randomised_response_renyi, renyi_to_epsilon
from privalign.accounting.rules import (
    COST_UNIT,
    DELTA_UNIT,
    Basic,
    Debit,
    Fsrc,
    Renyi,
    Rule,
    TwoCounter,
    charge_all,
    from_units,
    units_down,
    units_up,
)
from privalign.errors import InvalidInput
from privalign.events import FALLBACK, Composed, Event, Free, GaussianMax, GumbelMax, NonPrivate, RejectionRounds
from privalign.mechanisms.privitp import PrivITP
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.statements import of_rule

S = Sensitivity(0.1, RewardRange(0.0, 1.0))
ITP = PrivITP(n=8, n2=8, beta=0.05, sigma_x=0.3, sigma_z=0.3, tail=3.0)
RELEASE, ROUNDS = ITP.event(S).events  # type: ignore[union-attr]
GUMBEL, GAUSSIAN = GumbelMax(S, 0.4, 8), GaussianMax(S, 0.8, 8)
EPSILON, DELTA, PER_QUERY = 20.0, 1e-3, 1e-7
RULES: tuple[Rule, ...] = (
    Basic(EPSILON, DELTA, PER_QUERY),
    Fsrc(EPSILON, DELTA, PER_QUERY),
    TwoCounter.halved(EPSILON, DELTA),
    Renyi(EPSILON, DELTA, 2.0),
)
every = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


def up(value: float) -> int:
    return math.ceil(Fraction(value) / COST_UNIT)


def test_the_matrix_for_basic_and_fsrc() -> None:
    for rule in RULES[:2]:
        assert rule.charge(GUMBEL) == Debit(epsilon=up(gumbel.privbon_epsilon(0.1, 1.0, 0.4, 8)))
        assert rule.charge(GAUSSIAN) == Debit(epsilon=up(privbon_gaussian_epsilon(0.1, 1.0, 0.8, 8)))
        share = Debit(up(gaussian_release_epsilon(RELEASE, PER_QUERY)), math.ceil(Fraction(PER_QUERY) / DELTA_UNIT))
        assert rule.charge(RELEASE) == share
        assert rule.charge(ROUNDS) == Debit(epsilon=up(rejection.worst_case_epsilon(ROUNDS)))


def test_the_matrix_for_two_counter() -> None:
    rule = RULES[2]
    assert rule.charge(GUMBEL) == Debit(rho=up(gumbel.privbon_rho(0.1, 1.0, 0.4, 8)))
    assert rule.charge(GAUSSIAN) == Debit(epsilon=up(privbon_gaussian_epsilon(0.1, 1.0, 0.8, 8)))
    assert rule.charge(RELEASE) == Debit(rho=up(gaussian_rho(RELEASE)))
    assert rule.charge(ROUNDS) == Debit(epsilon=up(rejection.worst_case_epsilon(ROUNDS)))


def test_the_matrix_for_renyi() -> None:
    rule = RULES[3]
    assert rule.charge(GUMBEL) == Debit(rdp=up(gumbel.privbon_renyi(0.1, 1.0, 0.4, 8, 2.0)))
    pure = privbon_gaussian_epsilon(0.1, 1.0, 0.8, 8)
    assert rule.charge(GAUSSIAN) == Debit(rdp=up(randomised_response_renyi(pure, 2.0)))
    assert abs(rule.charge(RELEASE).rdp - up(2.0 * gaussian_rho(RELEASE))) <= 1
    assert rule.charge(ROUNDS) == Debit(rdp=up(rejection.worst_case_renyi(ROUNDS, (2.0,))[0]))


def test_what_settling_lowers() -> None:
    basic, fsrc, two_counter, renyi = RULES
    early, late, missed = ROUNDS.at(0.3, 1), ROUNDS.at(0.3, 8), ROUNDS.at(0.3, FALLBACK)
    assert basic.charge(early) == basic.charge(late) == basic.charge(ROUNDS)
    for rule in (fsrc, two_counter):
        for realised in (early, late, missed):
            assert rule.charge(realised) == Debit(epsilon=up(rejection.ex_post_epsilon(ROUNDS, 0.3, realised.halt)))
        assert rule.charge(early).epsilon < rule.charge(late).epsilon <= rule.charge(ROUNDS).epsilon
    # by λ̃, never by t
    assert renyi.charge(early) == renyi.charge(late) == renyi.charge(missed)
    assert renyi.charge(early).rdp < renyi.charge(ROUNDS).rdp


@every
def test_free_costs_nothing_and_no_guarantee_is_refused(rule: Rule) -> None:
    assert rule.charge(Free()) == Debit()
    for event in (NonPrivate(), Composed((GUMBEL, NonPrivate()))):
        with pytest.raises(InvalidInput, match="no privacy guarantee"):
            rule.charge(event)
    with pytest.raises(TypeError, match="unknown privacy event"):
        rule.charge("a query")  # type: ignore[arg-type]


@every
def test_parts_and_batches_add_up(rule: Rule) -> None:
    parts = (RELEASE, ROUNDS, GUMBEL)
    assert rule.charge(Composed(parts)) == charge_all(rule, parts)
    assert charge_all(rule, [GUMBEL] * 3) == rule.charge(GUMBEL) * 3


@every
def test_spent_starts_at_zero_and_a_full_account_keeps_its_promise(rule: Rule) -> None:
    assert rule.spent(Debit()) == (0.0, 0.0)
    epsilon, delta = rule.spent(rule.limit)
    assert epsilon <= EPSILON * (1 + 1e-15)
    assert delta <= DELTA * (1 + 1e-15)
    assert epsilon >= EPSILON * (1 - 1e-9)
    assert f"{EPSILON:g}" in of_rule(rule)


@every
def test_spent_is_monotone_in_the_debit(rule: Rule) -> None:
    one = rule.charge(ITP.event(S))
    assert 0 < rule.spent(one)[0] < rule.spent(one * 2)[0]


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_costs_round_up_and_budgets_down(cost: float, budget: float) -> None:
    assert Fraction(units_up(cost)) * COST_UNIT >= Fraction(cost)
    assert Fraction(units_up(cost) - 1) * COST_UNIT < Fraction(cost)
    assert Fraction(units_down(budget)) * COST_UNIT <= Fraction(budget)
    assert Fraction(from_units(units_up(cost))) >= Fraction(cost)


@pytest.mark.parametrize("bad", [math.nan, -1.0, math.inf, 1e300])
def test_costs_that_cannot_be_counted_are_refused(bad: float) -> None:
    with pytest.raises(InvalidInput):
        units_up(bad)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, 1e9])
def test_budgets_that_cannot_be_kept_are_refused(bad: float) -> None:
    for make in (
        lambda: Basic(bad, DELTA, 1e-6),
        lambda: Fsrc(bad, DELTA, 1e-6),
        lambda: TwoCounter(bad, DELTA, 0.1),
        lambda: Renyi(bad, DELTA, 2),
        lambda: Basic(1.0, bad, 1e-6),
        lambda: TwoCounter(1.0, bad, 0.01),
        lambda: Renyi(1.0, bad, 32),
    ):
        with pytest.raises(InvalidInput):
            make()


def test_an_order_that_leaves_nothing_is_refused_with_one_that_works() -> None:
    with pytest.raises(InvalidInput, match="use order 4"):
        Renyi(8.0, 1e-6, 1.25)
    assert Renyi.default(8.0, 1e-6).order == 4
    with pytest.raises(InvalidInput, match="too small"):
        Renyi.default(1e-4, 1e-6)


@pytest.mark.slow
def test_the_default_order_for_a_mechanism_answers_most_queries() -> None:
    event = ITP.event(Sensitivity.of_range(S.range))

    def answers(order: float) -> int:
        try:
            rule = Renyi(EPSILON, DELTA, order)
        except InvalidInput:
            return 0
        return rule.limit.rdp // rule.charge(event).rdp

    chosen = Renyi.default(EPSILON, DELTA, event).order
    assert answers(chosen) == max(answers(order) for order in DEFAULT_ORDERS)


def test_the_default_split_halves_epsilon() -> None:
    rule = TwoCounter.halved(8.0, 1e-6)
    assert rule.rho + 2 * math.sqrt(rule.rho * math.log(1e6)) == pytest.approx(4.0, rel=1e-9)
    assert rule.limit.epsilon == pytest.approx(4e12, rel=1e-9)


def test_identical_queries_cost_at_least_the_best_order() -> None:
    for event in (GUMBEL, GAUSSIAN):
        for count in (1, 25):
            claimed, _ = RULES[3].spent(RULES[3].charge(event) * count)
            assert claimed >= compose(event, count, DELTA).renyi * (1 - 1e-9)


def test_gaussian_streams_are_covered_by_every_rule() -> None:
    """T releases of μ = Δ/σ are exactly one release of √T·μ: no rule may claim less than its exact ε."""
    for count in (1, 7, 60):
        mu = math.sqrt(count) * 0.1 / 0.3
        for rule in RULES:
            epsilon, delta = rule.spent(rule.charge(RELEASE) * count)
            assert epsilon >= analytic_gaussian_epsilon(mu, delta)


def test_adaptive_streams_never_exceed_the_budget() -> None:
    """Streams that mix mechanisms, react to λ̃ and t and keep reservations open convert to at most ε.

    The re-computation is independent: costs and divergences of the realised events, added in floats.
    """
    rng = np.random.default_rng(0)
    for rule in RULES:
        debited, unsettled, realised_events = Debit(), [], []
        for _ in range(400):
            event: Event = [GUMBEL, GAUSSIAN, ITP.event(S)][int(rng.integers(3))]
            reserve = rule.charge(event)
            if not (debited + reserve).fits(rule.limit):
                if not unsettled:
                    break
                debited -= unsettled.pop()  # an open reservation is settled below its worst case
                continue
            debited += reserve
            if isinstance(event, Composed):
                halt = int(rng.integers(1, 10))
                threshold = float(rng.choice([-0.05, 0.3, 0.95]))
                event = Composed((RELEASE, ROUNDS.at(threshold, FALLBACK if halt > 8 else halt)))
                saved = reserve - rule.charge(event)
                assert min(saved.epsilon, saved.delta, saved.rho, saved.rdp) >= 0
                unsettled.append(saved)
            realised_events.append(event)
        assert len(realised_events) > 5
        for saved in unsettled:
            debited -= saved
        assert debited.fits(rule.limit)
        assert independent_epsilon(rule, realised_events) <= EPSILON * (1 + 1e-9)


def independent_epsilon(rule: Rule, events: list[Event]) -> float:
    parts = [part for event in events for part in (event.events if isinstance(event, Composed) else (event,))]
    if rule.name == "renyi":
        bare = [RejectionRounds(S, 0.05, 0.3, 3.0, 8, part.threshold) if isinstance(part, RejectionRounds) else part for part in parts]
        return renyi_to_epsilon(sum(costs.renyi(part, (2.0,))[0] for part in bare), 2.0, DELTA)
    if rule.name == "two-counter":
        rho = sum(costs.rho(part) for part in parts if part in (GUMBEL, RELEASE))
        pure = sum(costs.epsilon(part, 0.5) for part in parts if part not in (GUMBEL, RELEASE))
        return pure + rho + 2 * math.sqrt(rho * math.log(1 / DELTA))
    return sum(costs.epsilon(part, PER_QUERY) for part in parts)


def test_full_accounts_of_binary_choices_keep_their_promise_exactly() -> None:
    """Two candidates whose rewards swing from Δ apart to −Δ apart make PrivBoN randomised response at Δ/σ; T such queries compose
    to a sum of binomials, known exactly."""
    event = GumbelMax(S, 0.5, 2)
    log_odds = S.delta / 0.5
    log_p, log_q = -math.log1p(math.exp(-log_odds)), -math.log1p(math.exp(log_odds))
    for rule in (*RULES, Renyi(1.0, 1e-4, 64.0), Renyi(4.0, 1e-6, 8.0), TwoCounter.halved(2.0, 1e-5)):
        charge = rule.charge(event)
        counters = ("epsilon", "delta", "rho", "rdp")
        count = min(getattr(rule.limit, name) // getattr(charge, name) for name in counters if getattr(charge, name))
        assert count >= 1
        delta = 0.0
        for hits in range(count + 1):
            ways = math.lgamma(count + 1) - math.lgamma(hits + 1) - math.lgamma(count - hits + 1)
            under_d = ways + hits * log_p + (count - hits) * log_q
            under_other = ways + hits * log_q + (count - hits) * log_p
            delta += max(0.0, math.exp(under_d) - math.exp(rule.epsilon + under_other))
        assert delta <= rule.delta
