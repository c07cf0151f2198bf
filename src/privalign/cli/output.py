"""What goes to the terminal: JSON documents or tables on stdout, one line of error on stderr."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import stat
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import typer

from privalign.errors import InvalidInput
from privalign.files import replacement

if TYPE_CHECKING:
    from rich.console import Console


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on stderr, where that is a terminal, while something takes a few seconds; nothing of it stays."""
    from rich.console import Console

    if sys.stderr.isatty():
        with Console(stderr=True).status(f"{what} …"):
            yield
    else:
        yield


@contextlib.contextmanager
def bars() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar on stderr, where that is a terminal, for each sort of work; nothing of it stays.

    What is yielded is told of what, how much is done, and of how much (None: not known).
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as shown:
        tasks: dict[str, Any] = {}

        def progress(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = shown.add_task(what, total=total)
            shown.update(tasks[what], completed=done, total=total)

        yield progress


def finite(value: Any) -> Any:
    """The value with every number that is not finite turned into None: JSON has no infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def warn_of(settings: Mapping[str, Any], name: str = "--") -> None:
    """Says on stderr what a study warns of, in one line."""
    if "warning" in settings:
        typer.echo(f"privalign: warning: {name}{settings['warning']}", err=True)


def to_json(document: Mapping[str, Any]) -> str:
    """One line of strict JSON."""
    return json.dumps(finite(document), ensure_ascii=False, allow_nan=False)


def print_json(document: Mapping[str, Any]) -> None:
    """The document on stdout, one line, no colours."""
    typer.echo(to_json(document))


def print_facts(title: str, facts: Mapping[str, Any]) -> None:
    """Names and values on stdout, wrapped between words only: a key, hash or path stays whole, to be copied."""
    rows = [(printable(name), shown(value)) for name, value in _flat(facts)]
    indent = 2 + max((len(name) for name, _ in rows), default=0)
    width = max(shutil.get_terminal_size().columns - indent, 20)
    typer.echo(printable(title))
    for name, value in rows:
        lines = textwrap.wrap(value, width, break_long_words=False, break_on_hyphens=False)
        typer.echo(typer.style(name, bold=True) + " " * (indent - len(name)) + f"\n{'':{indent}}".join(lines))


def print_table(names: tuple[str, ...], rows: Iterable[Iterable[Any]]) -> None:
    """A table of rows on stdout."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    cells = [[shown(value) for value in row] for row in rows]
    for number, name in enumerate(names):
        least = longest_word(name, *(row[number] for row in cells))
        table.add_column(name, min_width=least, no_wrap=number == 0)  # the name or id, to be copied
    for row in cells:
        table.add_row(*row)
    console().print(table, crop=False)


def console() -> Console:
    """Stdout for tables and sentences, taken literally; never so narrow that a column would vanish."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False, width=max(40, shutil.get_terminal_size().columns))


def longest_word(*texts: str) -> int:
    """The width below which a column would break a number or a word in two."""
    return max((len(word) for text in texts for word in text.split()), default=0)


@contextlib.contextmanager
def replacing(path: Path, source: Path | None = None, *, field: str = "--out", private: bool = False) -> Iterator[IO[str]]:
    """A new text file that takes the place of `path` when the block ends well; else nothing of it stays.

    It is its user's alone, whatever the umask; one that was there keeps its mode.

    Args:
        source: what the command reads. field: the option or argument that names `path`. private: it is its user's alone also in the
            place of one that others may read.

    Raises:
        InvalidInput: it cannot be written, is no regular file, or is `source`, stdout or a ledger.
    """
    target = Path(os.path.realpath(path))  # a link keeps pointing to the file that it names
    try:
        check_output(path, source, field=field)
        with replacement(target, encoding="utf-8", newline="\n") as file:
            if target.exists() and not private:
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))  # whoever may read it may read what replaces it
            yield file
    except OSError as error:
        remedy = "give a file in a folder that exists and has room"
        raise InvalidInput(field, f"{path} cannot be written ({error.strerror}); {remedy}") from None


def check_output(path: Path, source: Path | None = None, *, field: str = "--out") -> None:
    """Refuses what `replacing` would not write over, before long work.

    Raises:
        InvalidInput: as `replacing`.
    """
    target = Path(os.path.realpath(path))
    if source is not None and source.exists() and (target == Path(os.path.realpath(source)) or _same(target, source)):
        raise InvalidInput(field, f"{path} is the file to read; give another name")
    if target.exists() and not target.is_file():
        raise InvalidInput(field, f"{path} is not a regular file; give the name of a file")
    if _is_stdout(target):
        raise InvalidInput(field, f"{path} is where stdout goes; give another name")
    refuse_ledger(path, field)


def refuse_ledger(path: Path, field: str) -> None:
    """Refuses to write over a database: it may be a ledger, and without it what was spent is forgotten.

    Raises:
        InvalidInput: `path` is one; `field` names it.
    """
    if path.is_file():
        with path.open("rb") as file:
            if file.read(16) == b"SQLite format 3\0":
                raise InvalidInput(field, f"{path} is a database, such as a ledger; give another name")


def _same(target: Path, other: Path) -> bool:
    return target.exists() and target.samefile(other)


def _is_stdout(target: Path) -> bool:
    try:
        return target.exists() and os.path.samestat(target.stat(), os.fstat(sys.stdout.fileno()))
    except (AttributeError, OSError, ValueError):  # stdout is closed, or no file
        return False


def shown(value: Any) -> str:
    """A value for people; numbers in full precision, so that no bound is rounded down."""
    if value is None:
        return "none"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {shown(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(shown(item) for item in value) or "none"
    return printable(str(value))


def printable(text: str) -> str:
    """Text from outside, without what would steer the terminal."""
    return "".join(character if character.isprintable() or character in "\n\t" else "\ufffd" for character in text)


def _flat(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows = []
    for name, value in facts.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((prefix + name, value))
    return rows
