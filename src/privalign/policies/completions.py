"""Chat completions as OpenAI-compatible back-ends answer them: which choices are usable, and what each one took.

Shared by the policies that speak this format, over HTTP and in process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from privalign.errors import BackendFailed
from privalign.types import Candidate, Usage

REASONING = ("reasoning_content", "reasoning")  # what servers call it in a message


class UpstreamFailed(BackendFailed):
    """A back-end refused a request or broke.

    Args:
        status: the HTTP status, or the one that it stands for; None: there was no answer.
        retry_after: seconds after which the back-end asked to be tried again.
        words: the back-end's own, in one line, where they are about the request.
        cause: the type of what the transport raised.
    """

    def __init__(
        self, message: str, status: int | None = None, retry_after: float | None = None, words: str = "", cause: str | None = None
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.status = status
        self.retry_after = retry_after
        self.words = words


@dataclass(frozen=True, slots=True)
class Completion:
    """What came back for a batch of n: the usable candidates by their position in it, and how many choices there were.

    `first_only`: the back-end counts the tokens of its first choice only, as llama.cpp does.
    """

    candidates: Mapping[int, Candidate]
    choices: int
    first_only: bool


def read_completion(body: Any, n: int) -> Completion | None:
    """Reads the answer to a request for n choices; None: it holds none, or is no completion.

    A choice without a message, or one that reports an error, is left out; the others are kept. Where choices are numbered
    0 … n−1, their numbers say which seed they had; where they are not, their order does.

    Usage: a back-end reports a sum over its choices. They share it by their token counts where they carry `logprobs`, else
    by their lengths, so that the sum is exact. llama.cpp counts the first choice only: the others are counted from their
    `logprobs` (where a stop string, or a letter of several tokens, counts as one), and estimated from their lengths without.
    """
    choices = body.get("choices") if isinstance(body, Mapping) else None
    if not isinstance(choices, list) or not choices:
        return None
    choices = choices[:n]
    indices = [choice.get("index") if isinstance(choice, Mapping) else None for choice in choices]
    numbered = len(set(indices)) == len(indices) and all(type(index) is int and 0 <= index < n for index in indices)
    places: Sequence[Any] = indices if numbered else range(len(choices))
    read = {place: _candidate(choice) for place, choice in sorted(zip(places, choices, strict=True), key=lambda pair: pair[0])}
    first_only = isinstance(body.get("timings"), Mapping)
    usable = {place: candidate for place, candidate in read.items() if candidate is not None}
    return Completion(_with_usage(usable, body.get("usage"), first_only), len(choices), first_only)


def error_message(body: Any) -> str:
    """The back-end's own words in any of the shapes that errors come in; empty where there are none."""
    if isinstance(body, Mapping):
        for key in ("error", "message", "detail", "msg"):
            if body.get(key):
                return error_message(body[key])
        return ""
    if isinstance(body, list):
        return error_message(body[0]) if body else ""
    return one_line(body) if isinstance(body, str) else ""


def one_line(text: str, longest: int = 200) -> str:
    """Foreign text as one printable line of bounded length."""
    line = "".join(letter for letter in " ".join(text.split()) if letter.isprintable())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _candidate(choice: Any) -> Candidate | None:
    if not isinstance(choice, Mapping) or not isinstance(choice.get("message"), Mapping):
        return None
    message, reason, logprobs = choice["message"], choice.get("finish_reason"), choice.get("logprobs")
    if choice.get("error") or reason == "error":
        return None
    calls = message.get("tool_calls") or ()
    content = message.get("content")
    if content is None:
        content = message.get("refusal") or ""  # a refusal is what the model said instead
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content if isinstance(part, Mapping) and isinstance(part.get("text"), str))
    reasoning = next((message[name] for name in REASONING if isinstance(message.get(name), str) and message[name]), None)
    if not isinstance(content, str) or not isinstance(calls, list | tuple) or not all(isinstance(call, Mapping) for call in calls):
        return None
    whole = content.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half a surrogate pair is no text
    return Candidate(
        whole,
        reason if isinstance(reason, str) else None,
        tuple(calls),
        logprobs if isinstance(logprobs, Mapping) else None,
        reasoning=reasoning,
    )


def _with_usage(candidates: dict[int, Candidate], usage: Any, first_only: bool) -> dict[int, Candidate]:
    if not candidates or not isinstance(usage, Mapping):
        return candidates
    total = Usage.reported(usage.get("prompt_tokens"), usage.get("completion_tokens"))
    if total is None:
        return candidates
    counts = _counts([*candidates.values()], total.completion_tokens, first_only)
    return {
        place: replace(candidate, usage=Usage(total.prompt_tokens if position == 0 else 0, count))
        for position, ((place, candidate), count) in enumerate(zip(candidates.items(), counts, strict=True))
    }


def _counts(candidates: Sequence[Candidate], reported: int, first_only: bool) -> list[int]:
    """Completion tokens of each candidate."""
    entries = [_entries(candidate) for candidate in candidates]
    known = [len(tokens) for tokens in entries if tokens is not None]
    counted = len(known) == len(candidates)
    if not counted:
        known = [len(candidate.with_reasoning().scored_text) + 1 for candidate in candidates]
    if first_only:
        others = [
            _llama_count(candidate, tokens or ()) if counted else round(reported * length / known[0])
            for candidate, tokens, length in zip(candidates, entries, known, strict=True)
        ]
        cut = candidates[0].finish_reason == "length"  # then all that were cut have as many tokens as the first
        return [
            reported,
            *(reported if cut and c.finish_reason == "length" else n for c, n in zip(candidates[1:], others[1:], strict=True)),
        ]
    total, taken, counts = sum(known) or 1, 0, []
    for share in known:
        before = reported * taken // total
        taken += share
        counts.append(reported * taken // total - before)  # rounds so that the sum is the reported one
    return counts


def _entries(candidate: Candidate) -> Sequence[Any] | None:
    tokens = candidate.logprobs.get("content") if candidate.logprobs is not None else None
    return tokens if isinstance(tokens, list) else None


def _llama_count(candidate: Candidate, tokens: Sequence[Any]) -> int:
    """llama.cpp lists the end-of-sequence token, whose text is empty, but not the tokens of a stop string."""
    ended = bool(tokens) and isinstance(tokens[-1], Mapping) and tokens[-1].get("token") == ""
    return len(tokens) + (candidate.finish_reason == "stop" and not ended)
