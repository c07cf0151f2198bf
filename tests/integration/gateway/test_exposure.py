"""Protected rewards stay inside the gateway: no route or page, no header, log line or metric shows a planted one.

Routes are enumerated from the application itself, so that a new one is visited without being named; one with a parameter that
`FILLED` does not know fails here until it is told what to ask for.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from privalign.accounting.rules import Fsrc
from privalign.gateway.app import create_app
from privalign.gateway.logs import JsonLines
from privalign.gateway.settings import GatewaySettings
from privalign.ledger import Ledger
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privitp import PrivITP

PLANTED = np.array([0.7318529046172, 0.2946183507291, 0.5637091842635, 0.8192735460187, 0.4071836295074])
FILLED = {"model": "aligned", "name": "prefs", "rest": "nosuch/page"}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
OWN = {"sec-fetch-site": "same-origin"}
MECHANISMS = {"privbon": PrivBoN(4, 0.3), "privitp": PrivITP(2, 2, 0.05, 0.5, 0.5, 3.0)}


def routes(folder: Path) -> list[str]:
    """The paths of every route, with their parameters filled."""

    def paths(router: Any) -> Iterator[str]:
        for route in router.routes:
            inner = getattr(route, "original_router", None)
            if inner is not None:
                yield from paths(inner)
            else:
                yield route.path

    ledger = Ledger(f"sqlite:///{folder / 'routes.db'}")
    found = list(paths(create_app([], ledger, b"s" * 32, GatewaySettings())))
    ledger.close()
    assert {"/v1/chat/completions", "/metrics", "/dashboard/accounts/{name}"} <= set(found)
    return [path.replace(":path", "").format_map(FILLED) for path in found]


def failing(message: str) -> Callable[[int], Any]:
    def answer(count: int) -> Any:
        raise RuntimeError(f"{message}: {PLANTED.tolist()}")

    return answer


SCORERS: dict[str, Callable[[int], Any]] = {
    "scores": lambda count: PLANTED[np.arange(count) % 5],
    "nan": lambda count: np.where(np.arange(count) == count - 1, np.nan, PLANTED[np.arange(count) % 5]),
    "fails": failing("the scores are too large"),
    "text": lambda count: [str(score) for score in PLANTED[np.arange(count) % 5]],
    "too many": lambda count: PLANTED[np.arange(count + 1) % 5],
}


@pytest.fixture
def everything(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Callable[[], bytes]:
    """What was logged, as the gateway writes it and as Python would, and what was printed."""
    caplog.set_level(logging.DEBUG)

    def logged() -> bytes:
        lines = [JsonLines().format(record) for record in caplog.records] + [caplog.text, *capfd.readouterr()]
        return "\n".join(lines).encode("utf-8", "replace")

    return logged


def answers(running: Any) -> Iterator[httpx.Response]:
    """Requests as clients send them, right and wrong."""
    for fields in (
        {},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"n": 2},
        {"logprobs": True, "top_logprobs": 3},
        {"model": "nosuch"},
        {"temperature": 99},
        {"seed": 0.5},
    ):
        yield running.ask(**fields)
    yield running.ask(headers={"idempotency-key": "same"})
    yield running.ask(headers={"idempotency-key": "same"})
    yield running.ask(key="wrong")
    yield running.ask(body=[])


def visits(running: Any, paths: list[str]) -> Iterator[httpx.Response]:
    """Every route by every method: as nobody, a client, an officer, and an officer who has logged in."""
    for key in (None, running.key, running.officer, "session"):
        headers = {} if key in (None, "session") else {"authorization": f"Bearer {key}"}
        with httpx.Client(base_url=running.url, headers=headers | OWN, timeout=30.0) as client:
            if key == "session":
                yield client.post("/dashboard/login", data={"key": running.officer})
            for path in sorted(paths, key=lambda path: path.endswith("logout")):
                for method in METHODS if not path.endswith("logout") else METHODS[:3]:
                    yield client.request(method, path)


def seen(response: httpx.Response) -> bytes:
    return str(response.headers).encode() + response.content


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("scorer", SCORERS)
def test_no_route_shows_a_planted_reward(
    scorer: str, mechanism: str, gateway: Callable[..., Any], exposure: Any, everything: Callable[[], bytes], tmp_path: Path
) -> None:
    exposure.plant(*PLANTED.tolist())
    before = os.umask(0)
    try:
        running = gateway(MECHANISMS[mechanism])
        running.reward.answer = SCORERS[scorer]
        asked = list(answers(running))
        visited = list(visits(running, routes(tmp_path)))
        running.stop()
    finally:
        os.umask(before)
    statuses = {response.status_code for response in asked}
    assert (200 in statuses) is (scorer == "scores")
    assert (500 in statuses) is (scorer != "scores")
    assert {200, 303, 401, 404, 405} <= {response.status_code for response in visited}
    for response in (*asked, *visited):
        assert not exposure.shown(seen(response)), (response.request.method, response.request.url)
    assert not exposure.shown(everything())
    assert not exposure.readable(tmp_path)
    for entry in running.ledger.journal("prefs"):
        assert not exposure.shown(entry.record.encode())


@pytest.mark.parametrize("on_exhausted", ["refuse", "base"])
def test_a_budget_that_is_exhausted_shows_none_either(
    on_exhausted: str, gateway: Callable[..., Any], exposure: Any, everything: Callable[[], bytes], tmp_path: Path
) -> None:
    exposure.plant(*PLANTED.tolist())
    running = gateway(MECHANISMS["privbon"], rule=Fsrc(0.7, 1e-2, 1e-6), on_exhausted=on_exhausted)
    running.reward.answer = SCORERS["scores"]
    asked = [running.ask() for _ in range(6)]
    assert running.queries[0] < 6
    assert (len({response.status_code for response in asked}) == 1) is (on_exhausted == "base")
    for response in (*asked, *visits(running, routes(tmp_path))):
        assert not exposure.shown(seen(response))
    assert not exposure.shown(everything())
