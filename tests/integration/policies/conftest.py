"""The strict fake server, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from privalign.policies import openai
from privalign.testing.fake_openai import FakeOpenAI

pytest.importorskip("httpx", reason="needs httpx; get it with: pip install httpx")


@pytest.fixture
def serve() -> Iterator[Callable[..., Any]]:
    """Starts fake servers: `serve(n_rule=…)`."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(FakeOpenAI(**settings).running())


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "FIRST_BACKOFF", 0.02)
