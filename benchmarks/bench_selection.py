"""Secure selection against its targets: median ≤ 5 ms at n = 256 and ≤ 60 ms at n = 4,096, flat, one-peaked and random: the same work.

Baseline in the same run: OpenDP's noisy max in its zCDP form, which draws from the same law.
Run: `pytest benchmarks/bench_selection.py --benchmark-group-by=group`.
"""

from __future__ import annotations

import numpy as np
import opendp.prelude as dp
import pytest
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

from privalign.acceptance import AcceptanceCurve, threshold_edges
from privalign.mechanisms.normaliser import normaliser
from privalign.randomness import SecureRandomness

SCALE = 0.05
SIZES = [16, 256, 4096]
noise = SecureRandomness()


def scores_of(shape: str, n: int) -> NDArray[np.float64]:
    scores = np.full(n, 0.5)
    if shape == "peak":
        scores[:] = 0.0
        scores[n // 2] = 1.0
    if shape == "random":
        scores = np.random.default_rng(0).uniform(0, 1, n)
    return scores


shapes = pytest.mark.parametrize("shape", ["flat", "peak", "random"])
sizes = pytest.mark.parametrize("n", SIZES)


@sizes
@shapes
def test_gumbel_argmax(benchmark: BenchmarkFixture, shape: str, n: int) -> None:
    benchmark.group = f"gumbel argmax, n = {n}, {shape}"
    benchmark(noise.gumbel_argmax, scores_of(shape, n), SCALE)


@sizes
@shapes
def test_gumbel_argmax_baseline_opendp_zcdp_noisy_max(benchmark: BenchmarkFixture, shape: str, n: int) -> None:
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.linf_distance(T=float)
    measurement = dp.m.make_noisy_max(*space, dp.zero_concentrated_divergence(), scale=SCALE)
    benchmark.group = f"gumbel argmax, n = {n}, {shape}"
    benchmark.pedantic(measurement, args=(scores_of(shape, n).tolist(),), rounds=20, warmup_rounds=1)


@sizes
@shapes
def test_gaussian_argmax(benchmark: BenchmarkFixture, shape: str, n: int) -> None:
    benchmark.group = f"gaussian argmax, n = {n}"
    benchmark(noise.gaussian_argmax, scores_of(shape, n), SCALE)


@pytest.mark.parametrize("n", [8, 16, 256, 512, 4096])
@shapes
def test_bernoullis(benchmark: BenchmarkFixture, shape: str, n: int) -> None:
    benchmark.group = f"bernoullis, n = {n}"
    benchmark(noise.bernoullis, AcceptanceCurve(0.3, 1.0, 0.2, 3.8).accept(scores_of(shape, n)))


@pytest.mark.parametrize("value", [-0.05, 0.3, 0.95])
def test_gaussian_cell(benchmark: BenchmarkFixture, value: float) -> None:
    benchmark.group = "gaussian cell among 1,024"
    benchmark(noise.gaussian_cell, value, 0.5, threshold_edges(0.05, 1.0))


@sizes
@shapes
def test_normaliser(benchmark: BenchmarkFixture, shape: str, n: int) -> None:
    benchmark.group = f"normaliser, n = {n}"
    benchmark(normaliser, scores_of(shape, n), 0.05)
