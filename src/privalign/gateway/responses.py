"""Releases as chat completions, whole or in chunks, with the facts of their price. Nothing else of a query leaves here."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from privalign.policies.completions import REASONING
from privalign.types import Release, Usage


@dataclass(frozen=True, slots=True)
class Privacy:
    """What a response says about its price.

    Args:
        epsilon, delta: of all answers of the response together: the sum of each one's worst case. None: no guarantee.
        remaining: (ε, δ) of the account, once this response was paid; None: hidden, or not known at the moment.
        replayed: whether it is an earlier response again, which cost nothing more.
        release: the terms of the head, where it was itself released with differential privacy: the guarantee of what costs nothing more.
    """

    mechanism: str
    epsilon: float | None
    delta: float
    account: str
    remaining: tuple[float, float] | None
    replayed: bool
    release: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, releases: Sequence[Release], account: str, remaining: tuple[float, float] | None, *, replayed: bool) -> Privacy:
        """The price of some releases to one request."""
        each = [release.epsilon for release in releases if release.epsilon is not None]
        epsilon = _sum_up(each) if len(each) == len(releases) else None
        delta = _sum_up([release.delta for release in releases])
        return cls(releases[0].mechanism, epsilon, delta, account, remaining, replayed, releases[0].head)

    @property
    def document(self) -> dict[str, Any]:
        """The `privalign` object."""
        left = None if self.remaining is None else {"epsilon": self.remaining[0], "delta": self.remaining[1]}
        return {
            "mechanism": self.mechanism,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "account": self.account,
            "remaining": left,
            "replayed": self.replayed,
            **({} if self.release is None else {"release": dict(self.release)}),
        }

    @property
    def headers(self) -> dict[str, str]:
        """The same as headers, `x-privalign-…`; what is not known is left out. `remaining` is ε."""
        values = {
            "mechanism": self.mechanism,
            "epsilon": None if self.epsilon is None else repr(self.epsilon),
            "delta": repr(self.delta),
            "account": self.account,
            "remaining": None if self.remaining is None else repr(self.remaining[0]),
            "replayed": "true" if self.replayed else "false",
            "release-epsilon": None if self.release is None else repr(self.release["epsilon"]),
            "release-delta": None if self.release is None else repr(self.release["delta"]),
        }
        return {f"x-privalign-{name}": value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Completion:
    """One response: the same `id` and `created` in the whole document and in every chunk."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def document(self, releases: Sequence[Release], privacy: Privacy) -> dict[str, Any]:
        """The whole response."""
        choices = [
            {
                "index": index,
                "message": _message(release),
                "finish_reason": _reason(release),
                "logprobs": _logprobs(release),
            }
            for index, release in enumerate(releases)
        ]
        return {**self._head("chat.completion"), "choices": choices, "usage": _usage(releases), "privalign": privacy.document}

    def chunks(self, releases: Sequence[Release], privacy: Privacy, *, include_usage: bool) -> Iterator[dict[str, Any]]:
        """The same response piece by piece; the last piece carries the privacy facts.

        Every choice has its role, then what it says, then its finish reason, also where it says nothing.
        """
        usage = {"usage": None} if include_usage else {}
        head = {**self._head("chat.completion.chunk"), **usage}
        last = len(releases) - 1
        for index, release in enumerate(releases):
            message = _message(release)
            said: dict[str, Any] = {"content": message["content"]} if message["content"] else {}
            said |= _reasoning(release)
            if release.tool_calls:
                said["tool_calls"] = [{**call, "index": place} for place, call in enumerate(message["tool_calls"])]
            yield {**head, "choices": [_delta(index, {"role": "assistant", "content": "" if message["content"] is not None else None})]}
            if said or release.logprobs:
                yield {**head, "choices": [_delta(index, said, logprobs=_logprobs(release))]}
            facts = {"privalign": privacy.document} if index == last and not include_usage else {}
            yield {**head, "choices": [_delta(index, {}, _reason(release))], **facts}
        if include_usage:
            yield {**head, "choices": [], "usage": _usage(releases), "privalign": privacy.document}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def _message(release: Release) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": release.text or (None if release.tool_calls else ""), "refusal": None}
    message |= _reasoning(release)
    if release.tool_calls:
        message["tool_calls"] = [dict(call) for call in release.tool_calls]
    return message


def _reasoning(release: Release) -> dict[str, str]:
    """Under both names that servers and clients have for it; nothing where there is none."""
    return {} if release.reasoning is None else dict.fromkeys(REASONING, release.reasoning)


def _reason(release: Release) -> str:
    return release.finish_reason or ("tool_calls" if release.tool_calls else "stop")


def _logprobs(release: Release) -> Mapping[str, Any] | None:
    return None if release.logprobs is None else dict(release.logprobs)


def _delta(index: int, delta: dict[str, Any], reason: str | None = None, logprobs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": reason, "logprobs": logprobs}


def _usage(releases: Sequence[Release]) -> dict[str, Any] | None:
    """Tokens of all candidates; `accepted_prediction_tokens` are those of the answers, the others were drawn for the selection."""
    reported = [release.usage for release in releases if release.usage is not None]
    if not reported:
        return None
    total = sum(reported, start=Usage(0, 0))
    document: dict[str, Any] = {
        "prompt_tokens": total.prompt_tokens,
        "completion_tokens": total.completion_tokens,
        "total_tokens": total.prompt_tokens + total.completion_tokens,
    }
    own = [release.own_usage.completion_tokens for release in releases if release.own_usage is not None]
    if len(own) == len(releases):
        document["completion_tokens_details"] = {
            "accepted_prediction_tokens": sum(own),
            "rejected_prediction_tokens": total.completion_tokens - sum(own),
        }
    return document


def _sum_up(values: Sequence[float]) -> float:
    """Their sum, rounded up where it is rounded: a bound stays one."""
    total = math.fsum(values)
    return total if len(values) == 1 or total == 0 else math.nextafter(total, math.inf)
