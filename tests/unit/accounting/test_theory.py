"""Theory helpers: minimisers minimise, bounds add up, and conditions are said when they are not met."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privalign.accounting import theory
from privalign.errors import InvalidInput


@settings(max_examples=80, deadline=None)
@given(error=st.floats(1e-3, 1), coverage=st.floats(1, 100), factor=st.floats(0.1, 10))
def test_best_settings_minimise_their_bounds(error: float, coverage: float, factor: float) -> None:
    """Without the finite-sample term (n = 10³⁰⁰) of PrivBoN, and at β* of PrivITP."""
    best = theory.best_privbon_scale(error, coverage)

    def privbon(scale: float) -> float:
        return scale * coverage + error**2 / scale + math.sqrt(coverage) * error

    assert privbon(best) <= privbon(best * factor) * (1 + 1e-12)
    assert privbon(best) == pytest.approx(theory.privbon_regret_at_best(error, coverage))
    assert theory.skyline(error, coverage) < theory.privbon_regret_at_best(error, coverage)
    assert theory.free_privacy_epsilon(0.1, error, coverage) == pytest.approx(2 * 0.1 / best)
    beta = theory.best_beta(error, coverage, 1.0, 0.1, 0.2)
    at_best = theory.privitp_regret(beta, 0.1, 0.2, error, coverage, 1.0, 100).value
    assert at_best <= theory.privitp_regret(beta * factor, 0.1, 0.2, error, coverage, 1.0, 100).value * (1 + 1e-12)
    assert at_best <= theory.privitp_regret_at_best(0.1, 0.2, error, coverage, 1.0, 100).value * (1 + 1e-12)


def test_conditions_are_said_when_unmet() -> None:
    assert theory.privbon_regret(0.1, 0.1, 0.1, 2.0, 1.0, 10**6).warnings == ()  # σ = 2R: c/σ is small
    assert theory.privbon_regret(10.0, 0.1, 0.1, 2.0, 1.0, 16).warnings != ()
    assert theory.privitp_regret(0.5, 0.2, 0.2, 0.1, 2.0, 1.0, 100).warnings == ()
    assert len(theory.privitp_regret(0.05, 0.2, 0.2, 0.1, 2.0, 1.0, 2).warnings) == 2


def test_extreme_noise_gives_infinity_not_an_error() -> None:
    assert theory.privbon_regret(1e9, 1e-9, 0.1, 2.0, 1.0, 16).value == math.inf


def test_limits() -> None:
    assert theory.bon_win_rate(1) == 0.5
    assert theory.privbon_win_rate(1.0, 1.0, 1.0) > theory.privbon_win_rate(1.0, 1.0)
    assert theory.bon_hacking_gap(1.0, 100, 1.0) == pytest.approx(theory.bon_hacking_gap(1.0, 100) / math.sqrt(2))
    assert theory.privacy_mandated_regret(1.0, 1.0, 1e-5, 4, 0.1, 0.1, 2.0, 1.0).value > theory.privbon_regret_at_best(0.1, 2.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0])
def test_refusals(bad: float) -> None:
    for attempt in (
        lambda: theory.best_privbon_scale(bad, 2.0),
        lambda: theory.best_privbon_scale(0.1, bad),
        lambda: theory.free_privacy_epsilon(bad, 0.1, 2.0),
        lambda: theory.privbon_regret(bad, 0.1, 0.1, 2.0, 1.0, 16),
        lambda: theory.privitp_regret(bad, 0.1, 0.1, 0.1, 2.0, 1.0, 16),
        lambda: theory.privacy_mandated_regret(1.0, 1.0, bad, 4, 0.1, 0.1, 2.0, 1.0),
        lambda: theory.privbon_win_rate(bad, 1.0),
        lambda: theory.privbon_win_rate(1.0, 1.0, bad),
        lambda: theory.privbon_hacking_gap(1.0, bad),
        lambda: theory.bon_hacking_gap(1.0, 16, bad),
    ):
        with pytest.raises(InvalidInput):
            attempt()
    with pytest.raises(InvalidInput, match="coverage"):
        theory.skyline(0.1, 0.5)
    with pytest.raises(InvalidInput, match="n: "):
        theory.bon_win_rate(0)
