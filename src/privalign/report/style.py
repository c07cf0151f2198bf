"""One look for every figure: a mechanism has the same colour, marker and line in all of them.

Colours are those of Okabe and Ito (told apart with any colour vision), the orange darkened to stand out from white
paper; markers and dashes differ too, so that a print without colours can be read. Rules of composition, which are no
mechanisms, take theirs from Paul Tol's muted scheme.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, Literal

from privalign.errors import MissingDependency

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK: Final = "#1f2328"  # text, axes and the skyline; the page turns it into its own text colour
PAPER: Final = "#ffffff"
GRID: Final = "#8b949e"
DPI: Final = 160
LEGEND_ROW: Final = 0.19  # inches
NOTICE_ROW: Final = 0.13

# what makes two runs write the same bytes: ids of SVG elements from a fixed salt, text as outlines, no mathematics in names from files
_RC: Final[dict[Any, Any]] = {
    "svg.hashsalt": "privalign",
    "svg.fonttype": "path",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",  # ships with matplotlib
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "lines.linewidth": 1.7,
    "lines.markersize": 5.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
}


Dashes = Literal["-", ":", ""] | tuple[int, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Look:
    """How one line is drawn."""

    colour: str
    marker: str
    dashes: Dashes


NAMES: Final[Mapping[str, str]] = {
    "base": "base policy",
    "bon": "BoN",
    "privbon": "PrivBoN",
    "privbon-gaussian": "PrivBoN (Gaussian)",
    "itp": "ITP",
    "itp-reuse": "ITP (reused batch)",
    "privitp": "PrivITP",
}
_SOLID: Final = "-"
_DASHED: Final = (0, (5.0, 2.0))
_DOTTED: Final = (0, (1.2, 1.6))
_DASH_DOT: Final = (0, (6.0, 1.8, 1.2, 1.8))
_LONG: Final = (0, (9.0, 2.5))
_LOOKS: Final[Mapping[str, Look]] = {
    "base": Look("#767676", "_", _DOTTED),
    "bon": Look("#d55e00", "o", _DASHED),
    "privbon": Look("#0072b2", "s", _DASH_DOT),
    "privbon-gaussian": Look("#cc79a7", "D", _DOTTED),
    "itp": Look(INK, "^", _LONG),
    "itp-reuse": Look("#b87a00", "v", _LONG),
    "privitp": Look("#009e73", "P", _SOLID),
    "basic": Look("#cc6677", "o", _DASHED),
    "fsrc": Look("#332288", "s", _SOLID),
    "two-counter": Look("#999933", "^", _DASH_DOT),
    "renyi": Look("#117733", "P", _LONG),
    "authors": Look("#aa4499", "X", _DOTTED),
}
_OTHERS: Final = (
    Look("#44aa99", "h", _SOLID),
    Look("#882255", "<", _DASHED),
    Look("#6699cc", ">", _DASH_DOT),
    Look("#997700", "p", _DOTTED),
    Look("#661100", "*", _LONG),
)
_MARKERS: Final = "osD^vPX<>ph*"
_DASHES: Final[tuple[Dashes, ...]] = (_SOLID, _DASHED, _DASH_DOT, _DOTTED, _LONG)


def look(name: str, variant: int = 0, variants: int = 1, place: int = 0) -> Look:
    """How the line of a mechanism or rule is drawn.

    Args:
        name: its name. place: its place among the lines, for names that are not known.
        variant: which of `variants` lines of this name; they share the hue, the first ones lighter, and differ in marker and dashes.
    """
    plain = _LOOKS.get(name) or _OTHERS[place % len(_OTHERS)]
    if variants == 1:
        return plain
    return Look(_shade(plain.colour, variant / (variants - 1)), _MARKERS[variant % len(_MARKERS)], _DASHES[variant % len(_DASHES)])


def name(value: Any) -> str:
    """A mechanism's name as the paper writes it; another value as it is."""
    return NAMES.get(str(value), str(value))


def _shade(colour: str, place: float) -> str:
    """A shade of the hue that is clear on white and on black, from 0 (lighter) to 1 (the hue itself)."""
    channels = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(channel + 0.45 * (1 - place) * (255 - channel)):02x}" for channel in channels)


def styled() -> Any:
    """A context in which figures are made and written.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise MissingDependency("matplotlib is not installed; get it with: pip install 'privalign[experiments]'") from None
    return matplotlib.rc_context(_RC)


def foot(figure: Figure, notice: str, looks: Mapping[str, Look]) -> None:
    """Below the axes: the legend in as many columns as fit, then the notice, small. The layout keeps their room free.

    A figure grows with a legend of more than three rows.
    """
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.lines import Line2D

    width, height = figure.get_size_inches()
    fitting = max(1, int(width / (0.62 + 0.075 * max(map(len, looks)))))
    rows = math.ceil(len(looks) / fitting)
    words = wrap(notice, int(width * 18))
    height += LEGEND_ROW * max(0, rows - 3) + NOTICE_ROW * max(0, len(words) - 2)
    figure.set_size_inches(width, height)
    strip = NOTICE_ROW * len(words) + 0.08
    figure.text(0.008, 0.03 / height, "\n".join(words), fontsize=6.5, va="bottom", ha="left", linespacing=1.2)
    handles = [Line2D([], [], color=look.colour, marker=look.marker, linestyle=look.dashes) for look in looks.values()]
    columns, where = math.ceil(len(looks) / rows), (0.5, strip / height)
    legend = figure.legend(
        handles, list(looks), loc="lower center", bbox_to_anchor=where, borderaxespad=0.2, ncols=columns, handlelength=3.2
    )
    legend.set_in_layout(False)
    bottom = (strip + LEGEND_ROW * rows + 0.08) / height
    layout = figure.get_layout_engine()
    assert isinstance(layout, ConstrainedLayoutEngine)
    layout.set(rect=(0.0, bottom, 1.0, 1.0 - bottom))


def written(figure: Figure, title: str, description: str) -> tuple[bytes, str]:
    """The figure as PNG and as SVG; both depend on nothing but the figure: no date, no version."""
    png, svg = io.BytesIO(), io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name in a script that the font lacks is drawn as boxes
        figure.savefig(png, format="png", dpi=DPI, metadata={"Software": None, "Title": title, "Description": description})
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": "privalign", "Title": title})
    words = f"<title>{escape(title)}</title>\n <desc>{escape(description)}</desc>"
    return png.getvalue(), re.sub(r"(<svg [^>]*>)", lambda found: f"{found[1]}\n {words}", svg.getvalue(), count=1)


def inline(svg: str, prefix: str, label: str) -> str:
    """An SVG document as an element of a page: ids of its own, colours of the page, and a label for those who hear it.

    Args:
        prefix: unique in the page; every id of the document gets it.
    """
    element = svg[svg.index("<svg ") :]
    element = re.sub(r"\s*<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    element = re.sub(r"\s*<title>.*?</title>\s*<desc>.*?</desc>", "", element, count=1, flags=re.DOTALL)  # the label says it
    element = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', element)
    element = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", element)
    element = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', element)
    element = element.replace(INK, "currentColor").replace(f"fill: {PAPER}", "fill: none")
    element = re.sub(r'(<svg [^>]*?)\s*width="[^"]*"', r"\1", element, count=1)
    element = re.sub(r'(<svg [^>]*?)\s*height="[^"]*"', r"\1", element, count=1)
    return element.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1).rstrip()
