"""`evaluate` against its naive NumPy twin, processor time, side by side: ≥ 100 × (`authors` ≥ 30 ×) at no larger standard error.

Both run on the same prompts, in the shape of the judged AlpacaEval file (200 prompts × 55 candidates, n ≤ 32, 50 replicates) and
of long pools (10,000 candidates, n ≤ 4,096). The twin draws with replacement; the default, without, is timed against `draw="with"`: ≤ 3 ×.
Run: `pytest benchmarks/bench_evaluate.py -s`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privalign.acceptance import default_tail
from privalign.candidates.scored import ScoredPrompts
from privalign.evaluation import authors
from privalign.evaluation.outcomes import measure
from privalign.mechanisms.bon import BoN
from privalign.mechanisms.itp import ITP
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privitp import PrivITP
from privalign.sensitivity import RewardRange, Sensitivity

sys.path.insert(0, str(Path(__file__).parent))  # this folder is no package
import naive_evaluate

RANGE = RewardRange(0.0, 1.0)
SCALE, BETA, SIGMA_X, SIGMA_Z, REPLICATES = 0.2, 0.05, 0.25, 0.25, 50


def prompts(count: int, candidates: int) -> ScoredPrompts:
    rng = np.random.default_rng(7)
    level = rng.normal(0.45, 0.1, (count, 1))
    gold = (rng.random((count, candidates)) < np.clip(level, 0.05, 0.95)).astype(float)
    rewards = np.clip(level + 0.15 * (gold - 0.5) + 0.12 * rng.standard_normal((count, candidates)), 0, 1)
    return ScoredPrompts(np.arange(count + 1) * candidates, rewards.ravel(), gold.ravel())


def pools_of(block: ScoredPrompts, rewards: Any) -> Any:
    return [(rewards[a:b], block.gold[a:b]) for a, b in pairwise(block.offsets)]


def best_of_three(call: Callable[[], Any]) -> tuple[float, Any]:
    times = []
    for _ in range(3):
        started = time.process_time()
        result = call()
        times.append(time.process_time() - started)
    return min(times), result


CASES = {"alpaca": (200, 55, (1, 2, 4, 8, 16, 32)), "paper": (8, 10_000, tuple(2**k for k in range(1, 13)))}


@pytest.mark.parametrize("case", CASES)
def test_faithful(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    count, candidates, sizes = CASES[case]
    block = prompts(count, candidates)
    rules = [
        rule for n in sizes for rule in (BoN(n), PrivBoN(n, SCALE), ITP(n, n, BETA), PrivITP(n, n, BETA, SIGMA_X, SIGMA_Z, default_tail(n)))
    ]

    def fast() -> Any:
        return measure([block], rules, RANGE, Sensitivity.of_range(RANGE), draw="with", replicates=REPLICATES)

    fast()
    seconds, outcomes = best_of_three(fast)
    pools = pools_of(block, block.rewards)
    naive_seconds, (naive, variance) = best_of_three(
        lambda: naive_evaluate.faithful(pools, sizes, RANGE.width, SCALE, BETA, SIGMA_X, SIGMA_Z, REPLICATES)
    )
    ours = outcomes.true.reshape(len(sizes), 4, count).transpose(1, 0, 2)
    ours_variance = outcomes.true_variance.reshape(len(sizes), 4, count).transpose(1, 0, 2)
    assert np.abs(ours - naive).max() < 6 * np.sqrt(variance + ours_variance).max()  # the same numbers
    assert (ours_variance.mean(axis=2) <= variance.mean(axis=2)).all()
    ratio = naive_seconds / seconds
    gain = np.sqrt(variance.mean((1, 2)) / np.maximum(ours_variance.mean((1, 2)), 1e-12))
    with capsys.disabled():
        print(f"\nfaithful, {case}: {seconds:.3f} s; twin {naive_seconds:.2f} s: {ratio:.0f} ×")
        print(f"  its standard errors are larger by {np.round(gain, 1)}: at equal ones ≥ {ratio * gain.min() ** 2:.0f} ×")
    # a pool of 10,000 is read and sorted whole where the twin draws a few thousand of it: there, at equal standard error
    assert (ratio if case == "alpaca" else ratio * gain.min() ** 2) >= 100


@pytest.mark.parametrize(("candidates", "sizes"), [(55, CASES["alpaca"][2][:-1]), (128, CASES["alpaca"][2]), (10_000, CASES["paper"][2])])
def test_draws_without_replacement(candidates: int, sizes: tuple[int, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """The default against `draw="with"`, whose expectations are in closed form: at most 3 × the processor time, in turn in one run."""
    block = prompts(200 if candidates < 1000 else 8, candidates)
    rules = [
        rule for n in sizes for rule in (BoN(n), PrivBoN(n, SCALE), ITP(n, n, BETA), PrivITP(n, n, BETA, SIGMA_X, SIGMA_Z, default_tail(n)))
    ]
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(8):
        for draw, times in seconds.items():
            started = time.process_time()
            measure([block], rules, RANGE, Sensitivity.of_range(RANGE), draw=draw, replicates=REPLICATES)
            times.append(time.process_time() - started)
    closed, sampled = (min(times) for times in seconds.values())
    with capsys.disabled():
        print(f"\nwithout replacement, {candidates} candidates: {sampled:.3f} s; with {closed:.3f} s: {sampled / closed:.2f} ×")
    assert sampled <= 3 * closed


@pytest.mark.parametrize("case", CASES)
def test_authors(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    count, candidates, sizes = CASES[case]
    block = prompts(count, candidates)

    def fast() -> Any:
        return authors.compare(lambda: [block], sizes, replicates=REPLICATES)

    fast()
    seconds, (rows, _) = best_of_three(fast)
    pools = pools_of(block, (block.rewards - block.rewards.mean()) / block.rewards.std())
    naive_seconds, (_, variance) = best_of_three(
        lambda: naive_evaluate.authors(pools, sizes, float(block.gold.mean()), authors.SIGMA, authors.BETA, 0.5, REPLICATES, 150)
    )
    ratio = naive_seconds / seconds
    ours = np.array([row["mc_se_pp"] for row in rows]).reshape(4, len(sizes)).mean(axis=1)
    twin = 100 * np.sqrt(variance.mean(axis=2) / count).mean(axis=1)
    with capsys.disabled():
        print(f"\nauthors, {case}: {seconds:.3f} s; twin {naive_seconds:.2f} s: {ratio:.0f} ×")
        print("  mc_se_pp of ours and of the twin:", np.round(ours, 3), np.round(twin, 3))
    assert (ours <= 1.1 * twin).all()  # the same law but for BoN, which is exact; both are estimates
    assert ratio >= 30
