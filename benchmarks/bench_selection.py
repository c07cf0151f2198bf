"""Secure selection against its targets: median ≤ 5 ms at n = 256 and ≤ 60 ms at n = 4,096, flat and one-peaked.

Baseline in the same run: OpenDP's noisy max in its zCDP form, which draws from the same law.
Run: `pytest benchmarks/bench_selection.py --benchmark-group-by=group`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import opendp.prelude as dp
import pytest
from flint import arb
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

from privalign.intervals import cdf
from privalign.randomness import SecureRandomness

SCALE = 0.05
SIZES = [16, 256, 4096]
noise = SecureRandomness()


def scores_of(shape: str, n: int) -> NDArray[np.float64]:
    scores = np.full(n, 0.5)
    if shape == "peak":
        scores[:] = 0.0
        scores[n // 2] = 1.0
    return scores


shapes = pytest.mark.parametrize("shape", ["flat", "peak"])
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


@dataclass(frozen=True)
class NormalTail:
    """Φ(z)."""

    z: float

    def enclose(self) -> arb:
        return cdf(arb(self.z))

    def __float__(self) -> float:
        return float(self.enclose())


@pytest.mark.parametrize("z", [-40.0, -0.5])
def test_bernoulli(benchmark: BenchmarkFixture, z: float) -> None:
    benchmark.group = "scalars"
    benchmark(noise.bernoulli, NormalTail(z))


def test_gaussian(benchmark: BenchmarkFixture) -> None:
    benchmark.group = "scalars"
    benchmark(noise.gaussian, 0.3, 0.5, 2.0**-40)
