"""`Retry-After`, as others send it and as the gateway does."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

HEADER = "retry-after"


def stated(headers: Mapping[str, str]) -> float | None:
    """Seconds ≥ 0, from `retry-after-ms`, or `Retry-After` as a number or a date; None where neither says anything that can be read.

    A number that is not finite is an infinite time: longer than anybody waits.

    Args:
        headers: whose names are looked up in small letters.
    """
    for name, unit in ((f"{HEADER}-ms", 1e-3), (HEADER, 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        with contextlib.suppress(ValueError):
            seconds = float(value) * unit
            return max(0.0, seconds) if math.isfinite(seconds) else math.inf
        with contextlib.suppress(ValueError):
            date = parsedate_to_datetime(value)
            return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - time.time())
    return None


def header(seconds: float | None) -> dict[str, str]:
    """What says that another attempt makes sense after so long: whole seconds, at least one; one where nobody knows."""
    wait = math.ceil(seconds) if seconds is not None and math.isfinite(seconds) else 1
    return {HEADER: str(max(1, wait))}
