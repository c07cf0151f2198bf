"""Laws of whole mechanisms through the secure path, by χ² tests with a false-alarm rate of 1e-8 each."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from privalign.acceptance import AcceptanceCurve, threshold_grid
from privalign.events import Composed, RejectionRounds
from privalign.intervals import sharp
from privalign.mechanisms.driver import select_from_pool
from privalign.mechanisms.normaliser import normaliser
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privbon_gaussian import PrivBoNGaussian
from privalign.mechanisms.privitp import PrivITP
from privalign.randomness import SecureRandomness
from privalign.sensitivity import RewardRange, Sensitivity

pytestmark = pytest.mark.statistical
FALSE_ALARM = 1e-8


def chi_square(observed: np.ndarray, expected: np.ndarray) -> float:
    """p-value, with cells of fewer than 10 expected counts pooled into one."""
    rare = expected < 10
    if rare.any():
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    keep = expected > 0
    assert observed[~keep].sum() == 0
    return float(stats.chi2.sf(((observed - expected)[keep] ** 2 / expected[keep]).sum(), keep.sum() - 1))


def test_privbon_index_is_softmax_of_clipped_rewards() -> None:
    sensitivity, scale, draws = Sensitivity(0.1, RewardRange(-0.5, 2.0)), 0.7, 20_000
    pool = np.array([-3.0, 0.0, 1.0, 1.0, 2.5, 0.3])
    counts = np.zeros(pool.size)
    for _ in range(draws):
        counts[select_from_pool(PrivBoN(6, scale), sensitivity, SecureRandomness(), pool).index] += 1
    weights = np.exp(np.clip(pool, -0.5, 2.0) / scale)
    assert chi_square(counts, draws * weights / weights.sum()) > FALSE_ALARM


def test_privbon_gaussian_index_matches_proposition_e2() -> None:
    sensitivity, draws = Sensitivity.of_range(RewardRange(0.0, 1.0)), 20_000
    pool, law = (
        np.array([0.2, 0.9, 0.5, 0.1]),
        np.array([0.09323804495982992, 0.6108114933970686, 0.22935580401618527, 0.06659465762691616]),
    )
    counts = np.zeros(4)
    for _ in range(draws):
        counts[select_from_pool(PrivBoNGaussian(4, 0.5), sensitivity, SecureRandomness(), pool).index] += 1
    assert chi_square(counts, draws * law) > FALSE_ALARM


def test_privitp_outcomes_match_acceptance_probabilities() -> None:
    """The joint law of (block of λ̃, halting time), with every probability from ball arithmetic."""
    rule = PrivITP(n=4, n2=3, beta=0.1, sigma_x=0.3, sigma_z=0.25, tail=2.0)
    sensitivity, draws, blocks = Sensitivity(0.2, RewardRange(0.0, 1.0)), 12_000, 8
    pool = np.array([0.2, 0.9, 0.5, 0.1, 0.3, 0.95, 0.6, 0.0])
    grid = threshold_grid(rule.beta, 1.0)

    centre = normaliser(pool[:4], rule.beta)
    edges = (grid[:-1] + grid[1:]) / 2
    cumulative = np.concatenate([[0.0], stats.norm.cdf((edges - centre) / rule.sigma_x), [1.0]])
    law = np.zeros((blocks, 4))
    for index, mass in enumerate(np.diff(cumulative)):
        curve, alive = AcceptanceCurve(float(grid[index]), 1.0, rule.sigma_z, rule.tail), mass
        for t in range(3):
            chance = float(sharp(lambda curve=curve, t=t: curve.enclose_accept(float(pool[4 + t]))))
            law[index * blocks // grid.size, t] += alive * chance
            alive *= 1 - chance
        law[index * blocks // grid.size, 3] += alive
    assert math.isclose(law.sum(), 1.0, rel_tol=1e-12)

    counts = np.zeros((blocks, 4))
    for _ in range(draws):
        selection = select_from_pool(rule, sensitivity, SecureRandomness(), pool)
        assert isinstance(selection.realised, Composed)
        rounds = selection.realised.events[1]
        assert isinstance(rounds, RejectionRounds)
        block = int(np.searchsorted(grid, rounds.threshold)) * blocks // grid.size
        counts[block, 3 if selection.fallback else selection.index - 4] += 1
    assert chi_square(counts.ravel(), (draws * law).ravel()) > FALSE_ALARM
