"""The terms of an account, fixed when it is made: its rule, its neighbouring relation, its records per person, its data set."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from privalign.accounting.rules import Basic, Debit, Fsrc, Renyi, Rule, TwoCounter, charge_all
from privalign.canonical import canonical
from privalign.errors import InvalidInput
from privalign.events import Composed, Event, Free, NonPrivate, release_event
from privalign.sensitivity import HeadRelease, Relation, Sensitivity

_RULES = {rule.name: rule for rule in (Basic, Fsrc, TwoCounter, Renyi)}


@dataclass(frozen=True, slots=True)
class Terms:
    """What an account was made with. `dataset` names the protected data that it is the budget of."""

    rule: Rule
    relation: Relation
    records_per_person: int
    dataset: str

    def __post_init__(self) -> None:
        if type(self.rule) not in _RULES.values():
            raise InvalidInput("rule", f"{type(self.rule).__name__} is not one of {', '.join(_RULES)}")
        if type(self.records_per_person) is not int or self.records_per_person < 1:
            raise InvalidInput("records-per-person", f"{self.records_per_person} is not a whole number ≥ 1")

    def to_json(self) -> str:
        """The terms as the ledger stores them, the data set apart: accounts of earlier versions named none."""
        return canonical(
            {
                "rule": self.rule.name,
                **_parameters(self.rule),
                "relation": self.relation.value,
                "records_per_person": self.records_per_person,
            }
        )

    def raised(self, epsilon: float) -> Terms:
        """The same terms with another ε_total."""
        return dataclasses.replace(self, rule=_RULES[self.rule.name](**{**_parameters(self.rule), "epsilon": epsilon}))

    def charge(self, events: tuple[Event, ...]) -> Debit:
        """What these events are charged together, if their sensitivity holds for these neighbours.

        Δ = R holds for all of them; a declared Δ without a relation is declared for this account.

        Raises:
            InvalidInput: another relation, fewer records of one person than the account protects, or no guarantee.
            TypeError: an event of an unknown kind.
        """
        return _charge(self, events)

    def _check(self, event: Event) -> None:
        for sensitivity in _sensitivities(event):
            self._check_data(sensitivity.dataset)
            if sensitivity.delta >= sensitivity.width or (sensitivity.source == "declared" and sensitivity.relation is None):
                continue
            self._check_neighbours("the sensitivity holds for", sensitivity.relation, sensitivity.records_per_person)
        for release in released_heads((event,)):
            self._check_data(release.dataset)
            self._check_neighbours("the head was released for", release.relation, release.records_per_person)

    def _check_data(self, dataset: str | None) -> None:
        """A certificate that names no data set, as those of version 1, is any account's."""
        if dataset not in (None, self.dataset):
            raise InvalidInput(
                "dataset",
                f"the certificate is about data set {dataset}, the account protects {self.dataset}; charge the account of {dataset}",
            )

    def _check_neighbours(self, what: str, relation: Relation | None, records: int | None) -> None:
        if relation is not self.relation:
            raise InvalidInput(
                "relation",
                f"{what} {relation.value if relation else 'none'}, the account protects {self.relation.value}; certify it for that",
            )
        if records is None or records < self.records_per_person:
            raise InvalidInput(
                "records-per-person",
                f"{what} {records} per person, the account protects {self.records_per_person}; certify it for as many",
            )


def check_paid(account: str, terms: Terms, debited: Debit, events: Iterable[Event]) -> None:
    """Refuses released heads under an account that did not pay for them: its promise would say nothing about them.

    What an account has paid is known by what it has spent: at least what its rule charges for the release.

    Raises:
        InvalidInput: another account paid, or the one of this name in another ledger.
    """
    for release in released_heads(events):
        if release.account != account:
            raise InvalidInput(
                "account",
                f"the head was {release.words}; {account} promises nothing about it: serve it under {release.account}",
            )
        if not terms.charge((release_event(release),)).fits(debited):
            raise InvalidInput(
                "account",
                f"the head was {release.words}, which {account} of this ledger did not pay; use the ledger that the release was paid from",
            )


@lru_cache(maxsize=4096)
def _charge(terms: Terms, events: tuple[Event, ...]) -> Debit:
    cost = charge_all(terms.rule, events)
    for event in events:
        terms._check(event)
    return cost


@lru_cache(maxsize=1024)
def terms_of(text: str, dataset: str) -> Terms:
    """The terms as `to_json` wrote them, for this data set."""
    document = json.loads(text)
    rule = _RULES[document.pop("rule")]
    relation, records = Relation(document.pop("relation")), document.pop("records_per_person")
    return Terms(rule(**document), relation, records, dataset)


def _parameters(rule: Rule) -> dict[str, float]:
    return {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}  # type: ignore[arg-type]


def released_heads(events: Iterable[Event]) -> Iterator[HeadRelease]:
    """The terms of the heads that events are free by."""
    for event in events:
        match event:
            case Composed(parts):
                yield from released_heads(parts)
            case Free(release) if release is not None:
                yield release


def _sensitivities(event: Event) -> Iterator[Sensitivity]:
    match event:
        case Composed(events):
            for part in events:
                yield from _sensitivities(part)
        case Free() | NonPrivate():
            return
        case _:
            yield event.sensitivity
