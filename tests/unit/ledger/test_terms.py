"""Terms are stored exactly and read back equal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privalign.accounting.rules import Basic, Fsrc, Renyi, Rule, TwoCounter
from privalign.errors import InvalidInput
from privalign.ledger.terms import Terms, canonical, terms_of
from privalign.sensitivity import Relation

epsilons = st.floats(30.0, 1e4)
deltas = st.floats(1e-9, 1e-2)
rules: st.SearchStrategy[Rule] = st.one_of(
    st.builds(Basic, epsilons, deltas, deltas),
    st.builds(Fsrc, epsilons, deltas, deltas),
    st.builds(TwoCounter, epsilons, deltas, st.floats(1e-6, 0.1)),
    st.builds(Renyi, epsilons, deltas, st.sampled_from([2.0, 4.0, 16.0])),
)


@given(rules, st.sampled_from(Relation), st.integers(1, 10**6))
def test_terms_survive_the_round_trip(rule: Rule, relation: Relation, records: int) -> None:
    terms = Terms(rule, relation, records, "votes")
    assert terms_of(terms.to_json(), "votes") == terms
    assert terms_of(terms.to_json(), "votes").rule.limit == rule.limit


@given(rules)
def test_raising_changes_epsilon_only(rule: Rule) -> None:
    raised = Terms(rule, Relation.REPLACE, 1, "votes").raised(rule.epsilon + 1).rule
    assert (raised.name, raised.epsilon, raised.delta) == (rule.name, rule.epsilon + 1, rule.delta)
    assert rule.limit.fits(raised.limit)


@pytest.mark.parametrize("records", [0, -1, 1.5, True])
def test_records_per_person_is_a_whole_number(records: int) -> None:
    with pytest.raises(InvalidInput, match="records-per-person"):
        Terms(Renyi(50.0, 1e-6, 2.0), Relation.REPLACE, records, "votes")


def test_a_rule_of_an_unknown_kind_is_refused() -> None:
    class Mine(Renyi):
        pass

    with pytest.raises(InvalidInput, match="Mine is not one of basic, fsrc, two-counter, renyi"):
        Terms(Mine(50.0, 1e-6, 2.0), Relation.REPLACE, 1, "votes")


def test_canonical_is_one_text() -> None:
    assert canonical({"b": [1, "é"], "a": None}) == '{"a":null,"b":[1,"\\u00e9"]}'
    with pytest.raises(ValueError, match="JSON"):
        canonical(float("nan"))
