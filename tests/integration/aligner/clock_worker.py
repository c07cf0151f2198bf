"""Answers requests of two neighbouring worlds in turns and notes what whoever asked could see. Run by test_clock_attack.

    clock_worker.py '{"way": "library" | "http", "n2": …, "requests": a world, "at_once": …, "old": false}'

The worlds differ by Δ in every phase-2 score, at the point where the sampler that privalign had before took different time
on either side: it went through the rounds one by one, in ball arithmetic that changes its formula 12 σ below the ceiling, and
then slept on the event loop's timer to a multiple of 20 ms. It is kept here (`OldQuery`) to see that the attack works.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import os
import random
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flint import arb, ctx

import privalign.aligner.aligner
from privalign.acceptance import AcceptanceCurve, default_tail, snap
from privalign.accounting.rules import Basic
from privalign.aligner import Aligner, Performance, ServedModel
from privalign.gateway import server
from privalign.gateway.app import create_app
from privalign.gateway.settings import GatewaySettings
from privalign.ledger import Ledger, Role
from privalign.mechanisms.normaliser import normaliser
from privalign.mechanisms.privitp import PrivITP
from privalign.mechanisms.protocol import Selection
from privalign.policies.protocol import BasePolicy
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.types import Candidate, Request, Usage

DELTA, SIGMA, N = 1e-4, 0.1, 16
SENSITIVITY = Sensitivity(DELTA, RewardRange(0.0, 1.0), "declared", reason="two worlds")
REQUESTS = [Request.of_prompt("world 0"), Request.of_prompt("world 1")]  # one process answers both: the very same system
UNIT = 0.02  # seconds, to multiples of which the old selection was padded
Sample = tuple[int, float, int]  # world, seconds until the answer, candidates that it took


class Policy(BasePolicy):
    """Candidates at once, a token each, so that the usage of an answer tells how many were drawn."""

    name = "policy"

    async def draw(self, request: Request, count: int) -> list[Candidate]:
        return [Candidate("text", "stop", usage=Usage(0, 1))] * count


class Reward:
    """1 in phase 1; in phase 2, which has whatever comes after the first n of a query, 12 σ below the ceiling, ∓Δ/2."""

    name = "reward"
    sensitivity = SENSITIVITY

    def __init__(self, n2: int) -> None:
        self._late = 1.0 + SIGMA * default_tail(n2) - 12 * SIGMA

    async def score(self, request: Request, candidates: Sequence[Candidate]) -> Any:
        scores = np.full(len(candidates), self._late + (0.5 if request.messages[0].text == "world 1" else -0.5) * DELTA)
        if len(candidates) > N:  # only the first batch is larger than a chunk
            scores[:N] = 1.0
        return scores

    async def probe(self) -> None:
        pass


class OldQuery:
    """One selection as it was: rounds one by one, each drawn exactly by refining an enclosure, then a sleep of the event loop."""

    def __init__(self, model: ServedModel, mechanism: PrivITP, request: Request, *_: Any) -> None:
        self._model, self._mechanism, self._request = model, mechanism, request
        self.candidates: list[Candidate] = []
        self.touched = self.scorer_failed = False

    async def run(self) -> tuple[Candidate, Selection]:
        rule, chunk = self._mechanism, self._model.performance.chunk
        scores = await self._provide(rule.n + chunk)
        self.touched = True
        started = time.perf_counter()
        noisy = normaliser(scores[: rule.n], rule.beta) + random.gauss(0.0, rule.sigma_x)
        curve = AcceptanceCurve(snap(noisy, rule.beta, 1.0), 1.0, rule.sigma_z, rule.tail)
        spent, halt = time.perf_counter() - started, 0
        for t in range(1, rule.n2 + 1):
            if rule.n + t > len(scores):
                scores += await self._provide(min(chunk, rule.n2 - t + 1))
            started = time.perf_counter()
            accepted = old_bernoulli(curve, scores[rule.n + t - 1])
            spent += time.perf_counter() - started
            if accepted:
                halt = t
                break
        await asyncio.sleep(UNIT * max(1, -(-spent // UNIT)) - spent)
        if not halt:
            self.candidates += await self._model.policy.draw(self._request, 1)
        event = rule.event(self._model.reward.sensitivity)
        return self.candidates[-1], Selection(len(self.candidates) - 1, event, halt or rule.n2, fallback=not halt)

    async def _provide(self, count: int) -> list[float]:
        fresh = await self._model.policy.draw(self._request, count)
        self.candidates += fresh
        scores: list[float] = (await self._model.reward.score(self._request, fresh)).tolist()
        return scores


def old_bernoulli(curve: AcceptanceCurve, reward: float) -> bool:
    digits, bits = secrets.randbits(64), 64
    while True:
        precision, ctx.prec = ctx.prec, bits + 64
        try:
            p = curve.enclose_accept(reward)
            if arb((digits + 1, -bits)) <= p:
                return True
            if arb((digits, -bits)) >= p:
                return False
        finally:
            ctx.prec = precision
        digits, bits = (digits << bits) | secrets.randbits(bits), 2 * bits


def aligner(folder: Path, n2: int, old: bool) -> tuple[Ledger, Aligner]:
    ledger = Ledger(f"sqlite:///{folder / 'ledger.db'}")
    ledger.create_account("prefs", Basic(1e6, 0.5, 1e-12))
    mechanism = PrivITP(n=N, n2=n2, beta=0.05, sigma_x=SIGMA, sigma_z=SIGMA, tail=default_tail(n2))
    performance = Performance(padding=UNIT) if old else Performance()
    made = Aligner(ledger, ServedModel("aligned", Policy(), Reward(n2), mechanism, "prefs", performance=performance))
    made.warm_up()
    return ledger, made


async def in_turns(ask: Callable[[int], Awaitable[int]], requests: int, at_once: int) -> list[Sample]:
    """Pairs of requests, one of each world in either order, so that load that comes and goes meets both alike."""
    samples: list[Sample] = []
    worlds = itertools.chain.from_iterable(random.choice([(0, 1), (1, 0)]) for _ in range(requests))

    async def worker() -> None:
        for world in worlds:
            started = time.perf_counter()
            drawn = await ask(world)
            samples.append((world, time.perf_counter() - started, drawn))

    await asyncio.gather(*(worker() for _ in range(at_once)))
    return samples


async def by_library(served: Aligner, requests: int, at_once: int) -> list[Sample]:
    async def ask(world: int) -> int:
        (release,) = await served.answer(REQUESTS[world])
        return release.drawn

    return await in_turns(ask, requests, at_once)


async def by_http(url: str, key: str, requests: int, at_once: int) -> list[Sample]:
    import httpx

    async with httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60.0) as client:

        async def ask(world: int) -> int:
            body = {"model": "aligned", "messages": [{"role": "user", "content": f"world {world}"}]}
            response = await client.post("/v1/chat/completions", json=body)
            drawn: int = response.json()["usage"]["completion_tokens"]
            return drawn

        return await in_turns(ask, requests, at_once)


def serve(folder: Path, n2: int, old: bool, ready: int) -> None:
    """The gateway, in a process of its own; writes its address and a key to the pipe `ready`."""
    ledger, served = aligner(folder, n2, old)
    key = ledger.create_key(Role.CLIENT).secret
    settings = GatewaySettings(requests_per_minute=1e9)
    listening = server.listen("127.0.0.1", 0)
    announce = functools.partial(os.write, ready, json.dumps([server.address_of(listening), key]).encode())
    asyncio.run(server.serve(create_app([served], ledger, b"s" * 32, settings), listening, settings, announce, asyncio.Event()))


def main(way: str, n2: int, requests: int, at_once: int, old: bool) -> None:
    with contextlib.suppress(OSError):
        os.nice(-10)  # other work on the machine blurs what an attacker sees
    if old:
        privalign.aligner.aligner.Query = OldQuery  # type: ignore[misc,assignment]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        if way == "library":
            _, served = aligner(Path(name), n2, old)
            samples = asyncio.run(by_library(served, requests, at_once))
        else:
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                threading.Thread(target=end_with_parent, daemon=True).start()
                try:
                    serve(Path(name), n2, old, writing)
                finally:
                    os._exit(1)
            os.close(writing)  # so that a server that fails is heard of
            url, key = json.loads(os.read(reading, 10_000))
            try:
                samples = asyncio.run(by_http(url, key, requests, at_once))
            finally:
                os.kill(child, 9)
                os.waitpid(child, 0)
    print(json.dumps(samples))


def end_with_parent() -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
