"""Where the lines of the chart run: numbers for SVG attributes, no style, no text (that stays HTML and keeps its size)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from privalign.gateway.dashboard.history import Horizon

WIDTH, HEIGHT = 900, 300
AHEAD = 0.5  # of the horizon is shown of the future
ROWS = 12  # of the table beside it, at most


@dataclass(frozen=True, slots=True)
class Chart:
    """Spent ε over time. `area` and `line` are SVG path data; `projection` is one straight line or nothing.

    `rows` are (time, ε, queries) for who cannot see it: a selection, the latest last.
    """

    line: str
    area: str
    projection: str | None
    now: float
    rows: tuple[tuple[datetime, float, int], ...]


def draw(points: list[tuple[datetime, float, int]], total: float, horizon: Horizon, exhausted: datetime | None) -> Chart:
    """The chart of a curve that begins at the horizon and ends now, in a frame of [0, total]."""
    begins, now = points[0][0], points[-1][0]
    ends = now + timedelta(seconds=horizon.seconds * AHEAD)
    span = (ends - begins).total_seconds()

    def x(when: datetime) -> float:
        return round(WIDTH * (when - begins).total_seconds() / span, 2)

    def y(epsilon: float) -> float:
        return round(HEIGHT * (1 - min(1.0, epsilon / total)), 2)

    steps = [f"M{x(begins)} {y(points[0][1])}"]
    for when, epsilon, _ in points[1:]:
        steps.append(f"H{x(when)}V{y(epsilon)}")
    line = "".join(steps)
    projection = None
    if exhausted is not None and exhausted > now:
        seen = min(exhausted, ends)
        reached = points[-1][1] + (total - points[-1][1]) * ((seen - now) / (exhausted - now))
        projection = f"M{x(now)} {y(points[-1][1])}L{x(seen)} {y(reached)}"
    return Chart(line, f"{line}V{HEIGHT}H0Z", projection, x(now), _selection(points))


def _selection(points: list[tuple[datetime, float, int]]) -> tuple[tuple[datetime, float, int], ...]:
    step = -(-len(points) // ROWS)
    return tuple(reversed(points[::-1][::step]))
