"""Reading one TOML table: every value checked, every error with its table, key, value and remedy; secrets by reference."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from privalign.errors import InvalidFile, InvalidInput
from privalign.http_client import check_proxy, has_password
from privalign.sensitivity import RewardRange

_REQUIRED: Any = object()
Made = TypeVar("Made")


class Table:
    """One table of the file. Every reading method names the key in its error; `close` refuses keys that nobody read.

    With a list of `faults` what does not end the reading is put there, and the default read in its place: whoever gives the list must
    refuse the file if it is not empty in the end. Without one every fault is raised.
    """

    def __init__(self, file: Path, name: str, values: Mapping[str, Any], faults: list[InvalidInput] | None = None) -> None:
        self.file = file
        self._faults = faults
        self.name = name
        self._values = values
        self._read: set[str] = set()

    def wrong(self, key: str, message: str) -> InvalidInput:
        """The error of one key."""
        return InvalidInput(f"{self.file}: [{self.name}] {key}", message)

    def refuse(self, fault: InvalidInput) -> None:
        """Raises the fault, or puts it to the others."""
        if self._faults is None:
            raise fault
        self._faults.append(fault)

    def confirm(self, key: str, what: str) -> None:
        """Refuses a key that is not true: `what` is the operator's word."""
        self._read.add(key)
        if self._values.get(key) is not True:
            value = self._values.get(key, False)
            state = "must be true" if value is False else f"{value!r} is not true"
            self.refuse(self.wrong(key, f"{'' if key in self._values else 'missing; '}{state}: confirm that {what}"))

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        return key in self._values

    def mentions(self, key: str, names: Collection[str]) -> bool:
        """Whether the key is one of some names, or a list that holds one."""
        value = self._values.get(key)
        return any(name in (value if isinstance(value, list) else [value]) for name in names)

    def has_table(self, key: str) -> bool:
        """Whether the key is there and is a table."""
        return isinstance(self._values.get(key), dict)

    def is_word(self, key: str, word: str) -> bool:
        """Whether the key is absent, or just this word."""
        self._read.add(key)
        return bool(self._values.get(key, word) == word)

    def text(self, key: str, default: Any = _REQUIRED) -> Any:
        """A string."""
        return self._typed(key, default, lambda value: isinstance(value, str) and bool(value), "a string")

    def choice(self, key: str, choices: tuple[str, ...], default: Any = _REQUIRED) -> Any:
        """One of some words."""
        return self._typed(key, default, lambda value: value in choices, f"one of {', '.join(choices)}")

    def number(self, key: str, default: Any = _REQUIRED) -> Any:
        """A finite number."""

        value = self._typed(key, default, _finite, "a finite number")
        return None if value is None else float(value)

    def duration(self, key: str, default: Any = _REQUIRED, *, least: float = 1e-3) -> Any:
        """A number of seconds."""
        return self._typed(key, default, lambda value: _finite(value) and value >= least, f"a number of seconds of at least {least:g}")

    def whole(self, key: str, default: Any = _REQUIRED) -> Any:
        """A whole number of at least 1."""
        return self._typed(key, default, lambda value: type(value) is int and value >= 1, "a whole number of at least 1")

    def index(self, key: str, default: Any = _REQUIRED) -> Any:
        """A whole number of at least 0."""
        return self._typed(key, default, lambda value: type(value) is int and value >= 0, "a whole number of at least 0")

    def flag(self, key: str, default: Any = _REQUIRED) -> Any:
        """true or false."""
        return self._typed(key, default, lambda value: isinstance(value, bool), "true or false")

    def names(self, key: str, default: Any = _REQUIRED) -> tuple[str, ...]:
        """A list of strings."""

        def strings(value: Any) -> bool:
            return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)

        return tuple(self._typed(key, default, strings, "a list of names"))

    def unchecked(self, keys: tuple[str, ...]) -> dict[str, Any]:
        """Those of the keys that are there, with their values unchecked."""
        self._read.update(keys)
        return {key: self._values[key] for key in keys if key in self._values}

    def path(self, key: str, default: Any = _REQUIRED) -> Path | None:
        """A file, relative to the deployment file."""
        value = self.text(key, default)
        return None if value is None else self.file.parent / value

    def mapping(self, key: str, default: Any = _REQUIRED) -> dict[str, Any]:
        """A table, as it is."""
        return dict(self._typed(key, default, lambda value: isinstance(value, dict), "a table"))

    def table(self, key: str) -> Table:
        """A table to be read further."""
        return Table(self.file, f"{self.name}.{key}", self.mapping(key), self._faults)

    def range(self, key: str) -> RewardRange:
        """A pair of numbers, the lower one first."""

        def pair(value: Any) -> bool:
            return isinstance(value, list) and len(value) == 2 and all(map(_finite, value))

        low, high = self._typed(key, _REQUIRED, pair, "a pair of numbers [LO, HI]")
        with self.naming(key):
            return RewardRange(float(low), float(high))

    def secret(self, key: str) -> str | None:
        """The name of a secret, `env:NAME` or `file:PATH`, relative to the deployment file; a secret itself is refused, unrepeated."""
        self._read.add(key)
        if key not in self._values:
            return None
        value = self._values[key]
        if not (isinstance(value, str) and value.startswith(("env:", "file:")) and value.partition(":")[2]):
            self.refuse(self.wrong(key, "is not a reference; write env:NAME or file:PATH, never the secret itself"))
            return None
        kind, _, name = value.partition(":")
        return value if kind == "env" else f"file:{self.file.parent / name}"

    def proxy(self) -> str | None:
        """The URL of a proxy, or a reference to it, where it holds a password; `resolve_proxy` reads it."""
        url: str | None = self.text("proxy", None)
        if url is None or url.startswith(("env:", "file:")):
            return self.secret("proxy")
        if has_password(url):
            raise self.wrong("proxy", "holds a user name or a password; keep the URL elsewhere and write env:NAME or file:PATH")
        with self.naming("proxy"):
            check_proxy(url)
        return url

    @contextmanager
    def naming(self, key: str | None = None) -> Iterator[None]:
        """Puts file, table and key before what goes wrong with a setting.

        The key is the one that the error names, where this table has it; else `key`; without one the table alone.
        """
        try:
            yield
        except InvalidFile:
            raise
        except InvalidInput as error:
            named = error.field.replace("-", "_")  # some are called like options
            if named in self._read:
                raise self.wrong(named, error.message) from None
            raise InvalidInput(f"{self.file}: [{self.name}]" + ("" if key is None else f" {key}"), str(error)) from None

    def located(self, make: Callable[[], Made]) -> Callable[[], Made]:
        """The same function, which puts the table before what it finds wrong with a setting."""

        def made() -> Made:
            with self.naming():
                return make()

        return made

    def close(self) -> None:
        """Refuses what was not read: a mistyped key must not be ignored."""
        for key in sorted(set(self._values) - self._read):
            near = difflib.get_close_matches(key, self._read, 1)
            meant = f" (is it '{near[0]}'?)" if near else ""
            self.refuse(self.wrong(key, f"no such key here{meant}; known are {', '.join(sorted(self._read))}"))

    def _typed(self, key: str, default: Any, fits: Callable[[Any], bool], kind: str) -> Any:
        self._read.add(key)
        if key not in self._values:
            if default is _REQUIRED:
                near = difflib.get_close_matches(key, set(self._values) - self._read, 1)
                raise self.wrong(key, f"missing; give {kind}" + (f" (is it '{near[0]}'?)" if near else ""))
            return default
        value = self._values[key]
        if fits(value):
            return value
        fault = self.wrong(key, f"{value!r} is not {kind}")
        if default is _REQUIRED:
            raise fault
        self.refuse(fault)
        return default


def _finite(value: Any) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:  # a whole number with hundreds of digits
        return False


def resolve_proxy(proxy: str | None) -> str | None:
    """The URL of a proxy that `Table.proxy` read.

    Raises:
        InvalidInput: there is nothing behind the reference.
    """
    return resolve_secret(proxy) if proxy is not None and proxy.startswith(("env:", "file:")) else proxy


def resolve_secret(reference: str | None) -> str | None:
    """The secret behind `env:NAME` or `file:PATH`.

    Raises:
        InvalidInput: the variable is not set, or the file cannot be read.
    """
    if reference is None:
        return None
    kind, _, name = reference.partition(":")
    if kind == "env":
        value = os.environ.get(name)
        if not value:
            raise InvalidInput(reference, f"the environment variable {name} is not set; set it")
        return value
    try:
        return Path(name).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise InvalidInput(reference, "the file of the secret cannot be read; check its path and permissions") from None
