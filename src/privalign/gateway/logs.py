"""Structured logs: one JSON object a line on stderr.

A line of ours holds named facts and nothing else. Of what libraries log, only the fixed template of the server's own
messages is kept: texts that were put together while serving may embed what a back-end said.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from typing import Any

LOGGER = logging.getLogger("privalign.gateway")


def emit(event: str, *, level: int = logging.INFO, **facts: Any) -> None:
    """Logs an event with its facts, which must be public."""
    LOGGER.log(level, event, extra={"facts": facts})


class JsonLines(logging.Formatter):
    """One object a record; no arguments, no traceback, of an exception only its type."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {"time": _time(record.created), "level": record.levelname.lower()}
        if record.name == LOGGER.name:
            line |= {"event": record.msg, **getattr(record, "facts", {})}
        else:
            line |= {"event": "library", "logger": record.name, "message": _message(record)}
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__name__
        return json.dumps(line, ensure_ascii=True)


def configure() -> None:
    """Sends everything that this process logs, warns or fails with through `JsonLines`, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.captureWarnings(True)
    LOGGER.setLevel(logging.INFO)
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.WARNING)

    def thread_failed(failed: threading.ExceptHookArgs) -> None:
        emit("failure", level=logging.ERROR, where="thread", exception=failed.exc_type.__name__)

    def unraisable(failed: Any) -> None:
        emit("failure", level=logging.ERROR, where="collected", exception=failed.exc_type.__name__)

    threading.excepthook = thread_failed
    sys.unraisablehook = unraisable


def _message(record: logging.LogRecord) -> str | None:
    """What may be kept: of our own rooms all, whose messages are written for that; of the server its constant templates."""
    if record.name.partition(".")[0] == "privalign":
        return record.getMessage()
    return record.msg if record.name.partition(".")[0] == "uvicorn" and isinstance(record.msg, str) else None


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"
