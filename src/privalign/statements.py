"""Every sentence about a guarantee, and how many answers fit: accounts, runs, `config check`, dashboard and certificates take theirs here.

The words for neighbours and for a released head are those of `sensitivity`: they also go into files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from datetime import datetime
from typing import Any, Final

from flint import arb

from privalign.accounting.rules import Basic, Debit, Fsrc, Renyi, Rule, TwoCounter
from privalign.events import Event, Free
from privalign.intervals import shown, upper
from privalign.sensitivity import PERSON, Certificate, HeadRelease, Relation, Sensitivity

SPENT: Final = (  # a filter promises its whole budget; "spent at the moment when …" would be an odometer, which it is not
    "what was debited so far, and no guarantee of its own: who stops at a moment that the answers had a part in choosing is promised the "
    "whole budget, not what was spent by then"
)
SPENT_OF_RUN: Final = (
    "of this run alone, which nothing remembers: whatever else is released about the same data, this run repeated included, "
    "adds to it; --account keeps count"
)
SPENT_ROSE: Final = "how much the account's spent rose; the guarantee is the account's, not the run's"
NO_GUARANTEE: Final = "none: this rule is not private"


# ---- runs and studies


def not_private(mechanism: str, event: Event, epsilon: float, *, seeded: bool) -> str | None:
    """Why a selection is no private release; None where it is one.

    Args:
        event, epsilon: of one query. seeded: whether its noise can be had again.
    """
    if math.isinf(epsilon):
        return f"not a private release: {mechanism} has no guarantee"
    if seeded and not isinstance(event, Free):
        return "not a private release: whoever knows the seed can undo the noise"
    return None


def basis(settings: Mapping[str, Any]) -> str:
    """What the ε of a study hold for, rounded up; empty where it has none."""
    if "sensitivity" not in settings:
        return ""
    if "release" in settings:
        return free_queries(settings["release"]["guarantee"])
    one = "delta" in settings and "total_delta" not in settings  # else each row says its own
    delta = f" and δ = {shown(settings['delta'], 4)}" if one else ""
    return f"ε for Δ = {shown(settings['sensitivity'], 4)} ({settings['sensitivity_source']}){delta}, rounded up"


def free_queries(words: str) -> str:
    """What a study of a released head says, from the words in its file."""
    return f"no query costs anything: the head itself was {words}"


# ---- accounts


def of_rule(rule: Rule) -> str:
    """The guarantee of an account of this rule in one sentence.

    Raises:
        TypeError: a rule of an unknown kind.
    """
    match rule:
        case Basic():
            how = "worst-case costs add up."
        case Fsrc():
            how = "each query is charged what its own halting time cost."
        case TwoCounter():
            how = f"ρ = {shown(rule.rho)} for Gaussian and Gumbel noise, the rest of ε for halting times."
        case Renyi():
            how = f"Rényi divergences of order {rule.order:g} add up, queries chosen adaptively."
        case _:
            raise TypeError(f"{type(rule).__name__} has no sentence")
    return f"All answers together are ({shown(rule.epsilon)}, {shown(rule.delta)})-differentially private: {how}"


def of_raise(before: float, time: datetime) -> str:
    """What a raised budget does to it."""
    return (
        f"ε was raised from {before:g} on {time:%Y-%m-%d} after answers may have been seen: "
        "this holds if the highest ε was fixed in advance, or if no raise depended on a released answer, "
        "for which there is only the operator's word."
    )


def of_sharing(dataset: str, others: Sequence[str], epsilon: float, delta: float) -> str:
    """What other accounts over the same data set do to it; (ε, δ) is the sum of all of them."""
    return (
        f"Data set {dataset} is protected by {', '.join(others)} too: everything that these accounts release together is "
        f"({shown(epsilon)}, {shown(delta)})-indistinguishable, the sums of their ε and δ."
    )


def protects(relation: Relation, records_per_person: int) -> str:
    """Against what."""
    return f"against {relation.change(records_per_person)}. {PERSON}"


def promise(rule: Rule, relation: Relation, records_per_person: int) -> str:
    """The guarantee as what an observer cannot tell."""
    change = relation.change(records_per_person)
    factor = upper(lambda: arb(rule.epsilon).exp())
    times = f"{float(shown(factor, 4)):,.10g} times as probable (e^ε at ε = {shown(rule.epsilon)})"
    if math.isinf(factor):
        times = f"e^{shown(rule.epsilon)} times as probable"
    return (
        f"{change[0].upper()}{change[1:]} makes nothing that anyone could see in all answers together more than "
        f"{times}, apart from an added probability of δ = {shown(rule.delta)}."
    )


def assumptions(relation: Relation, records_per_person: int) -> tuple[str, ...]:
    """What it rests on, beyond the arithmetic."""
    return (
        "The model that writes the candidates, its system prompt, what it retrieves and its caches do not depend on the protected data.",
        "Whether the reward model fails does not depend on the protected data.",
        f"Neighbouring data sets differ as stated ({relation.value}), in at most {records_per_person} "
        f"{'record' if records_per_person == 1 else 'records'} of one person. {PERSON} A certificate for another relation, or for fewer "
        "records, was refused; the whole range fits any.",
        "Noise scales, numbers of candidates, score ranges and orders were chosen without looking at the protected data.",
        "A sensitivity that is marked as declared is true: no calculation proves it.",
        "A reward model that was trained on several protected data sets is charged to the account of each of them.",
    )


def delta_left(rule: Rule, spent: float, left: float) -> str:
    """What is left of δ, in words where none is and yet nothing is exhausted: these rules spend δ once, by their conversion."""
    if left == 0.0 and isinstance(rule, Renyi | TwoCounter) and spent > 0.0:
        return f"0.0: rule {rule.name} spends its δ once, with the first answer; ε is what runs out"
    return repr(left)


# ---- how many answers fit


def fitting(limit: Debit, debited: Debit, cost: Debit) -> int | None:
    """How many more answers of this worst case fit, at least; None: they cost nothing."""
    counters = zip(astuple(limit), astuple(debited), astuple(cost), strict=True)
    counts = [max(0, whole - gone) // price for whole, gone, price in counters if price > 0]
    return min(counts, default=None)


def pays(answers: int | None) -> str:
    """How many answers a budget pays for in all."""
    return "Its answers are free." if answers is None else f"It pays for at least {answers:,} answers in all."


def room(answers: int | None) -> str:
    """How many more there is room for."""
    return "any number: costs nothing" if answers is None else f"{answers:,} more at the worst case"


# ---- sensitivities and certificates


def of_release(release: HeadRelease) -> str:
    """Why whatever uses a released head is free."""
    return f"the head itself was {release.words}"


def rests_on(sensitivity: Sensitivity) -> str:
    """Where a sensitivity comes from, and what it is."""
    low, high = sensitivity.range.low, sensitivity.range.high
    scores = f"scores are clipped to the public range [{low:g}, {high:g}]"
    if sensitivity.release is not None:
        return f"free: {of_release(sensitivity.release)}; {scores}"
    if sensitivity.source == "range":
        return f"assumption-free: Δ = {sensitivity.delta:g} is the whole range; {scores}"
    if sensitivity.source == "declared":
        reason = f" because “{sensitivity.reason}”" if sensitivity.reason else ""
        return f"declared by the operator, not proved{reason}: Δ = {sensitivity.delta:g}; {scores}"
    holds = "any relation" if sensitivity.relation is None else sensitivity.relation.value
    count = sensitivity.records_per_person
    records = "1 record" if count == 1 else f"{count or 'any number of'} records"
    data = sensitivity.dataset or "not stated"
    return f"certified: Δ = {sensitivity.delta:g} for {holds}, {records} per person, data set {data}; {scores}"


_SOURCES: Final = {"range": "the whole range, assuming nothing", "declared": "declared by the operator"}
_RANGES: Final = {
    "operator": "typed by the operator",
    "public": "from scores of a public reward model",
    "certificate": "of the certificate",
}


def of_model(mechanism: str, epsilon: float, sensitivity: Sensitivity, range_from: str, account: str, promised: str, paid: str) -> str:
    """What one served model promises.

    Args:
        epsilon: of an answer, at most. range_from: who vouches that the range is public. account: its name, and what it protects against.
        promised: the account's guarantee. paid: as `pays` says it.
    """
    low, high = sensitivity.range.low, sensitivity.range.high
    given = f"range {low!r},{high!r} {_RANGES[range_from]}"
    if sensitivity.release is not None:
        return f"{mechanism}, {given}; {of_release(sensitivity.release)}, of whose sum it is part. {paid} {PERSON}"
    source = _SOURCES.get(sensitivity.source, f"certified, data set {sensitivity.dataset or 'not stated'}")
    return (
        f"{mechanism}, ε ≤ {shown(epsilon)} an answer, Δ = {shown(sensitivity.delta)} ({source}), "
        f"{given}; account {account}. {promised} {paid} {PERSON}"
    )


def of_certificate(certificate: Certificate) -> list[str]:
    """The certificate in words, a sentence a line."""
    count = certificate.records_per_person
    change = certificate.relation.change(count)
    sensitivity = certificate.to_sensitivity()
    low, high = certificate.range.low, certificate.range.high
    data = (
        "not stated: accounts of any data set take it"
        if certificate.dataset is None
        else f"{certificate.dataset}: other accounts refuse it"
    )
    about = f"The data set is {data}."
    if sensitivity.release is not None:
        return [
            f"The weights themselves were {sensitivity.release.words}.",
            "Whatever is done with the head afterwards, every query is free under that account; all others refuse it.",
            PERSON,
            about,
        ]
    lines = [
        f"Scores lie in [{low:g}, {high:g}]; {change} moves no score by more than Δ = {sensitivity.delta!r},"
        f" about {sensitivity.delta / sensitivity.width:.3%} of the range.",
        PERSON,
    ]
    if certificate.kind == "declared":
        return [*lines, f"Nobody proved this: it was declared, because: {certificate.reason}", about]
    if certificate.movement is not None:
        factor = {"add-remove": 2, "replace": 4, "flip": 2}[certificate.relation.value]
        lines.append(
            f"Why: features are scaled to length B = {certificate.feature_norm:g}, so a record changes the gradient by at most {factor}B;"
            f" the objective is Λ-strongly convex, Λ = {certificate.regularisation:g}; the solve reached a gradient of"
            f" τ = {certificate.tolerance:g}. Weights move by at most ({factor}·k·B + 2τ)/Λ = {certificate.movement!r}, k = {count}."
        )
    if certificate.kind == "ensemble":
        lines.append(
            f"It is the mean of {certificate.shards} heads on disjoint shards: together they move by no more than one head fitted to"
            " everything, tolerances apart, hence their mean by that share of it."
        )
    lines += [
        "It holds as long as features, B, Λ, τ and the range were chosen without the protected preferences, the features' model was not"
        " tuned on them,",
        f"nobody owns more than {count} of the records, and nothing else computed from these preferences is released outside the account.",
        about,
    ]
    return lines
