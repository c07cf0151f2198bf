"""Figures of a study: one panel each, and the paper's grid of true lift and proxy reward side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Final

from privalign.report import style, wording
from privalign.report.lines import Line, Point, described, facets, lines, off_axes
from privalign.report.plans import PLANS
from privalign.studies.panels import LIFT, PROXY, Axis, Panel
from privalign.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as AxisOfFigure

SIZE: Final = (4.4, 3.6)  # inches: text stays readable when a telephone shows the figure at its full width
MOST_TICKS: Final = 7
EQUALS: Final = "\u00a0=\u00a0"  # a line does not break there
_ROOM_BELOW: Final = 0.12  # of an axis that is linear up to 1: points at 0 are whole
_ROOM_ABOVE: Final = 1.6  # of a logarithmic one: so are the highest, with their error bars
WIDE: Final = 8  # the largest height over the smallest from which on a logarithmic scale helps


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure, written.

    Args:
        name: its file's name without the ending. title: what it shows. caption: what error bars are, and where it comes from.
        description: the figure in words.
    """

    name: str
    title: str
    caption: str
    description: str
    png: bytes
    svg: str


def drawings(study: Study, prefix: str, notice: str) -> Iterator[Drawing]:
    """The figures of one study, as far as its rows hold what they show."""
    for panel in PLANS.get(study.kind, ()):
        if not panel.only(study.settings):
            continue
        parts = facets(panel, study.rows)
        for number, (part, rows) in enumerate(parts, start=1):
            drawn = lines(panel, rows)
            if drawn:
                name = f"{prefix}-{panel.name}" + (f"-{number}" if len(parts) > 1 else "")
                title = f"{panel.title}: {part.replace(' = ', EQUALS)}" if part else panel.title
                missing = off_axes(panel, rows)
                notes = [panel.note, f"{missing} rows off the axes are not drawn" if missing else ""]
                yield _single(panel, drawn, name, title, notice, notes)


def can_compare(study: Study) -> bool:
    """Whether a study has the two panels of the paper's grid."""
    return all(lines(panel, study.rows) for panel in (LIFT, PROXY))


def comparison_grid(studies: Sequence[Study], name: str, notice: str) -> Drawing:
    """True lift (left) and proxy reward (right) against n, one row a study: the layout of the paper's Figures 4 to 9."""
    descriptions: list[str] = []
    looks: dict[str, style.Look] = {}
    title = "True lift and proxy reward against the number of candidates"
    with style.styled():  # says what is missing, so before the import
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8.4, 2.7 * len(studies) + 0.8), layout="constrained")
        grid = figure.subplots(len(studies), 2, squeeze=False)
        for study, pair in zip(studies, grid, strict=True):
            for axes, panel in zip(pair, (LIFT, PROXY), strict=True):
                drawn = lines(panel, study.rows)
                looks |= _draw(axes, panel, drawn)
                descriptions.append(f"{study.title}. {described(panel, drawn)}")
                if study is not studies[-1]:
                    axes.set_xlabel("")
            pair[0].set_title(_wrapped(study.title))
        style.foot(figure, f"{notice}; {LIFT.error_note}", looks)
        description = " ".join(descriptions)
        png, svg = style.written(figure, title, description)
    return Drawing(name, title, LIFT.error_note, description, png, svg)


def _single(panel: Panel, drawn: Sequence[Line], name: str, title: str, notice: str, more: Sequence[str]) -> Drawing:
    points = [point for line in drawn for point in line.points]
    notes = [panel.error_note] if panel.error_note and any(point.error is not None for point in points) else []
    if panel.ringed and any(point.ringed for point in points):
        notes.append(panel.ringed[1])
    notes += filter(None, more)
    description = described(panel, drawn)
    with style.styled():  # says what is missing, so before the import
        from matplotlib.figure import Figure

        figure = Figure(figsize=SIZE, layout="constrained")
        axes = figure.subplots()
        looks = _draw(axes, panel, drawn)
        axes.set_title(_wrapped(title))
        style.foot(figure, "; ".join([notice, *notes]), looks)
        png, svg = style.written(figure, title, description)
    return Drawing(name, title, "; ".join(notes), description, png, svg)


def _draw(axes: Axes, panel: Panel, drawn: Sequence[Line]) -> dict[str, style.Look]:
    """Draws a panel; returns what its legend has to say."""
    looks: dict[str, style.Look] = {}
    if panel.guide == "zero":
        axes.axhline(0, color=style.GRID, linewidth=1)
    for line in drawn:
        points, look = [point for point in line.points if not point.is_level], line.look
        for level in line.points:
            if level.is_level:
                axes.axhline(level.y, color=look.colour, linestyle=look.dashes, linewidth=1.2)
        if not points:
            looks[line.label] = style.Look(look.colour, "", look.dashes)
            continue
        dashes = look.dashes if panel.joined else ""
        looks[line.label] = style.Look(look.colour, look.marker, dashes)
        _draw_line(axes, points, looks[line.label])
        expected = [(point.x, point.expected) for point in points if point.expected is not None]
        if panel.expected and expected:
            axes.plot(*zip(*expected, strict=True), color=look.colour, linestyle=":", linewidth=1.1)
            looks[panel.expected[1]] = style.Look(style.GRID, "", ":")
    _scale(axes, panel.x, sorted({point.x for line in drawn for point in line.points if not point.is_level}), panel.joined)
    _scale_heights(axes, panel.y, [point.y for line in drawn for point in line.points if point.y > 0])
    if panel.guide == "diagonal":
        axes.axline((1.0, 1.0), (2.0, 2.0), color=style.GRID, linewidth=1)
        looks[f"{panel.y.label} = {panel.x.label}"] = style.Look(style.GRID, "", "-")
    axes.set_xlabel(panel.x.label)
    axes.set_ylabel(panel.y.label)
    return looks


def _draw_line(axes: Axes, points: Sequence[Point], look: style.Look) -> None:
    """The points of one line, joined by its dashes, with their error bars and rings."""
    axes.plot([point.x for point in points], [point.y for point in points], color=look.colour, marker=look.marker, linestyle=look.dashes)
    bars = [(point.x, point.y, point.error) for point in points if point.error is not None]
    if bars:
        xs, ys, errors = zip(*bars, strict=True)
        axes.errorbar(
            xs,
            ys,
            yerr=errors,
            fmt="none",
            ecolor=look.colour,
            elinewidth=0.9,
            capsize=2.5,
            alpha=0.8,
        )
    rings = [point for point in points if point.ringed]
    across, up = [point.x for point in rings], [point.y for point in rings]
    axes.scatter(across, up, s=95, facecolors="none", edgecolors=style.INK, linewidths=1.0, zorder=3, clip_on=False)


def _scale(axes: Axes, scale: Axis, values: list[float], ticked: bool) -> None:
    """The scale of x; a logarithmic one has ticks at values that were run, as many as have room."""
    from matplotlib.ticker import NullLocator

    if scale.log is None or not values:
        return
    axes.set_xscale("log", base=scale.log)
    if not ticked:
        _log_ticks(axes.xaxis, scale.log)
        return
    apart = math.log(values[-1] / values[0]) / (MOST_TICKS + 0.5)
    chosen = values[:1]
    for value in values[1:]:
        if math.log(value / chosen[-1]) >= apart:
            chosen.append(value)
        elif value == values[-1] and len(chosen) > 1:  # both ends are named
            chosen[-1] = value
    axes.set_xticks(chosen, [wording.number(value) for value in chosen])
    axes.xaxis.set_minor_locator(NullLocator())


def _scale_heights(axes: Axes, scale: Axis, values: list[float]) -> None:
    """The scale of y: logarithmic where it may be and heights differ enough for it to help."""
    from matplotlib.ticker import FuncFormatter, NullLocator, SymmetricalLogLocator

    if scale.log is None or not values or max(values) < WIDE * min(values):
        return
    if not scale.zero:
        axes.set_yscale("log", base=scale.log)
        _log_ticks(axes.yaxis, scale.log)
        return
    axes.set_yscale("symlog", base=scale.log, linthresh=1, linscale=0.5)
    axes.set_ylim(-_ROOM_BELOW, max(values) * _ROOM_ABOVE)
    axes.yaxis.set_major_locator(SymmetricalLogLocator(base=scale.log, linthresh=1, subs=(1.0, 2.0, 5.0) if max(values) < 1000 else (1.0,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: wording.number(value)))
    axes.yaxis.set_minor_locator(NullLocator())


def _log_ticks(axis: AxisOfFigure, base: int) -> None:
    """Plain numbers on a logarithmic axis: at powers of the base, and at 2 and 5 times them where few powers are in view."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    few = base == 10 and high / low < 300
    axis.set_major_locator(LogLocator(base, subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=5))
    axis.set_major_formatter(FuncFormatter(lambda value, _: wording.number(value)))
    axis.set_minor_locator(NullLocator())


def _wrapped(title: str) -> str:
    return "\n".join(wrap(title, 46, max_lines=3, placeholder=" …"))
