"""From rows to lines: which rows make one line, what it is called and how it looks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from privalign.report import style, wording
from privalign.studies.panels import LARGEST, SERIES, Axis, Panel, Row, finite

# what tells settings apart when one table holds several: the lines of a figure differ in the first ones that vary
DIMENSIONS: Final = (
    *("sigma", "beta", "scale", "spread", "error", "sensitivity", "delta", "n"),
    *("reward", "task", "policy", "model", "protocol", "split"),
)
BASE: Final = "base"
_ERROR: Final = "error of the series"  # the other one
LONGEST: Final = 48  # characters of a line's name


@dataclass(frozen=True, slots=True)
class Point:
    """`error` is half an error bar, `expected` the theory's height: None where there is none. x is NaN for a level."""

    x: float
    y: float
    error: float | None
    expected: float | None
    ringed: bool

    @property
    def is_level(self) -> bool:
        """Whether it stands for every x."""
        return math.isnan(self.x)


@dataclass(frozen=True, slots=True)
class Line:
    """Points in the order of x, at least one."""

    label: str
    look: style.Look
    points: tuple[Point, ...]


def facets(panel: Panel, rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """The rows in groups that are drawn apart, each with its name ("" for a single one): at most one row a line and x."""
    rows = _long(panel, rows)
    placed = [row for row in rows if not _is_level(panel, row, rows)]
    keys = [key for key in panel.apart if len({_plain(row.get(key)) for row in placed}) > 1] + _varying(panel, rows)[1:]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in placed:
        groups.setdefault(tuple(_plain(row.get(key)) for key in keys), []).append(row)
    levels = [row for row in rows if _is_level(panel, row, rows)]
    return [(_named(keys, group), levels + members) for group, members in groups.items()]


def lines(panel: Panel, rows: Sequence[Row]) -> list[Line]:
    """The lines of a panel, in the order in which they first appear; empty where nothing can be drawn."""
    rows = _long(panel, rows)
    keys = (*panel.by, *_varying(panel, rows)[:1])
    groups: dict[tuple[Any, ...], list[Point]] = {}
    for row in rows:
        point = _point(panel, row, _is_level(panel, row, rows))
        if point is not None:
            groups.setdefault(tuple(_plain(row.get(key)) for key in keys), []).append(point)
    heads = list(dict.fromkeys(group[0] for group in groups))
    result = []
    for group, points in groups.items():
        family = [other for other in groups if other[0] == group[0]]
        look = style.look(str(group[0]), family.index(group), len(family), heads.index(group[0]))
        telling = [i for i in range(1, len(keys)) if len({other[i] for other in family}) > 1]
        label = _named([keys[i] for i in telling], [group[i] for i in telling])
        label = ", ".join(part for part in (wording.cell("mechanism", group[0]), label) if part)
        result.append(Line(_short(label), look, tuple(sorted(points, key=lambda point: point.x))))
    return result


def off_axes(panel: Panel, rows: Sequence[Row]) -> int:
    """How many rows have numbers for both axes and no place on them."""
    rows = _long(panel, rows)
    numbers = (row for row in rows if finite(row.get(panel.x.key)) is not None and finite(row.get(panel.y.key)) is not None)
    return sum(_point(panel, row, _is_level(panel, row, rows)) is None for row in numbers)


def described(panel: Panel, drawn: Sequence[Line]) -> str:
    """The panel in words, for those who cannot see it."""

    def at(point: Point) -> str:
        height = wording.number(point.y, panel.y.key)
        return f"{height} throughout" if point.is_level else f"{height} at {wording.number(point.x, panel.x.key)}"

    sentences = [f"{panel.y.label} against {panel.x.label}."]
    for line in drawn:
        first, last, top = line.points[0], line.points[-1], max(line.points, key=lambda point: point.y)
        words = [at(first)] if first is last else [at(first), at(last)]
        if top.y > max(first.y, last.y):
            words.append(f"highest {at(top)}")
        sentences.append(f"{line.label}: {', '.join(words)}.")
    return " ".join(sentences)


def _long(panel: Panel, rows: Sequence[Row]) -> Sequence[Row]:
    """One row a point: rows with several lines' columns are taken apart."""
    if not panel.wide or any(SERIES in row for row in rows):
        return rows
    return [
        {
            **row,
            "mechanism": wide.mechanism,
            SERIES: wide.series,
            panel.y.key: row.get(wide.key),
            _ERROR: row.get(wide.error or ""),
        }
        for wide in panel.wide
        for row in rows
    ]


def _point(panel: Panel, row: Row, is_level: bool) -> Point | None:
    x = math.nan if is_level else _drawable(panel.x, finite(row.get(panel.x.key)))
    y = _drawable(panel.y, panel.read(row) if panel.read else finite(row.get(panel.y.key)))
    if x is None or y is None:
        return None
    error = finite(row.get(_ERROR if panel.wide else panel.error or ""))
    expected = _drawable(panel.y, finite(row.get(panel.expected[0]))) if panel.expected else None
    ringed = panel.ringed is not None and bool(row.get(panel.ringed[0]))
    return Point(x, y, None if error is None or not 0 <= error <= LARGEST else error, expected, ringed)


def _drawable(axis: Axis, value: float | None) -> float | None:
    """The value, or None where it has no place on the axis."""
    if value is None or abs(value) > LARGEST or value > axis.most or (axis.log and value < (0 if axis.zero else 1 / LARGEST)):
        return None
    return value


def _is_level(panel: Panel, row: Row, rows: Sequence[Row]) -> bool:
    if panel.levels and row.get(panel.x.key) is None:
        return True
    return row.get("mechanism") == BASE and len(rows) > 1 and sum(other.get("mechanism") == BASE for other in rows) == 1


def _named(keys: Sequence[str], values: Sequence[Any]) -> str:
    """Settings in words; a column that is a line of its own brings its name with it."""
    pairs = zip(keys, values, strict=True)
    return ", ".join(str(value) if key == SERIES else f"{wording.heading(key)} = {wording.cell(key, value)}" for key, value in pairs)


def _short(label: str) -> str:
    """A line's name that a legend has room for, with both its ends."""
    return label if len(label) <= LONGEST else f"{label[: LONGEST // 2]}…{label[-LONGEST // 2 + 1 :]}"


def _varying(panel: Panel, rows: Sequence[Row]) -> list[str]:
    """Settings that differ between rows of the same line and x: the first tells lines apart, the others figures."""
    if not panel.joined:
        return []
    taken = {panel.x.key, panel.y.key, *panel.by, *panel.apart}
    seen: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        seen.setdefault(tuple(_plain(row.get(key)) for key in (*panel.by, *panel.apart, panel.x.key)), []).append(row)
    return [
        key for key in DIMENSIONS if key not in taken and any(len({_plain(row.get(key)) for row in group}) > 1 for group in seen.values())
    ]


def _plain(value: Any) -> Any:
    """A value that can be compared, hashed and shown."""
    return value if isinstance(value, int | float | None) else wording.cell("", value)
