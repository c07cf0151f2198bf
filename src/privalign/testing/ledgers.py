"""A ledger that is gone when its test ends."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

from privalign.accounting.rules import make_rule
from privalign.ledger import Ledger


@contextlib.contextmanager
def passing_ledger(account: str = "prefs", epsilon: float = 50.0, delta: float = 1e-6) -> Iterator[Ledger]:
    """A ledger in a folder of its own, with one account under rule `renyi`; both are gone when the block ends."""
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Ledger(f"sqlite:///{folder}/ledger.db")) as ledger:
        ledger.create_account(account, make_rule("renyi", epsilon, delta))
        yield ledger
