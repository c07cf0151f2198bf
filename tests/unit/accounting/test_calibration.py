"""Calibration: the least scale that meets a target, never above it, for every mechanism that has a scale."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privalign.accounting import costs
from privalign.accounting.calibration import calibrate
from privalign.errors import InvalidInput
from privalign.events import Event, GaussianRelease
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privbon_gaussian import PrivBoNGaussian
from privalign.mechanisms.privitp import PrivITP
from privalign.sensitivity import RewardRange, Sensitivity


def met_and_not_below(event: Callable[[float], Event], target: float, delta: float, sensitivity: Sensitivity) -> float:
    """The calibrated scale; the target holds there and fails at a scale that is smaller by a relative 10⁻⁶."""
    scale = calibrate(event, target, delta, sensitivity)
    assert costs.epsilon(event(scale), delta) <= target
    assert scale == 1e-9 * sensitivity.width or costs.epsilon(event(scale * (1 - 1e-6)), delta) > target
    return scale


@settings(max_examples=40, deadline=None)
@given(log_target=st.floats(-6, 4), share=st.floats(1e-6, 2), n=st.integers(2, 10**6), log_width=st.floats(-6, 6))
def test_privbon(log_target: float, share: float, n: int, log_width: float) -> None:
    width = 10**log_width
    sensitivity = Sensitivity(share * width, RewardRange(0, width))
    scale = met_and_not_below(lambda s: PrivBoN(n, s).event(sensitivity), 10**log_target, 0.5, sensitivity)
    assert scale <= 2 * sensitivity.delta / 10**log_target * (1 + 1e-8) or scale == 1e-9 * width


@pytest.mark.slow
@pytest.mark.parametrize(("target", "share", "n"), [(1.0, 0.1, 16), (0.01, 1.0, 3), (50.0, 0.5, 64)])
def test_privbon_gaussian(target: float, share: float, n: int) -> None:
    sensitivity = Sensitivity(share, RewardRange(0, 1))
    met_and_not_below(lambda s: PrivBoNGaussian(n, s).event(sensitivity), target, 0.5, sensitivity)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(log_target=st.floats(-3, 3), share=st.floats(1e-4, 1), log_delta=st.floats(-15, -1))
def test_gaussian_release(log_target: float, share: float, log_delta: float) -> None:
    sensitivity = Sensitivity(share, RewardRange(0, 1))
    met_and_not_below(lambda s: GaussianRelease(sensitivity, s), 10**log_target, 10**log_delta, sensitivity)


def test_privitp_and_the_price_of_sampling() -> None:
    """The whole query: grid and floating error of phase 1, the worst threshold and halting time of phase 2."""
    sensitivity = Sensitivity(0.1, RewardRange(0, 1))
    met_and_not_below(lambda s: PrivITP(8, 8, 0.05, s, s, 3.0).event(sensitivity), 6.0, 1e-5, sensitivity)


def test_a_target_met_without_noise_gets_the_least_scale() -> None:
    sensitivity = Sensitivity(0.1, RewardRange(0, 2))
    assert calibrate(lambda s: PrivBoN(1, s).event(sensitivity), 1e-3, 0.5, sensitivity) == 2e-9
    assert calibrate(lambda s: PrivBoN(4, s).event(sensitivity), 1e12, 0.5, sensitivity) == 2e-9


def test_targets_that_cannot_be_met_are_refused() -> None:
    sensitivity = Sensitivity(1.0, RewardRange(0, 1))
    with pytest.raises(InvalidInput, match="cannot be met"):
        calibrate(lambda s: PrivBoN(4, s).event(sensitivity), 1e-12, 0.5, sensitivity)
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InvalidInput, match="epsilon"):
            calibrate(lambda s: PrivBoN(4, s).event(sensitivity), bad, 0.5, sensitivity)
    for bad in (0.0, 1.0, -1.0, math.nan, math.inf):
        with pytest.raises(InvalidInput, match="delta"):
            calibrate(lambda s: GaussianRelease(sensitivity, s), 1.0, bad, sensitivity)
