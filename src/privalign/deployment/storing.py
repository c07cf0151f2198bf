"""Writes the public range of a reward into the text of a deployment file: four values change, every other byte stays."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import Any

from privalign.errors import InvalidInput

_HEADER = re.compile(r"^[ \t]*\[[^\[\]\n]+\][ \t]*(#.*)?\r?$", re.MULTILINE)
_VALUE = {"range": r"\[[^\]#]*\]", "scale": r"[^\s#]+", "offset": r"[^\s#]+", "range_from": r"[^\s#]+"}


@dataclass(frozen=True, slots=True)
class StoredRange:
    """What a `[rewards.*]` table says about the scores of its model: scale·score + offset, clipped to the range; and whence that is."""

    range: tuple[float, float]
    scale: float
    offset: float
    range_from: str

    def written(self) -> dict[str, str]:
        """Keys and values as TOML, in full precision."""
        low, high = self.range
        written = {"range": f"[{low!r}, {high!r}]", "scale": repr(self.scale), "offset": repr(self.offset)}
        return written | {"range_from": f'"{self.range_from}"'}


def with_range(text: str, name: str, stored: StoredRange, *, replace: bool) -> str:
    """The text of a deployment file with `stored` in its table `[rewards.NAME]`.

    Args:
        text: TOML. replace: whether other values that stand there may go.

    Raises:
        InvalidInput: there is no such table, it brings its own range, it has other values, or it is written in a way that this
        function does not edit.
    """
    field = f"[rewards.{name}]"
    document = tomllib.loads(text)
    table = _table(document, name)
    if table is None:
        raise InvalidInput(field, "no such table; add it with its kind, or give the name of one that is there")
    if table.get("kind") in ("head", "ensemble"):
        raise InvalidInput(field, f"is of kind '{table['kind']}', which has the range of its certificates")
    values = {"range": list(stored.range), "scale": stored.scale, "offset": stored.offset, "range_from": stored.range_from}
    different = sorted(key for key, value in values.items() if key in table and table[key] != value)
    if different and not replace:
        raise InvalidInput(field, f"has another {different[0]} already; give --replace to put the new range in its place")
    edited = _edited(text, name, stored.written())
    table |= values
    if edited is None or _parsed(edited) != document:
        lines = ", ".join(f"{key} = {value}" for key, value in stored.written().items())
        raise InvalidInput(field, f"is written in a way that cannot be edited here; write by hand: {lines}")
    return edited


def _table(document: dict[str, Any], name: str) -> dict[str, Any] | None:
    rewards = document.get("rewards")
    table = rewards.get(name) if isinstance(rewards, dict) else None
    return table if isinstance(table, dict) else None


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _edited(text: str, name: str, written: dict[str, str]) -> str | None:
    """The values put in place of those under the header, or right below it; None without such a header. Not to be trusted unread."""
    quoted = rf"(?:{re.escape(name)}|\"{re.escape(name)}\"|'{re.escape(name)}')"
    headers = list(_HEADER.finditer(text))
    found = [
        number for number, header in enumerate(headers) if re.match(rf"[ \t]*\[[ \t]*rewards[ \t]*\.[ \t]*{quoted}[ \t]*\]", header[0])
    ]
    if not found:
        return None
    start = headers[found[0]].end()
    end = headers[found[0] + 1].start() if found[0] + 1 < len(headers) else len(text)
    body, missing = text[start:end], ""
    newline = "\r\n" if text[:start].endswith("\r") else "\n"
    for key, value in written.items():
        pattern = re.compile(rf"^([ \t]*{key}[ \t]*=[ \t]*){_VALUE[key]}", re.MULTILINE)
        body, count = pattern.subn(lambda match, value=value: match[1] + value, body, count=1)  # type: ignore[misc]
        missing += "" if count else f"{newline}{key} = {value}"
    if newline == "\r\n" and missing:
        missing = missing.removeprefix("\r") + "\r"  # the header's own line ends after its \r
    return text[:start] + missing + body + text[end:]
