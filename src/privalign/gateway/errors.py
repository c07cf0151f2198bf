"""What clients are told when there is no answer: OpenAI's error document, and whether it makes sense to ask again.

Nothing that a scorer said, and no name of an inner host, leaves here. Once a score may have been read there is one generic
line, and `x-should-retry: false`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from privalign import retry_after
from privalign.aligner import NothingToSelect, ScoringFailed
from privalign.errors import (
    BackendFailed,
    BudgetBusy,
    BudgetExhausted,
    IdempotencyConflict,
    InvalidInput,
    LeaseExpired,
)
from privalign.ledger import KeyExhausted, KeyRefused, LedgerFailed, UnknownAccount
from privalign.policies.completions import UpstreamFailed
from privalign.rewards.protocol import ScorerUntouched

NO_RETRY = {"x-should-retry": "false"}
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An error as clients get it.

    Args:
        status: of HTTP. code: a word that programs can tell it by. param: the field of the request that is wrong.
        headers: sent beside it.
    """

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    @property
    def document(self) -> dict[str, Any]:
        """OpenAI's shape."""
        kind = "insufficient_quota" if self.code == "insufficient_quota" else _TYPES.get(self.status)
        kind = kind or ("invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The whole answer."""
        return JSONResponse(self.document, self.status, self.headers)


def invalid(param: str | None, message: str) -> ApiError:
    """A request that is wrong in itself."""
    return ApiError(400, message if param is None else f"{param}: {message}", code="invalid_value", param=param)


def busy(message: str, code: str, *, status: int = 429, seconds: float | None = None) -> ApiError:
    """Not now, and nothing was charged; `seconds` until another attempt makes sense, one where nobody knows."""
    return ApiError(status, message, code=code, headers=retry_after.header(seconds))


def internal() -> ApiError:
    """A bug of ours; what it was stays inside."""
    return ApiError(500, "the gateway failed; its operator can look the request up by its id", code="internal_error", headers=NO_RETRY)


def stopped() -> ApiError:
    """The gateway ends before the answer is there."""
    message = "the gateway stopped before there was an answer; the query may have been charged"
    return ApiError(503, message, code="stopping", headers=NO_RETRY)


def of_failure(failure: BaseException, *, show_budget: bool) -> ApiError:
    """What a failure of the one path means for the client.

    Args:
        show_budget: whether clients may see what remains of an account and what was asked for.
    """
    match failure:
        case ApiError():
            return failure
        case BudgetBusy():
            shown = str(failure) if show_budget else "only requests under way stand in the way of the privacy budget; retry"
            return busy(shown, "budget_busy")
        case BudgetExhausted():
            hidden = "the limit of this key is used up" if isinstance(failure, KeyExhausted) else "the privacy budget is used up"
            return ApiError(429, str(failure) if show_budget else hidden, code="insufficient_quota", headers=NO_RETRY)
        case KeyRefused():
            return ApiError(403, "this key may not ask for this model, or was revoked a moment ago", code="permission_denied")
        case IdempotencyConflict():
            return ApiError(422 if failure.mismatch else 409, str(failure), code="idempotency_conflict", headers=NO_RETRY)
        case ScoringFailed() | LeaseExpired():
            return ApiError(500, str(ScoringFailed()), code="scoring_failed", headers=NO_RETRY)
        case NothingToSelect():
            return _of_silence(failure)
        case ScorerUntouched():
            return _of_scorer(failure)
        case UpstreamFailed():
            return _of_policy(failure)
        case LedgerFailed():
            return busy("the privacy ledger is not available; nothing was released", "ledger_unavailable", status=503)
        case BackendFailed():
            return busy("a model back-end failed a moment ago; nothing was charged, retry later", "backend_unavailable", status=503)
        case UnknownAccount():
            return internal()
        case InvalidInput():
            return ApiError(400, str(failure), code="invalid_value", param=failure.field)
        case _:
            return internal()


def _of_silence(failure: NothingToSelect) -> ApiError:
    if failure.param is None:
        return ApiError(502, f"{failure}; nothing was charged", code="unusable_answers", headers=NO_RETRY)
    return ApiError(400, f"{failure.param}: {failure}; nothing was charged", code="unusable_answers", param=failure.param)


def _of_scorer(refusal: ScorerUntouched) -> ApiError:
    if refusal.of_request:
        return ApiError(
            400, "the reward model cannot read this conversation: too long, or not text; nothing was charged", code="not_scorable"
        )
    if refusal.status == 429:
        return busy("the reward model is overloaded; nothing was charged", "backend_busy", seconds=refusal.retry_after)
    return busy("the reward model is not available; nothing was charged", "backend_unavailable", status=503)


def _of_policy(failure: UpstreamFailed) -> ApiError:
    if failure.status in (400, 413, 422):
        words = f": {failure.words}" if failure.words else ""
        return ApiError(400, f"the base model refused the request{words}; nothing was charged", code="refused_by_model")
    if failure.status == 429:
        return busy("the base model is busy; nothing was charged", "backend_busy", seconds=failure.retry_after)
    if failure.status in (401, 403, 404):  # the gateway's credentials or settings, not the client's
        return ApiError(502, "the base model refuses the gateway; nothing was charged", code="backend_misconfigured", headers=NO_RETRY)
    return busy("the base model is not available; nothing was charged", "backend_unavailable", status=503, seconds=failure.retry_after)
