"""Chat requests to a GGUF model in this process, with the chat template that the file carries."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from privalign.errors import BackendFailed, InvalidInput
from privalign.policies.completions import UpstreamFailed, error_message, read_completion
from privalign.policies.llamacpp import EMBEDDED_MODEL, LlamaCppPolicy
from privalign.policies.protocol import BasePolicy
from privalign.types import Candidate, Request

_SEEDS = 2**32 - 1  # llama.cpp reads seed 2³² − 1 as "pick one yourself"
_WHOLE_DISTRIBUTION = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}  # llama.cpp's own defaults truncate


class LlamaCppChatPolicy(BasePolicy):
    """A GGUF model that answers conversations, in this process by llama.cpp. Use it as a context manager.

    Args:
        model: a GGUF file; None takes the embedded model.
        slots: how many candidates are decoded together, at most 256. More candidates than slots are drawn in several batches.
        context: tokens that one candidate may use, the conversation included.
        parameters: sampling parameters for requests that leave them open. Where neither says anything, candidates come
            from the model's whole distribution at temperature 1.

    Parameters are those of llama.cpp's server, which has OpenAI's: tools and response_format too, as far as the chat template
    knows tools. A seeded request draws candidate i with seed + i, modulo 2³² − 1.

    A draw that is cancelled returns at once; the engine finishes its batch behind it, so keep `max_tokens` within reason.

    Raises:
        InvalidInput: `slots` or `context` is out of its range.
        MissingDependency: the engine or the embedded model is not installed.
        BackendFailed: the engine cannot load the model.
    """

    def __init__(
        self, model: Path | None = None, *, slots: int = 16, context: int = 2048, parameters: Mapping[str, Any] | None = None
    ) -> None:
        self._engine = _ChatEngine(model, slots=slots, context=context)
        self._file = EMBEDDED_MODEL if model is None else model.name
        self._slots = slots
        self.parameters = {**_WHOLE_DISTRIBUTION, **(parameters or {})}

    @property
    def name(self) -> str:
        """The model's file and the default parameters."""
        return f"llamacpp {self._file} {json.dumps(self.parameters, sort_keys=True)}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stops the engine and frees its memory; the policy cannot draw any more."""
        self._engine.close()

    async def aclose(self) -> None:
        """As `close`."""
        await asyncio.to_thread(self.close)

    async def draw(self, request: Request, count: int) -> list[Candidate]:
        """`count` candidates, in order, each with its finish reason, tool calls, usage, and logprobs where asked for.

        Raises:
            UpstreamFailed: the engine refuses the request (status 400; too long, say). BackendFailed: closed, or it broke.
            InvalidInput: a count below 1, or a seed that is no whole number.
        """
        if count < 1:
            raise InvalidInput("count", f"{count} is below 1")
        request = request.with_defaults(self.parameters)
        if "seed" not in request.parameters:
            request = replace(request, parameters={**request.parameters, "seed": secrets.randbelow(_SEEDS)})
        request.after(count)  # refuses a bad seed before anything is drawn
        candidates: list[Candidate] = []
        while len(candidates) < count:
            candidates += await self._batch(request.after(len(candidates)), min(count - len(candidates), self._slots))
        return candidates

    async def _batch(self, request: Request, n: int) -> list[Candidate]:
        seed = request.parameters["seed"] % _SEEDS
        until_wrap = _SEEDS - seed
        if n > until_wrap:  # the engine adds to the seed of a batch itself
            return await self._batch(request, until_wrap) + await self._batch(request.after(until_wrap), n - until_wrap)
        body = {name: value for name, value in request.parameters.items() if name not in ("stream", "stream_options", "model")}
        body |= {
            "messages": [turn.to_openai() for turn in request.messages],
            "n": n,
            "seed": seed,
            "logprobs": True,  # the only count of the tokens of all choices but the first
        }
        answer = await asyncio.to_thread(self._engine.chat, body)
        completion = read_completion(answer, n)
        if completion is None or len(completion.candidates) != n:
            raise BackendFailed(f"llama.cpp returned too few candidates where {n} were asked for")
        candidates = [completion.candidates[place] for place in range(n)]
        return candidates if request.parameters.get("logprobs") else [replace(candidate, logprobs=None) for candidate in candidates]


class _ChatEngine(LlamaCppPolicy):
    """The engine of the raw-prompt policy, asked for chat completions."""

    def chat(self, body: dict[str, Any]) -> Any:
        server = self._server  # held on to: a `close` meanwhile stops the engine only after this batch
        if server is None:
            raise BackendFailed("the llama.cpp policy is closed; make a new one")
        try:
            json.dumps(body, allow_nan=False)  # the engine's own encoder, where it is a faster one, turns NaN into null
            answer = server.handle_chat_completions(body)
        except (RuntimeError, TypeError, ValueError):
            raise UpstreamFailed("llama.cpp cannot read the request; give plain JSON, and no images", 400) from None
        if "error" in answer:
            code = answer["error"].get("code")
            words = error_message(answer)
            raise UpstreamFailed(f"llama.cpp refused the request: {words}", code if type(code) is int else None, words=words)
        return answer
