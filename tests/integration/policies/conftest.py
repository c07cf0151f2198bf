"""The strict fake server, for the tests of this folder."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from privalign.policies import openai

pytest.importorskip("httpx", reason="needs httpx; get it with: pip install httpx")

_spec = importlib.util.spec_from_file_location("fake_openai", Path(__file__).with_name("fake_openai.py"))
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules.setdefault("fake_openai", _module)
_spec.loader.exec_module(_module)


@pytest.fixture
def serve() -> Iterator[Callable[..., Any]]:
    """Starts fake servers: `serve(n_rule=…)`."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(_module.FakeOpenAI(**settings).running())


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "FIRST_BACKOFF", 0.02)
