"""Candidates as they can be scored, stored and sent, whatever their model wrote, and the release of one of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from privalign.errors import BackendFailed
from privalign.policies.protocol import Policy
from privalign.types import Candidate, Release, Request, total_usage

UNLIKELY = -9999.0  # OpenAI's log-probability of what is next to impossible; JSON has no −∞


async def drawn(policy: Policy, request: Request, count: int) -> list[Candidate]:
    """Exactly `count` candidates.

    Raises:
        BackendFailed: the policy returned another number of them.
    """
    fresh = await policy.draw(request, count)
    if len(fresh) != count:
        raise BackendFailed(f"the policy returned {len(fresh)} candidates where {count} were asked for")
    return [_written(candidate) for candidate in fresh]


def released(
    candidate: Candidate, index: int, fallback: bool, mechanism: str, epsilon: float, delta: float, drawn: Sequence[Candidate]
) -> Release:
    """What leaves of the chosen candidate; `drawn` are all candidates of its query."""
    return Release(
        text=candidate.text,
        index=index,
        fallback=fallback,
        mechanism=mechanism,
        epsilon=epsilon,
        delta=delta,
        finish_reason=candidate.finish_reason,
        tool_calls=candidate.tool_calls,
        logprobs=None if candidate.logprobs is None else _as_json(candidate.logprobs),
        usage=total_usage(drawn),
        own_usage=candidate.usage,
        drawn=len(drawn),
    )


def _written(candidate: Candidate) -> Candidate:
    """The candidate with nothing in it that an encoder refuses: what is paid for must not be lost to one."""
    return replace(
        candidate,
        text=_as_json(candidate.text),
        finish_reason=_as_json(candidate.finish_reason),
        tool_calls=tuple(_as_json(call) for call in candidate.tool_calls),
    )


def _as_json(value: Any) -> Any:
    """A JSON value with no half surrogate pair and no number that is not finite."""
    match value:
        case str():
            return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case float():
            return value if math.isfinite(value) else UNLIKELY if value == -math.inf else None
        case Mapping():
            return {_as_json(name): _as_json(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_as_json(inner) for inner in value]
    return value
