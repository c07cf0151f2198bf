"""What the ledger hands out and takes: frozen values, no behaviour beyond reading them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from privalign.accounting.rules import Debit, Rule
from privalign.events import Event
from privalign.intervals import less, total
from privalign.ledger.place import Place
from privalign.ledger.terms import Terms
from privalign.sensitivity import Relation
from privalign.statements import of_raise, of_rule, of_sharing

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(microseconds: int) -> datetime:
    """Ledger time as a date, exactly."""
    return _EPOCH + timedelta(microseconds=microseconds)


def microseconds(when: datetime) -> int:
    """A date with a time zone as ledger time."""
    return (when - _EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Raise:
    """One rise of an account's ε. It was not fixed in advance: see `Account.guarantee`."""

    time: datetime
    before: float
    after: float
    reason: str


@dataclass(frozen=True, slots=True)
class Promise:
    """What another account over the same data set promises: its (ε, δ), as raised."""

    account: str
    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True)
class Account:
    """One protected preference data set and what was spent on it.

    `dataset` names it; `also` are the other accounts over it, whose promises add to this one's.

    `limit` and the debits are whole units per counter; `debited` holds settled and open queries, `open` the worst cases
    of the live reservations among them. An expired reservation counts as settled. `head` is the hash of the last of
    the journal's `length` rows: kept elsewhere, it later proves that no older copy of the ledger was put back.
    """

    name: str
    rule: Rule
    relation: Relation
    records_per_person: int
    created: datetime
    limit: Debit
    debited: Debit
    open: Debit
    settled_queries: int
    open_queries: int
    refused_queries: int
    raises: tuple[Raise, ...]
    head: str
    length: int
    dataset: str
    also: tuple[Promise, ...] = ()

    @property
    def terms(self) -> Terms:
        """What it was made with, its ε as raised."""
        return Terms(self.rule, self.relation, self.records_per_person, self.dataset)

    @property
    def together(self) -> tuple[float, float]:
        """(ε, δ) of this account and all others over its data set: their sums, rounded up."""
        epsilons, deltas = [each.epsilon for each in self.also], [each.delta for each in self.also]
        return total([self.rule.epsilon, *epsilons]), total([self.rule.delta, *deltas])

    @property
    def spent(self) -> tuple[float, float]:
        """(ε, δ) that everything debited converts to, open reservations included; (0, 0) while nothing is."""
        return self.rule.spent(self.debited)

    @property
    def remaining(self) -> tuple[float, float]:
        """(ε, δ) of the budget less what is spent, rounded down; never negative."""
        epsilon, delta = self.spent
        return less(self.rule.epsilon, epsilon), less(self.rule.delta, delta)

    @property
    def guarantee(self) -> str:
        """The guarantee in words, with what a raised budget does to it, and other accounts over the same data set."""
        sentences = [of_rule(self.rule)]
        if self.raises:
            sentences.append(of_raise(self.raises[0].before, self.raises[0].time))
        if self.also:
            sentences.append(of_sharing(self.dataset, [each.account for each in self.also], *self.together))
        return " ".join(sentences)


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """What makes two requests the same one: `key` within `scope` (who asks for what), and a digest of the `body`."""

    scope: str
    key: str
    body: str


@dataclass(frozen=True, slots=True)
class Reservation:
    """Queries that are paid at their worst case and not settled yet. Only who holds `owner` can settle, renew or void it.

    `number` is the row of the account's journal that paid it. `lease` seconds after the last renewal, at `expires`, it
    counts at its worst case for good.
    """

    account: str
    number: int
    events: tuple[Event, ...]
    debit: Debit
    lease: float
    expires: datetime
    owner: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Replay:
    """The request was answered before: its stored release, for free."""

    release: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Pending:
    """The same request is being answered elsewhere; ask again, at the latest when its lease `expires`."""

    expires: datetime


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of an account's journal: `kind` create, reserve, settle, void, expire, raise or move.

    `debit` and `queries` are what the row adds to the account (negative: gives back). `reservation` is the row that
    reserved. `hash` is SHA-256 of `record`, the canonical JSON that holds all of this and the previous hash.
    """

    account: str
    seq: int
    time: datetime
    kind: str
    reservation: int | None
    debit: Debit
    queries: int
    note: Mapping[str, object]
    previous: str
    hash: str
    record: str


@dataclass(frozen=True, slots=True)
class Verification:
    """A journal that was re-added from its first row and found right: write `head` down outside the database.

    `anchored` is the row that this host's anchor holds, which the journal has; None where it has no anchor.
    """

    account: str
    length: int
    head: str
    debited: Debit
    spent: tuple[float, float]
    anchored: int | None


@dataclass(frozen=True, slots=True)
class Move:
    """A ledger's new place, journalled in all its accounts. `before` is None where none was stored."""

    before: Place | None
    now: Place
    accounts: tuple[str, ...]


class Role(StrEnum):
    """What a key may do."""

    CLIENT = "client"  # ask for answers
    OFFICER = "officer"  # read the ledger


@dataclass(frozen=True, slots=True)
class Key:
    """An API key without its secret.

    `models` None means every model. Sub-limits, all optional: `share` of every counter of `account`, a number of
    queries, and `rate`, requests a minute, which the gateway keeps. They bound what one key can use up; they are no separate
    guarantee.
    """

    id: str
    role: Role
    models: tuple[str, ...] | None
    created: datetime
    expires: datetime | None
    revoked: datetime | None
    account: str | None
    share: float | None
    query_limit: int | None
    debited: Debit
    queries: int
    rate: float | None

    def allows(self, model: str) -> bool:
        """Whether the key may ask this model."""
        return self.models is None or model in self.models


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made. `secret` is what the client sends; it is shown once and stored nowhere."""

    key: Key
    secret: str = field(repr=False)
