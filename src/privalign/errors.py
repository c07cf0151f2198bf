"""Every error that privalign raises on purpose.

    PrivalignError
    ├── InvalidInput          a setting or an argument is wrong (exit code 2)
    │   ├── InvalidFile       a line of an input file is wrong; names file, line and remedy
    │   └── InvalidRewards    scores that are not finite numbers, or not as many as asked for
    ├── MissingDependency     an optional part is not installed; names the remedy (exit code 2)
    └── BackendFailed         a policy or a scorer failed (exit code 4)

Messages are one line: the thing, its value, the remedy. They never hold a reward, a losing candidate or noise.
"""

from __future__ import annotations


class PrivalignError(Exception):
    """Base of all errors raised on purpose; `str(error)` is one line for people."""


class InvalidInput(PrivalignError, ValueError):
    """A setting is outside its range. `field` names it as the user wrote it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


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
