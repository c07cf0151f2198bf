"""Reserves, settles and writes down what it releases, until it kills itself at a named point. Forked by test_crashes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from privalign.events import GumbelMax
from privalign.ledger import IdempotencyKey, Ledger, Reservation, anchors
from privalign.ledger.anchors import Anchors
from privalign.ledger.database import Database
from privalign.ledger.transaction import Transaction
from privalign.sensitivity import RewardRange, Sensitivity

EVENT = GumbelMax(Sensitivity.of_range(RewardRange(0.0, 1.0)), 10.0, 16)


class Killer:
    """Counts calls of the named functions and ends the process at one of them, without any warning."""

    def __init__(self, point: str) -> None:
        self._point = point
        self._calls: dict[str, int] = {}

    def at(self, name: str) -> None:
        self._calls[name] = self._calls.get(name, 0) + 1
        if f"{name}:{self._calls[name]}" == self._point:
            os.kill(os.getpid(), signal.SIGKILL)

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            self.at(f"{name}:before")
            result = function(*arguments, **named)
            self.at(f"{name}:after")
            return result

        return wrapped


def main(url: str, point: str, released: int) -> None:
    """Args: released: the end of a pipe that gets a line for everything released."""
    ledger = Ledger(url)
    ledger.account("prefs")
    killer = Killer(point)
    inner = Database.write

    @contextmanager
    def write(self: Database) -> Iterator[Transaction]:
        killer.at("begin:before")
        with inner(self) as transaction:
            killer.at("begin:after")
            yield transaction

    Database.write = write  # type: ignore[method-assign]
    Transaction.change = killer.wrap("change", Transaction.change)  # type: ignore[method-assign]
    Transaction.rows = killer.wrap("rows", Transaction.rows)  # type: ignore[method-assign]
    Transaction.commit = killer.wrap("commit", Transaction.commit)  # type: ignore[method-assign]
    Anchors.write = killer.wrap("anchor", Anchors.write)  # type: ignore[method-assign]
    anchors._text = killer.wrap("slot", anchors._text)
    for request in range(10_000):
        key = f"{os.getpid()}-{request}"
        reservation = ledger.reserve("prefs", [EVENT], idempotency=IdempotencyKey("test", key, "body"))
        assert isinstance(reservation, Reservation)
        ledger.settle(reservation, [EVENT], {"text": key})
        os.write(released, f"{reservation.number} {key}\n".encode())
