"""One line of the log for every failure that is the gateway's or a back-end's: who, what kind, what helps, and nothing that they said."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from privalign import errors
from privalign.aligner import AnsweredElsewhere, NothingToSelect, Part, ScorerPaused, ScoringFailed, ServedModel
from privalign.aligner.answers import Fault
from privalign.gateway.causes import tell, tell_readiness
from privalign.gateway.errors import busy, internal, invalid, stopped
from privalign.gateway.facts import Facts
from privalign.gateway.logs import JsonLines
from privalign.ledger import LedgerFailed, UnknownAccount
from privalign.policies.completions import UpstreamFailed
from privalign.rewards.protocol import ScorerUntouched

SECRET = "a prompt, sk-key and 0.7390851332151607"
NAMED = SimpleNamespace(name="aligned", policy=SimpleNamespace(name="openai m at h:1"), reward=SimpleNamespace(name="tei r"))
MODEL = cast(ServedModel, NAMED)
POLICY, REWARD = "policy openai m at h:1", "reward model tei r"


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(JsonLines().format(record)) for record in caplog.records]


@pytest.mark.parametrize(
    ("failure", "backend", "kind", "helps"),
    [
        (UpstreamFailed(SECRET, cause="ConnectError"), POLICY, "UpstreamFailed", "start it"),
        (UpstreamFailed(SECRET, 401, words=SECRET), POLICY, "UpstreamFailed", "api_key"),
        (UpstreamFailed(SECRET, 404), POLICY, "UpstreamFailed", "base_url"),
        (UpstreamFailed(SECRET, 400, words=SECRET), POLICY, "UpstreamFailed", "log"),
        (UpstreamFailed(SECRET, 429), POLICY, "UpstreamFailed", "room"),
        (UpstreamFailed(SECRET, 500), POLICY, "UpstreamFailed", "log"),
        (errors.BackendFailed(SECRET), POLICY, "BackendFailed", "log"),
        (NothingToSelect([Fault.SILENT]), POLICY, "NothingToSelect", "chat template"),
        (NothingToSelect([Fault.CUT]), POLICY, "NothingToSelect", "max_tokens"),
        (ScorerUntouched(SECRET, cause="ConnectError"), REWARD, "ScorerUntouched", "start it"),
        (ScorerUntouched(SECRET, 422), REWARD, "ScorerUntouched", "log"),
        (ScorerUntouched(SECRET, 429), REWARD, "ScorerUntouched", "room"),
        (ScorerPaused(SECRET), REWARD, "ScorerPaused", "log"),
        (ScoringFailed(), REWARD, "ScoringFailed", "stays charged"),
        (ScoringFailed(Part.POLICY), POLICY, "ScoringFailed", "stays charged"),
        (ScoringFailed(Part.LEDGER), "ledger", "ScoringFailed", "stays charged"),
        (LedgerFailed("ledger sqlite:///l.db: the disk is full; free some space"), "ledger", "LedgerFailed", "free some space"),
        (errors.LeaseExpired(SECRET), "ledger", "LeaseExpired", "lease"),
        (UnknownAccount("prefs"), "ledger", "UnknownAccount", "ledger"),
        (AnsweredElsewhere(), "gateway", "AnsweredElsewhere", "idempotency"),
        (ValueError(SECRET), "gateway", "ValueError", "report it"),
        (internal(), "gateway", "ApiError", "report it"),
        (stopped(), "gateway", "ApiError", "told to stop"),
        (busy("full", "overloaded", status=503), "gateway", "ApiError", "max_concurrency"),
    ],
)
def test_one_line_says_who_what_and_what_helps(
    caplog: pytest.LogCaptureFixture, failure: Exception, backend: str, kind: str, helps: str
) -> None:
    facts = Facts()
    with caplog.at_level(logging.INFO):
        tell(facts, failure, MODEL)
        tell(facts, failure, MODEL)  # whoever else meets it
    (line,) = lines(caplog)
    assert (line["event"], line["request"], line["model"]) == ("failure", facts.id, "aligned")
    assert (line["backend"], line["exception"]) == (backend, kind)
    assert helps in line["remedy"]
    assert line["level"] == ("error" if line["status"] >= 500 else "warning")
    assert not any(piece in json.dumps(line) for piece in ("a prompt", "sk-key", "0.739"))


@pytest.mark.parametrize(
    "failure", [invalid("n", "wrong"), errors.InvalidInput("seed", SECRET), errors.BudgetExhausted("prefs", 0.1, 0.2), busy("slow", "rate")]
)
def test_what_is_nobodys_fault_leaves_no_line(caplog: pytest.LogCaptureFixture, failure: Exception) -> None:
    with caplog.at_level(logging.INFO):
        tell(Facts(), failure, MODEL)
    assert not caplog.records


def test_readiness(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        tell_readiness(Part.POLICY, [MODEL], UpstreamFailed(SECRET, cause="ConnectError"))
        tell_readiness(Part.LEDGER, [MODEL], LedgerFailed("ledger l: read-only; give access"))
        tell_readiness(Part.REWARD, [MODEL], TimeoutError())
        tell_readiness(Part.REWARD, [MODEL], None)
    away, ledger, silent, back = lines(caplog)
    assert (away["event"], away["backend"], away["models"], away["detail"]) == ("not ready", POLICY, ["aligned"], "ConnectError")
    assert (ledger["backend"], ledger["remedy"]) == ("ledger", "ledger l: read-only; give access")
    assert (silent["backend"], silent["exception"]) == (REWARD, "TimeoutError")
    assert (back["event"], back["backend"]) == ("ready", REWARD)
    assert "sk-key" not in caplog.text
