"""Server-sent events for an answer that is selected first and sent then: comments keep the connection open meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from privalign.gateway.errors import stopped

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"


def event(document: Mapping[str, Any]) -> bytes:
    """One event; JSON has no raw line end, so that it is one line."""
    return b"data: " + json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n\n"


async def chunked(documents: Iterable[Mapping[str, Any]]) -> AsyncIterator[bytes]:
    """A whole answer as events."""
    for document in documents:
        yield event(document)
    yield DONE


class EventStream(Response):
    """A response of events.

    Args:
        events: what is sent. close: called once, when the stream has ended or its client has gone away.
        gone: ends when the client has gone away.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[bytes], headers: Mapping[str, str], *, gone: asyncio.Future[None], close: Callable[[], None]
    ) -> None:
        super().__init__(None, 200, {**headers, "cache-control": "no-store", "x-accel-buffering": "no"}, self.media_type)
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        self._events = events
        self._gone = gone
        self._close = close
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends until the events or the client end; where the gateway does, the stream ends with an error."""
        sending = asyncio.ensure_future(self._send(send))
        try:
            await asyncio.wait({sending, self._gone}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        except asyncio.CancelledError:
            if self._begun and sending.cancel():
                await send({"type": "http.response.body", "body": event(stopped().document), "more_body": False})
            raise
        finally:
            sending.cancel()
            self._close()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._begun = True
        async for content in self._events:
            await send({"type": "http.response.body", "body": content, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
