"""Accounting against its targets, and the λ solve against a named baseline in the same run.

Targets: λ of 4,096 rewards ≤ 200 µs and ≥ 50 × the bisection; κ and b ≤ 50 µs each; one phase-2 Rényi cost ≤ 10 ms cold;
its table over 1,024 thresholds ≤ 5 s cold. Run: `pytest benchmarks/bench_accounting.py --benchmark-group-by=group`.
"""

from __future__ import annotations

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from privalign.acceptance import AcceptanceCurve, acceptance_ratio, acceptance_ratios, kappa, kappas, threshold_grid
from privalign.accounting import rejection
from privalign.accounting.gaussian import analytic_gaussian_epsilon
from privalign.accounting.gaussian_max import privbon_gaussian_epsilon
from privalign.accounting.gumbel import privbon_epsilon
from privalign.accounting.renyi import DEFAULT_ORDERS
from privalign.events import RejectionRounds
from privalign.mechanisms.normaliser import normaliser
from privalign.sensitivity import RewardRange, Sensitivity

BETA, SCALE, TAIL = 0.05, 0.1, 3.8
REWARDS = np.random.default_rng(0).random(4096)
CURVE = AcceptanceCurve(0.4, 1.0, SCALE, TAIL)
GRID = threshold_grid(BETA, 1.0)


def rounds_of(share: float, cap: int = 16) -> RejectionRounds:
    return RejectionRounds(Sensitivity(share, RewardRange(0, 1)), BETA, SCALE, TAIL, cap)


def bisected_normaliser(rewards: list[float], beta: float) -> float:
    """λ by 50 steps of bisection in pure Python: the baseline."""
    low, high = min(rewards) - beta, max(rewards)
    for _ in range(50):
        middle = (low + high) / 2
        if sum(max(reward - middle, 0.0) for reward in rewards) > len(rewards) * beta:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def test_normaliser(benchmark: BenchmarkFixture) -> None:
    benchmark.group = "normaliser, n = 4,096"
    assert benchmark(normaliser, REWARDS, BETA) == pytest.approx(bisected_normaliser(REWARDS.tolist(), BETA), abs=1e-12)


def test_normaliser_baseline_bisection(benchmark: BenchmarkFixture) -> None:
    benchmark.group = "normaliser, n = 4,096"
    benchmark.pedantic(bisected_normaliser, args=(REWARDS.tolist(), BETA), rounds=20, warmup_rounds=1)


@pytest.mark.parametrize("share", [1e-6, 0.1, 1.0])
@pytest.mark.parametrize("ratio", [kappa, acceptance_ratio], ids=["kappa", "b"])
def test_scalar_ratio(benchmark: BenchmarkFixture, ratio: type[kappa], share: float) -> None:
    benchmark.group = "kappa and b, one, not cached"
    benchmark(ratio.__wrapped__, CURVE, share)


@pytest.mark.parametrize("ratios", [kappas, acceptance_ratios])
def test_vectorised_ratios(benchmark: BenchmarkFixture, ratios: type[kappas]) -> None:
    benchmark.group = "kappa and b, 1,024 thresholds"
    benchmark(ratios, GRID, 1.0, SCALE, TAIL, 0.1)


def forget() -> None:
    for function in (rejection._bound, rejection._exact_logs, rejection.worst_case_renyi, rejection.worst_case_epsilon):
        function.cache_clear()
    kappa.cache_clear()
    acceptance_ratio.cache_clear()


@pytest.mark.parametrize(("share", "cap"), [(0.01, 16), (0.1, 16), (0.1, 4096), (1.0, 16)])
def test_one_renyi_cost_cold(benchmark: BenchmarkFixture, share: float, cap: int) -> None:
    benchmark.group = "phase-2 Rényi, one threshold, one order"
    arguments = (rounds_of(share, cap), 0.4, 4.0, rejection.CELLS)
    benchmark.pedantic(rejection._bound, args=arguments, setup=forget, rounds=200)


@pytest.mark.parametrize("cap", [16, 256])
def test_renyi_table_cold(benchmark: BenchmarkFixture, cap: int) -> None:
    benchmark.group = "phase-2 Rényi, 1,024 thresholds"
    benchmark.pedantic(rejection.renyi_table, args=(rounds_of(0.1, cap), 4.0), setup=forget, rounds=2)


@pytest.mark.parametrize(("share", "cap"), [(0.1, 16), (0.1, 256), (0.01, 256), (0.01, 4096)])
def test_worst_renyi_cold(benchmark: BenchmarkFixture, share: float, cap: int) -> None:
    benchmark.group = "phase-2 Rényi, worst of 1,024 thresholds"
    benchmark.pedantic(rejection.worst_case_renyi, args=(rounds_of(share, cap), (4.0,)), setup=forget, rounds=2)


def test_worst_renyi_at_all_default_orders_cold(benchmark: BenchmarkFixture) -> None:
    benchmark.group = "phase-2 Rényi, worst of 1,024 thresholds"
    orders = tuple(float(order) for order in DEFAULT_ORDERS)
    benchmark.pedantic(rejection.worst_case_renyi, args=(rounds_of(0.1), orders), setup=forget, rounds=1)


def test_worst_case_epsilon_cold(benchmark: BenchmarkFixture) -> None:
    benchmark.group = "ex-post, 1,024 thresholds"
    benchmark.pedantic(rejection.worst_case_epsilon, args=(rounds_of(0.1),), setup=forget, rounds=5)


def test_privbon_epsilon(benchmark: BenchmarkFixture) -> None:
    benchmark.group = "one ε"
    benchmark(privbon_epsilon.__wrapped__, 0.1, 1.0, SCALE, 256)


@pytest.mark.parametrize("n", [2, 4096])
def test_privbon_gaussian_epsilon(benchmark: BenchmarkFixture, n: int) -> None:
    benchmark.group = "one ε"
    benchmark.pedantic(privbon_gaussian_epsilon.__wrapped__, args=(0.1, 1.0, SCALE, n), rounds=5)


def test_analytic_gaussian_epsilon(benchmark: BenchmarkFixture) -> None:
    benchmark.group = "one ε"
    benchmark(analytic_gaussian_epsilon.__wrapped__, 0.7, 1e-5)
