"""What every failure of the one path is for the client."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Iterator

import pytest

from privalign import errors
from privalign.aligner import NothingToSelect, ScoringFailed
from privalign.aligner.answers import Fault
from privalign.gateway.errors import ApiError, of_failure
from privalign.ledger import KeyExhausted, KeyRefused, LedgerFailed, UnknownAccount
from privalign.policies.completions import UpstreamFailed
from privalign.rewards.protocol import ScorerUntouched
from privalign.rewards.remote import RemoteReward, Server
from privalign.rewards.tei import TeiRerank
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.types import Candidate, Request

SECRET = "inner-host 0.7390851332151607"
FINAL, LATER, PLAIN = "false", "retry-after", None


@pytest.mark.parametrize(
    ("failure", "status", "code", "again"),
    [
        (errors.BudgetExhausted("prefs", 0.1, 0.2), 429, "insufficient_quota", FINAL),
        (KeyExhausted("prefs", "k", 0, 1, "queries"), 429, "insufficient_quota", FINAL),
        (errors.BudgetBusy("prefs", 0.1, 0.2), 429, "budget_busy", LATER),
        (KeyRefused(), 403, "permission_denied", PLAIN),
        (errors.IdempotencyConflict("used", mismatch=True), 422, "idempotency_conflict", FINAL),
        (errors.IdempotencyConflict("expired", mismatch=False), 409, "idempotency_conflict", FINAL),
        (ScoringFailed(), 500, "scoring_failed", FINAL),
        (errors.LeaseExpired(SECRET), 500, "scoring_failed", FINAL),
        (errors.InvalidRewards(SECRET), 500, "internal_error", FINAL),
        (errors.CheckFailed(SECRET), 500, "internal_error", FINAL),
        (errors.MissingDependency(SECRET), 500, "internal_error", FINAL),
        (errors.BackendFailed(SECRET), 503, "backend_unavailable", LATER),
        (LedgerFailed(SECRET), 503, "ledger_unavailable", LATER),
        (UnknownAccount("prefs"), 500, "internal_error", FINAL),
        (errors.InvalidInput("seed", "wrong"), 400, "invalid_value", PLAIN),
        (UpstreamFailed(SECRET, 400, words="too long"), 400, "refused_by_model", PLAIN),
        (UpstreamFailed(SECRET, 429, 3.0), 429, "backend_busy", LATER),
        (UpstreamFailed(SECRET, 403), 502, "backend_misconfigured", FINAL),
        (UpstreamFailed(SECRET, 503, 9.0), 503, "backend_unavailable", LATER),
        (UpstreamFailed(SECRET), 503, "backend_unavailable", LATER),
        (UpstreamFailed(SECRET, 500, float("inf")), 503, "backend_unavailable", LATER),
        (NothingToSelect([Fault.SILENT, Fault.CUT]), 502, "unusable_answers", FINAL),
        (NothingToSelect([Fault.CUT, Fault.CUT]), 400, "unusable_answers", PLAIN),
        (NothingToSelect([Fault.SILENT, Fault.DISOBEDIENT]), 400, "unusable_answers", PLAIN),
        (ScorerUntouched(SECRET, 422), 400, "not_scorable", PLAIN),
        (ScorerUntouched(SECRET, 429, 3.0), 429, "backend_busy", LATER),
        (ScorerUntouched(SECRET), 503, "backend_unavailable", LATER),
        (ValueError(SECRET), 500, "internal_error", FINAL),
        (KeyError(SECRET), 500, "internal_error", FINAL),
    ],
)
@pytest.mark.parametrize("show_budget", [True, False])
def test_every_failure(failure: BaseException, status: int, code: str, again: str | None, show_budget: bool) -> None:
    error = of_failure(failure, show_budget=show_budget)
    assert (error.status, error.code) == (status, code)
    assert (error.headers.get("x-should-retry") == "false") == (again is FINAL)
    assert ("retry-after" in error.headers) == (again is LATER)
    message = error.document["error"]["message"]
    assert "inner-host" not in message
    assert "0.739" not in message
    assert message.isprintable()
    if isinstance(failure, errors.BudgetExhausted):
        assert any(letter.isdigit() for letter in message) == show_budget


@pytest.fixture
def overloaded() -> Iterator[str]:
    """A scorer that is overloaded for half a minute."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(429)
            self.send_header("Retry-After", "30")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_wait_that_a_scorer_asks_for_reaches_the_client(overloaded: str) -> None:
    reward = RemoteReward(TeiRerank("m"), Server(overloaded), Sensitivity.of_range(RewardRange(0.0, 1.0)))
    with pytest.raises(ScorerUntouched) as refusal:
        asyncio.run(reward.score(Request.of_prompt("hello"), [Candidate("a")]))
    error = of_failure(refusal.value, show_budget=True)
    assert isinstance(error, ApiError)
    assert (error.status, error.headers["retry-after"]) == (429, "30")
