"""The kernels of `evaluate` against the mechanisms themselves, run with seeded randomness: χ² tests, false-alarm rate 1e-6 each.

The law of the choice is read off `measure` by asking, of each candidate in turn, for the expected value of "it was chosen".
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

from privalign.candidates.scored import ScoredPrompts
from privalign.evaluation.outcomes import measure
from privalign.mechanisms.bon import BoN
from privalign.mechanisms.driver import select_from_pool
from privalign.mechanisms.itp import ITP
from privalign.mechanisms.itp_reuse import ITPReuse
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privbon_gaussian import PrivBoNGaussian
from privalign.mechanisms.privitp import PrivITP
from privalign.mechanisms.protocol import Mechanism
from privalign.randomness import SeededRandomness
from privalign.sensitivity import RewardRange, Sensitivity

pytestmark = pytest.mark.statistical
FALSE_ALARM = 1e-6
TRIALS, REPLICATES = 5000, 20_000
RANGE = RewardRange(-0.5, 1.0)
SENSITIVITY = Sensitivity(0.3, RANGE)
POOL = np.array([0.4, -0.9, 1.3, 0.4, 0.85, 0.1, 1.0, -0.2])

RULES = [
    BoN(3),
    PrivBoN(3, 0.3),
    PrivBoNGaussian(3, 0.3),
    ITP(3, 2, 0.3),
    ITPReuse(3, 0.3),
    PrivITP(3, 2, 0.2, 0.3, 0.25, 2.5),
]


@pytest.mark.parametrize("draw", ["with", "without"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_choice_halting_and_fallback_follow_the_mechanism(rule: Mechanism, draw: str) -> None:
    size = POOL.size
    one_hot = ScoredPrompts(np.arange(size + 1) * size, np.tile(POOL, size), np.eye(size).ravel())
    outcomes = measure([one_hot], [rule], RANGE, SENSITIVITY, draw=draw, replicates=REPLICATES)
    # the kernel does not tell candidates of equal clipped reward apart, and neither do the mechanisms
    law, error = outcomes.true[0], outcomes.true_variance[0]
    rng, noise = np.random.default_rng(11), SeededRandomness(12)
    counts, fallbacks, halts = np.zeros(size), 0, []
    for _ in range(TRIALS):
        order = rng.integers(size, size=rule.pool_size) if draw == "with" else rng.permutation(size)[: rule.pool_size]
        selection = select_from_pool(rule, SENSITIVITY, noise, POOL[order])
        counts[order[selection.index]] += 1
        fallbacks += selection.fallback
        halts.append(selection.halting_time)
    assert law.sum() == pytest.approx(1.0, abs=5e-3)
    possible = law > 0
    assert counts[~possible].sum() == 0
    statistic = ((counts - TRIALS * law)[possible] ** 2 / (TRIALS * law + TRIALS**2 * error)[possible]).sum()
    assert chi2.sf(statistic, possible.sum() - 1) > FALSE_ALARM
    expected = TRIALS * float(outcomes.fallback[0].mean())
    if expected > 10:
        assert (fallbacks - expected) ** 2 / (expected * (1 - expected / TRIALS)) < chi2.isf(FALSE_ALARM, 1)
    if halts[0] is not None:
        time = np.array(halts, dtype=float)
        gap = time.mean() - outcomes.halting[0].mean()
        assert gap**2 / max(time.var() / TRIALS, 1e-9) < 1.1 * chi2.isf(FALSE_ALARM, 1)


def test_the_mean_cost_is_that_of_realised_events() -> None:
    """PrivITP: the ex-post price of 1,500 seeded queries averages to `epsilon_mean` (six standard errors: 2e-9)."""
    from privalign.accounting import costs
    from privalign.events import Composed

    rule = RULES[-1]
    block = ScoredPrompts(np.array([0, POOL.size]), POOL, np.zeros(POOL.size))
    outcomes = measure([block], [rule], RANGE, SENSITIVITY, delta=1e-5, draw="with", replicates=2000)
    rng, noise = np.random.default_rng(1), SeededRandomness(2)
    spent = []
    for _ in range(1500):
        selection = select_from_pool(rule, SENSITIVITY, noise, POOL[rng.integers(POOL.size, size=rule.pool_size)])
        assert isinstance(selection.realised, Composed)
        spent.append(costs.epsilon(selection.realised, 1e-5))
    assert abs(np.mean(spent) - outcomes.epsilon_mean[0, 0]) < 6 * np.std(spent) / np.sqrt(len(spent))
    assert max(spent) <= outcomes.epsilon[0]
