"""Reading `/v1/chat/completions` bodies: strict where a mistake would cost budget, open to fields that nobody knows yet."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privalign.canonical import canonical
from privalign.errors import InvalidInput
from privalign.gateway.errors import ApiError, invalid
from privalign.types import Message, Request, whole_number

# Sampling parameters of OpenAI, vLLM, SGLang, llama.cpp and Ollama, passed to every candidate unchanged. Others are not:
# among what servers read from a body are addresses to call and keys to call them with.
PASSED = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "typical_p", "top_a", "stop", "stop_token_ids"),
        *("include_stop_str_in_output", "ignore_eos", "min_tokens", "max_tokens", "max_completion_tokens"),
        *("response_format", "tools", "tool_choice", "parallel_tool_calls", "seed", "logprobs", "top_logprobs"),
        *("logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty", "repeat_penalty", "length_penalty"),
        *("user", "reasoning_effort", "verbosity", "bad_words", "skip_special_tokens", "spaces_between_special_tokens"),
        *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "grammar", "json_schema"),
        *("regex", "ebnf", "mirostat", "mirostat_tau", "mirostat_eta", "dry_multiplier", "dry_base", "dry_allowed_length"),
        *("xtc_probability", "xtc_threshold", "chat_template_kwargs", "include_reasoning"),
    }
)
_OURS = frozenset({"model", "messages", "n", "stream", "stream_options"})
_TEXTS = ("text", "input_text", "output_text")  # types of parts. A base model would fetch what others point to, from inside the network
MOST_LOGPROBS = 20  # of each token, as at OpenAI; llama.cpp gives as many as it is asked for: megabytes a token
LARGEST_SEED = 2**62  # those of later candidates are above it
MOST_MARKS = 50_000  # brackets and commas of a body, of which every value has one at least
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1, ord(","): 0}
_NO_MARKS = bytes(set(range(256)) - _STEPS.keys())
_IDEMPOTENCY = re.compile(r"[!-~]{1,255}")


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A valid request for answers.

    Args:
        n: answers asked for, each a selection of its own. digest: SHA-256 of the canonical body.
        ignored: names of fields that were sent and are not passed on.
    """

    model: str
    request: Request
    n: int
    stream: bool
    include_usage: bool
    digest: str
    ignored: tuple[str, ...]


def parse_json(content: bytes, most_depth: int) -> Any:
    """The JSON document of a body.

    Parsing holds up all other requests. Long texts take little of that; what takes long is many values, so that what
    separates them is counted first, in a fraction of the time.

    Raises:
        ApiError: not UTF-8, not strict JSON (no NaN, nothing beyond a float, no half characters), nested too deeply, or with
            more than `MOST_MARKS` brackets and commas.
    """
    _check_shape(content, most_depth)
    try:
        return json.loads(content.decode("utf-8"), parse_constant=_refused, parse_float=_finite, parse_int=whole_number)
    except RecursionError:  # the depth that is allowed is more than the parser's own
        raise _too_deep(most_depth) from None
    except ValueError:  # of the decoder, or of a number
        raise invalid(None, "the body is not JSON in UTF-8; send one JSON object") from None


def parse_chat(document: Any, *, most_n: int) -> ChatCall:
    """A request for answers from the document of its body.

    Raises:
        ApiError: 400, naming the parameter and the remedy.
    """
    if not isinstance(document, dict):
        raise invalid(None, "the body is not a JSON object")
    try:
        digest = hashlib.sha256(canonical(document, "text").encode()).hexdigest()
    except UnicodeEncodeError:
        raise invalid(None, "the body holds half of a surrogate pair, which is no text") from None
    for name, (fits, kind) in _KINDS.items():
        if document.get(name) is not None and not fits(document[name]):
            raise invalid(name, f"is not {kind}")
    model = document.get("model")
    if model is None:
        raise invalid("model", "missing; give the name of a served model")
    turns = document.get("messages")
    if not turns:
        raise invalid("messages", "missing or empty; give at least one message")
    try:
        messages = tuple(Message.from_openai(turn) for turn in turns)
    except InvalidInput as error:
        raise ApiError(400, str(error), code="invalid_value", param=error.field) from None
    for name, (fits, kind) in _TURN_KINDS.items():
        if not all(turn.fields.get(name) is None or fits(turn.fields[name]) for turn in messages):
            raise invalid("messages", f"{name} of an element is not {kind}")
    if sum(len(_marks(arguments)) for arguments in _arguments(messages)) > MOST_MARKS:
        raise _too_many()
    if not all(part.get("type") in _TEXTS and _text(part.get("text")) for turn in messages for part in _parts(turn)):
        raise invalid("messages", "a part of a content is no text; only texts can be scored, and nothing is fetched for a client")
    _check_choice(document.get("tool_choice"), document.get("tools") or [])
    n = document.get("n") or 1
    if n > most_n:
        raise invalid("n", f"{n} is above {most_n}, the most that this gateway answers at once")
    options = document.get("stream_options") or {}
    if options.get("include_usage") is not None and not isinstance(options["include_usage"], bool):
        raise invalid("stream_options", "include_usage is neither true nor false")
    parameters = {name: value for name, value in document.items() if name in PASSED and value is not None}
    ignored = tuple(sorted(name for name in document if name not in PASSED and name not in _OURS))
    include_usage = bool(options.get("include_usage"))
    return ChatCall(model, Request(messages, parameters), n, bool(document.get("stream")), include_usage, digest, ignored)


def _check_choice(choice: Any, tools: Sequence[Mapping[str, Any]]) -> None:
    """Refuses a `tool_choice` that no policy can keep.

    Raises:
        ApiError: 400.
    """
    if choice in (None, "none", "auto"):
        return
    if not tools:
        raise invalid("tool_choice", "asks for a call, and there are no tools; send tools, or leave it out")
    if choice == "required":
        return
    match choice:
        case {"type": "function", "function": {"name": str(name)}} | {"type": "custom", "custom": {"name": str(name)}}:
            named: list[str | None] = [name]
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required", "tools": [*allowed]}}:
            named = [_name_of(tool) for tool in allowed]
        case _:
            raise invalid("tool_choice", 'is neither "none", "auto", "required" nor {"type": "function", "function": {"name": …}}')
    known = {_name_of(tool) for tool in tools}
    if not set(named) <= known:
        raise invalid("tool_choice", "names a function that is not among tools; send it there")


def _name_of(tool: Any) -> str | None:
    named = tool.get("function") or tool.get("custom") if isinstance(tool, Mapping) else None
    name = named.get("name") if isinstance(named, Mapping) else None
    return name if isinstance(name, str) else None


def idempotency_key(value: str | None) -> str | None:
    """The `Idempotency-Key` header.

    Raises:
        ApiError: 400, it is empty, too long or not printable ASCII.
    """
    if value is not None and not _IDEMPOTENCY.fullmatch(value):
        raise invalid("Idempotency-Key", "is empty, longer than 255 or holds something else than printable ASCII without spaces")
    return value


def _parts(turn: Message) -> Sequence[Mapping[str, Any]]:
    """The parts of a content in parts."""
    return () if isinstance(turn.content, str | None) else turn.content


def _arguments(messages: Sequence[Message]) -> Iterator[bytes]:
    """What tools were called with: JSON in a text, which is parsed where it is shown to a reward model."""
    for turn in messages:
        for call in turn.fields.get("tool_calls") or ():
            for function in (call.get("function"), call.get("custom")):
                said = function.get("arguments", function.get("input")) if isinstance(function, dict) else None
                if isinstance(said, str):
                    yield said.encode()


def _whole(least: int, most: int = 2**63 - 1) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most


def _number(value: Any) -> bool:
    return type(value) in (int, float)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _stop(value: Any) -> bool:
    """An empty text is in every answer before its first letter."""
    return isinstance(value, str) and value != ""


def _never(_: Any) -> bool:
    return False


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _tools(value: Any) -> bool:
    """Tools, or calls of them. What has no type is a function, as at vLLM and SGLang; of other types no more is known."""
    return isinstance(value, list) and all(
        _object(tool) and (_function(tool.get("function")) if tool.get("type") in (None, "function") else _text(tool["type"]))
        for tool in value
    )


def _function(value: Any) -> bool:
    described = _object(value) and _text(value.get("name")) and isinstance(value.get("description"), str | None)
    return described and isinstance(value.get("arguments"), str | dict | None)


# What would be refused by every server, or mean something else to each, is refused here, before anything is reserved.
_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "model": (_text, "text"),
    "messages": (lambda value: isinstance(value, list), "an array"),
    "n": (_whole(1), "a whole number of at least 1"),
    "stream": (_flag, "true or false"),
    "stream_options": (_object, "an object"),
    "temperature": (lambda value: _number(value) and value >= 0, "a number of at least 0"),
    "top_p": (lambda value: _number(value) and 0 <= value <= 1, "a number from 0 to 1"),
    "stop": (lambda value: _stop(value) or (isinstance(value, list) and all(map(_stop, value))), "text or an array of texts, none empty"),
    "max_tokens": (_whole(1), "a whole number of at least 1"),
    "max_completion_tokens": (_whole(1), "a whole number of at least 1"),
    "seed": (_whole(-LARGEST_SEED, LARGEST_SEED), "a whole number of at most 62 bits"),
    "logprobs": (_flag, "true or false"),
    "top_logprobs": (_whole(0, MOST_LOGPROBS), f"a whole number from 0 to {MOST_LOGPROBS}"),
    "tools": (_tools, "an array of objects, each a function with its name, or of another type"),
    "tool_choice": (lambda value: _text(value) or _object(value), "text or an object"),
    "parallel_tool_calls": (_flag, "true or false"),
    "response_format": (_object, "an object"),
    "logit_bias": (_object, "an object"),
    "presence_penalty": (_number, "a number"),
    "frequency_penalty": (_number, "a number"),
    "user": (_text, "text"),
    "functions": (_never, "read any more; send tools"),
    "function_call": (_never, "read any more; send tool_choice"),
}

_TURN_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "name": (_text, "text"),
    "tool_call_id": (_text, "text"),
    "tool_calls": (_tools, "an array of objects, each of a function with its name, or of another type"),
}


def _refused(_: str) -> float:
    raise ValueError


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError
    return value


def _check_shape(content: bytes, most_depth: int) -> None:
    """Refuses what has too many marks, or is too deep."""
    marks = _marks(content)
    if len(marks) > MOST_MARKS:
        raise _too_many()
    if max(itertools.accumulate(map(_STEPS.__getitem__, marks)), default=0) > most_depth:
        raise _too_deep(most_depth)


def _marks(content: bytes) -> bytes:
    """The brackets and commas outside of texts.

    What is no JSON may be misread, but only behind its first mistake, where no parser arrives.

    Raises:
        ApiError: there are so many texts that there must be too many marks.
    """
    unescaped = content.replace(b"\\\\", b"").replace(b'\\"', b"")  # a quote that is left begins or ends a text
    if unescaped.count(b'"') > 4 * MOST_MARKS:  # a member of an object has four of them and a mark
        raise _too_many()
    return b"".join(unescaped.split(b'"')[::2]).translate(None, _NO_MARKS)


def _too_many() -> ApiError:
    return invalid(None, f"the body has more than {MOST_MARKS} brackets and commas outside of texts; send less")


def _too_deep(most_depth: int) -> ApiError:
    return invalid(None, f"the body is nested more than {most_depth} deep")
