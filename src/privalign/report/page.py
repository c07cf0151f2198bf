"""The report as one page: no other file, no address, no script; its figures are part of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from privalign.errors import MissingDependency
from privalign.report.figures import Drawing
from privalign.report.style import inline
from privalign.report.tables import Table


@dataclass(frozen=True, slots=True)
class Section:
    """One study on the page.

    Args:
        notice: with what its numbers rest on. summary: its table in short, if it has one. settings: text as it is shown.
    """

    title: str
    kind: str
    notice: str
    table: Table
    summary: Table | None
    drawings: tuple[Drawing, ...]
    settings: str


def render(sections: Sequence[Section], headline: Table | None, grid: Drawing | None, notice: str) -> str:
    """The page as HTML.

    Args:
        headline: the lifts of all comparisons side by side; grid: their figures side by side (both None without comparisons).

    Raises:
        MissingDependency: Jinja is not installed.
    """
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise MissingDependency("Jinja is not installed; get it with: pip install 'privalign[experiments]'") from None

    def picture(drawing: Drawing) -> Any:
        return Markup(inline(drawing.svg, drawing.name, f"{drawing.title}. {drawing.description}"))  # noqa: S704  # escapes its words

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    return template.render(sections=sections, headline=headline, grid=grid, notice=notice, picture=picture)
