"""An audit of the released ends: what an attacker who knows both heads makes of them, against the ε that is claimed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import beta, norm

from privalign.accounting.gaussian import analytic_gaussian_epsilon
from privalign.preferences.bradley_terry import HeadSettings
from privalign.preferences.ngrams import HashedNgrams
from privalign.preferences.ranges import ends_epsilon, ends_scale, raw_movement, released_ends
from privalign.rewards.head import HeadReward
from privalign.sensitivity import Relation, RewardRange

pytestmark = pytest.mark.statistical

SETTINGS = HeadSettings(HashedNgrams(bits=6, length=0.0), 10.0, Relation.REPLACE, RewardRange(-4.0, 4.0), output="clip")
MOVEMENT = raw_movement(SETTINGS.certificate())
TEXTS = ["same words"] * 9  # one φ, of length B: all raw scores of a head are the same, and move together
ERROR = 1e-4  # of each confidence limit


def worst_pair() -> list[np.ndarray]:
    """Raw scores of two heads as far apart as the certificate allows, along φ: both ends move by Δ, the same way."""
    rows = SETTINGS.features.rows(["p"], TEXTS[:1], SETTINGS.feature_norm)
    direction = np.asarray(rows.todense())[0]
    heads = [np.zeros(SETTINGS.features.dimension), direction / np.linalg.norm(direction) * SETTINGS.weight_bound]
    scores = [HeadReward(weights, SETTINGS.certificate()).raw("p", TEXTS)[0] for weights in heads]
    assert abs(scores[1] - scores[0]).min() > MOVEMENT * (1 - 1e-6)
    return scores


def seen(scores: np.ndarray, scale: float, count: int) -> np.ndarray:
    """What tells the two apart best: the sum of both ends."""
    ends = [released_ends(scores, 0.9, scale) for _ in range(count)]
    return np.array([end.low + end.high for end in ends])


def largest_rate(hits: int, count: int) -> float:
    """The upper Clopper-Pearson limit."""
    return 1.0 if hits == count else float(beta.ppf(1 - ERROR, hits + 1, count - hits))


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_ends_tell_as_much_as_is_claimed_and_no_more(epsilon: float) -> None:
    """40,000 releases of each head, one threshold between them. Limits on both error rates bound μ of the Gaussian curve from below
    (Nasr et al. 2023), and μ bounds ε at δ = .01. Above the claim by chance: below 2e-4. Usual are .77 (ε = .5) and .94 (2) of it;
    below .6 by chance: below 1e-4 (4 standard deviations at ε = .5)."""
    delta, count = 0.01, 40_000
    scale = ends_scale(MOVEMENT, epsilon, delta)
    without, with_ = (seen(scores, scale, count) for scores in worst_pair())
    threshold = MOVEMENT  # halfway between 0 and 2Δ
    false_alarms, misses = int((without > threshold).sum()), int((with_ <= threshold).sum())
    mu = norm.isf(largest_rate(false_alarms, count)) + norm.isf(largest_rate(misses, count))
    found = analytic_gaussian_epsilon(mu, delta)
    assert 0.6 * epsilon <= found <= ends_epsilon(MOVEMENT, scale, delta)


@pytest.mark.soak
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_ends_tell_so_much_without_an_assumption_about_their_law(epsilon: float) -> None:
    """1,000,000 releases of each head; (P[T > t] − δ)/P′[T > t] ≤ e^ε holds for every (ε, δ)-private release. t is where the curve is
    attained, δ = .01. Above the claim by chance: below 2e-4."""
    delta, count = 0.01, 1_000_000
    scale = ends_scale(MOVEMENT, epsilon, delta)
    mu = math.sqrt(2) * MOVEMENT / scale
    threshold = math.sqrt(2) * scale * (epsilon / mu + mu / 2)  # in units of the sum, whose spread is √2·s
    without, with_ = (int((seen(scores, scale, count) > threshold).sum()) for scores in worst_pair())
    found = math.log((1 - largest_rate(count - with_, count) - delta) / largest_rate(without, count))
    assert 0.6 * epsilon <= found <= epsilon
