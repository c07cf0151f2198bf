"""The values that travel between rooms. `Release` may leave the process; `Diagnostics` may not."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from privalign.canonical import canonical
from privalign.errors import InvalidInput

MOST_TOKENS = 10**9  # that anything is believed to have taken
MOST_DIGITS = 300  # of a whole number in JSON; more are beyond a float, and reading many such numbers takes long


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation, as OpenAI's chat completions know it.

    Args:
        content: text, an array of typed parts, or None (an assistant that only calls tools).
        fields: everything else that the client sent, unchanged: `tool_calls`, `tool_call_id`, `name` and what is yet to come.
    """

    role: str
    content: str | Sequence[Mapping[str, Any]] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_openai(cls, body: Any) -> Self:
        """Reads one element of `messages`; an absent `content` is null.

        Raises:
            InvalidInput: no role, or a content that is no text, array of objects or null.
        """
        if not isinstance(body, Mapping) or not isinstance(body.get("role"), str):
            raise InvalidInput("messages", 'an element is not an object with a role; give {"role": …, "content": …}')
        content = body.get("content")
        if isinstance(content, list):
            if not all(isinstance(part, Mapping) for part in content):
                raise InvalidInput("messages", "a content array holds something that is not an object with a type")
            content = tuple(content)
        elif not isinstance(content, str | None):
            raise InvalidInput("messages", "a content is neither text, nor an array of parts, nor null")
        return cls(body["role"], content, {name: value for name, value in body.items() if name not in ("role", "content")})

    def to_openai(self) -> dict[str, Any]:
        """The element of `messages` that `from_openai` read."""
        content = self.content if isinstance(self.content, str | None) else list(self.content)
        return {**self.fields, "role": self.role, "content": content}

    @property
    def text(self) -> str:
        """The content as plain text: the text parts, one a line; empty where it is null.

        Raises:
            InvalidInput: a part is no text (an image, say): leaving it out would change what was said.
        """
        return _plain_text(self.content)


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks: a conversation, and sampling parameters that are passed on to every candidate."""

    messages: tuple[Message, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_prompt(cls, prompt: str) -> Request:
        """A conversation of one user turn."""
        return cls((Message("user", prompt),))

    @property
    def characters(self) -> int:
        """Letters of all contents, about: what a body takes to write hangs on it."""
        return sum(
            len(turn.content or "")
            if isinstance(turn.content, str | None)
            else sum(len(str(part.get("text", ""))) for part in turn.content)
            for turn in self.messages
        )

    def with_defaults(self, defaults: Mapping[str, Any]) -> Request:
        """The request with parameters that it leaves open taken from `defaults`.

        `max_tokens` and `max_completion_tokens` are two names of one setting, and a null leaves a parameter open.
        """
        own = {name: value for name, value in self.parameters.items() if value is not None}
        limits = {"max_tokens", "max_completion_tokens"}
        taken = own.keys() | (limits if limits & own.keys() else set())
        return replace(self, parameters={**{name: value for name, value in defaults.items() if name not in taken}, **own})

    def after(self, drawn: int) -> Request:
        """The request for further candidates once `drawn` were drawn: candidate i of a seeded request has seed + i.

        Without this, two draws of a seeded request return the same candidates.
        """
        seed = self.parameters.get("seed")
        if seed is None or drawn == 0:
            return self
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise InvalidInput("seed", f"{seed!r} is not a whole number")
        return replace(self, parameters={**self.parameters, "seed": seed + drawn})

    def canonical(self) -> bytes:
        """The request as canonical JSON: equal requests have equal bytes, different ones different bytes."""
        turns = [[turn.role, turn.to_openai()["content"], dict(turn.fields)] for turn in self.messages]
        return canonical({"messages": turns, "parameters": dict(self.parameters)}, "text").encode(errors="surrogatepass")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that one candidate took. A prompt that served several candidates counts for the first of them only."""

    prompt_tokens: int
    completion_tokens: int

    @classmethod
    def reported(cls, prompt_tokens: Any, completion_tokens: Any) -> Usage | None:
        """What a back-end says; None where it cannot be: no whole number, below 0, or beyond what any model takes."""
        counts = (prompt_tokens, completion_tokens)
        return cls(*counts) if all(type(count) is int and 0 <= count <= MOST_TOKENS for count in counts) else None

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.prompt_tokens + other.prompt_tokens, self.completion_tokens + other.completion_tokens)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One answer drawn from the base policy. Public as long as nobody says which one was selected, or why.

    Args:
        text: the answer; empty where it only calls tools.
        finish_reason: `stop`, `length`, `tool_calls` or `content_filter`; None: not known.
        tool_calls: as the model made them, `{"id", "type": "function", "function": {"name", "arguments"}}`.
        logprobs: as the back-end reports them, where the request asked for them.
        usage: None where the back-end reports none. Sum it with `total_usage`.
        reasoning: what the model thought before it answered, where the back-end tells that apart.
    """

    text: str
    finish_reason: str | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    logprobs: Mapping[str, Any] | None = field(default=None, hash=False)
    usage: Usage | None = None
    reasoning: str | None = None

    @property
    def scored_text(self) -> str:
        """What a reward model reads: the text, and after it, on a line of its own, the tool calls as canonical JSON.

        `[{"arguments":{"city":"Paris"},"name":"get_weather"}]`: keys sorted, no spaces, arguments parsed where they are
        JSON, ids left out (they are random, so that a score must not hang on them). No reasoning: `with_reasoning` puts it there.
        """
        if not self.tool_calls:
            return self.text
        try:
            calls = canonical([_named_call(call, parse=True) for call in self.tool_calls], "text")
        except (ValueError, RecursionError):  # what a model wrote may be anything: then arguments are scored as they stand
            calls = canonical([_named_call(call, parse=False) for call in self.tool_calls], "text")
        return f"{self.text}\n{calls}" if self.text else calls

    def with_reasoning(self) -> Candidate:
        """The candidate with its reasoning before its text, between `<think>` and `</think>`, as models write it."""
        return self if self.reasoning is None else replace(self, text=f"<think>\n{self.reasoning}\n</think>\n\n{self.text}", reasoning=None)


def total_usage(candidates: Iterable[Candidate]) -> Usage | None:
    """The tokens of all candidates of a request, as far as they are reported; None: no back-end said anything."""
    reported = [candidate.usage for candidate in candidates if candidate.usage is not None]
    return sum(reported[1:], start=reported[0]) if reported else None


def _plain_text(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    if isinstance(content, str | None):
        return content or ""
    texts = []
    for part in content:
        if not isinstance(part.get("text"), str):
            raise InvalidInput("messages", f"a content part of type {part.get('type')!r} has no text; this back-end reads text only")
        texts.append(part["text"])
    return "\n".join(texts)


def _named_call(call: Mapping[str, Any], parse: bool) -> dict[str, Any]:
    named = call.get("function") or call.get("custom") or {}
    arguments = named.get("arguments", named.get("input"))
    parsed = json.loads(arguments, parse_int=whole_number) if parse and isinstance(arguments, str) else arguments
    return {"name": named.get("name"), "arguments": parsed}


def whole_number(digits: str) -> int:
    """A whole number of JSON.

    Raises:
        ValueError: it has more than `MOST_DIGITS`.
    """
    if len(digits) > MOST_DIGITS:
        raise ValueError
    return int(digits)


@dataclass(frozen=True, slots=True)
class Release:
    """What one query releases: the text of the chosen candidate and the public facts about its price.

    `index` is the position of the candidate in the order in which candidates were drawn, `fallback` whether every
    phase-2 candidate was rejected. `epsilon` is the worst case of one query, a valid upper bound; None means that the
    mechanism has no guarantee. `finish_reason`, `tool_calls` and `logprobs` are the chosen candidate's; `usage` sums the
    tokens of all `drawn` candidates (None: not reported), `own_usage` is what the chosen one took of them. `head` are the terms of
    the head that chose it, where that was itself released with differential privacy: then the query cost nothing more. `reasoning` is the
    chosen candidate's, where its model tells it apart.
    """

    text: str
    index: int
    fallback: bool
    mechanism: str
    epsilon: float | None
    delta: float
    finish_reason: str | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    logprobs: Mapping[str, Any] | None = field(default=None, hash=False)
    usage: Usage | None = None
    drawn: int = 0
    own_usage: Usage | None = None
    head: Mapping[str, Any] | None = field(default=None, hash=False)
    reasoning: str | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Release:
        """What `to_json` wrote."""
        usages = {name: None if stored.get(name) is None else Usage(**stored[name]) for name in ("usage", "own_usage")}
        return cls(**{**stored, "tool_calls": tuple(stored["tool_calls"]), **usages})


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """What only the operator may see: computed from rewards or from protected data. Not private."""

    facts: Mapping[str, object] = field(default_factory=dict)
