"""The ledger: what was spent, by whom, and what is left. Survives crashes and crowds."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from privalign.accounting.rules import Debit, Rule
from privalign.canonical import canonical
from privalign.errors import BudgetExhausted, CheckFailed, InvalidInput, LeaseExpired, PrivalignError
from privalign.events import Event
from privalign.ledger import accounts, identity, keys, reservations, statistics, verification
from privalign.ledger.anchors import Anchor, Anchors
from privalign.ledger.book import COUNT_REFUSAL, Book, entry_of
from privalign.ledger.database import Database
from privalign.ledger.entries import (
    Account,
    Entry,
    IdempotencyKey,
    Key,
    Move,
    NewKey,
    Pending,
    Replay,
    Reservation,
    Role,
    Verification,
    microseconds,
)
from privalign.ledger.failures import LedgerBehind, LedgerFailed, TransactionsMet, UnknownAccount, missing_head
from privalign.ledger.schema import debit_of
from privalign.ledger.terms import Terms, check_paid, terms_of
from privalign.ledger.transaction import Transaction
from privalign.sensitivity import Relation

DEFAULT_URL = "sqlite:///privalign.db"
LEASE = 120.0
DAY = 86400.0
_PURGE_EVERY = 60.0  # seconds between two deletions of old texts
Outcome = TypeVar("Outcome")


class Ledger:
    """The durable record of every privacy debit, on SQLite or PostgreSQL.

    Formal guarantee: for every account and at every instant, the sum of all debits is within the limit of its rule in
    every counter, whatever processes do, crash or are killed; the debit and the check are one SQL statement. A query
    is debited at its worst case before `reserve` returns, durably. `settle` lowers it at most to what the rule charges
    for what was released. A reservation that is never settled or voided stays spent at its worst case.

    Threads and forked processes may share one; it is made at once and opened at first use. A new file or database
    gets its tables then.

    Args:
        url: `sqlite:///FILE` or `postgresql+psycopg://USER@HOST/DATABASE`.
        retain: seconds that a stored answer is kept for its idempotency key; the first query a minute later deletes it.
        patience: seconds to wait for another writer, or for the server.
        clock: seconds since 1970. The ledger's own time never goes back, whatever the clock does.

    Raises (every method):
        LedgerFailed: the database is away, full, locked, read-only, damaged, not durable, of a newer version, or not where it belongs.
        LedgerBehind: it lacks rows that this host has anchored.
        UnknownAccount: no account of that name.
    """

    def __init__(
        self, url: str = DEFAULT_URL, *, retain: float = DAY, patience: float = 30.0, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = Database(url, patience)
        self._retain = math.floor(_seconds("retain", retain) * 1e6)
        self._clock = clock
        self._anchors = Anchors()
        self._terms: dict[str, Terms] = {}
        self._purged = 0

    def close(self) -> None:
        """Closes the connections; the ledger can still be used and opens new ones."""
        self._database.close()

    @property
    def unanchored(self) -> str | None:
        """Why this host keeps no anchors, in words; None where it does."""
        return self._anchors.problem

    # Accounts

    def create_account(
        self,
        name: str,
        rule: Rule,
        *,
        relation: Relation = Relation.REPLACE,
        records_per_person: int = 1,
        dataset: str | None = None,
        also: Collection[str] = (),
    ) -> Account:
        """Makes an account; its terms never change, its ε only by `raise_budget`.

        Args:
            dataset: names the protected data; None: as the account.
            also: the accounts that protect the same data already. Their promises and this one's add up.

        Raises:
            InvalidInput: the name is taken, a setting is out of its range, or `also` is not exactly the other accounts over the
            data set.
        """
        terms = Terms(rule, relation, records_per_person, name if dataset is None else dataset)
        anchor = self._anchor(name)

        def create(transaction: Transaction) -> str:
            head = accounts.create(transaction, name, terms, also, self._now())
            if anchor is not None:  # the ledger had this account, and has lost it
                raise LedgerBehind(name, anchor.head, 0)
            return head

        self._anchor_at(name, 1, self._write(create))
        return self.account(name)

    def account(self, name: str) -> Account:
        """The account as it stands."""
        anchor = self._anchor(name)
        with self._database.read() as transaction:
            for account in accounts.read(transaction, self._now(), name):
                accounts.check_anchor(transaction, name, account.length, account.head, anchor)
                return account
        raise self._absent(name, anchor)

    def accounts(self) -> list[Account]:
        """All accounts, by name."""
        anchors = self._anchors.all(self._database.identity.id)
        with self._database.read() as transaction:
            found = list(accounts.read(transaction, self._now()))
            for account in found:
                accounts.check_anchor(transaction, account.name, account.length, account.head, anchors.pop(account.name, None))
        for name, anchor in anchors.items():
            raise LedgerBehind(name, anchor.head, 0)
        return found

    def check_writable(self, name: str) -> None:
        """Commits a row beside the journal of an account, and takes it back in the same transaction.

        Raises:
            LedgerFailed: the ledger cannot be written.
        """
        self._write(lambda transaction: reservations.probe(transaction, name))

    def raise_budget(self, name: str, epsilon: float, reason: str) -> Account:
        """Raises ε_total. Journalled, and shown ever after: what it does to the guarantee is in `Account.guarantee`.

        Raises:
            InvalidInput: not above the present ε, or no reason.
        """
        self._with_book(name, lambda book: accounts.raise_budget(book, float(epsilon), reason))
        return self.account(name)

    def moved(self) -> Move:
        """Says that the file was moved to where it is now, and that no other copy of it is used. Journalled in every account.

        Raises:
            InvalidInput: it is where it belongs, or no file. LedgerBehind: it is an older copy.
        """
        known, here = self._database.open_anywhere(), self._database.place
        if here is None:
            raise InvalidInput("ledger", "PostgreSQL keeps no place in a folder, so there is nothing to say")
        if known.place == here:
            raise InvalidInput("ledger", f"it belongs at {here} and is there; nothing was changed")
        anchors = self._anchors.all(known.id)
        note = {"from": None if known.place is None else known.place.to_json(), "to": here.to_json()}
        with self._database.write() as transaction:
            names = [row.name for row in transaction.rows(accounts.NAMES, {})]
            books = [Book.lock(transaction, name, self._now()) for name in names]
            for book in books:
                accounts.check_anchor(transaction, book.row.name, book.length, book.head, anchors.pop(book.row.name, None))
                book.post("move", Debit(), note=note)
            for name, anchor in anchors.items():
                raise LedgerBehind(name, anchor.head, 0)
            identity.move(transaction, here)
        self._database.close()
        for book in books:
            self._anchor_at(book.row.name, book.length, book.head)
        return Move(known.place, here, tuple(names))

    # One query

    def reserve(
        self,
        account: str,
        events: Sequence[Event],
        *,
        lease: float = LEASE,
        idempotency: IdempotencyKey | None = None,
        api_key: str | None = None,
        model: str | None = None,
    ) -> Reservation | Replay | Pending:
        """Debits the worst case of all `events`, or of none, before any protected data is touched.

        Args:
            account: whose protected data the events are about.
            events: one per answer, unrealised, from public settings only.
            lease: seconds until the reservation counts at its worst case for good.
            idempotency: what makes a repeated request the same one; without it every call is a new request.
            api_key: the id of the key that asks; its sub-limits are debited in the same transaction.
            model: the served model that is asked, kept in the journal.

        Returns:
            A reservation to settle or void; or, for a repeated request, its stored release, or that it is being answered.

        Raises:
            BudgetExhausted: it does not fit. BudgetBusy: it would, once open reservations settle or are voided.
            KeyExhausted, KeyRefused: the key's limit, or the key. IdempotencyConflict: another body under the same
            idempotency key, or an answer that is no longer kept. InvalidInput: a sensitivity that does not hold for the
            account's neighbours or data set, a released head that another account paid for, or an event without a guarantee.
        """
        if not events:
            raise InvalidInput("events", "there is nothing to reserve; give one event per answer")
        terms = self._terms_of(account)
        request = reservations.Request(tuple(events), terms.charge(tuple(events)), _seconds("lease", lease), idempotency, api_key, model)
        self._forget_old_texts()

        def reserve(book: Book) -> Reservation | Replay | Pending:
            if terms_of(book.row.parameters, book.row.dataset) != terms:
                raise LedgerFailed(f"account {account}: its terms changed while the ledger was open; see `account verify`")
            check_paid(account, terms, debit_of("debited", book.row), events)
            return reservations.reserve(book, request, self._retain)

        try:
            return self._with_book(account, reserve)
        except BudgetExhausted:
            refused = {"account": account, "by_queries": len(events)}
            self._with_book(account, lambda book: book.transaction.change(COUNT_REFUSAL, {**refused, "now": book.now}))
            raise

    def renew(self, reservation: Reservation) -> Reservation:
        """Begins the lease again.

        Raises:
            LeaseExpired: it is no longer open.
        """
        return self._for_owner(reservation, lambda book: reservations.renew(book, reservation))

    def settle(self, reservation: Reservation, realised: Sequence[Event], release: Mapping[str, object] | None = None) -> Debit:
        """Lowers the debit to the charge of what was released; never raises it. Release nothing before this returns.

        Args:
            reservation: from `reserve`.
            realised: the reserved events with their outcomes, in the same order.
            release: the answer as JSON, stored in the same transaction and replayed to the idempotency key.

        Returns:
            The debit that stands for good.

        Raises:
            LeaseExpired: too late, or settled or voided before; the answer must not be released.
            InvalidInput: `realised` is not what was reserved.
        """
        reservations.check_realised(reservation.events, tuple(realised))
        charge = self._terms_of(reservation.account).charge(tuple(realised))
        return self._for_owner(reservation, lambda book: reservations.settle(book, reservation, charge, release))

    def void(self, reservation: Reservation) -> None:
        """Gives the whole debit back: only for a query that never touched protected data, which the caller must know.

        Raises:
            LeaseExpired: it is no longer open.
        """
        self._for_owner(reservation, lambda book: reservations.void(book, reservation))

    def forfeit(self, reservation: Reservation) -> None:
        """Ends the lease now, for a query that failed after protected data may have been touched.

        It counts at its worst case for good, as when a lease runs out, and no longer as open; a repeated request under
        its idempotency key is a new one.

        Raises:
            LeaseExpired: it is no longer open.
        """
        self._for_owner(reservation, lambda book: reservations.forfeit(book, reservation))

    # The journal

    def journal(self, name: str, *, after: int = 0) -> Iterator[Entry]:
        """The rows of an account's journal, oldest first, from the one after `after`."""
        return self._entries(name, after, self.account(name).length)

    def latest(
        self,
        name: str,
        *,
        before: int = 2**62,
        most: int = 50,
        kind: str | None = None,
        api_key: str | None = None,
        model: str | None = None,
    ) -> list[Entry]:
        """At most `most` rows of an account's journal before row `before`, newest first.

        Args:
            kind, api_key, model: only rows of this kind, or whose note names this key or this model.
        """
        with self._database.read() as transaction:
            try:
                return statistics.latest(transaction, name, before, most, kind, api_key, model)
            except (ValueError, LookupError, TypeError):
                raise CheckFailed(f"account {name}: a journal row is not a journal record; see `account verify`") from None

    def verify(self, name: str, *, expect_head: str | None = None) -> Verification:
        """Re-adds the journal, checks its chain, and compares it with the account and its open reservations.

        Args:
            expect_head: a hash that was written down elsewhere and must occur in the chain.

        Raises:
            CheckFailed: says which row, counter or reservation is wrong, or that `expect_head` or the anchored head does not occur.
        """
        anchor = self._anchor(name)
        with self._database.read() as transaction:
            row, still_open = verification.snapshot(transaction, name)
        if row is None:
            raise UnknownAccount(name) if anchor is None else CheckFailed(missing_head(name, anchor.head, 0))
        return verification.verify(row, still_open, self._rows(name, 0, row.length), expect_head, anchor)

    def export(self, name: str) -> Iterator[str]:
        """JSON lines: the account, then its journal; each row's `hash` is SHA-256 of its `record` as printed."""
        account = self.account(name)
        head = {
            "account": name,
            "dataset": account.dataset,
            "terms": json.loads(account.terms.to_json()),
            "raises": len(account.raises),
            "length": account.length,
            "head": account.head,
        }
        rows = self._rows(name, 0, account.length)
        yield canonical(head)
        for _, record, hashed in rows:
            yield f'{{"hash":"{hashed}","record":{record}}}'

    # API keys

    def create_key(
        self,
        role: Role,
        *,
        models: Sequence[str] | None = None,
        expires: datetime | None = None,
        account: str | None = None,
        share: float | None = None,
        queries: int | None = None,
        rate: float | None = None,
    ) -> NewKey:
        """Makes an API key, optionally limited to a `share` of every counter of `account`, and to a number of queries.

        Args:
            models: what it may ask; None: every model.
            expires: a date with a time zone; None: never.
            rate: requests a minute that the gateway lets through; None: as many as its own setting.

        Raises:
            InvalidInput: a limit is out of its range.
        """
        if expires is not None and expires.tzinfo is None:
            raise InvalidInput("expires", "the date has no time zone; give one, as in 2027-01-31T00:00:00Z")
        end = None if expires is None else microseconds(expires)
        return self._write(lambda transaction: keys.create(transaction, self._now(), role, models, end, account, share, queries, rate))

    def keys(self) -> list[Key]:
        """All keys, oldest first, without secrets."""
        with self._database.read() as transaction:
            return list(keys.read(transaction))

    def revoke_key(self, identity: str) -> Key:
        """Revokes a key at once.

        Raises:
            InvalidInput: no key has that id.
        """
        return self._write(lambda transaction: keys.revoke(transaction, identity, self._now()))

    def authenticate(self, presented: str) -> Key:
        """The key whose secret was sent, if it is valid now.

        Raises:
            KeyRefused: unknown, wrong, expired or revoked, without saying which.
        """
        with self._database.read() as transaction:
            return keys.authenticate(transaction, presented, self._now())

    def valid_key(self, identity: str) -> Key:
        """The key of an id whose secret was shown before, if it is valid now.

        Raises:
            KeyRefused: unknown, expired or revoked, without saying which.
        """
        with self._database.read() as transaction:
            return keys.valid(transaction, identity, self._now())

    def _now(self) -> int:
        return math.floor(self._clock() * 1e6)

    def _terms_of(self, name: str) -> Terms:
        """The terms as created: all of a charge depends on them and nothing on the ε that may be raised."""
        terms = self._terms.get(name)
        if terms is None:
            anchor = self._anchor(name)
            with self._database.read() as transaction:
                terms = accounts.terms(transaction, name)
            if terms is None:
                raise self._absent(name, anchor)
            self._terms[name] = terms
        return terms

    def _for_owner(self, reservation: Reservation, act: Callable[[Book], Outcome]) -> Outcome:
        """Acts on an open reservation; when it is too late, journals that first."""
        try:
            return self._with_book(reservation.account, act)
        except LeaseExpired:
            self._with_book(reservation.account, lambda _: None)
            raise

    def _write(self, act: Callable[[Transaction], Outcome]) -> Outcome:
        """Acts in a writing transaction; begins anew, while the patience lasts, where it met another one and nothing was written."""
        began = time.monotonic()
        while True:
            try:
                with self._database.write() as transaction:
                    return act(transaction)
            except TransactionsMet:
                if not self._database.again(began):
                    raise

    def _with_book(self, name: str, act: Callable[[Book], Outcome]) -> Outcome:
        """Acts on an account, locked, which has all rows that were anchored; its head is anchored after the commit."""
        anchor = self._anchor(name)

        def locked(transaction: Transaction) -> tuple[Outcome, Book]:
            try:
                book = Book.lock(transaction, name, self._now())
            except UnknownAccount:
                raise self._absent(name, anchor) from None
            accounts.check_anchor(transaction, name, book.length, book.head, anchor)
            return act(book), book

        outcome, book = self._write(locked)
        self._anchor_at(name, book.length, book.head)
        return outcome

    @staticmethod
    def _absent(name: str, anchor: Anchor | None) -> PrivalignError:
        """What it means that there is no account of this name: there was none, or the ledger has lost it."""
        return UnknownAccount(name) if anchor is None else LedgerBehind(name, anchor.head, 0)

    def _anchor(self, name: str) -> Anchor | None:
        return self._anchors.read(self._database.identity.id, name)

    def _anchor_at(self, name: str, row: int, head: str) -> None:
        self._anchors.write(self._database.identity.id, Anchor(name, row, head))

    def _entries(self, name: str, after: int, until: int) -> Iterator[Entry]:
        for seq, record, hashed in self._rows(name, after, until):
            try:
                yield entry_of(record, hashed)
            except (ValueError, LookupError, TypeError):
                raise CheckFailed(f"account {name}: journal row {seq} is not a journal record; see `account verify`") from None

    def _rows(self, name: str, after: int, until: int) -> Iterator[tuple[int, str, str]]:
        """Journal rows in batches, no transaction held between them: rows never change."""
        while after < until:
            with self._database.read() as transaction:
                batch = transaction.rows(accounts.JOURNAL_ROWS, {"account": name, "after": after, "until": until})
            if not batch:
                return
            for row in batch:
                yield row.seq, row.record, row.hash
            after = batch[-1].seq

    def _forget_old_texts(self) -> None:
        now = self._now()
        if now - self._purged >= _PURGE_EVERY * 1e6:
            self._purged = now
            self._write(lambda transaction: reservations.forget_texts(transaction, now - self._retain))


def _seconds(name: str, value: float) -> float:
    if not 0 < value < 1e9:
        raise InvalidInput(name, f"{value} is not a number of seconds; give one above 0")
    return value
