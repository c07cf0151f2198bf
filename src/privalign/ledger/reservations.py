"""Reserve, renew, settle, void: what one query does to a locked account."""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Select, and_, bindparam, delete, func, insert, null, select, update

from privalign.accounting.rules import Debit
from privalign.canonical import canonical
from privalign.errors import BudgetBusy, BudgetExhausted, IdempotencyConflict, InvalidInput, LeaseExpired
from privalign.events import Composed, Event, RejectionRounds
from privalign.intervals import less
from privalign.ledger import keys
from privalign.ledger.book import FREE_ANSWER, Book
from privalign.ledger.entries import IdempotencyKey, Pending, Replay, Reservation, moment
from privalign.ledger.schema import ANSWERS, COUNTERS, RESERVATIONS, columns_of, debit_of, insert_unless_taken
from privalign.ledger.transaction import Row, Transaction

PROBE_SIZE = 8192  # letters

# What is known of an idempotency key, and the reservation that answers it while that is open.
FIND_ANSWER = (
    select(ANSWERS, RESERVATIONS.c.expires)
    .outerjoin(RESERVATIONS, and_(RESERVATIONS.c.account == ANSWERS.c.account, RESERVATIONS.c.number == ANSWERS.c.number))
    .where(ANSWERS.c.id == bindparam("answer"))
)

# Takes an idempotency key, unless another account took it a moment ago.
TAKE_ANSWER = insert_unless_taken(ANSWERS, "id", "body", "account", "number")

# Stores the release for its idempotency key.
STORE_ANSWER = update(ANSWERS).where(ANSWERS.c.id == bindparam("answer")).values(settled=bindparam("now"), release=bindparam("text"))

# Takes it back: of a probe, in the transaction that took it.
LEAVE_ANSWER = delete(ANSWERS).where(ANSWERS.c.id == bindparam("answer"))

# Forgets the texts that are older than the ledger may keep them; that they were given stays known.
FORGET_TEXTS = update(ANSWERS).where(ANSWERS.c.release.is_not(None), ANSWERS.c.settled <= bindparam("before")).values(release=null())

# Opens a reservation.
OPEN_RESERVATION = insert(RESERVATIONS)

_OWNED = (
    RESERVATIONS.c.account == bindparam("in_account"),
    RESERVATIONS.c.number == bindparam("with_number"),
    RESERVATIONS.c.owner == bindparam("of_owner"),
    RESERVATIONS.c.expires > bindparam("now"),
)

# Closes an open reservation, for its owner only and while its lease lasts; the journal keeps what it cost.
CLOSE_RESERVATION = delete(RESERVATIONS).where(*_OWNED).returning(RESERVATIONS)

# Begins its lease again, likewise.
RENEW_LEASE = update(RESERVATIONS).where(*_OWNED).values(expires=bindparam("until"))

# The worst cases of all open reservations of an account.
OPEN_SUM: Select[Any] = select(*(func.sum(RESERVATIONS.c[f"debit_{counter}"]).label(f"open_{counter}") for counter in COUNTERS)).where(
    RESERVATIONS.c.account == bindparam("account")
)


@dataclass(frozen=True)
class Request:
    """What `reserve` is asked for: some queries, their charge, for how long, for whom."""

    events: tuple[Event, ...]
    cost: Debit
    lease: float
    idempotency: IdempotencyKey | None
    api_key: str | None
    model: str | None


def reserve(book: Book, request: Request, retain: int) -> Reservation | Replay | Pending:
    """Debits the worst case, or says what became of the same request. All or nothing: whatever raises writes nothing."""
    answer = None
    if request.idempotency is not None:
        answer = _digest(request.idempotency.scope, request.idempotency.key)
        earlier = _earlier(book, answer, _digest(request.idempotency.body), retain)
        if earlier is not None:
            return earlier
    queries = len(request.events)
    named = (("api_key", request.api_key), ("model", request.model))
    note = {name: value for name, value in named if value is not None}
    if not (request.cost.fits(book.limit) and book.post("reserve", request.cost, queries=queries, note=note)):
        raise _refusal(book, request.cost)
    number, owner, expires = book.length, secrets.token_hex(16), book.now + _microseconds(request.lease)
    book.transaction.change(
        OPEN_RESERVATION,
        {
            "account": book.row.name,
            "number": number,
            "owner": owner,
            "expires": expires,
            "queries": queries,
            **columns_of("debit", request.cost),
            "answer": answer,
            "api_key": request.api_key,
        },
    )
    if answer is not None and request.idempotency is not None:
        values = {"id": answer, "body": _digest(request.idempotency.body), "account": book.row.name, "number": number}
        if book.transaction.change(TAKE_ANSWER, values) != 1:
            raise _other_request()
    if request.api_key is not None:
        keys.debit(book, request.api_key, request.cost, queries)
    return Reservation(book.row.name, number, request.events, request.cost, request.lease, moment(expires), owner)


def _earlier(book: Book, answer: str, body: str, retain: int) -> Replay | Pending | None:
    row = book.transaction.row(FIND_ANSWER, {"answer": answer})
    if row is None:
        return None
    if row.body != body or row.account != book.row.name:
        raise _other_request()
    if row.settled is None:
        return Pending(moment(row.expires))
    if row.release is None or book.now - row.settled >= retain:
        raise IdempotencyConflict("this idempotency key was answered, and the answer is no longer kept; use a new key", mismatch=False)
    return Replay(json.loads(row.release))


def _other_request() -> IdempotencyConflict:
    return IdempotencyConflict("this idempotency key was used for another request; use a new key", mismatch=True)


def _refusal(book: Book, cost: Debit) -> BudgetExhausted:
    rule, debited = book.terms.rule, debit_of("debited", book.row)
    spent = rule.spent(debited)[0]
    remaining = less(rule.epsilon, spent)
    requested = rule.spent(debited + cost)[0] - spent
    still_open = debit_of("open", book.transaction.row(OPEN_SUM, {"account": book.row.name}))
    kind = BudgetBusy if (debited - still_open + cost).fits(book.limit) else BudgetExhausted
    return kind(book.row.name, remaining, requested)


def renew(book: Book, reservation: Reservation) -> Reservation:
    """The lease begins again."""
    until = book.now + _microseconds(reservation.lease)
    if book.transaction.change(RENEW_LEASE, {**_owned(book, reservation), "until": until}) != 1:
        raise _too_late(reservation)
    return replace(reservation, expires=moment(until))


def settle(book: Book, reservation: Reservation, charge: Debit, release: Mapping[str, object] | None) -> Debit:
    """Lowers the debit to `charge`, never raises it, and stores the release for the idempotency key. Returns what stands."""
    row = _close(book, reservation)
    reserved = debit_of("debit", row)
    stands = Debit(*(min(getattr(reserved, counter), getattr(charge, counter)) for counter in COUNTERS))
    _give_back(book, row, "settle", stands - reserved, 0)
    if row.answer is not None:
        kept = None if release is None else canonical(release)
        book.transaction.change(STORE_ANSWER, {"answer": row.answer, "now": book.now, "text": kept})
    return stands


def void(book: Book, reservation: Reservation) -> None:
    """Gives the whole debit back and frees the idempotency key."""
    row = _close(book, reservation)
    _give_back(book, row, "void", Debit() - debit_of("debit", row), -row.queries)
    if row.answer is not None:
        book.transaction.change(FREE_ANSWER, {"answer": row.answer})


def forfeit(book: Book, reservation: Reservation) -> None:
    """Ends the lease now: spent at its worst case for good; the idempotency key is free again."""
    row = _close(book, reservation)
    book.post("expire", Debit(), reservation=row.number)
    if row.answer is not None:
        book.transaction.change(FREE_ANSWER, {"answer": row.answer})


def _close(book: Book, reservation: Reservation) -> Row:
    row = book.transaction.row(CLOSE_RESERVATION, _owned(book, reservation))
    if row is None:
        raise _too_late(reservation)
    return row


def _owned(book: Book, reservation: Reservation) -> dict[str, object]:
    return {"in_account": book.row.name, "with_number": reservation.number, "of_owner": reservation.owner, "now": book.now}


def _too_late(reservation: Reservation) -> LeaseExpired:
    return LeaseExpired(
        f"account {reservation.account}: reservation {reservation.number} is no longer open; "
        "what it was closed at stays spent, reserve anew"
    )


def _give_back(book: Book, row: Row, kind: str, debit: Debit, queries: int) -> None:
    """Journals what a closed reservation gives back (numbers ≤ 0), to its API key as well."""
    book.post(kind, debit, queries=queries, reservation=row.number)
    if row.api_key is not None:
        keys.give_back(book.transaction, row.api_key, debit, queries)


def probe(transaction: Transaction, account: str) -> None:
    """Writes a row beside the journal, as large as a small answer, and takes it back: once that is committed, the ledger can be written."""
    answer = f"probe {secrets.token_hex(16)}"
    transaction.change(TAKE_ANSWER, {"id": answer, "body": " " * PROBE_SIZE, "account": account, "number": 0})
    transaction.change(LEAVE_ANSWER, {"answer": answer})


def forget_texts(transaction: Transaction, before: int) -> None:
    """Deletes the stored releases that were settled at `before` or earlier."""
    transaction.change(FORGET_TEXTS, {"before": before})


def check_realised(reserved: tuple[Event, ...], realised: tuple[Event, ...]) -> None:
    """Refuses to settle on anything but the reserved events with their outcome filled in.

    Raises:
        InvalidInput: another number of events, other settings, or another outcome than the one reserved.
    """
    if len(reserved) != len(realised) or not all(map(_realises, reserved, realised)):
        raise InvalidInput("realised", "these are not the reserved events with their outcome; settle what was reserved")


def _realises(reserved: Event, realised: Event) -> bool:
    match reserved, realised:
        case Composed(first), Composed(second):
            return len(first) == len(second) and all(map(_realises, first, second))
        case RejectionRounds(), RejectionRounds():
            threshold = realised.threshold if reserved.threshold is None else reserved.threshold
            halt = realised.halt if reserved.halt is None else reserved.halt
            return replace(reserved, threshold=threshold, halt=halt) == realised
    return reserved == realised


def _microseconds(seconds: float) -> int:
    return math.ceil(seconds * 1e6)


def _digest(*parts: str) -> str:
    """SHA-256 of some texts: of fixed length, and the client's own words are not stored."""
    return hashlib.sha256(canonical(parts).encode()).hexdigest()
