"""What the value of a setting may be: typed on a command line, or parsed from TOML or JSON."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

LARGEST = 2**62  # of whole numbers: far beyond every use, and still a float


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value.

    Args:
        words: what a value is, as in "'x' is not a whole number of at least 1".
        typed: what the command line makes of the text before `read` sees it: int, float or str.
        read: the value as the settings hold it. Raises ValueError with what is wrong, the value named.
        schema: the JSON Schema of a value.
    """

    words: str
    typed: type
    read: Callable[[Any], Any]
    schema: Mapping[str, Any] = field(default_factory=dict)


def whole(least: int = 1) -> Kind:
    """A whole number of at least `least`."""
    words = f"a whole number of at least {least}"

    def read(value: Any) -> int:
        number = _number(value)
        if number is None or number != int(number) or number < least:
            raise ValueError(f"{brief(value)} is not {words}")
        if number > LARGEST:
            raise ValueError("a whole number that is too large to be meant; give a smaller one")
        return int(number)

    return Kind(words, int, read, {"type": "integer", "minimum": least, "maximum": LARGEST})


def real(*, above: float | None = None) -> Kind:
    """A finite number, above a bound where there is one."""
    words = "a finite number" + ("" if above is None else f" above {above:g}")

    def read(value: Any) -> float:
        number = _number(value)
        if number is None or abs(number) > sys.float_info.max:
            raise ValueError(f"{brief(value)} is not a finite number")
        if above is not None and number <= above:
            raise ValueError(f"{float(number)} is not {words}")
        return float(number)

    return Kind(words, float, read, {"type": "number"} | ({} if above is None else {"exclusiveMinimum": above}))


def text() -> Kind:
    """A word, or words."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(f"{brief(value)} is not a word")
        return value

    return Kind("a word", str, read, {"type": "string"})


def choice(*words: str) -> Kind:
    """One of some words."""
    known = f"one of {', '.join(words)}"
    refused = f"neither {words[0]} nor {words[1]}" if len(words) == 2 else f"not {known}"

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise ValueError(f"{brief(value)} is {refused}")
        return value

    return Kind(known, str, read, {"enum": list(words)})


def flag() -> Kind:
    """True or false."""

    def read(value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError(f"{brief(value)} is not true or false")
        return value

    return Kind("true or false", bool, read, {"type": "boolean"})


def several(kind: Kind, *, none: bool = False) -> Kind:
    """A list of values of a kind, each once, comma-separated where it is typed; empty only where `none` allows it."""

    def read(value: Any) -> tuple[Any, ...]:
        parts = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        parts = parts if isinstance(parts, list | tuple) else [parts]
        if not parts and not none:
            raise ValueError("empty; give at least one value")
        return tuple(dict.fromkeys(map(kind.read, parts)))

    return Kind(f"a list of values, each {kind.words}", str, read, {"type": "array", "items": dict(kind.schema)})


def brief(value: Any) -> str:
    """The value as an error shows it."""
    try:
        shown = repr(value)
    except ValueError:  # a whole number with more digits than Python writes
        shown = "a number with thousands of digits"
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _number(value: Any) -> float | int | None:
    """A finite number, or the one that a text spells; None where it is none. Whole numbers of JSON have any number of digits."""
    if isinstance(value, bool):
        return None
    if type(value) is int:
        return value
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
