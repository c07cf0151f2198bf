"""What every request passes first and every response last: its id, its limits, its log line, and the last catch of errors."""

from __future__ import annotations

import asyncio
import time

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from privalign.gateway import causes, logs
from privalign.gateway.errors import ApiError, internal, stopped
from privalign.gateway.facts import NAME, Facts
from privalign.gateway.limits import check_headers, limited
from privalign.gateway.metrics import Metrics
from privalign.gateway.settings import GatewaySettings


class Edge:
    """The outermost layer of our own."""

    def __init__(self, app: ASGIApp, metrics: Metrics, settings: GatewaySettings) -> None:
        self._app = app
        self._metrics = metrics
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a request through, and answers for what falls through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        facts = scope[NAME] = Facts()
        started, status = time.perf_counter(), 0
        # whatever can be got has a head, for which the server leaves the body out
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = facts.id
                headers.setdefault("x-content-type-options", "nosniff")
                headers.setdefault("cache-control", "no-store")
            await send(message)

        try:
            check_headers(scope)
            reading = limited(scope, receive, most=self._settings.max_body, seconds=self._settings.body_timeout)
            await self._app(inner, reading, answer)
        except ApiError as refusal:
            await refusal.response()(scope, receive, answer)
        except Exception as failure:  # nothing is said about it but its type: its text may embed anything
            causes.tell(facts, failure)
            if status == 0:
                await internal().response()(scope, receive, answer)
        except asyncio.CancelledError:  # at the end of the time that requests under way have when the gateway stops
            causes.tell(facts, stopped())
            if status == 0:
                await stopped().response()(scope, receive, answer)
        finally:
            route = getattr(inner.get("route"), "path", "unknown")
            self._metrics.responded(route, status or 499)
            logs.emit(
                "request",
                request=facts.id,
                method=scope["method"] if scope["method"] in _METHODS else "other",
                route=route,
                status=status or 499,
                seconds=round(time.perf_counter() - started, 3),
                caller=facts.caller,
                model=facts.model,
                outcome=facts.outcome,
            )


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
