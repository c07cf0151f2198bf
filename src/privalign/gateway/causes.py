"""What the operator is told of a failure, in one line of the log: which back-end, what kind of error, and what helps.

Nothing that a back-end said is repeated, and nothing that a score may have decided: of what fails once a score may have been read only
the part is named. Back-ends have their public names; the ledger its own words, which hold no values.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from privalign.aligner import AnsweredElsewhere, NothingToSelect, Part, ScorerPaused, ScoringFailed, ServedModel
from privalign.errors import BackendFailed, LeaseExpired
from privalign.gateway import logs
from privalign.gateway.errors import ApiError, of_failure
from privalign.gateway.facts import Facts
from privalign.ledger import LedgerFailed, UnknownAccount
from privalign.policies.completions import UpstreamFailed
from privalign.rewards.protocol import ScorerUntouched

_STATUSES = {
    400: "it refuses the request; its own log says why",
    401: "it refuses the key; check api_key",
    403: "it refuses the key; check api_key",
    404: "it has no such path or model; check base_url and model",
    413: "the request is too long for it; allow longer ones there, or lower max_tokens",
    422: "the request is not one that it reads, or too long; its own log says why",
    429: "it is overloaded, or its quota is used up; give it more room, or ask for less at once",
}
_AWAY = "start it, or check base_url, proxy and timeout"
_BROKEN = "its own log says why; the query stays charged"
_OURS = {
    "overloaded": "raise max_concurrency, or add replicas",
    "stopping": "none: the gateway was told to stop",
}
_BUG = "a bug, or a back-end of your own that raises; report it with the type of the error"


def tell(facts: Facts, failure: BaseException, model: ServedModel | None = None) -> None:
    """Logs why a request failed, once, where the gateway or a back-end is to blame."""
    status = of_failure(failure, show_budget=False).status
    of_back_end = isinstance(failure, BackendFailed)
    if facts.told or not (status >= 500 or of_back_end):
        return
    facts.told = True
    level = logging.ERROR if status >= 500 else logging.WARNING
    name = facts.model if model is None else model.name
    logs.emit("failure", level=level, request=facts.id, model=name, status=status, **cause(failure, model))


def tell_readiness(part: Part, models: Sequence[ServedModel], failure: Exception | None) -> None:
    """Logs that a part has gone away, and why, or has come back; with the models that need it."""
    named = [model.name for model in models]
    if failure is None:
        logs.emit("ready", backend=_name(part, models[0] if models else None), models=named)
        return
    known = cause(failure, models[0] if models else None) | {"backend": _name(part, models[0] if models else None)}
    if isinstance(failure, TimeoutError):
        known["remedy"] = "it says nothing for long; start it again, or give it room"
    logs.emit("not ready", level=logging.ERROR, models=named, **known)


def _name(part: Part | None, model: ServedModel | None) -> str:
    if part is None:
        return "gateway"
    if model is None or part is Part.LEDGER:
        return part.value
    return f"{part.value} {model.policy.name if part is Part.POLICY else model.reward.name}"


def cause(failure: BaseException, model: ServedModel | None = None) -> dict[str, Any]:
    """The back-end, the type of the error, what it stood for where that is known, and a remedy."""
    kind = next((each.__name__ for each in type(failure).__mro__ if not each.__name__.startswith("_")), "")
    detail = getattr(failure, "status", None) if isinstance(failure, UpstreamFailed | ScorerUntouched) else None
    detail = detail or getattr(failure, "cause", None)
    return {
        "backend": _name(part_of(failure), model),
        "exception": kind,
        **({} if detail is None else {"detail": detail}),
        "remedy": _remedy(failure),
    }


def part_of(failure: BaseException) -> Part | None:
    """Which part failed; None: the gateway itself."""
    match failure:
        case ScoringFailed():
            return failure.part
        case LedgerFailed() | LeaseExpired() | UnknownAccount():
            return Part.LEDGER
        case ScorerUntouched() | ScorerPaused():
            return Part.REWARD
        case AnsweredElsewhere():
            return None
        case BackendFailed():
            return Part.POLICY
    return None


def _remedy(failure: BaseException) -> str:
    match failure:
        case LedgerFailed():
            return str(failure)
        case LeaseExpired():
            return "the answer took longer than its lease: raise lease of the model, or make its back-ends faster; the query stays charged"
        case UnknownAccount():
            return "the account is not in the ledger any more: put the right ledger back, or start again"
        case ScoringFailed():
            return _BROKEN
        case ScorerPaused():
            return "it failed a moment ago and is tried again with a public text; its own log says why"
        case NothingToSelect():
            return "its answers say nothing, or call no tool that can be read; check its chat template, tool parser and max_tokens"
        case UpstreamFailed() | ScorerUntouched():
            return _AWAY if failure.status is None else _STATUSES.get(failure.status, "its own log says why")
        case AnsweredElsewhere():
            return "another process answers the same idempotency key for long; look at its log"
        case BackendFailed():
            return "its own log says why"
        case ApiError():
            return _OURS.get(failure.code or "", _BUG)
    return _BUG
