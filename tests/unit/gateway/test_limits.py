"""Rates and places: never more than allowed, whatever the order of events; memory is bounded."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privalign.errors import InvalidInput
from privalign.gateway import limits
from privalign.gateway.errors import ApiError
from privalign.gateway.limits import Places, Rates, limited
from privalign.gateway.settings import GatewaySettings


@given(st.lists(st.floats(0.0, 30.0), max_size=100), st.integers(1, 5), st.sampled_from([1.0, 60.0, 600.0]))
def test_never_more_than_burst_and_rate_allow(pauses: list[float], burst: int, per_minute: float) -> None:
    now = 0.0
    rates = Rates(per_minute, burst, clock=lambda: now)
    taken: list[float] = []
    for pause in pauses:
        now += pause
        with contextlib.suppress(ApiError):
            rates.take("key")
            taken.append(now)
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            assert last - first + 1 <= burst + (taken[last] - taken[first]) * per_minute / 60 + 1e-6


def test_a_key_may_have_a_rate_of_its_own() -> None:
    now = 0.0
    rates = Rates(6000.0, 100, clock=lambda: now)
    rates.take("slow", 3.0)
    for _ in range(2):
        rates.take("slow", 3.0)
    with pytest.raises(ApiError) as refusal:
        rates.take("slow", 3.0)
    assert refusal.value.headers["retry-after"] == "20"
    rates.take("other")
    now = 20.0
    rates.take("slow", 3.0)


def test_waiting_as_long_as_told_is_enough() -> None:
    now = 0.0
    rates = Rates(7.0, 1, clock=lambda: now)
    for _ in range(50):
        rates.take("key")
        with pytest.raises(ApiError) as refusal:
            rates.take("key")
        assert refusal.value.status == 429
        now += int(refusal.value.headers["retry-after"])


def test_memory_of_keys_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_KEYS", 10)
    rates = Rates(60.0, 1, clock=lambda: 0.0)
    for number in range(100):
        rates.take(str(number))
    assert len(rates._buckets) == 10


def test_places() -> None:
    places = Places(3, 2)
    places.take("one")
    places.take("one")
    with pytest.raises(ApiError) as refusal:
        places.take("one")
    assert refusal.value.status == 429
    places.take("other")
    with pytest.raises(ApiError) as refusal:
        places.take("third")
    assert refusal.value.status == 503
    places.leave("one")
    places.take("third")
    assert places.taken == 3
    for key in ("one", "other", "third"):
        places.leave(key)
    assert not places._taken  # no key is remembered that holds none


@given(st.lists(st.binary(max_size=20), max_size=10), st.none() | st.integers(0, 300))
def test_a_body_is_whole_or_refused(pieces: list[bytes], announced: int | None) -> None:
    async def read() -> bytes:
        messages: list[dict[str, Any]] = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
        messages += [{"type": "http.request", "body": b"", "more_body": False}, {"type": "http.disconnect"}]

        async def receive() -> Any:
            return messages.pop(0)

        headers = [] if announced is None else [(b"content-length", str(announced).encode())]
        reading, body = limited({"headers": headers}, receive, most=50, seconds=5.0), b""
        while True:
            message = await reading()
            body += message["body"]
            if not message["more_body"]:
                assert (await reading())["type"] == "http.disconnect"
                return body

    whole = b"".join(pieces)
    if len(whole) > 50 or (announced or 0) > 100:
        with pytest.raises(ApiError) as refusal:
            asyncio.run(read())
        assert (refusal.value.status, refusal.value.headers) == (413, {"connection": "close"})
    else:
        assert asyncio.run(read()) == whole


@pytest.mark.parametrize(("pieces", "left"), [(2, 0), (10, 0), (11, 0), (30, 19)])
def test_a_body_that_is_a_little_too_large_is_taken_off_the_line(pieces: int, left: int) -> None:
    """A proxy that is still sending when it is refused takes the refusal for a broken connection."""
    messages = [{"type": "http.request", "body": b"x" * 10, "more_body": number > 0} for number in reversed(range(pieces))]

    async def receive() -> Any:
        return messages.pop(0)

    async def read() -> None:
        reading = limited({"headers": []}, receive, most=50, seconds=5.0)
        while (await reading())["more_body"]:
            pass

    if pieces <= 5:
        asyncio.run(read())
    else:
        with pytest.raises(ApiError, match="larger than 50 bytes"):
            asyncio.run(read())
    assert len(messages) == left


@pytest.mark.parametrize("setting", ["max_body", "max_n", "burst", "ping_every", "requests_per_minute", "shutdown_grace"])
def test_settings_are_checked(setting: str) -> None:
    with pytest.raises(InvalidInput, match=setting):
        GatewaySettings(**{setting: 0})
