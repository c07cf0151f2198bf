"""`Retry-After` as others send it, and as the gateway does."""

from __future__ import annotations

import math
import time
from email.utils import formatdate

import pytest

from privalign.retry_after import header, stated


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after": "-1"}, 0.0),
        ({"retry-after": "nan"}, math.inf),
        ({"retry-after": "inf"}, math.inf),
        ({"retry-after-ms": "300", "retry-after": "60"}, 0.3),
        ({"retry-after-ms": "soon", "retry-after": "60"}, 60.0),
        ({"retry-after": formatdate(0, usegmt=True)}, 0.0),
    ],
)
def test_what_is_stated(headers: dict[str, str], seconds: float | None) -> None:
    assert stated(headers) == seconds


def test_a_date_counts_from_now() -> None:
    wait = stated({"retry-after": formatdate(time.time() + 60, usegmt=True)})
    assert wait is not None
    assert 50 < wait < 61


@pytest.mark.parametrize(("seconds", "wait"), [(None, "1"), (0.0, "1"), (1.2, "2"), (30, "30"), (math.inf, "1"), (math.nan, "1")])
def test_what_is_sent_is_whole_seconds_and_never_none(seconds: float | None, wait: str) -> None:
    assert header(seconds) == {"retry-after": wait}
