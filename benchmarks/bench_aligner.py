"""The aligner against its targets: ≤ 10 ms of its own per request at n = 16, and PrivITP within 1.1 × of PrivBoN's wall time
where a draw takes 200 ms and PrivITP stops within the first chunk.

Back-ends and padding are excluded from the first (in memory, padding 0); the ledger is SQLite with durable commits. In the
second a fake upstream answers any number of candidates after a constant 200 ms, padding as in production; candidates
generated are n and the chunks needed, no more. The third is the time of a request as clients see it, padding as in production, back-ends
in memory; with another version's `src` folder in PRIVALIGN_BEFORE, as ratios to that one, both measured in turns.
Run: `pytest benchmarks/bench_aligner.py -s`.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from privalign.accounting.rules import Renyi
from privalign.aligner import Aligner, Performance, ServedModel
from privalign.ledger import Ledger
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privbon_gaussian import PrivBoNGaussian
from privalign.mechanisms.privitp import PrivITP
from privalign.mechanisms.protocol import Mechanism
from privalign.policies.protocol import BasePolicy
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.types import Candidate, Request

SENSITIVITY = Sensitivity(0.05, RewardRange(0.0, 1.0))
REQUEST = Request.of_prompt("hello")
PRIVBON = PrivBoN(16, 0.5)
PRIVITP = PrivITP(n=16, n2=16, beta=0.05, sigma_x=0.5, sigma_z=0.5, tail=3.0)
UPSTREAM = 0.2  # seconds that every draw takes, however many candidates
ROUNDS = 12


class Policy(BasePolicy):
    """Candidates from memory, after a constant time."""

    name = "memory"

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self.counts: list[int] = []

    async def draw(self, request: Request, count: int) -> list[Candidate]:
        if self._seconds:
            await asyncio.sleep(self._seconds)
        self.counts.append(count)
        return [Candidate(f"candidate {place}") for place in range(count)]


class Reward:
    """Scores from memory."""

    name = "memory"
    sensitivity = SENSITIVITY

    async def score(self, request: Request, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        return np.linspace(0.0, 1.0, len(candidates))

    async def probe(self) -> None:
        pass


def aligner_for(folder: Path, mechanism: Mechanism, policy: Policy, performance: Performance) -> Aligner:
    ledger = Ledger(f"sqlite:///{folder / 'ledger.db'}")
    ledger.create_account(mechanism.name, Renyi(1e6, 1e-6, 2.0))
    model = ServedModel("aligned", policy, Reward(), mechanism, mechanism.name, performance=performance)
    return Aligner(ledger, model)


@pytest.mark.parametrize("mechanism", [PRIVBON, PrivBoNGaussian(16, 0.5), PRIVITP], ids=lambda mechanism: mechanism.name)
def test_overhead_of_a_request(benchmark: Any, tmp_path: Path, mechanism: Mechanism) -> None:
    """Everything but back-ends and padding: reserve and settle durably, select, price."""
    aligner = aligner_for(tmp_path, mechanism, Policy(), Performance(padding=0.0))
    with asyncio.Runner() as runner:
        runner.run(aligner.answer(REQUEST))  # the first request prices the worst case, once per process
        benchmark.pedantic(lambda: runner.run(aligner.answer(REQUEST)), rounds=200, warmup_rounds=10)
    if benchmark.stats is not None:
        median = benchmark.stats.stats.median
        print(f"\n{mechanism.name}: {median * 1e3:.2f} ms a request")
        assert median <= 0.010


def test_privitp_takes_the_time_of_one_batch(benchmark: Any, tmp_path: Path) -> None:
    times = benchmark.pedantic(compare, args=(tmp_path,), rounds=1)
    bon, itp = (statistics.median(times[name]) for name in ("privbon", "one chunk"))
    print(f"\nprivbon {bon * 1e3:.0f} ms, privitp within the first chunk {itp * 1e3:.0f} ms ({itp / bon:.3f} ×)", end="")
    print(f"; {len(times['one chunk'])} of {ROUNDS} stopped there")
    assert itp <= 1.1 * bon


def compare(folder: Path) -> dict[str, list[float]]:
    """Seconds of PrivBoN's requests, and of PrivITP's by whether the first chunk was enough; taken in turns."""
    times: dict[str, list[float]] = {"privbon": [], "one chunk": [], "more chunks": []}
    chunk = Performance().chunk
    policies = {mechanism.name: Policy(UPSTREAM) for mechanism in (PRIVBON, PRIVITP)}
    aligners = [aligner_for(folder, mechanism, policies[mechanism.name], Performance()) for mechanism in (PRIVBON, PRIVITP)]
    with asyncio.Runner() as runner:
        for aligner in aligners:
            runner.run(aligner.answer(REQUEST))
        for _ in range(ROUNDS):
            for aligner, mechanism in zip(aligners, (PRIVBON, PRIVITP), strict=True):
                counts = policies[mechanism.name].counts
                counts.clear()
                started = time.perf_counter()
                (release,) = runner.run(aligner.answer(REQUEST))
                taken = time.perf_counter() - started
                if mechanism is PRIVBON:
                    assert counts == [16]
                    times["privbon"].append(taken)
                    continue
                chunks = 1 + (release.index - PRIVITP.n >= chunk)
                assert counts == [PRIVITP.n + chunk, *[chunk] * (chunks - 1), *([1] if release.fallback else [])]
                times["one chunk" if chunks == 1 else "more chunks"].append(taken)
    return times


TURNS = 4  # processes of each version
SIZES = (16, 64)


def mechanisms() -> dict[str, Mechanism]:
    """By name and n; PrivITP with noise that lets it stop within the first chunk as a rule."""
    made: dict[str, Mechanism] = {}
    for n in SIZES:
        made[f"privbon {n}"] = PrivBoN(n, 0.5)
        made[f"privbon-gaussian {n}"] = PrivBoNGaussian(n, 0.5)
        made[f"privitp {n}"] = PrivITP(n=n, n2=n, beta=0.05, sigma_x=0.5, sigma_z=0.5, tail=3.0)
    return made


def latencies(requests: int) -> dict[str, list[float]]:
    """Seconds of requests, one mechanism after the other in turns."""
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        aligners = {}
        for name, mechanism in mechanisms().items():
            place = Path(folder, name)
            place.mkdir()
            aligners[name] = aligner_for(place, mechanism, Policy(), Performance())
            aligners[name].warm_up()
            runner.run(aligners[name].answer(REQUEST))
        for _ in range(requests):
            for name, aligner in aligners.items():
                started = time.perf_counter()
                runner.run(aligner.answer(REQUEST))
                times.setdefault(name, []).append(time.perf_counter() - started)
    return times


def in_process_of(source: str) -> dict[str, list[float]]:
    """`latencies` of the version in the folder."""
    environment = {**os.environ, "PYTHONPATH": source}
    command = [sys.executable, __file__, "50"]
    return json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)  # type: ignore[no-any-return]


def test_time_of_a_request(benchmark: Any) -> None:
    now, before = str(Path(__file__).parents[1] / "src"), os.environ.get("PRIVALIGN_BEFORE")
    runs: dict[str, dict[str, list[float]]] = {source: {} for source in (now, before) if source}

    def measure() -> None:
        for _ in range(TURNS):
            for source, times in runs.items():
                for name, taken in in_process_of(source).items():
                    times.setdefault(name, []).extend(taken)

    benchmark.pedantic(measure, rounds=1)
    for name, taken in runs[now].items():
        p50 = statistics.median(taken)
        shown = f"\n{name}: p50 {p50 * 1e3:.1f} ms"
        if before:
            earlier = statistics.median(runs[before][name])
            shown += f", before {earlier * 1e3:.1f} ms, ratio {p50 / earlier:.2f}"
            assert p50 <= 1.1 * earlier
        print(shown, end="")
    print()


if __name__ == "__main__":
    print(json.dumps(latencies(int(sys.argv[1]))))
