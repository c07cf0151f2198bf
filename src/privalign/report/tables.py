"""Tables of a study as Markdown, CSV, LaTeX and cells of a page."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from privalign.report import style, wording
from privalign.report.lines import BASE
from privalign.studies.panels import finite
from privalign.studies.study import Study

LONGEST_FLOAT: Final = 40  # rows of a LaTeX table that is not broken over pages
WIDEST_FLOAT: Final = 8  # columns of one that is as wide as they are
WIDEST_LINE: Final = 75  # characters of such a line, with its gaps
_PARTS: Final = ("mc_se_pp", "gap_se")


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, and whether it holds numbers (they are aligned to the right)."""

    heading: str
    numeric: bool


@dataclass(frozen=True, slots=True)
class Table:
    """A table for people: every cell is its text; numbers rounded, ε upward."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    cells: tuple[tuple[str, ...], ...]


def table_of(study: Study, name: str) -> Table:
    """All rows of a study; a mean and its standard error or deviation share a column; columns without any value are left out.

    So are parts of an error that stands there whole: CSV has them.
    """
    keys = [key for key in keys_of(study.rows) if key not in _PARTS and any(row.get(key) is not None for row in study.rows)]
    errors = {key: error for key in keys if (error := _error_of(key, keys)) is not None}
    shown = [key for key in keys if key not in errors.values()]
    columns = tuple(
        Column(f"{wording.heading(key)} ± {_spread(errors[key])}" if key in errors else wording.heading(key), _is_numeric(study.rows, key))
        for key in shown
    )
    decimals = {key: _decimals(study.rows, error) for key, error in errors.items()}
    cells = tuple(tuple(_cell(row, key, errors.get(key), decimals.get(key)) for key in shown) for row in study.rows)
    return Table(name, _caption(study), columns, cells)


def headline(studies: Sequence[Study], name: str) -> Table | None:
    """Lift ± standard error at the largest n, one row a study and one column a mechanism: the layout of the paper's Tables 1 to 3.

    With ITP and PrivITP in a study, also the share of the skyline (ITP's lift) that PrivITP recovers, with its error where the study
    tells it.
    """
    tops = [(study.title, *top) for study in studies if (top := _top(study)) is not None]
    if not tops:
        return None
    mechanisms = _mechanisms(row for _, _, rows in tops for row in rows.values())
    skyline = {"itp", "privitp"} <= set(mechanisms)
    columns = [Column("study", False), Column("n", True), *(Column(style.name(mechanism), True) for mechanism in mechanisms)]
    if skyline:
        columns.append(Column("PrivITP / ITP (%)", True))
    decimals = _decimals([row for _, _, rows in tops for row in rows.values()], "lift_se_pp")
    cells = []
    for title, n, rows in tops:
        lifts = [_cell(rows.get(mechanism, {}), "lift_pp", "lift_se_pp", decimals) for mechanism in mechanisms]
        cells.append((title, wording.number(int(n)), *lifts, *([_share(rows)] if skyline else [])))
    caption = (
        "Lift in true reward over the base policy at the largest n at which most mechanisms were measured "
        "(percentage points, mean ± standard error over prompts)"
    )
    return Table(name, caption, tuple(columns), tuple(cells))


def _top(study: Study) -> tuple[float, dict[str, Mapping[str, Any]]] | None:
    """The largest n of those at which most mechanisms have a lift, and their rows; None where none has."""
    found: dict[float, dict[str, Mapping[str, Any]]] = {}
    for row in study.rows:
        n, mechanism = finite(row.get("n")), str(row.get("mechanism"))
        if n is not None and mechanism != BASE and finite(row.get("lift_pp")) is not None:
            found.setdefault(n, {})[mechanism] = row
    return max(found.items(), key=lambda item: (len(item[1]), item[0]), default=None)


def by_mechanism(study: Study, name: str) -> Table | None:
    """What a comparison or a table of win rates is about, one row an n and one column a mechanism: the layout of the paper's Table 4.

    None for other studies, and where a mechanism has several rows for an n.
    """
    if study.kind not in _BY_MECHANISM:
        return None
    key, error, what = _BY_MECHANISM[study.kind]
    rows = [row for row in study.rows if finite(row.get(key)) is not None and finite(row.get("n")) is not None]
    decimals = _decimals(rows, error)
    cells = {(str(row.get("mechanism")), row["n"]): _cell(row, key, error, decimals) for row in rows}
    mechanisms = _mechanisms(rows)
    if not mechanisms or len(cells) < len(rows):
        return None
    columns = (Column("n", True), *(Column(style.name(mechanism), True) for mechanism in mechanisms))
    sizes = sorted({n for mechanism, n in cells if mechanism in mechanisms})
    body = tuple((wording.number(n), *(cells.get((mechanism, n), wording.NONE) for mechanism in mechanisms)) for n in sizes)
    return Table(name, f"{_caption(study)}: {what}", columns, body)


_BY_MECHANISM: Final[Mapping[str, tuple[str, str, str]]] = {
    "comparison": ("lift_pp", "lift_se_pp", "lift over the base policy (percentage points ± standard error over prompts)"),
    "win-rate": ("gold_win_rate", "gold_win_rate_se", "gold win rate over the base policy (± standard error over prompts)"),
}


def _mechanisms(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The mechanisms of rows in the order of the paper, then the others; the base policy, which everything is compared with, left out."""
    present = {str(row.get("mechanism")) for row in rows} - {BASE}
    return [mechanism for mechanism in style.NAMES if mechanism in present] + sorted(present - set(style.NAMES))


def _caption(study: Study) -> str:
    """The study's title, and what its numbers rest on."""
    rests_on = wording.terms(study.settings)
    return f"{study.title} ({rests_on})" if rests_on else study.title


def keys_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys of all rows, in the order in which they first appear."""
    return list(dict.fromkeys(key for row in rows for key in row))


def to_csv(study: Study, notice: str) -> str:
    """Every value in full precision, a missing one empty, under a comment line with the notice."""
    keys = keys_of(study.rows)
    return _csv(
        notice,
        [keys, *(["" if row.get(key) is None else _full(row[key]) for key in keys] for row in study.rows)],
    )


def table_to_csv(table: Table, notice: str) -> str:
    """A table's cells as they are shown, under a comment line with the notice."""
    return _csv(notice, [[column.heading for column in table.columns], *table.cells])


def _csv(notice: str, rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    text.write(f"# {_one_line(notice)}\n")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def to_markdown(table: Table, notice: str) -> str:
    """A pipe table under its caption and the notice."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(markdown(cell) for cell in cells) + " |"

    rule = "|" + "|".join("---:" if column.numeric else "---" for column in table.columns) + "|"
    body = [line([column.heading for column in table.columns]), rule, *(line(row) for row in table.cells)]
    return "\n".join([f"**{markdown(table.caption)}**", "", f"*{markdown(notice)}*", "", *body, ""])


def to_latex(table: Table, notice: str) -> str:
    """A table of the booktabs package; one longer than a page is a longtable, a wide one is scaled to the line. Text is escaped."""
    columns = "".join("r" if column.numeric else "l" for column in table.columns)
    head = " & ".join(latex(column.heading) for column in table.columns) + r" \\"
    body = [" & ".join(latex(cell) for cell in row) + r" \\" for row in table.cells]
    caption = rf"\caption{{{latex(table.caption)} ({latex(notice)})}}\label{{tab:{table.name}}}"
    needed = ["booktabs"]
    if len(table.cells) > LONGEST_FLOAT:
        needed.append("longtable")
        lines = [
            rf"\begin{{longtable}}{{{columns}}}",
            rf"{caption} \\",
            *(r"\toprule", head, r"\midrule", r"\endfirsthead"),
            *(r"\toprule", head, r"\midrule", r"\endhead"),
            *(r"\bottomrule", r"\endlastfoot"),
            *body,
            r"\end{longtable}",
        ]
    else:
        lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
        if len(table.columns) > WIDEST_FLOAT or _line_width(table) > WIDEST_LINE:
            needed.append("graphicx")
            lines = [r"\resizebox{\linewidth}{!}{%", *lines, "}"]
        lines = [r"\begin{table}", r"\centering", caption, *lines, r"\end{table}"]
    return "\n".join([f"% {_one_line(notice)}", rf"% needs \usepackage{{{','.join(needed)}}}", *lines, ""])


def _line_width(table: Table) -> int:
    """Characters of a table's line, each column as wide as its widest cell and a gap."""
    rows = [[column.heading for column in table.columns], *table.cells]
    return sum(2 + max(len(row[number]) for row in rows) for number in range(len(table.columns)))


_LATEX: Final = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    **{character: "\\" + character for character in "{}$&#_%"},
    **{character: f"${command}$" for character, command in {
        "ε": r"\varepsilon", "δ": r"\delta", "σ": r"\sigma", "β": r"\beta", "λ": r"\lambda", "ρ": r"\rho", "Δ": r"\Delta", "α": r"\alpha",
        "±": r"\pm", "−": "-", "∞": r"\infty", "×": r"\times", "≤": r"\le", "≥": r"\ge", "→": r"\to", "²": "^2", "₁": "_1", "₂": "_2",
    }.items()},
    "–": "--",
    "…": r"\dots{}",
}  # fmt: skip
_SPECIAL: Final = re.compile("|".join(re.escape(character) for character in _LATEX))


def markdown(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*<>|\[\]])", r"\\\1", _one_line(text))


def latex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return _SPECIAL.sub(lambda found: _LATEX[found[0]], _one_line(text))


def _error_of(key: str, keys: Sequence[str]) -> str | None:
    """The key of a column's standard error or deviation: true_mean has true_se, lift_pp lift_se_pp, answered_mean answered_sd."""
    words = key.split("_")
    stem, unit = (words[:-1], words[-1:]) if words[-1] in ("pp", "percent") else (words, [])
    stems = [stem, stem[:-1]] if stem[-1] == "mean" else [stem]
    candidates = ("_".join([*stem, spread, *unit]) for stem in stems for spread in ("se", "sd"))
    return next((candidate for candidate in candidates if candidate in keys), None)


def _spread(key: str) -> str:
    return "SD" if "sd" in key.split("_") else "SE"


def _is_numeric(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    return all(isinstance(row.get(key), int | float | None) and not isinstance(row.get(key), bool) for row in rows)


def _cell(row: Mapping[str, Any], key: str, error: str | None, decimals: int | None) -> str:
    value, spread = finite(row.get(key)), finite(row.get(error)) if error else None
    if value is not None and spread is not None:
        return wording.with_error(value, spread, decimals)
    return wording.cell(key, row.get(key))


def _decimals(rows: Iterable[Mapping[str, Any]], error: str) -> int | None:
    """To how many decimals a column with these errors is told."""
    return wording.decimals_of(spread for row in rows if (spread := finite(row.get(error))) is not None)


def _share(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """PrivITP's lift in per cent of ITP's; none where the skyline is not above the base policy."""
    told = rows.get("privitp", {})
    if finite(told.get("recovered_percent")) is not None:
        return _cell(told, "recovered_percent", "recovered_se_percent", None)
    skyline, private = (finite(rows.get(mechanism, {}).get("lift_pp")) for mechanism in ("itp", "privitp"))
    return wording.NONE if skyline is None or private is None or skyline <= 0 else f"{100 * private / skyline:.1f}"


def _full(value: Any) -> Any:
    return value if isinstance(value, int | float) else wording.cell("", value)


def _one_line(text: str) -> str:
    return " ".join(text.split())
