"""The budget table: the published figures of MATH 8, and what they get wrong."""

from __future__ import annotations

import numpy as np
import pytest

from privalign.acceptance import default_tail
from privalign.accounting import costs
from privalign.errors import InvalidInput
from privalign.mechanisms.privitp import PrivITP
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.studies.budgets import PAPER_SIGMAS, BudgetSettings, budgets

UNIT = RewardRange(0.0, 1.0)
POOLS = [np.random.default_rng(0).random(33) for _ in range(5)]
QUICK = BudgetSettings(simulated=500)


def test_published_and_right_figures() -> None:
    """At σ_X = .1282 R, δ = .01 the published 24.24 has a true δ of .745; the right ε₁ is 47.70; PrivBoN spans 7.80 to 0.78."""
    study = budgets(POOLS, Sensitivity.of_range(UNIT), PAPER_SIGMAS, QUICK)
    first, last = study.rows[0], study.rows[-1]
    assert first["privbon_published"] == pytest.approx(7.80)
    assert last["privbon_published"] == pytest.approx(0.78)
    assert first["phase1_published"] == pytest.approx(24.24, abs=5e-3)
    assert not first["phase1_published_valid"]
    assert first["phase1_true_delta"] == pytest.approx(0.745, abs=1e-3)
    assert first["phase1_exact"] == pytest.approx(47.70, abs=1e-2)
    for row in study.rows:
        assert row["privbon_exact"] < row["privbon_published"] < row["privbon_gaussian_exact"]
        assert row["privitp_exact"] == pytest.approx(row["phase1_exact"] + row["phase2_exact"], rel=1e-12)
        assert row["phase2_realised_mean"] <= row["phase2_exact"]
        assert row["stream_delta"] == 1.0  # 100 queries at δ = .01 each


def test_exact_column_is_what_one_query_is_charged() -> None:
    sensitivity = Sensitivity(0.05, UNIT)
    (row,) = budgets(POOLS, sensitivity, [0.4], QUICK).rows
    mechanism = PrivITP(16, 16, 0.05, 0.2, 0.2, default_tail(16))
    assert row["privitp_exact"] == costs.epsilon(mechanism.event(sensitivity), 1e-2)
    assert row["privitp_exact"] >= row["phase1_exact"] + row["phase2_exact"] - 1e-12


def test_fallback_is_undercharged_where_kappa_is_above_b() -> None:
    """MATH 8.1: n = 2, Δ = .1, β = .5, σ_Z = .05."""
    (row,) = budgets(POOLS, Sensitivity(0.1, UNIT), [0.1], BudgetSettings(n=2, beta=0.5, simulated=100)).rows
    assert row["fallback_exact"] > 1.2 * row["fallback_published"]


def test_mean_phase_2_cost_is_that_of_the_mean_halting_time() -> None:
    (row,) = budgets(POOLS, Sensitivity(0.05, UNIT), [0.4], BudgetSettings(n=1, simulated=100)).rows
    assert row["mean_halting"] == 1.0
    assert 0 < row["phase2_published"] <= row["phase2_exact"]


@pytest.mark.parametrize("wrong", [{"delta": 0.0}, {"queries": 0}, {"simulated": 0}])
def test_wrong_settings(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        BudgetSettings(**wrong)
