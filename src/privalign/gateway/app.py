"""The gateway's HTTP application: which path answers what, and what stands around all of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from privalign.aligner import Aligner
from privalign.errors import PrivalignError
from privalign.gateway import causes, openapi
from privalign.gateway import metrics as exposition
from privalign.gateway.authentication import Caller, Gate
from privalign.gateway.chat import CLIENT_GONE, Chat
from privalign.gateway.dashboard.router import make_router
from privalign.gateway.edge import Edge
from privalign.gateway.errors import ApiError, internal, of_failure
from privalign.gateway.facts import facts_of
from privalign.gateway.health import Readiness
from privalign.gateway.metrics import Metrics
from privalign.gateway.reads import LedgerReads
from privalign.gateway.settings import GatewaySettings
from privalign.ledger import Ledger

_KEY: dict[str, Any] = {"security": [{"key": []}]}


class Gateway(FastAPI):
    """The application; `chat` knows what is under way."""

    chat: Chat
    models: tuple[str, ...]


def create_app(aligners: Sequence[Aligner], ledger: Ledger, secret: bytes, settings: GatewaySettings) -> Gateway:
    """The application that serves these aligners' models under their names.

    Args:
        ledger: the one that the aligners charge. secret: of the installation, for the dashboard's sessions.

    While it runs, connections of policies that keep any are kept.
    """
    by_name = {aligner.model.name: aligner for aligner in aligners}
    reads, metrics = LedgerReads(ledger), Metrics()
    gate = Gate(reads, allow_anonymous=settings.allow_anonymous)
    chat = Chat(by_name, gate, reads, metrics, settings)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(reads.close)
            for policy in {id(each.model.policy): each.model.policy for each in aligners}.values():
                if isinstance(policy, contextlib.AbstractAsyncContextManager):
                    await stack.enter_async_context(policy)
            yield
            await chat.finish()

    app = Gateway(
        title="privalign",
        version=version("privalign"),
        description="Privately aligned answers behind the OpenAI API.",
        lifespan=lifespan,
        docs_url=None,  # the pages that FastAPI has for this load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.chat = chat
    app.models = tuple(by_name)
    _Models(by_name, gate).mount(app)
    _mount_chat(app, chat, settings.max_n)
    _mount_health(app, Readiness(aligners, reads), chat)
    _mount_metrics(app, gate, reads, metrics, chat)
    app.include_router(
        make_router(
            ledger,
            secret,
            [aligner.model for aligner in aligners],
            session_lifetime=settings.session_lifetime,
            secure_cookies=settings.secure_cookies,
            trusted_proxies=settings.trusted_proxies,
        )
    )
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.add_middleware(Edge, metrics=metrics, settings=settings)
    _describe_security(app)
    return app


def _mount_chat(app: FastAPI, chat: Chat, most_n: int) -> None:
    stream = {"text/event-stream": {"schema": openapi.EVENT}}
    answer = openapi.json(openapi.CHAT_RESPONSE, "The answers; as events where `stream` was asked for.")
    app.add_api_route(
        "/v1/chat/completions",
        chat.answer,
        methods=["POST"],
        response_model=None,
        summary="Privately selected answers to a conversation",
        responses={
            200: {**answer, "content": {**answer["content"], **stream}},
            **openapi.errors(400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 500, 502, 503),
        },
        openapi_extra={
            **_KEY,
            "requestBody": {
                "required": True,
                **openapi.json(openapi.chat_request(most_n), "As OpenAI has it; unknown fields are allowed."),
            },
            "parameters": [
                {
                    "name": "Idempotency-Key",
                    "in": "header",
                    "required": False,
                    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
                    "description": "The same key and body again: the same answers, charged once.",
                }
            ],
        },
    )


class _Models:
    """`/v1/models`."""

    def __init__(self, aligners: dict[str, Aligner], gate: Gate) -> None:
        self._names = sorted(aligners)
        self._gate = gate
        self._created = int(time.time())

    def mount(self, app: FastAPI) -> None:
        for path, endpoint, schema in (("/v1/models", self.all, openapi.MODELS), ("/v1/models/{model:path}", self.one, openapi.MODEL)):
            responses = {200: openapi.json(schema, "Models that this key may ask."), **openapi.errors(401, 403, 404, 503)}
            app.add_api_route(path, endpoint, response_model=None, responses=responses, openapi_extra=_KEY, response_class=JSONResponse)

    async def all(self, request: Request) -> JSONResponse:
        """Models that this key may ask."""
        caller = await self._caller(request)
        return JSONResponse({"object": "list", "data": [self._document(name) for name in self._names if caller.allows(name)]})

    async def one(self, request: Request, model: str) -> JSONResponse:
        """One model."""
        caller = await self._caller(request)
        if model not in self._names or not caller.allows(model):
            raise ApiError(404, "there is no such model here, or this key may not ask it", code="model_not_found", param="model")
        return JSONResponse(self._document(model))

    async def _caller(self, request: Request) -> Caller:
        caller = await self._gate.client(request.headers)
        facts_of(request.scope).caller = caller.id
        return caller

    def _document(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "privalign"}


def _mount_health(app: FastAPI, readiness: Readiness, chat: Chat) -> None:
    async def healthz() -> JSONResponse:
        """Whether this process serves at all."""
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> JSONResponse:
        """Whether a model can be asked: the ledger can be written, its back-ends are there, and the gateway is not stopping."""
        document = {"status": "stopping"} if chat.draining else await readiness.document()
        facts = facts_of(request.scope)
        facts.outcome = document["status"]
        return JSONResponse(document, 200 if document["status"] == "ready" else 503)

    for path, endpoint in (("/healthz", healthz), ("/readyz", readyz)):
        responses: dict[int | str, dict[str, Any]] = {
            200: openapi.json(openapi.STATUS, "Yes."),
            503: openapi.json(openapi.STATUS, "Not now."),
        }
        app.add_api_route(path, endpoint, response_model=None, responses=responses)


def _mount_metrics(app: FastAPI, gate: Gate, reads: LedgerReads, metrics: Metrics, chat: Chat) -> None:
    async def show(request: Request) -> Response:
        """Prometheus metrics, for an officer's key."""
        facts_of(request.scope).caller = (await gate.officer(request.headers)).id
        return Response(metrics.exposition(await reads.accounts(), chat.under_way), media_type=exposition.CONTENT_TYPE)

    text = {"description": "Metrics.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    app.add_api_route(
        "/metrics",
        show,
        response_model=None,
        response_class=Response,
        responses={200: text, **openapi.errors(401, 403, 503)},
        openapi_extra=_KEY,
    )


async def _failure(request: Request, error: Exception) -> Response:
    causes.tell(facts_of(request.scope), error)
    return of_failure(error, show_budget=False).response()


async def _http_error(request: Request, error: Exception) -> Response:
    """What the router refuses: no such path, no such method."""
    assert isinstance(error, HTTPException)
    if error.status_code >= 500:
        return await _failure(request, internal())
    messages = {404: "there is no such path here; see /openapi.json", 405: "this path has no such method; see /openapi.json"}
    codes = {404: "not_found", 405: "method_not_allowed"}
    message = messages.get(error.status_code, "the request cannot be read")
    headers = dict(error.headers or {})
    if "GET" in headers.get("Allow", ""):
        headers["Allow"] = "GET, HEAD"
    return ApiError(error.status_code, message, code=codes.get(error.status_code), headers=headers).response()


async def _invalid(_: Request, __: Exception) -> Response:
    return ApiError(422, "a parameter of the path or of the query is wrong", code="invalid_value").response()


async def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


_HANDLERS = {
    ApiError: _failure,
    PrivalignError: _failure,
    HTTPException: _http_error,
    RequestValidationError: _invalid,
    ClientDisconnect: _gone,
}


def _describe_security(app: FastAPI) -> None:
    """Names the scheme of keys in the OpenAPI document, made once."""
    document = app.openapi()
    document.setdefault("components", {})["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
