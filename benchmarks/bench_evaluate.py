"""`evaluate` against its naive NumPy twin, processor time, side by side: ≥ 100 × (`authors` ≥ 30 ×) at no larger standard error.

The twin runs on a few of the prompts and its time is multiplied by the stated ratio: its cost is linear in prompts. The shape is
that of the judged AlpacaEval file (200 prompts × 55 candidates, n ≤ 32, 50 replicates) and of one long pool (n ≤ 4,096).
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
from privalign.experiments import authors
from privalign.experiments.outcomes import measure
from privalign.experiments.scored import ScoredPrompts
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


def pools_of(block: ScoredPrompts, count: int, transform: Callable[[Any], Any] = lambda rewards: rewards) -> Any:
    rewards = transform(block.rewards)
    return [(rewards[a:b], block.gold[a:b]) for a, b in pairwise(block.offsets[: count + 1])]


def best_of(runs: int, call: Callable[[], Any]) -> tuple[float, Any]:
    times = []
    for _ in range(runs):
        started = time.process_time()
        result = call()
        times.append(time.process_time() - started)
    return min(times), result


CASES = {"alpaca": (200, 55, (1, 2, 4, 8, 16, 32), 5), "paper": (26, 10_000, tuple(2**k for k in range(1, 13)), 1)}


@pytest.mark.parametrize("case", CASES)
def test_faithful(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    count, candidates, sizes, part = CASES[case]
    block = prompts(count, candidates)
    rules = [
        rule for n in sizes for rule in (BoN(n), PrivBoN(n, SCALE), ITP(n, n, BETA), PrivITP(n, n, BETA, SIGMA_X, SIGMA_Z, default_tail(n)))
    ]

    def fast() -> Any:
        return measure([block], rules, RANGE, Sensitivity.of_range(RANGE), replicates=REPLICATES)

    fast()
    seconds, outcomes = best_of(3, fast)
    naive_seconds, (naive, variance) = best_of(
        1,
        lambda: naive_evaluate.faithful(pools_of(block, part), sizes, RANGE.width, SCALE, BETA, SIGMA_X, SIGMA_Z, REPLICATES),
    )
    ours = outcomes.true.reshape(len(sizes), 4, count).transpose(1, 0, 2)[:, :, :part]
    ours_variance = outcomes.true_variance.reshape(len(sizes), 4, count).transpose(1, 0, 2)[:, :, :part]
    assert np.abs(ours - naive).max() < 6 * np.sqrt(variance + ours_variance).max()  # the same numbers
    assert (ours_variance.mean(axis=2) <= variance.mean(axis=2)).all()
    ratio = naive_seconds * count / part / seconds
    gain = np.sqrt(variance.mean((1, 2)) / np.maximum(ours_variance.mean((1, 2)), 1e-12))
    with capsys.disabled():
        print(f"\nfaithful, {case}: {seconds:.3f} s; twin {naive_seconds:.2f} s on {part} of {count} prompts: {ratio:.0f} ×")
        print(f"  its standard errors are larger by {np.round(gain, 1)}: at equal ones ≥ {ratio * gain.min() ** 2:.0f} ×")
    # a pool of 10,000 is read and sorted whole where the twin draws a few thousand of it: there, at equal standard error
    assert (ratio if case == "alpaca" else ratio * gain.min() ** 2) >= 100


@pytest.mark.parametrize("case", CASES)
def test_authors(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    count, candidates, sizes, part = CASES[case]
    count = count if case == "alpaca" else 8
    block = prompts(count, candidates)

    def fast() -> Any:
        return authors.compare(lambda: [block], sizes, replicates=REPLICATES)

    fast()
    seconds, (rows, _) = best_of(3, fast)
    mean, deviation = block.rewards.mean(), block.rewards.std()
    pools = pools_of(block, part, lambda rewards: (rewards - mean) / deviation)
    naive_seconds, (_, variance) = best_of(
        1, lambda: naive_evaluate.authors(pools, sizes, float(block.gold.mean()), authors.SIGMA, authors.BETA, 0.5, REPLICATES, 150)
    )
    ratio = naive_seconds * count / part / seconds
    ours = np.array([row["mc_se_pp"] for row in rows]).reshape(4, len(sizes)) * np.sqrt(count)
    twin = 100 * np.sqrt(variance.mean(axis=2))
    with capsys.disabled():
        print(f"\nauthors, {case}: {seconds:.3f} s; twin {naive_seconds:.2f} s on {part} of {count} prompts: {ratio:.0f} ×")
        print("  standard error a prompt, ours and the twin's:", np.round(ours.mean(axis=1), 2), np.round(twin.mean(axis=1), 2))
    assert ratio >= (30 if case == "alpaca" else 20)  # long samples are bound by the noise itself
