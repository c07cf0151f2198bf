"""`/v1/chat/completions`: from an authenticated request to a paid answer.

Everything that can be refused is refused before the first byte of a response, and nearly all of it before anything is
reserved. A stream begins when its answer is there, or with a comment when that takes longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive

from privalign.aligner import Admission, Aligner, How
from privalign.errors import PrivalignError
from privalign.gateway import causes
from privalign.gateway.authentication import Caller, Gate
from privalign.gateway.errors import ApiError, busy, of_failure
from privalign.gateway.facts import Facts, facts_of
from privalign.gateway.limits import Places, Rates
from privalign.gateway.metrics import Metrics
from privalign.gateway.reads import LedgerReads
from privalign.gateway.requests import ChatCall, idempotency_key, parse_chat, parse_json
from privalign.gateway.responses import Completion, Privacy
from privalign.gateway.settings import GatewaySettings
from privalign.gateway.streaming import PING, EventStream, chunked, event
from privalign.ledger import IdempotencyKey
from privalign.types import Release

_JSON = re.compile(r"application/(?:[\w.+-]+\+)?json", re.IGNORECASE)
_WORD = re.compile(r"[\w.-]{1,60}", re.ASCII)
CLIENT_GONE = 499  # what proxies log for it; nobody receives it


class Chat:
    """Answers chat requests for the served models, and knows which are under way."""

    def __init__(
        self, aligners: Mapping[str, Aligner], gate: Gate, reads: LedgerReads, metrics: Metrics, settings: GatewaySettings
    ) -> None:
        self._aligners = aligners
        self._gate = gate
        self._reads = reads
        self._metrics = metrics
        self._settings = settings
        self._rates = Rates(settings.requests_per_minute, settings.burst)
        self._places = Places(settings.max_concurrency, settings.max_concurrency_of_key)
        self._tasks: set[asyncio.Task[list[Release]]] = set()
        self._ends: float | None = None  # when what is under way has had its time, by the loop's clock

    @property
    def under_way(self) -> int:
        """Requests for answers under way."""
        return self._places.taken

    @property
    def draining(self) -> bool:
        """Whether it was told to stop."""
        return self._ends is not None

    def drain(self) -> None:
        """Refuses requests from now on; those under way have `shutdown_grace` seconds from the first call."""
        if self._ends is None:
            self._ends = asyncio.get_running_loop().time() + self._settings.shutdown_grace

    async def finish(self) -> None:
        """Waits for the answers that go on without their client, until their time is over; then cancels what is left."""
        self.drain()
        if self._tasks and self._ends is not None:
            await asyncio.wait(self._tasks, timeout=max(0.0, self._ends - asyncio.get_running_loop().time()))
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def answer(self, request: Request) -> Response:
        """The response to one request.

        Raises:
            ApiError: what the client is told instead.
        """
        facts = facts_of(request.scope)
        caller = await self._gate.client(request.headers)
        facts.caller = caller.id
        self._rates.take(caller.id, None if caller.key is None else caller.key.rate)
        if self.draining:
            raise busy("the gateway is stopping; nothing was charged", "stopping", status=503)
        self._places.take(caller.id)
        try:
            call = await self._read(request)
            aligner = self._aligners.get(call.model)
            if aligner is None or not caller.allows(call.model):
                raise _no_such_model()
            facts.model = call.model
            sent = request.headers.getlist("idempotency-key")
            key = idempotency_key(", ".join(sent) if sent else None)  # several are one with a space in it, which is none
            answering = self._start(aligner, call, caller, key, facts)
        except BaseException:
            self._places.leave(caller.id)
            raise
        return await self._respond(answering, call, request)

    async def _read(self, request: Request) -> ChatCall:
        _check_headers(request.headers)
        return parse_chat(parse_json(await request.body(), self._settings.max_depth), most_n=self._settings.max_n)

    def _start(self, aligner: Aligner, call: ChatCall, caller: Caller, key: str | None, facts: Facts) -> _Answering:
        idempotency = None if key is None else IdempotencyKey(f"{caller.id} {call.model}", key, call.digest)
        admitted: asyncio.Future[How] = asyncio.get_running_loop().create_future()
        api_key = None if caller.key is None else caller.key.id
        admit = functools.partial(aligner.admit, call.request, n=call.n, idempotency=idempotency, api_key=api_key)
        task = asyncio.create_task(_answer(admit, admitted))
        answering = _Answering(aligner, facts, task, admitted, keep=key is not None)
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._ended(answering, caller))
        return answering

    def _ended(self, answering: _Answering, caller: Caller) -> None:
        """Counts a request, whether or not its client still waits."""
        self._places.leave(caller.id)
        self._tasks.discard(answering.task)
        failure = None if answering.task.cancelled() else answering.task.exception()
        releases: Sequence[Release] = ()
        if answering.task.cancelled():
            outcome = "cancelled"
        elif failure is not None:
            status = of_failure(failure, show_budget=False).status
            outcome = "refused" if status == 429 else "rejected" if status < 500 else "failed"
            causes.tell(answering.facts, failure, answering.aligner.model)
        elif answering.how is How.RESERVED:
            outcome, releases = "answered", answering.task.result()
        else:
            outcome = "replayed" if answering.how is How.REPLAYED else "base"
        answering.facts.outcome = outcome
        self._metrics.answered(answering.aligner.model.name, outcome, time.perf_counter() - answering.started, releases)

    async def _respond(self, answering: _Answering, call: ChatCall, request: Request) -> Response:
        """Waits for the answer, the client's leaving, or the moment at which a stream must begin without its answer."""
        gone = asyncio.ensure_future(_disconnected(request.receive))
        handed_over = False
        try:
            timeout = self._settings.ping_every if call.stream else None
            await asyncio.wait({answering.task, gone}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if call.stream and not answering.task.done() and not gone.done():  # not admitted yet: it may still be refused
                until: set[asyncio.Future[Any]] = {answering.task, gone, answering.admitted}
                await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)
            if not answering.task.done() and gone.done():
                return Response(status_code=CLIENT_GONE)
            completion = Completion(call.model)
            if not answering.task.done():
                handed_over = True
                headers = {**_ignored(call), **answering.early_headers}
                return EventStream(self._events(answering, call, completion), headers, gone=gone, close=lambda: _close(answering, gone))
            releases = await self._result(answering)
            privacy = await self._privacy(answering, releases)
            headers = {**_ignored(call), **privacy.headers}
            if not call.stream:
                return JSONResponse(completion.document(releases, privacy), headers=headers)
            handed_over = True
            chunks = completion.chunks(releases, privacy, include_usage=call.include_usage)
            return EventStream(chunked(chunks), headers, gone=gone, close=lambda: _close(answering, gone))
        finally:
            if not handed_over:
                _close(answering, gone)

    async def _result(self, answering: _Answering) -> list[Release]:
        try:
            return await asyncio.shield(answering.task)
        except Exception as failure:
            causes.tell(answering.facts, failure, answering.aligner.model)  # who is woken first, this or `_ended`, is chance
            error = of_failure(failure, show_budget=self._settings.show_budget)
        raise error  # where the failure is no context of it

    async def _privacy(self, answering: _Answering, releases: Sequence[Release]) -> Privacy:
        """The price; what remains is left out where the ledger does not say: the answer is paid and must not be lost to that."""
        account, remaining = answering.aligner.model.account, None
        if self._settings.show_budget:
            with contextlib.suppress(PrivalignError):
                remaining = (await self._reads.account(account)).remaining
        return Privacy.of(releases, account, remaining, replayed=answering.how is How.REPLAYED)

    async def _events(self, answering: _Answering, call: ChatCall, completion: Completion) -> AsyncIterator[bytes]:
        """Comments until the answer is there, then the answer, or an error in the shape that clients raise on."""
        while not answering.task.done():
            yield PING
            await asyncio.wait({answering.task}, timeout=self._settings.ping_every)
        try:
            releases = await self._result(answering)
        except ApiError as error:
            yield event(error.document)
            return
        privacy = await self._privacy(answering, releases)
        async for content in chunked(completion.chunks(releases, privacy, include_usage=call.include_usage)):
            yield content


class _Answering:
    """An answer under way.

    Args:
        keep: it goes on when its client leaves: a repeated request under its idempotency key finds it paid and answered.
    """

    def __init__(
        self, aligner: Aligner, facts: Facts, task: asyncio.Task[list[Release]], admitted: asyncio.Future[How], *, keep: bool
    ) -> None:
        self.aligner = aligner
        self.facts = facts
        self.task = task
        self.admitted = admitted
        self.started = time.perf_counter()
        self._keep = keep

    @property
    def how(self) -> How | None:
        """How it was let in; None: it was not (yet)."""
        return self.admitted.result() if self.admitted.done() and not self.admitted.cancelled() else None

    @property
    def early_headers(self) -> dict[str, str]:
        """What is known of the price before the answer: the rest is in the last chunk."""
        base = self.how is How.BASE
        served = self.aligner.model
        return {"x-privalign-account": served.account, "x-privalign-mechanism": "base" if base else served.mechanism.name}

    def leave(self) -> None:
        """The client waits no more."""
        if not self._keep:
            self.task.cancel()


async def _answer(admit: Callable[[], Coroutine[Any, Any, Admission]], admitted: asyncio.Future[How]) -> list[Release]:
    admission = await admit()
    admitted.set_result(admission.how)
    return await admission.answer()


def _close(answering: _Answering, gone: asyncio.Future[None]) -> None:
    gone.cancel()
    if not answering.task.done():
        answering.leave()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _check_headers(headers: Headers) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip()
    if not _JSON.fullmatch(kind):
        raise ApiError(415, "the body must be JSON; send `Content-Type: application/json`", code="unsupported_media_type")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "the body is compressed; send it as it is", code="unsupported_media_type")


def _no_such_model() -> ApiError:
    return ApiError(404, "there is no such model here, or this key may not ask it; see /v1/models", code="model_not_found", param="model")


def _ignored(call: ChatCall) -> dict[str, str]:
    """Names of fields that are not passed on, so that nothing is dropped silently."""
    names = [name for name in call.ignored if _WORD.fullmatch(name)][:20]
    return {"x-privalign-ignored": ", ".join(names)} if names else {}
