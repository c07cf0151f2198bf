"""Only the aligner spends: nothing else reserves, settles or voids in a ledger."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import privalign

SOURCE = Path(privalign.__file__).parent
SPENDING = {"reserve", "settle", "void"}


def calls(path: Path) -> Iterator[str]:
    """Methods that are called or handed on, and functions that are imported."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (name.name for name in node.names)


def test_only_the_aligner_reserves_settles_or_voids() -> None:
    spenders = {path.relative_to(SOURCE).parts[0] for path in SOURCE.rglob("*.py") if SPENDING & set(calls(path))}
    assert spenders == {"aligner", "ledger"}
