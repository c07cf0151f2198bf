"""Gateways for the tests of this folder: in this process around back-ends that do as told, or as `privalign serve`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from privalign.accounting.rules import Fsrc, Rule
from privalign.aligner import Aligner, Performance, ServedModel
from privalign.gateway import server
from privalign.gateway.app import create_app
from privalign.gateway.settings import GatewaySettings
from privalign.ledger import Ledger, Role
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.protocol import Mechanism
from privalign.policies.protocol import BasePolicy
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.types import Candidate, Request, Usage

SENSITIVITY = Sensitivity(0.05, RewardRange(0.0, 1.0))
MECHANISM = PrivBoN(2, 0.3)
PLANTED = 0.7390851332151607  # a reward value that nothing may ever show


class Policy(BasePolicy):
    """Candidates at once, or as `answer` says; counts what was asked for and what was cancelled."""

    name = "fake-policy"

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.cancelled = 0
        self.answer: Callable[[Request, int], Any] = lambda request, count: [
            Candidate(f"text {place}", "stop", usage=Usage(3 if place == 0 else 0, 2)) for place in range(count)
        ]

    async def draw(self, request: Request, count: int) -> list[Candidate]:
        self.requests.append(request)
        try:
            outcome = self.answer(request, count)
            return await outcome if asyncio.iscoroutine(outcome) else outcome
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


class Reward:
    """Scores that are all the planted one, or as `answer` says."""

    name = "fake-reward"
    sensitivity = SENSITIVITY

    def __init__(self) -> None:
        self.calls = 0
        self.answer: Callable[[int], Any] = lambda count: np.full(count, PLANTED)

    async def score(self, request: Request, candidates: Sequence[Candidate]) -> Any:
        self.calls += 1
        outcome = self.answer(len(candidates))
        return await outcome if asyncio.iscoroutine(outcome) else outcome

    async def probe(self) -> None:
        pass


@dataclass
class Running:
    """A gateway that answers at `url`."""

    url: str
    ledger: Ledger
    key: str
    officer: str
    policy: Policy = field(default_factory=Policy)
    reward: Reward = field(default_factory=Reward)
    stop: Callable[[], None] = lambda: None

    def ask(self, body: Any = None, *, key: str | None = None, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        """One request for an answer; `fields` change the proper body."""
        proper = {"model": "aligned", "messages": [{"role": "user", "content": "hello"}], **fields}
        sent = {"authorization": f"Bearer {self.key if key is None else key}", **(headers or {})}
        return httpx.post(f"{self.url}/v1/chat/completions", json=proper if body is None else body, headers=sent, timeout=30.0)

    def get(self, path: str, key: str | None = None) -> httpx.Response:
        """A GET with the client's key."""
        return httpx.get(self.url + path, headers={"authorization": f"Bearer {self.key if key is None else key}"}, timeout=30.0)

    @property
    def queries(self) -> tuple[int, int]:
        """Settled and open queries of the account."""
        account = self.ledger.account("prefs")
        return account.settled_queries, account.open_queries

    def wait_until(self, true: Callable[[], bool], seconds: float = 10.0) -> None:
        """Waits for something that another thread brings about."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, "it did not come about"
            time.sleep(0.01)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts gateways in this process: `gateway(mechanism=…, rule=…, on_exhausted=…, ping_every=…)`."""
    with contextlib.ExitStack() as stack:

        def start(
            mechanism: Mechanism = MECHANISM,
            *,
            rule: Rule | None = None,
            on_exhausted: str = "refuse",
            padding: float | None = 0.0,
            max_tokens: int | None = None,
            beside: Any = None,
            **settings: Any,
        ) -> Running:
            ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
            stack.callback(ledger.close)
            ledger.create_account("prefs", rule or Fsrc(1000.0, 1e-2, 1e-6))
            keys = (ledger.create_key(Role.CLIENT).secret, ledger.create_key(Role.OFFICER).secret)
            running = Running("", ledger, *keys)
            model = ServedModel(
                "aligned", running.policy, running.reward, mechanism, "prefs", on_exhausted,
                performance=Performance(padding=padding), max_tokens=max_tokens,
            )  # fmt: skip
            models = [model] if beside is None else [model, replace(model, name="beside", policy=beside)]
            app = create_app([Aligner(ledger, each) for each in models], ledger, b"s" * 32, GatewaySettings(**settings))
            listening = server.listen("127.0.0.1", 0)
            running.url = server.address_of(listening)
            ready, loop, stop = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

            def run() -> None:
                with contextlib.closing(loop):
                    loop.run_until_complete(server.serve(app, listening, GatewaySettings(**settings), ready.set, stop))

            thread = threading.Thread(target=run)
            thread.start()
            assert ready.wait(10)

            def end() -> None:
                with contextlib.suppress(RuntimeError):  # ended before
                    loop.call_soon_threadsafe(stop.set)
                thread.join()

            running.stop = end
            stack.callback(end)
            return running

        yield start


@dataclass
class Process:
    """`privalign serve` as a process."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    def end(self, number: int = signal.SIGTERM) -> int:
        """Signals it and waits; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)


COMMAND = [sys.executable, "-c", "from privalign.cli import main; main()", "serve"]


@pytest.fixture
def serve_process(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts `privalign serve` with a deployment file: `serve_process(file, "--allow-anonymous")`."""
    started: list[Process] = []

    def start(file: Path, *options: str) -> Process:
        log = tmp_path / f"log-{len(started)}"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with log.open("w") as errors:
            process = subprocess.Popen(
                [*COMMAND, "--config", str(file), "--port", "0", *options],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on "), log.read_text()
        started.append(Process(process, line.split()[-1], log))
        return started[-1]

    yield start
    for one in started:
        one.end(signal.SIGKILL)
        assert one.process.stdout is not None
        one.process.stdout.close()


@pytest.fixture
def raw() -> Callable[..., bytes]:
    """Sends bytes to a gateway and returns all that comes back until it closes, or nothing comes for a while."""

    def send(running: Running | Process, *pieces: bytes, pause: float = 0.0, patience: float = 5.0) -> bytes:
        host, port = running.url.removeprefix("http://").split(":")
        received = b""
        with socket.create_connection((host, int(port)), timeout=patience) as connection, contextlib.suppress(TimeoutError, OSError):
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause)
            while content := connection.recv(65536):
                received += content
        return received

    return send


def events(response: httpx.Response) -> list[Any]:
    """The documents of a stream, and "[DONE]"."""
    lines = [line for line in response.text.split("\n\n") if line.startswith("data: ")]
    return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


@pytest.fixture
def stream_events() -> Callable[[httpx.Response], list[Any]]:
    return events
