"""Heads that are released with differential privacy: calibration, the law of the noise, and what an account is charged."""

from __future__ import annotations

import math
import secrets

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import kstest

from privalign.accounting.gaussian import gaussian_delta, gaussian_release_epsilon
from privalign.accounting.rules import Basic
from privalign.errors import InvalidInput
from privalign.events import Free, release_event
from privalign.ledger.terms import Terms
from privalign.preferences import release
from privalign.preferences.bradley_terry import HeadSettings
from privalign.preferences.ngrams import HashedNgrams
from privalign.preferences.release import gaussian_vector, grid_of, release_scale, released_head
from privalign.rewards.head import HeadReward
from privalign.sensitivity import HeadRelease, Relation, RewardRange

SETTINGS = HeadSettings(HashedNgrams(bits=6), 10.0, Relation.REPLACE, RewardRange(0.0, 1.0), 2)


@given(st.floats(0.01, 20), st.floats(1e-12, 0.5), st.floats(1e-6, 1e3))
def test_the_scale_is_the_least_that_meets_the_exact_curve(epsilon: float, delta: float, bound: float) -> None:
    scale = release_scale(bound, epsilon, delta)
    assert gaussian_delta(epsilon, bound / scale * (1 - 1e-15)) <= delta
    assert gaussian_delta(epsilon, bound / scale * (1 + 1e-6)) > delta


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.1), (math.inf, 0.1), (math.nan, 0.1), (1.0, 0.0), (1.0, 1.0)])
def test_settings_out_of_range_are_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(InvalidInput, match="release_"):
        release_scale(1.0, epsilon, delta)


def test_the_account_pays_for_the_weights_and_for_its_own_neighbours_only() -> None:
    scale = release_scale(SETTINGS.weight_bound, 1.0, 1e-6)
    event = release_event(HeadRelease(1.0, 1e-6, scale, SETTINGS.weight_bound, Relation.REPLACE, 2, "prefs", "votes"))
    assert 1 - 1e-6 < gaussian_release_epsilon(event, 1e-6) <= 1.0
    Terms(Basic(2.0, 1e-5, 1e-6), Relation.REPLACE, 2, "votes").charge((event,))
    for terms in (Terms(Basic(2.0, 1e-5, 1e-6), Relation.REPLACE, 3, "votes"), Terms(Basic(2.0, 1e-5, 1e-6), Relation.FLIP, 2, "votes")):
        with pytest.raises(InvalidInput):
            terms.charge((event,))
        terms.charge((Free(),))


def test_a_released_head_says_that_its_scores_are_public() -> None:
    head = released_head(np.zeros(65), SETTINGS, 0.5, epsilon=1.0, delta=1e-6, account="a")
    sensitivity = HeadReward(head.weights, head.certificate).sensitivity
    assert sensitivity.public
    assert sensitivity.delta == sensitivity.width
    assert not SETTINGS.certificate().to_sensitivity().public


def test_no_weights_are_refused_but_cut_to_what_the_noise_reaches() -> None:
    weights = np.zeros(65)
    weights[:2] = 1e300, -1e300
    head = released_head(weights, SETTINGS, 0.5, epsilon=1.0, delta=1e-6, account="a")
    furthest = 2.0**49 * grid_of(0.5)
    assert head.weights[0] == pytest.approx(furthest, rel=1e-6)
    assert head.weights[1] == pytest.approx(-furthest, rel=1e-6)
    assert np.abs(head.weights[2:]).max() < 5
    with pytest.raises(InvalidInput, match="too small for a grid"):
        grid_of(1e-305)


@pytest.mark.statistical
def test_noise_follows_the_normal_law() -> None:
    # false alarms: 1e-6 for the law, and 6 standard errors for the correlation with the values
    values = np.random.default_rng(0).normal(size=200_000) * 3
    noise = (gaussian_vector(values, 0.7) - values) / 0.7
    assert kstest(noise, "norm").pvalue > 1e-6
    assert abs(np.corrcoef(noise, values)[0, 1]) < 6 / math.sqrt(len(values))
    assert abs(np.corrcoef(noise[1:], noise[:-1])[0, 1]) < 6 / math.sqrt(len(values))


def test_released_weights_lie_on_a_grid_and_hide_the_sign_of_zero() -> None:
    released = gaussian_vector(np.zeros(50_000), 1.0)
    steps = released * 2.0**20
    assert (steps == np.rint(steps)).all()
    assert not np.signbit(released[released == 0]).any()


def test_what_floats_leave_open_is_settled_as_the_real_numbers_are(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = 2.0**-20
    for _ in range(200):
        digits = secrets.randbits(64)
        x = (0.3 + 2.0 * ndtri((digits + 0.5) / 2**64)) / grid
        if abs(x - np.rint(x)) < 0.49:
            assert release._settled(digits, 0.3, 2.0, grid) == np.rint(x)
    for digits in (0, 2**64 - 1):  # the outermost words: further digits decide, and the noise is beyond 9 standard deviations
        assert abs(release._settled(digits, 0.0, 1.0, grid) * grid) > 9
    asked = []
    monkeypatch.setattr(release, "_settled", lambda digits, *rest: asked.append(digits) or 0.0)
    gaussian_vector(np.zeros(300_000), 1.0)
    assert 0 < len(asked) < 100  # about one in 2¹⁵


@pytest.mark.parametrize(
    ("values", "scale"), [([math.nan], 1.0), ([math.inf], 1.0), ([1e30], 1.0), ([0.0], 0.0), ([0.0], math.nan), ([0.0], 1e-320)]
)
def test_nothing_is_released_where_the_noise_would_not_count(values: list[float], scale: float) -> None:
    with pytest.raises(InvalidInput):
        gaussian_vector(np.array(values), scale)
