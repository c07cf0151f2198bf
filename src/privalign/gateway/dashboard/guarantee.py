"""Which models charge an account, what they rest on, and how many more of their answers fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from privalign.aligner import ServedModel
from privalign.errors import InvalidInput
from privalign.ledger import Account
from privalign.ledger.terms import check_paid
from privalign.mechanisms.protocol import event_of
from privalign.statements import fitting, rests_on, room


@dataclass(frozen=True, slots=True)
class Served:
    """A model that this gateway answers with from the account. `room` is how many more worst cases of it fit."""

    name: str
    mechanism: str
    sensitivity: str
    room: str


def served(account: Account, models: Sequence[ServedModel]) -> tuple[Served, ...]:
    """The models of this gateway that charge the account."""
    return tuple(
        Served(model.name, model.mechanism.name, rests_on(model.reward.sensitivity), _room(account, model))
        for model in models
        if model.account == account.name
    )


def _room(account: Account, model: ServedModel) -> str:
    try:
        events = (event_of(model.mechanism, model.reward.sensitivity),)
        cost = account.terms.charge(events)
        check_paid(account.name, account.terms, account.debited, events)
    except InvalidInput as error:
        return f"cannot be charged: {error}"
    return room(fitting(account.limit, account.debited, cost))
