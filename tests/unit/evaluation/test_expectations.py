"""Selection laws in closed form, against the golden values, naive twins and the mechanisms themselves."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, norm

from privalign.acceptance import default_tail, log_accept, log_reject, threshold_grid
from privalign.evaluation import expectations
from privalign.mechanisms.bon import BoN
from privalign.mechanisms.driver import select_from_pool
from privalign.mechanisms.itp import ITP
from privalign.mechanisms.itp_reuse import ITPReuse
from privalign.mechanisms.normaliser import normaliser
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privbon_gaussian import PrivBoNGaussian
from privalign.mechanisms.privitp import PrivITP
from privalign.mechanisms.protocol import Mechanism
from privalign.randomness import SeededRandomness
from privalign.sensitivity import RewardRange, Sensitivity

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[2] / "golden" / "golden.json").read_text())
REWARDS = st.lists(st.floats(0, 1), min_size=1, max_size=12)
RANGE = Sensitivity.of_range(RewardRange(0.0, 1.0))


def same(computed: np.ndarray, golden: list[float]) -> None:
    """Equal to a relative 1e-12 in log space, zeros exactly; where the log is near 0, to 1e-12."""
    assert computed.shape == (len(golden),)
    for value, expected in zip(computed, golden, strict=True):
        assert (value == 0) == (expected == 0)
        if expected:
            assert math.log(value) == pytest.approx(math.log(expected), rel=1e-12, abs=1e-12)


def floats(strings: list[str]) -> list[float]:
    return [float(string) for string in strings]


@pytest.mark.parametrize("entry", GOLDEN["softmax_selection"])
def test_privbon(entry: dict[str, Any]) -> None:
    rewards = floats(entry["rewards"])
    same(expectations.privbon(PrivBoN(len(rewards), float(entry["sigma"])), rewards), entry["probs"])


@pytest.mark.parametrize("entry", GOLDEN["gaussian_selection_propE2"])
def test_privbon_gaussian(entry: dict[str, Any]) -> None:
    rewards = floats(entry["rewards"])
    same(expectations.privbon_gaussian(PrivBoNGaussian(len(rewards), float(entry["sigma"])), rewards), entry["probs"])


@pytest.mark.parametrize("entry", GOLDEN["itp_rejection_same_batch"])
def test_rounds_without_noise(entry: dict[str, Any]) -> None:
    rewards, beta, reuse = floats(entry["rewards"]), float(entry["beta"]), entry["M_rule"] == "max_w"
    ceiling = max(rewards) if reuse else 1.0
    chosen, fallback = expectations.pessimistic_rounds(np.array(rewards), normaliser(rewards, beta), ceiling)
    same(np.append(chosen, fallback), [*entry["select"], entry["fallback"]])
    if reuse:
        same(expectations.itp_reuse(ITPReuse(len(rewards), beta), rewards), entry["select"])


@pytest.mark.parametrize("entry", GOLDEN["phase2_halting"])
def test_rounds_with_noise(entry: dict[str, Any]) -> None:
    settings = [float(entry[name]) for name in ("lambda_tilde", "R", "sigma_Z", "L")]
    rewards = floats(entry["q"])
    chosen, fallback = expectations.sequential_law(log_accept(rewards, *settings), log_reject(rewards, *settings))
    same(np.append(chosen, fallback), [*entry["halting_probs"], entry["fallback"]])


def test_bon_takes_the_first_of_equals() -> None:
    assert list(expectations.bon(BoN(4), [0.1, 0.7, 0.7, 0.2, 0.9])) == [0, 1, 0, 0]


def test_itp_uses_fresh_candidates() -> None:
    law = expectations.itp(ITP(2, 2, 0.05), [0.4, 0.8, 0.9, 0.95, 0.0], 1.0)
    threshold = normaliser([0.4, 0.8], 0.05)
    first, second = ((reward - threshold) / (1 - threshold) for reward in (0.9, 0.95))
    same(law, [0.0, 0.0, first, (1 - first) * second, (1 - first) * (1 - second)])


def test_threshold_law_has_the_clamped_mass_at_the_ends_and_full_precision_in_both_tails() -> None:
    grid, beta, sigma = threshold_grid(0.1, 1.0), 0.1, 0.05
    for centre in (-0.1, 0.3, 0.9):
        law = expectations.threshold_law(centre, sigma, beta, 1.0)
        half = (grid[1] - grid[0]) / 2
        assert law.sum() == pytest.approx(1, abs=1e-14)
        assert law[0] == pytest.approx(norm.cdf((grid[0] + half - centre) / sigma), rel=1e-12)
        assert law[-1] == pytest.approx(norm.sf((grid[-1] - half - centre) / sigma), rel=1e-12)
        mirrored = expectations.threshold_law(1 - 2 * beta - centre, sigma, beta, 1.0)[::-1]
        assert law == pytest.approx(mirrored, rel=1e-9)


def test_privitp_is_the_mixture_over_thresholds() -> None:
    mechanism = PrivITP(3, 4, 0.1, 0.2, 0.3, 3.0)
    pool = [0.1, 0.6, 0.4, 0.9, 0.2, 0.7, 0.5, 0.3]
    centre, grid = normaliser(pool[:3], 0.1), threshold_grid(0.1, 1.0)
    edges = [-math.inf, *((grid[:-1] + grid[1:]) / 2), math.inf]
    naive = np.zeros(8)
    for threshold, (low, high) in zip(grid, pairwise(edges), strict=True):
        weight = norm.cdf((high - centre) / 0.2) - norm.cdf((low - centre) / 0.2)
        for t in range(4):
            p = math.exp(log_accept(pool[3 + t], threshold, 1.0, 0.3, 3.0))
            naive[3 + t] += weight * p
            weight *= 1 - p
        naive[7] += weight
    assert expectations.privitp(mechanism, pool, 1.0) == pytest.approx(naive, rel=1e-10, abs=0)


@given(REWARDS, st.floats(1e-3, 1e3))
def test_laws_sum_to_one_and_follow_the_rewards(rewards: list[float], scale: float) -> None:
    n = len(rewards)
    for law in (
        expectations.bon(BoN(n), rewards),
        expectations.privbon(PrivBoN(n, scale), rewards),
        expectations.privbon_gaussian(PrivBoNGaussian(n, scale), rewards),
        expectations.itp_reuse(ITPReuse(n, scale), rewards),
        expectations.itp(ITP(n, n, scale), [*rewards, *rewards, 0.5], 1.0),
        expectations.privitp(PrivITP(n, n, scale, scale, scale, 3.0), [*rewards, *rewards, 0.5], 1.0),
    ):
        assert law.sum() == pytest.approx(1, abs=1e-10)
        assert (law >= 0).all()
    for law in (expectations.privbon(PrivBoN(n, scale), rewards), expectations.privbon_gaussian(PrivBoNGaussian(n, scale), rewards)):
        assert (np.diff(law[np.argsort(rewards)]) >= -1e-13).all()


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_extreme_scales_are_best_of_n_or_uniform(scale: float) -> None:
    rewards = [0.0, 0.25, 1.0, 0.5]
    expected = [0.0, 0.0, 1.0, 0.0] if scale < 1 else [0.25] * 4
    for law in (expectations.privbon(PrivBoN(4, scale), rewards), expectations.privbon_gaussian(PrivBoNGaussian(4, scale), rewards)):
        assert law == pytest.approx(expected, abs=1e-8)


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize(
    "mechanism",
    [PrivBoN(4, 0.3), PrivBoNGaussian(4, 0.3), ITP(4, 4, 0.1), ITPReuse(4, 0.3), PrivITP(4, 4, 0.1, 0.2, 0.3, default_tail(4))],
    ids=lambda mechanism: mechanism.name,
)
def test_mechanisms_follow_their_laws(mechanism: Mechanism) -> None:
    """χ² at a false-alarm rate of 1e-7 a mechanism, seeded."""
    pool = [0.2, 0.9, 0.5, 0.1, 0.6, 0.3, 0.8, 0.4, 0.0]
    match mechanism:
        case PrivBoN():
            law = expectations.privbon(mechanism, pool)
        case PrivBoNGaussian():
            law = expectations.privbon_gaussian(mechanism, pool)
        case ITP():
            law = expectations.itp(mechanism, pool, 1.0)
        case ITPReuse():
            law = expectations.itp_reuse(mechanism, pool)
        case PrivITP():
            law = expectations.privitp(mechanism, pool, 1.0)
        case _:
            raise AssertionError
    noise, draws = SeededRandomness(7), 4000
    chosen = [select_from_pool(mechanism, RANGE, noise, pool).index for _ in range(draws)]
    counts = np.bincount(chosen, minlength=len(law))
    assert (counts[law == 0] == 0).all()
    expected = law[law > 0] * draws
    statistic = float(((counts[law > 0] - expected) ** 2 / expected).sum())
    assert statistic < chi2.isf(1e-7, max(len(expected) - 1, 1))
