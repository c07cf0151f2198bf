"""Log lines hold named facts; what libraries and exceptions say is left out."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from privalign.gateway.logs import LOGGER, JsonLines


def line(logger: str, message: str, *arguments: object, **options: object) -> dict[str, object]:
    record = logging.getLogger(logger).makeRecord(logger, logging.ERROR, "file", 1, message, arguments, **options)  # type: ignore[arg-type]
    text = JsonLines().format(record)
    assert "\n" not in text
    return json.loads(text)  # type: ignore[no-any-return]


def test_facts() -> None:
    logged = line(LOGGER.name, "request", exc_info=None, extra={"facts": {"status": 200, "model": 'a"\n\u2028'}})
    assert (logged["event"], logged["status"], logged["model"]) == ("request", 200, 'a"\n\u2028')


@pytest.mark.parametrize("logger", ["asyncio", "httpx", "py.warnings", "uvicorn.error"])
def test_no_text_of_an_exception(logger: str) -> None:
    try:
        raise ValueError("reward 0.739")
    except ValueError:
        error = sys.exc_info()
    for logged in (line(logger, "failed: %s", "reward 0.739", exc_info=error), line("asyncio", "Task <reward 0.739>", exc_info=error)):
        assert "0.739" not in json.dumps(logged)
        assert logged["exception"] == "ValueError"
        assert logged["event"] == "library"
