"""The pages that say what is covered and what is not: every sentence names tests that would fail if it were false, and they exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("what-is-covered.md", "what-is-not.md")
REFERENCE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def items(page: str) -> list[str]:
    """The list items of a page, each on one line."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [" ".join(item.split()) for item in re.split(r"\n(?=- |#|\n)", text) if item.startswith("- ")]


@pytest.mark.parametrize("page", PAGES)
def test_every_sentence_names_a_test(page: str) -> None:
    assert len(items(page)) > 4
    for item in items(page):
        assert REFERENCE.search(item), item


@pytest.mark.parametrize("page", PAGES)
def test_nothing_is_said_outside_the_lists_but_how_to_read_them(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    paragraphs = [part for part in text.split("\n\n") if not part.startswith(("#", "- "))]
    assert len(paragraphs) == 1
    assert paragraphs[0].startswith("Each sentence stands with the test")


@pytest.mark.parametrize("page", PAGES)
def test_the_tests_exist(page: str) -> None:
    for file, name in REFERENCE.findall((ROOT / "docs" / page).read_text(encoding="utf-8")):
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}, f"{file}::{name}"


def test_readme_leads_to_the_pages() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"(docs/{page})" in readme for page in PAGES)
