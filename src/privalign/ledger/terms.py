"""The terms of an account, fixed when it is made: its rule, its neighbouring relation, its records per person, its data set."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from privalign.accounting.rules import Basic, Debit, Fsrc, Renyi, Rule, TwoCounter, charge_all
from privalign.errors import InvalidInput
from privalign.events import Composed, Event, Free, NonPrivate
from privalign.sensitivity import Relation, Sensitivity

_RULES = {rule.name: rule for rule in (Basic, Fsrc, TwoCounter, Renyi)}


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical(document: object) -> str:
    """The one JSON text of a document: sorted keys, no spaces, ASCII, no NaN."""
    return _ENCODER.encode(document)


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
            if sensitivity.delta >= sensitivity.width or (sensitivity.source == "declared" and sensitivity.relation is None):
                continue
            if sensitivity.relation is not self.relation:
                held = sensitivity.relation.value if sensitivity.relation else "none"
                raise InvalidInput(
                    "relation", f"the sensitivity holds for {held}, the account protects {self.relation.value}; certify it for that"
                )
            if sensitivity.records_per_person is None or sensitivity.records_per_person < self.records_per_person:
                raise InvalidInput(
                    "records-per-person",
                    f"the sensitivity covers {sensitivity.records_per_person}, the account protects {self.records_per_person}; "
                    "certify it for as many",
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


def _sensitivities(event: Event) -> Iterator[Sensitivity]:
    match event:
        case Composed(events):
            for part in events:
                yield from _sensitivities(part)
        case Free() | NonPrivate():
            return
        case _:
            yield event.sensitivity
