"""Reward models behind HTTP: what is sent and read is a server's dialect; when it is sent, and what a failure means, is here.

A failure is `ScorerUntouched` only where the server provably read no score for this call: the connection never opened,
or the whole answer was one of `REFUSALS`. 400 is not among them: servers also answer it when they fail to write a NaN.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from privalign.errors import BackendFailed, InvalidInput
from privalign.http_client import HttpClients, encoded
from privalign.retry_after import stated
from privalign.rewards.batches import together
from privalign.rewards.conversation import prompt_text
from privalign.rewards.protocol import ScorerUntouched
from privalign.rewards.scores import SCORER_FAILED, AffineMap, FailClosedReward
from privalign.sensitivity import Sensitivity
from privalign.types import Candidate, Request

if TYPE_CHECKING:
    import httpx

REFUSALS = {
    401: "refuses the API key",
    403: "refuses the API key",
    404: "has no such path or model",
    413: "refuses an input or a batch that is too large",
    422: "refuses an input, perhaps too long",
    429: "is overloaded; retry later",
}
ATTEMPTS = 3  # of one call, as long as each of them left the scorer untouched
LONGEST_WAIT = 10.0  # seconds before the next attempt; a server that asks for more is not asked again
FIRST_WAIT = 0.25  # seconds, doubled from attempt to attempt, where the server asks for nothing


@dataclass(frozen=True, slots=True)
class Server:
    """Where a reward model is served, and how much may be asked of it at a time.

    Args:
        base_url: scheme, host, port and path prefix; no user name or password in it.
        api_key: sent as a bearer token.
        batch_size: candidates a call; 32 is what TEI takes unless told otherwise.
        concurrency: calls under way at a time.
        timeout: seconds that one call may take, its body included.
        max_characters: answers and prompts with more are refused here, before anything is sent. Where the server answers
            400 to a long input, as vLLM does, only this keeps it from costing budget.
        proxy: through which all calls go; None: none, whatever the environment says. Before a plain http server the proxy itself may say
            what looks like the server's refusal, so that through it only a connection that never opened costs nothing.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    base_url: str
    api_key: str | None = field(default=None, repr=False)
    batch_size: int = 32
    concurrency: int = 8
    timeout: float = 60.0
    max_characters: int | None = None
    proxy: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        address = urlsplit(self.base_url)
        if address.username is not None or address.password is not None:
            raise InvalidInput("base_url", "holds a user name or password; give the key as api_key")
        if address.scheme not in ("http", "https") or not address.hostname or address.query or address.fragment:
            raise InvalidInput("base_url", "is not of the form http://HOST:PORT or https://HOST:PORT/PREFIX")  # a query may hold a secret
        for name, least in (("batch_size", 1), ("concurrency", 1)):
            if getattr(self, name) < least:
                raise InvalidInput(name, f"{getattr(self, name)} is below {least}")
        if not (math.isfinite(self.timeout) and self.timeout > 0):
            raise InvalidInput("timeout", f"{self.timeout} is not a finite number of seconds above 0")
        if self.max_characters is not None and self.max_characters < 1:
            raise InvalidInput("max_characters", f"{self.max_characters} is below 1")

    @property
    def speaks_for_itself(self) -> bool:
        """Whether an answer is the server's own and no proxy's."""
        return self.proxy is None or self.base_url.startswith("https:")


@dataclass(frozen=True, slots=True)
class Call:
    """One POST: what to send, and how to read `count` scores, in order, from the JSON that comes back."""

    path: str
    body: Mapping[str, object]
    read: Callable[[Any], list[float]]


class Dialect(Protocol):
    """What one kind of server is sent, and how its answers are read."""

    @property
    def name(self) -> str:
        """A public name: the kind of server, the model, and what changes its scores."""

    def calls(self, request: Request, answers: Sequence[str], batch_size: int) -> list[Call]:
        """The calls that score all answers, in order.

        Raises:
            ScorerUntouched: this request cannot be written for the model.
        """


class RemoteReward(FailClosedReward):
    """A reward model served over HTTP.

    Args:
        dialect: the kind of server and its settings. server: where it is.
        sensitivity: Δ of the mapped, clipped scores. mapping: from the model's scores to the units of the range.

    Every call opens its own connection, so that an idle one that the server has closed meanwhile never costs budget. A call is
    repeated only where it left the scorer untouched (429, connection refused), at most twice.

    Raises:
        MissingDependency: httpx is not installed.
    """

    def __init__(self, dialect: Dialect, server: Server, sensitivity: Sensitivity, mapping: AffineMap | None = None) -> None:
        super().__init__(dialect.name, sensitivity, mapping or AffineMap())
        self._dialect = dialect
        self._server = server
        self._clients = HttpClients(api_key=server.api_key, timeout=server.timeout, proxy=server.proxy, keep_alive=False)

    async def _raw(self, request: Request, candidates: Sequence[Candidate]) -> list[float]:
        answers = [candidate.scored_text for candidate in candidates]
        limit = self._server.max_characters
        if limit is not None and max(len(prompt_text(request)), *map(len, answers)) > limit:
            raise ScorerUntouched(f"an input is longer than max_characters = {limit}; nothing was scored", 413)
        calls = self._dialect.calls(request, answers, self._server.batch_size)
        size = request.characters + sum(map(len, answers))
        async with self._clients.open() as client:  # not kept: a client belongs to one event loop
            batches = await together([lambda call=call: self._answered(client, call, size) for call in calls], self._server.concurrency)  # type: ignore[misc]
        return [score for batch in batches for score in batch]

    async def _answered(self, client: httpx.AsyncClient, call: Call, size: int) -> list[float]:
        """One call, repeated while it is refused untouched and waiting makes sense."""
        attempt = 0
        while True:
            outcome, wait = await self._sent(client, call, size)
            if isinstance(outcome, list):
                return outcome
            attempt += 1
            if wait is None or attempt == ATTEMPTS:
                raise outcome
            await asyncio.sleep(max(wait, FIRST_WAIT * 2 ** (attempt - 1)))

    async def _sent(self, client: httpx.AsyncClient, call: Call, size: int) -> tuple[list[float] | ScorerUntouched, float | None]:
        """The scores; or why the scorer stayed untouched, with the seconds to wait before another attempt (None: no use)."""
        import httpx

        url = self._server.base_url.rstrip("/") + call.path
        try:
            content = await encoded(call.body, size)
            async with asyncio.timeout(self._server.timeout):  # httpx limits each read alone, which a slow body outlasts
                response = await client.post(url, content=content)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:  # the last: the proxy opened no connection either
            return ScorerUntouched("the scorer cannot be reached; nothing was scored", cause=type(error).__name__), 0.0
        status = response.status_code
        if status in REFUSALS and self._server.speaks_for_itself:
            refusal = f"the scorer {REFUSALS[status]} ({status}); nothing was scored"
            return ScorerUntouched(refusal, status, stated(response.headers)), _wait(response)
        if response.status_code != 200:
            raise BackendFailed(SCORER_FAILED)
        return call.read(json.loads(response.content)), None


def _wait(response: httpx.Response) -> float | None:
    """Seconds to wait after a 429; None where another attempt makes no sense."""
    if response.status_code != 429:
        return None
    wait = stated(response.headers) or 0.0
    return wait if wait <= LONGEST_WAIT else None


def chunks(items: Sequence[str], size: int) -> list[Sequence[str]]:
    """Consecutive pieces of at most `size` items."""
    return [items[start : start + size] for start in range(0, len(items), size)]
