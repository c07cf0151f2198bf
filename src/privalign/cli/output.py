"""What goes to the terminal: JSON documents or tables on stdout, one line of error on stderr."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import typer


def finite(value: Any) -> Any:
    """The value with every number that is not finite turned into None: JSON has no infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def to_json(document: Mapping[str, Any]) -> str:
    """One line of strict JSON."""
    return json.dumps(finite(document), ensure_ascii=False, allow_nan=False)


def print_json(document: Mapping[str, Any]) -> None:
    """The document on stdout, one line, no colours."""
    typer.echo(to_json(document))


def print_facts(title: str, facts: Mapping[str, Any]) -> None:
    """A table of names and values on stdout."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _flat(facts):
        table.add_row(name, shown(value))
    Console().print(table)


def shown(value: Any) -> str:
    """A value for people; numbers in full precision, so that no bound is rounded down."""
    if value is None:
        return "none"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple):
        return ", ".join(shown(item) for item in value)
    return str(value)


def _flat(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows = []
    for name, value in facts.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((prefix + name, value))
    return rows
