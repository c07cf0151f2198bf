"""Every sentence about a guarantee, word for word: who changes one changes a promise."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privalign.accounting.rules import Basic, Debit, Fsrc, Renyi, Rule, TwoCounter
from privalign.events import Free, GumbelMax, NonPrivate
from privalign.sensitivity import PERSON, Certificate, HeadRelease, Relation, RewardRange, Sensitivity
from privalign.statements import (
    NO_GUARANTEE,
    SPENT,
    SPENT_OF_RUN,
    SPENT_ROSE,
    assumptions,
    basis,
    delta_left,
    fitting,
    free_queries,
    not_private,
    of_certificate,
    of_model,
    of_raise,
    of_release,
    of_rule,
    of_sharing,
    pays,
    promise,
    protects,
    rests_on,
    room,
)

UNIT = RewardRange(0.0, 1.0)
ALL = "All answers together are (8, 1e-6)-differentially private: "
RULES: list[tuple[Rule, str]] = [
    (Basic(8.0, 1e-6, 1e-10), "worst-case costs add up."),
    (Fsrc(8.0, 1e-6, 1e-10), "each query is charged what its own halting time cost."),
    (TwoCounter(8.0, 1e-6, 0.25), "ρ = 0.25 for Gaussian and Gumbel noise, the rest of ε for halting times."),
    (Renyi(8.0, 1e-6, 6.5), "Rényi divergences of order 6.5 add up, queries chosen adaptively."),
]
RELEASE = HeadRelease(1.0, 1e-5, 0.5, 0.1, Relation.REPLACE, 1, "prefs", "votes")
RELEASED = (
    "released with (1.0, 1e-05)-differential privacy against exchanging one person's record for another of the same person "
    "in data set votes, paid once by account prefs"
)


@pytest.mark.parametrize(("rule", "how"), RULES, ids=[rule.name for rule, _ in RULES])
def test_a_rule(rule: Rule, how: str) -> None:
    assert of_rule(rule) == ALL + how


def test_a_rule_without_a_sentence_is_refused() -> None:
    with pytest.raises(TypeError, match="str has no sentence"):
        of_rule("renyi")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("relation", "records", "change"),
    [
        (Relation.REPLACE, 1, "exchanging one person's record for another of the same person"),
        (Relation.REPLACE, 3, "exchanging up to 3 records of one person for others of the same person"),
        (Relation.ADD_REMOVE, 1, "adding or removing one record of a person"),
        (Relation.FLIP, 1, "turning round the label of one person's record (prompt and answers are public)"),
    ],
)
def test_what_an_account_protects(relation: Relation, records: int, change: str) -> None:
    said = relation.change(records)
    assert protects(relation, records) == f"against {said}. {PERSON}"
    told = promise(RULES[0][0], relation, records)
    assert told == (
        f"{said[0].upper()}{said[1:]} makes nothing that anyone could see in all answers together more than 2,981 times as probable "
        "(e^ε at ε = 8), apart from an added probability of δ = 1e-6."
    )
    assert f"in at most {records} {'record' if records == 1 else 'records'} of one person. {PERSON}" in assumptions(relation, records)[2]
    assert said.split()[0] == change.split()[0]


def test_what_happens_to_an_account() -> None:
    assert of_raise(8.0, datetime(2026, 5, 4, tzinfo=UTC)) == (
        "ε was raised from 8 on 2026-05-04 after answers may have been seen: this holds if the highest ε was fixed in advance, or if no "
        "raise depended on a released answer, for which there is only the operator's word."
    )
    assert of_sharing("votes", ["a", "b"], 9.5, 2e-6) == (
        "Data set votes is protected by a, b too: everything that these accounts release together is (9.5, 2e-6)-indistinguishable, "
        "the sums of their ε and δ."
    )


@pytest.mark.parametrize(
    ("sensitivity", "shown", "stated"),
    [
        (
            Sensitivity.of_range(UNIT),
            "assumption-free: Δ = 1 is the whole range; scores are clipped to the public range [0, 1]",
            "Δ = 1 (the whole range, assuming nothing)",
        ),
        (
            Sensitivity(0.1, UNIT, "declared", reason="clipped"),
            "declared by the operator, not proved because “clipped”: Δ = 0.1; scores are clipped to the public range [0, 1]",
            "Δ = 0.1 (declared by the operator)",
        ),
        (
            Sensitivity(0.1, UNIT, "certificate", Relation.FLIP, 2, dataset="votes"),
            "certified: Δ = 0.1 for flip, 2 records per person, data set votes; scores are clipped to the public range [0, 1]",
            "Δ = 0.1 (certified, data set votes)",
        ),
        (
            Sensitivity(0.1, UNIT, "certificate", Relation.FLIP, 1),
            "certified: Δ = 0.1 for flip, 1 record per person, data set not stated; scores are clipped to the public range [0, 1]",
            "Δ = 0.1 (certified, data set not stated)",
        ),
    ],
)
def test_what_a_sensitivity_rests_on(sensitivity: Sensitivity, shown: str, stated: str) -> None:
    assert rests_on(sensitivity) == shown
    assert of_model("privbon", 0.5, sensitivity, "operator", "prefs, against x", "Promised.", pays(12_345)) == (
        f"privbon, ε ≤ 0.5 an answer, {stated}, range 0.0,1.0 typed by the operator; account prefs, against x. Promised. "
        f"It pays for at least 12,345 answers in all. {PERSON}"
    )


def test_a_released_head_states_its_own_terms() -> None:
    sensitivity = Sensitivity(0.1, UNIT, "released", Relation.REPLACE, 1, None, "votes", RELEASE)
    assert rests_on(sensitivity) == f"free: the head itself was {RELEASED}; scores are clipped to the public range [0, 1]"
    assert of_model("privbon", 0.0, sensitivity, "certificate", "prefs", "Promised.", pays(None)) == (
        f"privbon, range 0.0,1.0 of the certificate; the head itself was {RELEASED}, of whose sum it is part. "
        f"Its answers are free. {PERSON}"
    )


def test_a_certificate_in_words() -> None:
    head = Certificate(
        "head", Relation.REPLACE, 1, UNIT, 0.25, "votes", "clip", "logistic", 1.0, None, 100.0, 1e-9, 0.125, features={"kind": "x"}
    )
    assert of_certificate(head)[:2] == [
        "Scores lie in [0, 1]; exchanging one person's record for another of the same person moves no score by more than Δ = 0.25, "
        "about 25.000% of the range.",
        PERSON,
    ]
    assert of_certificate(head)[-1] == "The data set is votes: other accounts refuse it."
    declared = Certificate("declared", Relation.FLIP, 2, UNIT, 0.25, reason="so it is")
    assert of_certificate(declared)[2:] == [
        "Nobody proved this: it was declared, because: so it is",
        "The data set is not stated: accounts of any data set take it.",
    ]


def test_what_is_spent_and_what_is_not_private() -> None:
    assert SPENT.startswith("what was debited so far, and no guarantee of its own")
    assert "--account keeps count" in SPENT_OF_RUN
    assert SPENT_ROSE == "how much the account's spent rose; the guarantee is the account's, not the run's"
    event = GumbelMax(Sensitivity.of_range(UNIT), 1.0, 2)
    assert not_private("privbon", event, 1.0, seeded=True) == "not a private release: whoever knows the seed can undo the noise"
    assert not_private("privbon", event, 1.0, seeded=False) is None
    assert not_private("base", Free(), 0.0, seeded=True) is None
    for seeded in (True, False):
        assert not_private("bon", NonPrivate(), math.inf, seeded=seeded) == "not a private release: bon has no guarantee"
    assert NO_GUARANTEE == "none: this rule is not private"


def test_what_is_left_of_delta() -> None:
    for rule, spends in zip((rule for rule, _ in RULES), (False, False, True, True), strict=True):
        once = f"0.0: rule {rule.name} spends its δ once, with the first answer; ε is what runs out"
        assert delta_left(rule, 1e-6, 0.0) == (once if spends else "0.0")
        assert (delta_left(rule, 0.0, 0.0), delta_left(rule, 1e-7, 9e-7)) == ("0.0", "9e-07")


def test_what_the_numbers_of_a_study_hold_for() -> None:
    stated = {"sensitivity": 0.12344, "sensitivity_source": "declared"}
    assert basis({}) == ""
    assert basis(stated) == "ε for Δ = 0.1235 (declared), rounded up"
    assert basis(stated | {"delta": 1e-6}) == "ε for Δ = 0.1235 (declared) and δ = 1e-6, rounded up"
    assert basis(stated | {"delta": 1e-6, "total_delta": 1e-5}) == "ε for Δ = 0.1235 (declared), rounded up"
    free = f"no query costs anything: {of_release(RELEASE)}"
    assert basis(stated | {"release": RELEASE.stated()}) == free_queries(RELEASED) == free


UNITS = st.integers(0, 10**20)
DEBITS = st.builds(Debit, UNITS, UNITS, UNITS, UNITS)


@given(DEBITS, DEBITS, DEBITS)
def test_as_many_answers_fit_as_are_said_and_not_one_more(limit: Debit, debited: Debit, cost: Debit) -> None:
    answers = fitting(limit, debited, cost)
    if answers is None:
        assert cost == Debit()
        assert (pays(answers), room(answers)) == ("Its answers are free.", "any number: costs nothing")
        return
    priced = [name for name in ("epsilon", "delta", "rho", "rdp") if getattr(cost, name)]
    after = debited + cost * answers
    assert answers == 0 or all(getattr(after, name) <= getattr(limit, name) for name in priced)
    assert any(getattr(after + cost, name) > getattr(limit, name) for name in priced)
    assert room(answers) == f"{answers:,} more at the worst case"
