"""Every error that privalign raises on purpose.

    PrivalignError
    ├── InvalidInput          a setting or an argument is wrong (exit code 2)
    │   ├── SeveralFaults     more than one setting of a file is wrong; holds all of them
    │   ├── InvalidFile       a line of an input file is wrong; names file, line and remedy
    │   └── InvalidRewards    scores that are not finite numbers, or not as many as asked for
    ├── MissingDependency     an optional part is not installed; names the remedy (exit code 2)
    ├── BudgetExhausted       a query does not fit the budget, and never will (exit code 3)
    │   └── BudgetBusy        only open reservations stand in the way: retry later (exit code 3)
    ├── IdempotencyConflict   a key was used for another request, or its stored answer has expired
    ├── LeaseExpired          a reservation was settled too late: it counts at its worst case for good
    ├── BackendFailed         a policy, a scorer or the ledger's database failed (exit code 4)
    └── CheckFailed           a verification found something wrong (exit code 5)

Messages are one line: the thing, its value, the remedy. They never hold a reward, a losing candidate or noise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_MARKED = re.compile("\ue000([^\ue001]*)\ue001")


def setting(name: str) -> str:
    """The name of a setting in an error's field or message: whoever shows the error spells it, as an option or as the key of a file."""
    return f"\ue000{name}\ue001"


class PrivalignError(Exception):
    """Base of all errors raised on purpose; `str(error)` is one line for people."""


class InvalidInput(PrivalignError, ValueError):
    """A setting is outside its range. `field` names it; `message` says what is wrong with it."""

    field: str
    message: str

    def __init__(self, field: str, message: str) -> None:
        super().__init__()
        self._parts = (field, message)
        self.spell(str)

    def rename(self, field: str) -> None:
        """Says of another field what was said of this one."""
        self._parts = (field, self._parts[1])
        self.spell(str)

    def spell(self, spelling: Callable[[str], str]) -> None:
        """Spells every `setting` in field and message their way who show the error."""
        self.field, self.message = (_MARKED.sub(lambda mark: spelling(mark[1]), part) for part in self._parts)
        self.args = (f"{self.field}: {self.message}",)


class SeveralFaults(InvalidInput):
    """All that is wrong with a file, the first as its own line."""

    def __init__(self, faults: Sequence[InvalidInput], remedy: str) -> None:
        super().__init__(faults[0].field, f"{faults[0].message}; and {len(faults) - 1} more: {remedy}")
        self.faults = tuple(faults)


class InvalidFile(InvalidInput):
    """A file, or one line of it, cannot be used."""

    def __init__(self, path: str, line: int | None, message: str) -> None:
        where = path if line is None else f"{path}, line {line}"
        super().__init__(where, message)
        self.path = path
        self.line = line


class InvalidRewards(PrivalignError, ValueError):
    """The scores handed to a mechanism are unusable; which score and what value is deliberately not said."""


class MissingDependency(PrivalignError, ImportError):
    """An optional part is missing; the message says how to install it."""


class BackendFailed(PrivalignError, RuntimeError):
    """A policy or a reward back-end did not do its work."""


class BudgetExhausted(PrivalignError):
    """The worst case of a query does not fit what is left. Nothing was debited.

    `remaining` and `requested` are ε of the account's guarantee: what is left, and the rise that the query asked for.
    """

    def __init__(self, account: str, remaining: float, requested: float) -> None:
        super().__init__(f"account {account}: budget exhausted, {remaining:.6g} of ε remaining where {requested:.6g} is requested")
        self.account = account
        self.remaining = remaining
        self.requested = requested


class BudgetBusy(BudgetExhausted):
    """The query would fit if open reservations settle below their worst case or are voided: retry later."""

    def __str__(self) -> str:
        return (
            f"account {self.account}: busy, {self.remaining:.6g} of ε remaining where {self.requested:.6g} is requested; "
            "only open reservations stand in the way, retry"
        )


class IdempotencyConflict(PrivalignError):
    """An idempotency key that was used for another request (`mismatch`), or whose stored answer has expired."""

    def __init__(self, message: str, *, mismatch: bool) -> None:
        super().__init__(message)
        self.mismatch = mismatch


class LeaseExpired(PrivalignError):
    """A settle or void came after the lease of its reservation ended; the reservation stays spent at its worst case."""


class CheckFailed(PrivalignError):
    """A verification found something wrong; the message says what and where, `messages` all of it, a line each."""

    def __init__(self, *messages: str) -> None:
        super().__init__(messages[0])
        self.messages = messages


ENDED_BY_SIGNAL = range(129, 193)  # exit codes


def bare(failure: BaseException) -> BaseException:
    """What to raise, outside its handler, in place of a failure whose frames, causes or arguments may hold rewards.

    An error of ours is the same one without all that leads from it to other objects; an interrupt is a new one; of anything else no
    more is said than whether numbers were too extreme.
    """
    match failure:
        case PrivalignError():
            failure.__cause__ = failure.__context__ = None
            return failure.with_traceback(None)
        case KeyboardInterrupt():
            return KeyboardInterrupt()
        case SystemExit():
            return SystemExit(failure.code if failure.code in ENDED_BY_SIGNAL else 1)
        case ArithmeticError():
            return ArithmeticError("numbers too extreme for floats; nothing is said about which, since it may depend on the rewards")
    return RuntimeError("selection failed after rewards were read; nothing is said about why, since it may depend on them")
