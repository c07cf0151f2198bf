"""From studies to the files of a report: which sections, in which order, under which names."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from privalign.errors import InvalidFile, InvalidInput
from privalign.evaluation.draws import DRAWS
from privalign.files import PUBLIC, prepared, put
from privalign.report import figures, page, tables, wording
from privalign.studies.runs import STUDIES, stale
from privalign.studies.study import NOTICE, Study, read_study

Progress = Callable[[int, int], None]

PAGE: Final = "report.html"
FILES: Final = "files.json"  # what the last report in a folder consists of, so that the next one leaves nothing of it behind


def _silent(done: int, total: int) -> None:
    """Nobody watches."""


def read_studies(paths: Sequence[Path]) -> list[Study]:
    """The studies of files and of folders (all JSON files below one that hold a study), in the order given, files of a folder by name.

    Stale studies of a folder's runs are left out. Where several have one title, each also gets the part of its file's name that
    tells them apart.

    Raises:
        InvalidFile: a file is no study, or a folder has none.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            documents = _documents(path)
            left_out = set(stale(documents))
            found = [file for file in documents if file not in left_out]
            if not found:
                raise InvalidFile(
                    str(path), None, "no study's document in this folder; run `privalign evaluate` or `privalign study` into it first"
                )
            files += found
        else:
            files.append(path)
    studies = {file: _checked(file) for file in files}
    return [
        _told_apart(file, study, [other for other, its in studies.items() if its.title == study.title]) for file, study in studies.items()
    ]


def stale_studies(paths: Sequence[Path]) -> list[Path]:
    """What `read_studies` leaves out of the folders among the paths: studies that are no longer part of their run."""
    return [file for path in paths if path.is_dir() for file in stale(_documents(path)) if file not in paths]


def _documents(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.rglob("*.json")) if _is_study(file)]


def _told_apart(file: Path, study: Study, same: Sequence[Path]) -> Study:
    """The study with a title that no other one has; `same`: the files of all studies with its title."""
    if len(same) == 1:
        return study
    root = os.path.commonpath([other.absolute().parent for other in same])
    parts = [part for part in file.absolute().relative_to(root).with_suffix("").parts if part != STUDIES]
    return replace(study, title=f"{study.title}: {_cleaned('/'.join(parts))}")


def report_files(studies: Sequence[Study], progress: Progress = _silent) -> Iterator[tuple[str, bytes]]:
    """Every file of the report, name and content, the page last. The same studies give the same bytes.

    Raises:
        InvalidInput: there is no study. MissingDependency: matplotlib or Jinja is not installed.
    """
    if not studies:
        raise InvalidInput("studies", "none given; name the files that `privalign evaluate --out` wrote, or their folder")
    sections = []
    steps = len(studies) + 1
    for number, study in enumerate(studies, start=1):
        progress(number - 1, steps)
        notice, name = notice_of(study), f"{number:02d}-{_slug(study.kind)}"
        full = "; ".join(dict.fromkeys(f"{notice}; {wording.terms(study.settings)}".strip("; ").split("; ")))
        drawn = list(figures.drawings(study, name, full))
        table, summary = tables.table_of(study, name), tables.by_mechanism(study, f"{name}-by-mechanism")
        yield from _table_files(table, notice)
        yield f"{name}.csv", tables.to_csv(study, notice).encode()
        if summary is not None:
            yield from _summary_files(summary, notice)
        for drawing in drawn:
            yield from _figure_files(drawing)
        settings = json.dumps({"settings": dict(study.settings), "seconds": study.seconds}, indent=1, ensure_ascii=False)
        sections.append(page.Section(study.title, study.kind, full, table, summary, tuple(drawn), settings))
    progress(len(studies), steps)
    compared = [study for study in studies if study.kind == "comparison" and figures.can_compare(study)]
    headline = tables.headline(compared, "00-headline")
    grid = None
    if headline is not None:
        notice = notice_of(*compared)
        yield from _summary_files(headline, notice)
        grid = figures.comparison_grid(compared, "00-comparison-grid", notice)
        yield from _figure_files(grid)
    yield PAGE, page.render(sections, headline, grid, notice_of(*studies)).encode()
    progress(steps, steps)


def write_report(studies: Sequence[Study], folder: Path, progress: Progress = _silent) -> list[Path]:
    """Writes the report into a folder, made where it is missing; returns the paths of its files, the page first.

    All files are made before the first one takes its place; those of an earlier report there go, other files stay.

    Raises:
        InvalidInput: there is no study, or the folder cannot be written to. MissingDependency: as `report_files`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with prepared({folder / FILES: b""}):  # refuses a place before long work
            contents = dict(report_files(studies, progress))
        names = sorted(contents, key=lambda name: (name != PAGE, name))
        listed = json.dumps({"notice": NOTICE, "files": names}, indent=1) + "\n"
        stale = set(_earlier(folder)) - set(names)
        put({**{folder / name: contents[name] for name in reversed(names)}, folder / FILES: listed.encode()}, mode=PUBLIC)
        for name in stale:
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise InvalidInput("--out", f"{folder} cannot be written to ({error.strerror}); give a folder with room") from None
    return [folder / name for name in names]


def _earlier(folder: Path) -> list[str]:
    """The files of the report that is in the folder; plain names only, whatever the list says."""
    try:
        names = json.loads((folder / FILES).read_text(encoding="utf-8"))["files"]
        return [name for name in names if re.fullmatch(r"(\d\d+-[a-z0-9-]+|report)\.(png|svg|md|csv|tex|html)", name)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def notice_of(*studies: Study) -> str:
    """What heads every output of studies: always that it is no private release, and whatever else they say of themselves."""
    parts = [NOTICE]
    for study in studies:
        parts.append(" ".join(study.notice.split()))
        if isinstance(study.settings.get("private"), str):  # of protocol `authors`
            parts.append(study.settings["private"])
        if study.settings.get("draw") == "with":
            parts.append(DRAWS["with"])
    return "; ".join(part for part in dict.fromkeys(parts) if part)


def _table_files(table: tables.Table, notice: str) -> Iterator[tuple[str, bytes]]:
    yield f"{table.name}.md", tables.to_markdown(table, notice).encode()
    yield f"{table.name}.tex", tables.to_latex(table, notice).encode()


def _summary_files(table: tables.Table, notice: str) -> Iterator[tuple[str, bytes]]:
    yield from _table_files(table, notice)
    yield f"{table.name}.csv", tables.table_to_csv(table, notice).encode()


def _figure_files(drawing: figures.Drawing) -> Iterator[tuple[str, bytes]]:
    yield f"{drawing.name}.png", drawing.png
    yield f"{drawing.name}.svg", drawing.svg.encode()


def _slug(kind: str) -> str:
    """A study's kind as part of a file's name, whatever it is."""
    return re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-") or "study"


def _is_study(path: Path) -> bool:
    """Whether a file of a folder claims to be a study; what is no JSON, or another document, is passed over."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and "study" in document


def _checked(path: Path) -> Study:
    study = read_study(path)
    texts = (study.kind, study.title, study.notice)
    if not all(isinstance(text, str) for text in texts) or not isinstance(study.settings, dict) or not isinstance(study.rows, list):
        raise InvalidFile(str(path), None, "not a study's document; give a file that `privalign evaluate --out` or a study wrote")
    for number, row in enumerate(study.rows, start=1):
        if not isinstance(row, dict):
            raise InvalidFile(str(path), None, f"row {number} is no record; give a file that `privalign evaluate --out` or a study wrote")
    try:
        return Study(**{field.name: _cleaned(getattr(study, field.name)) for field in fields(study)})
    except RecursionError:
        raise InvalidFile(str(path), None, "nested too deep; give a file that `privalign evaluate --out` or a study wrote") from None


def _cleaned(value: Any) -> Any:
    """A document without what no file can hold or show: control characters, halves of surrogate pairs, numbers beyond floats."""
    if isinstance(value, str):
        return "".join(character if character.isprintable() or character in "\n\t" else "\ufffd" for character in value)
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    return float("inf" if value > 0 else "-inf") if isinstance(value, int) and value.bit_length() > 1000 else value
