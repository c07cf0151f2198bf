"""Models behind OpenAI-compatible servers: vLLM, SGLang, llama.cpp, Ollama, and hosted ones.

Many servers ignore `n`, cap it or refuse it. What a server honours is found out from its answers to the first draws and
remembered; the rest is fanned out over concurrent requests. A batch that comes back short is completed, not thrown away.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from privalign.errors import InvalidInput, MissingDependency
from privalign.http_client import MISSING, HttpClients, encoded
from privalign.policies.completions import UpstreamFailed, error_message, read_completion
from privalign.policies.protocol import BasePolicy
from privalign.retry_after import stated
from privalign.types import Candidate, Request

if TYPE_CHECKING:
    import httpx

FIRST_BACKOFF = 0.5  # seconds before the first retry; doubled for every further one
LONGEST_BACKOFF = 8.0
LONGEST_RETRY_AFTER = 120.0  # a server that asks for more patience than this is given up
_N_REFUSED = frozenset({400, 422, 501})
_RETRIED = frozenset({408, 409, 425, 429})
_OURS = frozenset({"n", "stream", "stream_options", "model", "messages"})  # of the client's parameters, never passed on


class OpenAIPolicy(BasePolicy):
    """A model behind an OpenAI-compatible `/chat/completions`.

    As an async context manager it keeps its connections between draws, for the event loop that it was entered in. Outside
    of one, every draw opens and closes its own.

    Args:
        base_url: up to and with `/v1`; http or https.
        api_key: sent as a bearer token; it appears in no name, message or repr.
        parameters: sampling parameters for requests that leave them open.
        timeout: seconds that one answer may take, from the first byte sent to the last one read.
        retries: how often a batch, or a single candidate, that fails for a passing reason is asked for again.
        concurrency: requests under way at a time.
        proxy: through which all requests go; None: none, whatever the environment says.

    A seeded request draws candidate i with seed + i; an unseeded one sends no seed.

    Raises:
        InvalidInput: an argument is out of its range. MissingDependency: httpx is not installed.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        timeout: float = 600.0,
        retries: int = 3,
        concurrency: int = 64,
        proxy: str | None = None,
    ) -> None:
        try:
            import httpx
        except ImportError:
            raise MissingDependency(MISSING) from None
        try:
            url = httpx.URL(base_url)
        except (httpx.InvalidURL, TypeError):
            raise InvalidInput("base_url", "is not a URL; give one like http://127.0.0.1:8000/v1") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise InvalidInput("base_url", "is not an http or https URL; give one like http://127.0.0.1:8000/v1")
        if url.userinfo or url.query or url.fragment:
            raise InvalidInput("base_url", "holds a user, a query or a fragment; credentials belong into api_key")
        if not model:
            raise InvalidInput("model", "is empty")
        if not 0 < timeout < math.inf:
            raise InvalidInput("timeout", f"{timeout} is not a finite number of seconds above 0")
        if retries < 0:
            raise InvalidInput("retries", f"{retries} is below 0")
        if concurrency < 1:
            raise InvalidInput("concurrency", f"{concurrency} is below 1")
        self._url = f"{str(url).rstrip('/')}/chat/completions"
        self._host = url.netloc.decode("ascii")
        self._model = model
        self._api_key = api_key
        self.parameters = dict(parameters or {})
        self._timeout = timeout
        self._retries = retries
        self._concurrency = concurrency
        self._clients = HttpClients(api_key=api_key, timeout=timeout, proxy=proxy)
        self._way = "" if proxy is None else " through the proxy"
        self._connections: _Connections | None = None
        self._proven = 1  # the largest batch that the server was seen to honour
        self._most: int | None = None  # the largest one worth asking for; None: not known to be limited
        self._counts_first_only = False

    @property
    def name(self) -> str:
        """Model, host and default parameters; no secrets."""
        settings = f" {json.dumps(self.parameters, sort_keys=True)}" if self.parameters else ""
        return f"openai {self._model} at {self._host}{settings}"

    async def __aenter__(self) -> Self:
        self._connections = self._connect()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections that it keeps; later draws open their own."""
        connections, self._connections = self._connections, None
        if connections is not None:
            await connections.close()

    async def draw(self, request: Request, count: int) -> list[Candidate]:
        """`count` candidates, in order, each with its finish reason, tool calls, logprobs and usage where reported.

        All parameters but `n` and streaming reach the server unchanged.

        Raises:
            UpstreamFailed: the server refused, or failed more often than it is asked again; the first failure, in one line.
            InvalidInput: a count below 1, a seed that is no whole number, a parameter that is no JSON.
        """
        if count < 1:
            raise InvalidInput("count", f"{count} is below 1")
        request = request.with_defaults(self.parameters)
        request.after(count)  # refuses a bad seed before anything is sent
        async with self._connected() as connections:
            drawing = _Drawing(connections, request, {})
            try:
                await self._fill(drawing, range(count), self._most)
            except BaseExceptionGroup as failures:
                raise _first(failures) from None
        return [drawing.found[position] for position in range(count)]

    def _connect(self) -> _Connections:
        return _Connections(self._clients.open, self._concurrency)

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[_Connections]:
        if self._connections is not None:
            yield self._connections
            return
        connections = self._connect()
        try:
            yield connections
        finally:
            await connections.close()

    async def _fill(self, drawing: _Drawing, positions: Sequence[int], size: int | None) -> None:
        """Draws the candidates of these positions in batches of at most `size`; None: of any size."""
        async with asyncio.TaskGroup() as group:
            for batch in _batches(positions, size or len(positions)):
                group.create_task(self._fill_batch(drawing, batch))

    async def _fill_batch(self, drawing: _Drawing, batch: Sequence[int]) -> None:
        """Draws one batch; learns from a refusal, or from too few choices, what the server honours."""
        tried = len(batch) > self._proven
        try:
            choices = await self._ask(drawing, batch)
        except UpstreamFailed as failure:
            if failure.status not in _N_REFUSED or not tried:
                raise
            half = max(self._proven, len(batch) // 2)
            await self._fill_batch(drawing, batch[:half])  # refused down to one candidate: it is the request, not its n
            self._limit(half)
            await self._fill(drawing, batch[half:], self._most)
            return
        if choices == len(batch):
            self._proven = max(self._proven, choices)
        elif tried:
            self._limit(choices)
        missing = [position for position in batch if position not in drawing.found]
        if missing:
            await self._fill(drawing, missing, self._most if tried else 1)

    def _limit(self, size: int) -> None:
        self._most = size if self._most is None else min(self._most, size)

    async def _ask(self, drawing: _Drawing, batch: Sequence[int]) -> int:
        """Asks for one batch until a usable candidate comes; how many choices came with it."""
        attempt = 0
        while True:
            try:
                return await self._attempt(drawing, batch)
            except _Passing as failure:
                if attempt == self._retries:
                    raise
                await asyncio.sleep(_wait(attempt, failure.retry_after))
                attempt += 1

    async def _attempt(self, drawing: _Drawing, batch: Sequence[int]) -> int:
        content = await self._body(drawing.request.after(batch[0]), len(batch))
        async with drawing.connections.one() as client:
            response, body = await self._post(client, content)
        completion = read_completion(body, len(batch)) if response.is_success else None
        if completion is None or not completion.candidates:
            raise self._failure(response, body)
        self._counts_first_only |= completion.first_only
        asked = bool(drawing.request.parameters.get("logprobs"))
        for place, candidate in completion.candidates.items():
            drawing.found[batch[place]] = candidate if asked else replace(candidate, logprobs=None)
        return completion.choices

    async def _body(self, request: Request, n: int) -> bytes:
        body = {name: value for name, value in request.parameters.items() if name not in _OURS}
        body |= {"model": self._model, "messages": [turn.to_openai() for turn in request.messages]}
        if n > 1:  # left out otherwise: some servers refuse it at any value
            body["n"] = n
            if self._counts_first_only:
                body["logprobs"] = True  # the only count of the other choices' tokens
        try:
            return await encoded(body, request.characters)
        except (TypeError, ValueError):
            raise InvalidInput("parameters", "hold a value that is no JSON: a number that is not finite, or an object") from None

    async def _post(self, client: httpx.AsyncClient, content: bytes) -> tuple[httpx.Response, Any]:
        """The answer and its JSON, None where it is none. What the transport says of its failures is not repeated."""
        import httpx

        try:
            async with asyncio.timeout(self._timeout):
                response = await client.post(self._url, content=content)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise self._away(f"cannot be reached{self._way}; is the server running?", error) from None
        except httpx.ProxyError as error:
            raise self._away("is not reached: the proxy refuses; check proxy", error) from None
        except (TimeoutError, httpx.TimeoutException) as error:
            raise self._away(f"gave no whole answer within {self._timeout:g} s; raise timeout or lower max_tokens", error) from None
        except httpx.RequestError as error:
            raise self._away("broke the connection before the answer was complete", error) from None
        try:
            return response, json.loads(response.content)
        except (ValueError, RecursionError):
            return response, None

    def _away(self, why: str, error: Exception) -> _Passing:
        return _Passing(f"{self._host} {why}", cause=type(error).__name__)

    def _failure(self, response: httpx.Response, body: Any) -> UpstreamFailed:
        """What to raise for an answer without a usable candidate."""
        status = response.status_code
        if response.is_success:
            status = _status_within(body) or status
        asked = stated(response.headers)
        retry_after = None if asked == math.inf else asked  # no number at all, and so nothing asked
        passing = status in _RETRIED or (status >= 500 and status != 501) or 200 <= status < 300
        told = response.headers.get("x-should-retry")
        passing = told == "true" or (passing and told != "false")
        words = self._quoted(status, body)
        if passing and (retry_after or 0.0) <= LONGEST_RETRY_AFTER:
            return _Passing(self._message(status, words), status, retry_after, words)
        return UpstreamFailed(self._message(status, words), status, retry_after, words)

    def _quoted(self, status: int, body: Any) -> str:
        """The server's own words where they are about the request, else nothing: others name accounts and insides."""
        if not 400 <= status < 500 or status in (401, 403, 429):
            return ""
        words = error_message(body)
        return "" if self._api_key is not None and _shares_a_piece(words, self._api_key) else words

    def _message(self, status: int, words: str) -> str:
        """One line."""
        if 200 <= status < 300:
            return f"{self._host} answered without a usable choice"
        if 300 <= status < 400:
            return f"{self._host} redirects ({status}); give the final base_url"
        if status in (401, 403):
            return f"{self._host} refused the credentials ({status}); check api_key"
        if status == 429:
            return f"{self._host} is busy, or its quota is used up (429); try later"
        if status >= 500:
            return f"{self._host} failed ({status})"
        return f"{self._host} refused the request ({status}){f': {words}' if words else ''}"


class _Connections:
    """Clients of one event loop, one for each request under way: httpx's own pool looks at all its connections for every
    idle one of them, which takes longer than the request where there are many.
    """

    def __init__(self, make: Callable[[], httpx.AsyncClient], most: int) -> None:
        self._make = make
        self._slots = asyncio.Semaphore(most)
        self._clients: list[httpx.AsyncClient] = []
        self._idle: list[httpx.AsyncClient] = []

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client that nobody else uses meanwhile; the one used last, whose connection is the likeliest to be open."""
        async with self._slots:
            if not self._idle:
                self._idle.append(self._make())
                self._clients.append(self._idle[-1])
            client = self._idle.pop()
            try:
                yield client
            finally:
                self._idle.append(client)

    async def close(self) -> None:
        """Closes all of them."""
        for client in self._clients:
            await client.aclose()


@dataclass(frozen=True, slots=True)
class _Drawing:
    """One call of `draw`: what is asked, and the candidates found so far, by position."""

    connections: _Connections
    request: Request
    found: dict[int, Candidate]


class _Passing(UpstreamFailed):
    """A failure that may be gone on the next attempt."""


def _first(failure: BaseException) -> BaseException:
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


def _batches(positions: Sequence[int], size: int) -> list[Sequence[int]]:
    """Runs of neighbours of at most `size`: a batch numbers its seeds through from that of its first position."""
    batches: list[list[int]] = []
    for position in positions:
        if batches and len(batches[-1]) < size and batches[-1][-1] == position - 1:
            batches[-1].append(position)
        else:
            batches.append([position])
    return list(batches)


def _wait(attempt: int, retry_after: float | None) -> float:
    backoff = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2.0**attempt)
    if retry_after is None:
        return backoff * random.uniform(0.5, 1.0)
    return retry_after + backoff * random.uniform(0.0, 0.5)  # never earlier than asked, and not all at the same moment


def _status_within(body: Any) -> int | None:
    """The status that an error document names when it comes as a success."""
    for place in (body, body.get("error")) if isinstance(body, Mapping) else ():
        code = place.get("code") if isinstance(place, Mapping) else None
        if type(code) is int and 400 <= code < 600:
            return code
    return None


def _shares_a_piece(text: str, secret: str, length: int = 6) -> bool:
    length = min(length, len(secret))
    return any(secret[start : start + length] in text for start in range(len(secret) - length + 1))
