"""Models loaded by Hugging Face transformers into this process, on CPU or CUDA.

The conversation is read once: its cache is copied for every batch of candidates, which are then decoded together. All rows
of a batch have the same length, so that nothing is padded. Every candidate has a random generator of its own: what it is
depends on its seed and not on its neighbours, and no global state is touched.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import math
import secrets
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from privalign.errors import BackendFailed, InvalidInput, MissingDependency
from privalign.policies.protocol import BasePolicy
from privalign.types import Candidate, Message, Request, Usage

_SEEDS = 2**63
_GREEDY = 1e-5  # a temperature below this counts as 0: dividing by it would overflow
_NOT_SUPPORTED = (
    *("tools", "functions", "response_format", "audio", "prediction"),
    *("min_tokens", "ignore_eos", "stop_token_ids", "typical_p", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
)


class TransformersPolicy(BasePolicy):
    """A causal language model with a chat template.

    Args:
        model: a name on the Hugging Face hub, or a folder.
        device: as torch names it; None: CUDA where there is some, else the CPU.
        dtype: of the weights, as torch names it; "auto": as they were saved.
        batch: how many candidates are decoded together.
        parameters: sampling parameters for requests that leave them open. Where neither says anything, candidates come
            from the model's whole distribution at temperature 1, as long as the context allows.
        chat_template: Jinja, in place of the tokenizer's own.

    Parameters: `temperature` (0: greedy), `top_p`, `top_k`, `min_p`, `repetition_penalty`, `presence_penalty`,
    `frequency_penalty`, `logit_bias`, `max_tokens` or `max_completion_tokens`, `stop`, `seed` (candidate i is drawn with
    seed + i), `logprobs` and `top_logprobs` (of the model's own distribution, before any of these). Tools and response
    formats are refused: serve the model by vLLM for them.

    Draws run one after the other in a thread of this policy, and stop between two tokens when they are cancelled.

    Raises:
        MissingDependency: torch or transformers is not installed. BackendFailed: the model cannot be loaded.
        InvalidInput: an argument is out of its range, or there is no chat template.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        device: str | None = None,
        dtype: str = "auto",
        batch: int = 16,
        parameters: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
    ) -> None:
        try:
            import jinja2  # noqa: F401  # transformers needs it for chat templates and does not depend on it
            import torch
            import transformers
        except ImportError as missing:
            raise MissingDependency(
                f"{missing.name or 'transformers'} is not installed; get it with: pip install torch transformers jinja2"
            ) from None
        if batch < 1:
            raise InvalidInput("batch", f"{batch} is below 1")
        if dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise InvalidInput("dtype", f"{dtype!r} is none of torch's; give one like bfloat16, or auto")
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(model)
            loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
            self._model = loaded.to(device).eval()
        except (OSError, ValueError, RuntimeError, AttributeError, ImportError) as error:
            raise BackendFailed(
                f"transformers cannot load {model} ({type(error).__name__}); give a causal language model with its tokenizer"
            ) from error
        if chat_template is not None:
            self._tokenizer.chat_template = chat_template
        if self._tokenizer.chat_template is None:
            raise InvalidInput("chat_template", f"{model} has none; give one in Jinja")
        self._title = Path(model).name if Path(model).is_dir() else str(model)
        self._batch = batch
        self.parameters = dict(parameters or {})
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="privalign-transformers")
        self._ends = _token_ids(self._model.generation_config.eos_token_id) | _token_ids(self._tokenizer.eos_token_id)
        arguments = inspect.signature(self._model.forward).parameters
        self._cache = "cache" if "cache" in arguments else "past_key_values"  # renamed within transformers 5
        self._last_logits = {"logits_to_keep": 1} if "logits_to_keep" in arguments else {}

    @property
    def name(self) -> str:
        """The model (of a folder, its last part) and the default parameters."""
        settings = f" {json.dumps(self.parameters, sort_keys=True)}" if self.parameters else ""
        return f"transformers {self._title}{settings}"

    async def draw(self, request: Request, count: int) -> list[Candidate]:
        """`count` candidates, in order, each with its finish reason and usage, and logprobs where asked for.

        Raises:
            InvalidInput: a parameter is out of its range or not supported, the conversation does not fit the chat template,
                or it is too long for the context. BackendFailed: generation failed.
        """
        if count < 1:
            raise InvalidInput("count", f"{count} is below 1")
        request = request.with_defaults(self.parameters)
        cancelled = threading.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, self._generate, request, count, cancelled)
        finally:
            cancelled.set()

    def _prompt(self, messages: Sequence[Message]) -> list[int]:
        import jinja2

        turns = [{**turn.to_openai(), "content": turn.text} for turn in messages]
        for turn in turns:
            if turn["role"] == "developer":  # OpenAI's newer name for it, which no chat template knows
                turn["role"] = "system"
        try:
            encoded = self._tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=True)
        except jinja2.TemplateError as error:
            raise InvalidInput("messages", f"the chat template of {self._title} refuses them: {' '.join(str(error).split())}") from None
        return list(encoded["input_ids"])

    def _room(self, prompt: Sequence[int]) -> int:
        """How many tokens an answer may have."""
        context = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        room = (context or _SEEDS) - len(prompt)
        if not prompt or room < 1:
            raise InvalidInput("messages", f"the conversation has {len(prompt)} tokens where the context has {context}; shorten it")
        return room

    def _generate(self, request: Request, count: int, cancelled: threading.Event) -> list[Candidate]:
        """The worker's part: a tokenizer, too, serves one thread at a time."""
        import torch

        prompt = self._prompt(request.messages)
        settings = _Settings.read(request.parameters, self._room(prompt), self._model.config.get_text_config().vocab_size)
        try:
            with torch.inference_mode():
                return self._candidates(prompt, settings, count, cancelled)
        except torch.OutOfMemoryError:
            raise BackendFailed(f"{self._title}: out of memory with {self._batch} candidates at a time; lower batch") from None
        except (RuntimeError, ValueError, IndexError, AttributeError) as error:
            if isinstance(error, BackendFailed):
                raise
            raise BackendFailed(f"{self._title}: generation failed ({type(error).__name__})") from error

    def _candidates(self, prompt: list[int], settings: _Settings, count: int, cancelled: threading.Event) -> list[Candidate]:
        import torch

        read = self._model(input_ids=torch.tensor([prompt], device=self._model.device), use_cache=True, **self._last_logits)
        cache, logits = getattr(read, self._cache, None), read.logits[:, -1].float()
        if not hasattr(cache, "batch_repeat_interleave"):
            raise BackendFailed(f"{self._title} keeps no cache that can be shared by candidates; serve it by vLLM")
        rows: list[_Row] = []
        first = secrets.randbelow(_SEEDS) if settings.seed is None else settings.seed
        while len(rows) < count and not cancelled.is_set():
            batch = [
                _Row(torch.Generator(self._model.device).manual_seed((first + number) % _SEEDS))
                for number in range(len(rows), min(count, len(rows) + self._batch))
            ]
            self._decode(prompt, copy.deepcopy(cache), logits, settings, batch, cancelled)
            rows += batch
        return [self._candidate(row, settings, len(prompt) if number == 0 else 0) for number, row in enumerate(rows)]

    def _decode(
        self, prompt: list[int], cache: Any, logits: Any, settings: _Settings, rows: list[_Row], cancelled: threading.Event
    ) -> None:
        """Decodes a batch to its end. `logits`, shape (1, V), follow the prompt; rows that end leave the batch."""
        import torch

        device = logits.device
        pick = _sampler(settings)
        cache.batch_repeat_interleave(len(rows))
        logits = logits.expand(len(rows), -1)
        history = torch.tensor([prompt], device=device).expand(len(rows), -1)
        live = rows
        for position in range(1, settings.max_tokens + 1):
            if cancelled.is_set():
                return
            if not bool(torch.isfinite(logits).any(-1).all()) or bool(torch.isnan(logits).any()):
                raise BackendFailed(f"{self._title} computed logits that are no numbers; try another dtype")
            tokens = pick(history, len(prompt), logits, [row.generator for row in live])
            if settings.logprobs:
                self._note_logprobs(logits, tokens, settings.top_logprobs, live)
            for row, token in zip(live, tokens.tolist(), strict=True):
                row.tokens.append(token)
                row.stopped = token in self._ends or self._meets_stop(row, settings.stop)
            staying = [place for place, row in enumerate(live) if not row.stopped]
            if not staying or position == settings.max_tokens:
                return
            history = torch.cat([history, tokens[:, None]], dim=1)
            if len(staying) < len(live):
                chosen = torch.tensor(staying, device=device)
                cache.batch_select_indices(chosen)
                history, live = history[chosen], [live[place] for place in staying]
            step = self._model(input_ids=history[:, -1:], use_cache=True, **{self._cache: cache})
            cache, logits = getattr(step, self._cache), step.logits[:, -1].float()

    def _meets_stop(self, row: _Row, stop: Sequence[str]) -> bool:
        if not stop:
            return False
        longest = max(len(text.encode()) for text in stop) + 3  # tokens hold a byte or more; 3: half a letter at the front
        tail = self._text(row.tokens[-longest:])
        return any(text in tail for text in stop)

    def _text(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _note_logprobs(self, logits: Any, tokens: Any, top: int, rows: Sequence[_Row]) -> None:
        import torch

        logprobs = torch.log_softmax(logits, dim=-1)
        own = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
        best = torch.topk(logprobs, top, dim=-1)
        for place, row in enumerate(rows):
            alternatives = zip(best.indices[place].tolist(), best.values[place].tolist(), strict=True)
            entry = self._logprob_entry(int(tokens[place]), own[place])
            row.logprobs.append({**entry, "top_logprobs": [self._logprob_entry(token, value) for token, value in alternatives]})

    def _logprob_entry(self, token: int, logprob: float) -> dict[str, Any]:
        text: str = self._tokenizer.decode([token], clean_up_tokenization_spaces=False)
        whole = "\ufffd" not in text  # else the token is a part of a letter, and what its bytes are is not told
        return {"token": text, "bytes": list(text.encode()) if whole else None, "logprob": logprob}

    def _candidate(self, row: _Row, settings: _Settings, prompt_tokens: int) -> Candidate:
        text = self._text(row.tokens)
        cut = min((place for stop in settings.stop if (place := text.find(stop)) >= 0), default=None)
        reason = "stop" if row.stopped or cut is not None else "length"
        logprobs = {"content": row.logprobs} if settings.logprobs else None
        return Candidate(text[:cut], reason, logprobs=logprobs, usage=Usage(prompt_tokens, len(row.tokens)))


@dataclass(slots=True)
class _Row:
    """One candidate while it is decoded."""

    generator: Any
    tokens: list[int] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class _Settings:
    """OpenAI's sampling parameters, checked."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    stop: tuple[str, ...]
    seed: int | None
    logprobs: bool
    top_logprobs: int

    @classmethod
    def read(cls, parameters: Mapping[str, Any], room: int, vocabulary: int) -> Self:
        for name in _NOT_SUPPORTED:
            if parameters.get(name) and parameters[name] != {"type": "text"}:
                raise InvalidInput(name, "is not supported by a transformers policy; serve the model by vLLM for it")
        limit = "max_tokens" if "max_tokens" in parameters else "max_completion_tokens"
        return cls(
            max_tokens=_whole(parameters, limit, room, 1, room),
            temperature=_number(parameters, "temperature", 1.0, 0.0),
            top_p=_number(parameters, "top_p", 1.0, 0.0, 1.0),
            top_k=max(0, _whole(parameters, "top_k", 0, -1)),  # −1 says "all" elsewhere
            min_p=_number(parameters, "min_p", 0.0, 0.0, 1.0),
            repetition_penalty=_number(parameters, "repetition_penalty", 1.0, 1e-3),
            presence_penalty=_number(parameters, "presence_penalty", 0.0, -2.0, 2.0),
            frequency_penalty=_number(parameters, "frequency_penalty", 0.0, -2.0, 2.0),
            logit_bias=_bias(parameters.get("logit_bias") or {}, vocabulary),
            stop=_stop(parameters.get("stop") or ()),
            seed=_whole(parameters, "seed", 0, -_SEEDS) if "seed" in parameters else None,
            logprobs=bool(parameters.get("logprobs", False)),
            top_logprobs=_whole(parameters, "top_logprobs", 0, 0, 20),
        )


def _number(parameters: Mapping[str, Any], name: str, default: float, low: float, high: float = math.inf) -> float:
    value = parameters.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not (low <= value <= high and math.isfinite(value)):
        raise InvalidInput(name, f"{value!r} is not a number {f'from {low:g} to {high:g}' if high < math.inf else f'of at least {low:g}'}")
    return float(value)


def _whole(parameters: Mapping[str, Any], name: str, default: int, low: int, high: float = math.inf) -> int:
    value = parameters.get(name, default)
    if type(value) is not int or not low <= value <= high:
        raise InvalidInput(name, f"{value!r} is not a whole number {f'from {low} to {high}' if high < math.inf else f'of at least {low}'}")
    return value


def _bias(value: Any, vocabulary: int) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise InvalidInput("logit_bias", "is not an object of token numbers and biases")
    try:
        biases = {int(token): _number(value, token, 0.0, -100.0, 100.0) for token in value}
    except ValueError:
        raise InvalidInput("logit_bias", "holds a token that is no number, or a bias that is not from -100 to 100") from None
    if not all(0 <= token < vocabulary for token in biases):
        raise InvalidInput("logit_bias", f"holds a token that is not from 0 to {vocabulary - 1}")
    return biases


def _stop(value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else (None,)
    if not all(isinstance(text, str) and text for text in texts):
        raise InvalidInput("stop", "is neither text nor a list of texts, or one of them is empty")
    return texts


def _token_ids(ids: int | Sequence[int] | None) -> frozenset[int]:
    return frozenset() if ids is None else frozenset({ids} if isinstance(ids, int) else ids)


def _sampler(settings: _Settings) -> Any:
    """The function (history, prompt length, logits, generators) -> tokens that draws one token a row, shapes (rows, …)."""
    import torch
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    greedy = settings.temperature < _GREEDY
    warpers = LogitsProcessorList()
    if settings.temperature != 1.0 and not greedy:
        warpers.append(TemperatureLogitsWarper(settings.temperature))
    if settings.top_k > 0:
        warpers.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1.0:
        warpers.append(TopPLogitsWarper(max(settings.top_p, 1e-6)))
    if settings.min_p > 0.0:
        warpers.append(MinPLogitsWarper(settings.min_p))
    repetition = RepetitionPenaltyLogitsProcessor(settings.repetition_penalty)

    def penalised(history: Any, prompt_length: int, logits: Any) -> Any:
        scores = logits.clone()
        for token, bias in settings.logit_bias.items():
            scores[:, token] += bias
        if settings.repetition_penalty != 1.0:
            scores = repetition(history, scores)
        if settings.presence_penalty or settings.frequency_penalty:
            answer = history[:, prompt_length:]
            counts = torch.zeros_like(scores).scatter_add_(1, answer, torch.ones_like(answer, dtype=scores.dtype))
            scores -= settings.frequency_penalty * counts + settings.presence_penalty * (counts > 0)
        return scores

    def pick(history: Any, prompt_length: int, logits: Any, generators: Sequence[Any]) -> Any:
        scores = penalised(history, prompt_length, logits)
        if greedy:
            return scores.argmax(dim=-1)
        scores = torch.log_softmax(warpers(history, scores), dim=-1)
        waits = torch.stack([torch.empty_like(scores[0]).exponential_(generator=generator) for generator in generators])
        return (scores - waits.clamp_min(torch.finfo(waits.dtype).tiny).log()).argmax(dim=-1)  # exponential races: softmax exactly

    return pick
