"""What a failing remote scorer costs an account: nothing where it saw nothing, the query where it may have, never more than one."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from privalign.accounting.rules import Basic, Debit
from privalign.aligner import Aligner, Performance, ScoringFailed, ServedModel
from privalign.errors import BackendFailed
from privalign.ledger import Ledger
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privitp import PrivITP
from privalign.mechanisms.protocol import Mechanism
from privalign.policies.protocol import BasePolicy
from privalign.rewards import remote
from privalign.rewards.protocol import ScorerUntouched
from privalign.rewards.remote import RemoteReward, Server
from privalign.rewards.tei import TeiPredict
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.types import Candidate, Request

SENSITIVITY = Sensitivity.of_range(RewardRange(0.0, 1.0))
REQUEST = Request.of_prompt("hello")
PRIVBON = PrivBoN(8, 2.0)
PRIVITP = PrivITP(n=8, n2=16, beta=0.05, sigma_x=2.0, sigma_z=2.0, tail=3.0)


class Policy(BasePolicy):
    name = "numbers"

    def __init__(self) -> None:
        self.drawn = 0

    async def draw(self, request: Request, count: int) -> list[Candidate]:
        self.drawn += count
        return [Candidate(f"text {index}") for index in range(count)]


class Scorer:
    """A TEI of fixed scores that answers the i-th request as `plan(i)` says: a status, or None for its scores."""

    def __init__(self) -> None:
        self.plan: Callable[[int], int | None] = lambda request: None
        self.requests = 0
        scorer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                inputs = json.loads(self.rfile.read(int(self.headers["content-length"])))["inputs"]
                status = scorer.plan(scorer.requests)
                scorer.requests += 1
                body = json.dumps(
                    [[{"label": "reward", "score": 0.123456789}]] * len(inputs) if status is None else {"error": "x"}
                ).encode()
                self.send_response(status or 200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # a client that gave up
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scorer]:
    monkeypatch.setattr(remote, "FIRST_WAIT", 0.001)
    scorer = Scorer()
    yield scorer
    scorer.close()


@pytest.fixture
def ledger(sqlite_url: str) -> Iterator[Ledger]:
    book = Ledger(sqlite_url)
    book.create_account("prefs", Basic(100_000.0, 1e-2, 1e-6))
    yield book
    book.close()


def aligner(ledger: Ledger, url: str, mechanism: Mechanism = PRIVBON) -> Aligner:
    reward = RemoteReward(TeiPredict("armo"), Server(url, batch_size=4, timeout=2.0), SENSITIVITY)
    return Aligner(ledger, ServedModel("aligned", Policy(), reward, mechanism, "prefs", performance=Performance(padding=0.0)))


def charged(ledger: Ledger) -> int:
    """Queries that the account pays for, in full or not."""
    account = ledger.account("prefs")
    assert (account.debited == Debit()) == (account.settled_queries + account.open_queries == 0)
    return account.settled_queries + account.open_queries


@pytest.mark.parametrize("mechanism", [PRIVBON, PRIVITP], ids=lambda mechanism: mechanism.name)
def test_a_working_scorer_serves_an_answer(ledger: Ledger, scorer: Scorer, mechanism: Mechanism) -> None:
    (release,) = aligner(ledger, scorer.url, mechanism).answer_blocking(REQUEST)
    assert release.text.startswith("text")
    assert charged(ledger) == 1


@pytest.mark.parametrize("status", [401, 403, 404, 413, 422, 429])
def test_a_refusal_received_whole_costs_nothing(ledger: Ledger, scorer: Scorer, status: int) -> None:
    scorer.plan = lambda request: status
    with pytest.raises(ScorerUntouched, match=str(status)):
        aligner(ledger, scorer.url).answer_blocking(REQUEST)
    assert charged(ledger) == 0


@pytest.mark.parametrize("status", [400, 424, 500, 503])
def test_any_other_failure_stays_spent_in_one_generic_line(ledger: Ledger, scorer: Scorer, status: int) -> None:
    scorer.plan = lambda request: status
    with pytest.raises(ScoringFailed) as caught:
        aligner(ledger, scorer.url).answer_blocking(REQUEST)
    assert str(caught.value) == str(ScoringFailed())
    assert charged(ledger) == 1


def test_a_refusal_after_phase_1_was_scored_stays_spent(ledger: Ledger, scorer: Scorer) -> None:
    scorer.plan = lambda request: None if request < 4 else 401
    asked = aligner(ledger, scorer.url, PrivITP(n=8, n2=64, beta=0.05, sigma_x=2.0, sigma_z=2.0, tail=3.0))
    for _ in range(100):  # about every other query needs a second chunk of phase 2
        scorer.requests, before = 0, charged(ledger)
        try:
            asked.answer_blocking(REQUEST)
        except ScoringFailed:
            break
    else:
        pytest.fail("no query reached the refused chunk")
    assert charged(ledger) == before + 1


def test_a_dead_scorer_costs_nothing_and_a_sick_one_a_single_query(ledger: Ledger, scorer: Scorer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    dead = aligner(ledger, f"http://127.0.0.1:{port}")
    for _ in range(3):
        with pytest.raises(ScorerUntouched, match="cannot be reached"):
            dead.answer_blocking(REQUEST)
    assert charged(ledger) == 0
    scorer.plan = lambda request: 500
    sick = aligner(ledger, scorer.url)
    for _ in range(5):
        with pytest.raises(BackendFailed):
            sick.answer_blocking(REQUEST)
    assert charged(ledger) == 1  # the probe failed before anything else was reserved
    scorer.plan = lambda request: None
    sick.answer_blocking(REQUEST)
    assert charged(ledger) == 2
