"""What one client may take from all others: the rate of its requests, places for answers under way, bytes and time of a body."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from starlette.types import Message, Receive, Scope

from privalign.gateway.errors import ApiError, busy

MOST_KEYS = 10_000  # whose rates are remembered; one that was forgotten begins with a full bucket
MOST_HEADERS = 100
MOST_HEADER_BYTES = 32 * 1024
CLOSE = {"connection": "close"}  # what is left of the body is not waited for
DROPPED = 2  # times the limit: up to there a body that is too large is read and dropped; who still sends loses the answer


class Rates:
    """A bucket of `burst` requests for every key, which fills at `per_minute`, or at the key's own rate.

    A key that was idle long enough to be full again is as good as forgotten, so that memory is bounded.
    """

    def __init__(self, per_minute: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_minute / 60.0
        self._burst = float(burst)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what was left, and when

    def take(self, key: str, per_minute: float | None = None) -> None:
        """Takes one request from a key's bucket.

        Args:
            per_minute: the key's own rate; its bucket then holds no more than what a minute brings.

        Raises:
            ApiError: 429, with the time until there is one.
        """
        now = self._clock()
        per_second = self._per_second if per_minute is None else per_minute / 60.0
        burst = self._burst if per_minute is None else min(self._burst, max(1.0, per_minute))
        left, then = self._buckets.pop(key, (burst, now))
        left = min(burst, left + (now - then) * per_second)
        allowed = left >= 1.0
        self._buckets[key] = (left - allowed, now)
        if len(self._buckets) > MOST_KEYS:
            self._buckets.popitem(last=False)
        if not allowed:
            wait = (1.0 - left) / per_second
            raise busy("too many requests with this key; slow down", "rate_limit_exceeded", seconds=wait)


class Places:
    """Answers that may be under way at a time, of all keys and of one."""

    def __init__(self, most: int, most_of_key: int) -> None:
        self._most = most
        self._most_of_key = most_of_key
        self._taken: Counter[str] = Counter()  # by keys that hold any

    @property
    def taken(self) -> int:
        """Answers under way."""
        return self._taken.total()

    def take(self, key: str) -> None:
        """Takes a place, to be given back with `leave`.

        Raises:
            ApiError: 429, the key has its share; 503, all are taken.
        """
        if self._taken[key] >= self._most_of_key:
            raise busy("too many answers under way with this key; nothing was charged", "rate_limit_exceeded")
        if self.taken >= self._most:
            raise busy("the gateway is busy; nothing was charged", "overloaded", status=503)
        self._taken[key] += 1

    def leave(self, key: str) -> None:
        """Gives a place back."""
        self._taken[key] -= 1
        if not self._taken[key]:
            del self._taken[key]


def check_headers(scope: Scope) -> None:
    """Refuses a request with too many headers, or with two statements of how long it is: a proxy in front may have believed the
    other one, and what this takes for the next request would be somebody's body.

    Raises:
        ApiError: 431; 400.
    """
    headers = scope["headers"]
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in headers}:
        raise ApiError(400, "there is a Content-Length beside a Transfer-Encoding; send one", code="invalid_request", headers=CLOSE)
    if len(headers) > MOST_HEADERS or sum(len(name) + len(value) for name, value in headers) > MOST_HEADER_BYTES:
        raise ApiError(431, "the headers are too many or too large; send fewer", code="headers_too_large", headers=CLOSE)


def limited(scope: Scope, receive: Receive, *, most: int, seconds: float) -> Receive:
    """`receive` for a body of at most `most` bytes that is whole after so many seconds; what comes after it passes.

    Raises:
        ApiError: 413, here where a far larger length is announced, else where it is called; 408 where it is called.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    too_large = ApiError(413, f"the body is larger than {most} bytes; send less", code="request_too_large", headers=CLOSE)
    announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if announced.isdigit() and int(announced) > DROPPED * most:
        raise too_large
    size, whole = 0, False

    async def read() -> Message:
        nonlocal size, whole
        if whole:
            return await receive()
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise ApiError(408, "the body did not arrive in time", code="request_timeout", headers=CLOSE) from None
            size += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if size <= most:
                return message
            if whole or size > DROPPED * most:
                raise too_large

    return read
