"""What an account promises, and on what, in plain sentences (the assumptions that no formula covers)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from flint import arb

from privalign.aligner import ServedModel
from privalign.errors import InvalidInput
from privalign.intervals import shown, upper
from privalign.ledger import Account
from privalign.ledger.terms import check_paid
from privalign.mechanisms.protocol import event_of
from privalign.sensitivity import PERSON, Sensitivity


@dataclass(frozen=True, slots=True)
class Served:
    """A model that this gateway answers with from the account. `room` is how many more worst cases of it fit."""

    name: str
    mechanism: str
    sensitivity: str
    room: str


def promise(account: Account) -> str:
    """The guarantee as what an observer cannot tell."""
    rule = account.rule
    change = account.relation.change(account.records_per_person)
    factor = upper(lambda: arb(rule.epsilon).exp())
    times = f"{float(shown(factor, 4)):,.10g} times as probable (e^ε at ε = {shown(rule.epsilon)})"
    if math.isinf(factor):
        times = f"e^{shown(rule.epsilon)} times as probable"
    return (
        f"{change[0].upper()}{change[1:]} makes nothing that anyone could see in all answers together more than "
        f"{times}, apart from an added probability of δ = {shown(rule.delta)}."
    )


def assumptions(account: Account) -> tuple[str, ...]:
    """What it rests on, beyond the arithmetic."""
    count = account.records_per_person
    return (
        "The model that writes the candidates, its system prompt, what it retrieves and its caches do not depend on the protected data.",
        "Whether the reward model fails does not depend on the protected data.",
        f"Neighbouring data sets differ as stated ({account.relation.value}), in at most {count} {'record' if count == 1 else 'records'} "
        f"of one person. {PERSON} A certificate for another relation, or for fewer records, was refused; the whole range fits any.",
        "Noise scales, numbers of candidates, score ranges and orders were chosen without looking at the protected data.",
        "A sensitivity that is marked as declared is true: no calculation proves it.",
        "A reward model that was trained on several protected data sets is charged to the account of each of them.",
    )


def served(account: Account, models: Sequence[ServedModel]) -> tuple[Served, ...]:
    """The models of this gateway that charge the account."""
    return tuple(
        Served(model.name, model.mechanism.name, rests_on(model.reward.sensitivity), _room(account, model))
        for model in models
        if model.account == account.name
    )


def rests_on(sensitivity: Sensitivity) -> str:
    """Where a sensitivity comes from, and what it is."""
    low, high = sensitivity.range.low, sensitivity.range.high
    scores = f"scores are clipped to the public range [{low:g}, {high:g}]"
    if sensitivity.release is not None:
        return f"free: the head itself was {sensitivity.release.words}; {scores}"
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


def _room(account: Account, model: ServedModel) -> str:
    try:
        events = (event_of(model.mechanism, model.reward.sensitivity),)
        cost = account.terms.charge(events)
        check_paid(account.name, account.terms, account.debited, events)
    except InvalidInput as error:
        return f"cannot be charged: {error}"
    left = account.limit - account.debited
    counts = [room // price for room, price in zip(astuple(left), astuple(cost), strict=True) if price > 0]
    return f"{max(0, min(counts)):,} more at the worst case" if counts else "any number: costs nothing"
