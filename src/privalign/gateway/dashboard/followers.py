"""Reads journals on, a bounded number of rows at a time, and never the same row twice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from privalign.errors import CheckFailed
from privalign.gateway.dashboard.history import History
from privalign.ledger import Account, Ledger

ROWS_AT_A_TIME = 20_000  # about half a second: a long journal is caught up with over several looks at the page
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Followed:
    """An account as it stands, with its journal as far as it was read, and what is wrong with that, if anything."""

    account: Account
    history: History
    fault: str | None

    @property
    def complete(self) -> bool:
        """Whether every row that the account knows of was read and found right."""
        return self.fault is None and self.history.length == self.account.length


class Followers:
    """The histories of all accounts, read once for all who look. Threads may share it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._followers: dict[str, _Follower] = {}

    def look(self, name: str, view: Callable[[Followed], T]) -> T:
        """Reads on, then what `view` makes of it; it may keep nothing of the history, which goes on changing.

        Raises:
            UnknownAccount: no account of that name. LedgerFailed: the ledger cannot be read.
        """
        account = self._ledger.account(name)  # refuses unknown names before anything is kept for them
        with self._lock:
            follower = self._followers.setdefault(account.name, _Follower(self._ledger, account.name))
        return follower.look(view)


class _Follower:
    def __init__(self, ledger: Ledger, name: str) -> None:
        self._ledger = ledger
        self._name = name
        self._lock = threading.Lock()
        self._history = History(name)
        self._fault: str | None = None

    def look(self, view: Callable[[Followed], T]) -> T:
        with self._lock:
            account = self._ledger.account(self._name)  # anew: what another thread has read since is not ahead of it
            if self._fault is None:
                try:
                    self._catch_up(account)
                except CheckFailed as error:
                    self._fault = str(error)
            return view(Followed(account, self._history, self._fault))

    def _catch_up(self, account: Account) -> None:
        missing = account.length - self._history.length
        if missing < 0:
            raise CheckFailed(
                f"account {self._name}: its journal has {account.length} rows and had {self._history.length}; "
                "an older copy of the ledger was put back: count all budget since then as spent"
            )
        if missing > 0:
            for entry in islice(self._ledger.journal(self._name, after=self._history.length), min(missing, ROWS_AT_A_TIME)):
                self._history.add(entry)
        if self._history.length == account.length:
            self._history.check(account.head, account.debited)
        elif missing <= ROWS_AT_A_TIME:
            raise CheckFailed(f"account {self._name}: journal row {self._history.length + 1} is missing")
