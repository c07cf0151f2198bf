"""What a policy answered, before any score is read: repaired where its meaning is certain, else named for what is wrong with it.

Nothing here looks at more than the request and the answer, so that nothing depends on a score.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from privalign.types import Candidate, Request, Usage

UNLIKELY = -9999.0  # OpenAI's log-probability of what is next to impossible; JSON has no −∞
_REASONS = {reason: reason for reason in ("stop", "length", "tool_calls", "content_filter")}
_REASONS |= dict.fromkeys(("eos", "eos_token", "end_turn", "stop_sequence", "stop_token"), "stop")
_REASONS |= dict.fromkeys(("max_tokens", "max_length"), "length")
_REASONS |= dict.fromkeys(("function_call", "tool_use", "tool_call"), "tool_calls")
_BROKEN_OFF = ("error", "abort", "aborted", "cancelled")


class Fault(Enum):
    """Why an answer cannot be used."""

    SILENT = "it says nothing"
    CUT = "it says nothing within its tokens"
    BROKEN = "it broke off, or calls a tool in a way that cannot be read"
    DISOBEDIENT = "it does not keep tool_choice"


def usable(candidate: Candidate, request: Request) -> Candidate | Fault:
    """The candidate as it can be scored, stored and sent; or what is wrong with it.

    Repaired are tool calls (no id, or one that another call has; no type; arguments as an object, or none), names of finish reasons,
    usage that cannot be, and what JSON in UTF-8 cannot carry.
    """
    reason = candidate.finish_reason.lower() if isinstance(candidate.finish_reason, str) else ""
    calls = _tool_calls(candidate.tool_calls)
    if reason in _BROKEN_OFF or calls is None:
        return Fault.BROKEN
    if not keeps(request.parameters.get("tool_choice"), calls):
        return Fault.DISOBEDIENT
    if not calls and not candidate.text.strip():
        return Fault.CUT if _REASONS.get(reason) == "length" else Fault.SILENT
    usage = candidate.usage
    return replace(
        candidate,
        text=as_json(candidate.text),
        finish_reason=_REASONS.get(reason),
        tool_calls=tuple(as_json(call) for call in calls),
        usage=None if usage is None else Usage.reported(usage.prompt_tokens, usage.completion_tokens),
        reasoning=as_json(candidate.reasoning),
    )


def keeps(choice: Any, calls: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these calls are what `tool_choice` asks for."""
    names = [_function_of(call)["name"] for call in calls]
    match choice:
        case "none":
            return not names
        case "required":
            return bool(names)
        case {"allowed_tools": {"mode": mode, "tools": list(tools)}}:
            return (bool(names) or mode != "required") and set(names) <= {_function_of(tool).get("name") for tool in tools}
        case {"function": {"name": name}} | {"custom": {"name": name}}:
            return bool(names) and set(names) == {name}
    return True


def as_json(value: Any) -> Any:
    """A JSON value with no half surrogate pair and no number that is not finite."""
    match value:
        case str():
            return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case float():
            return value if math.isfinite(value) else UNLIKELY if value == -math.inf else None
        case Mapping():
            return {as_json(name): as_json(inner) for name, inner in value.items()}
        case list() | tuple():
            return [as_json(inner) for inner in value]
    return value


def _tool_calls(calls: Sequence[Any]) -> list[dict[str, Any]] | None:
    """The calls as OpenAI has them, each with an id of its own; None where one cannot be read."""
    read: list[dict[str, Any]] = []
    for call in calls:
        known = _call(call)
        if known is None:
            return None
        if known["id"] in [other["id"] for other in read]:
            known["id"] = _new_id()
        read.append(known)
    return read


def _call(call: Any) -> dict[str, Any] | None:
    if not isinstance(call, Mapping):
        return None
    if "function" not in call and "custom" not in call and "name" in call:  # without what OpenAI puts around it
        call = {"id": call.get("id"), "function": {name: call[name] for name in ("name", "arguments") if name in call}}
    kind = call.get("type") or ("custom" if "custom" in call else "function")
    named = call.get(kind) if kind in ("function", "custom") else None
    if not isinstance(named, Mapping) or not isinstance(named.get("name"), str) or not named["name"]:
        return None
    said = named.get("input") if kind == "custom" else _arguments(named.get("arguments"))
    if not isinstance(said, str):
        return None
    identity = call.get("id")
    return {
        **{name: value for name, value in call.items() if name != "index"},  # of streams, where we number them ourselves
        "id": identity if isinstance(identity, str) and identity else _new_id(),
        "type": kind,
        kind: {**named, "input" if kind == "custom" else "arguments": said},
    }


def _arguments(arguments: Any) -> Any:
    """Arguments as the text of a JSON object. A text stays as the model wrote it, whatever it is; none at all is an empty object."""
    if arguments is None or arguments == "":
        return "{}"
    if isinstance(arguments, Mapping):
        try:
            return json.dumps(as_json(arguments), ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            return None
    return arguments


def _function_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    named = tool.get("function") or tool.get("custom")
    return named if isinstance(named, Mapping) else {}


def _new_id() -> str:
    return f"call_{secrets.token_hex(12)}"
