"""Candidates n + E[t] against n, and measured time."""

from __future__ import annotations

import numpy as np
import pytest

from privalign.acceptance import default_tail
from privalign.candidates.scored import ScoredPrompts
from privalign.errors import InvalidInput
from privalign.evaluation.outcomes import measure
from privalign.mechanisms.privitp import PrivITP
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.studies.overhead import OverheadSettings, overhead

UNIT = RewardRange(0.0, 1.0)
SETTINGS = OverheadSettings(0.4, simulated=20_000, timed=3)


def test_candidates_agree_with_the_expected_halting_time() -> None:
    """Within 5 standard errors of the closed form over phase 2 (false alarms below 1e-6)."""
    rng = np.random.default_rng(0)
    pools = [rng.random(40) for _ in range(4)]
    study = overhead(pools, Sensitivity.of_range(UNIT), [4, 16, 20], SETTINGS)
    *measured, missing = study.rows
    assert missing == dict.fromkeys(missing) | {"n": 20, "reason": "needs 41 candidates a prompt; 0 of 4 prompts have them"}
    block = ScoredPrompts(np.arange(0, 161, 40), np.concatenate(pools), np.zeros(160))
    for row in measured:
        n = row["n"]
        mechanism = PrivITP(n, n, 0.05, 0.2, 0.2, default_tail(n))
        outcomes = measure([block], [mechanism], UNIT, Sensitivity.of_range(UNIT), replicates=2_000)
        expected = n + float(outcomes.halting.mean() + outcomes.fallback.mean())
        assert abs(row["privitp_candidates"] - expected) < 5 * row["privitp_candidates_se"] + 0.02
        assert row["generated_ratio"] == pytest.approx(row["privitp_candidates"] / n)
        assert row["privbon_candidates"] == n
        assert row["privitp_candidates"] == pytest.approx(n + row["mean_halting"] + row["fallback_percent"] / 100)
        assert row["privbon_seconds"] > 0
        assert row["privitp_seconds"] > 0


def test_large_n_is_done_in_blocks() -> None:
    pools = [np.linspace(0, 1, 4_001)]
    whole = overhead(pools, Sensitivity.of_range(UNIT), [4], OverheadSettings(0.4, simulated=50, timed=1))
    assert whole.rows[0]["mean_halting"] <= 4
    progress: list[tuple[int, int]] = []
    overhead(
        pools,
        Sensitivity.of_range(UNIT),
        [2_000],
        OverheadSettings(0.4, simulated=1_500, timed=1),
        lambda done, total: progress.append((done, total)),
    )
    assert progress == [(0, 1)]


@pytest.mark.parametrize("wrong", [{"timed": 0}, {"simulated": 0}])
def test_wrong_settings(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        OverheadSettings(0.4, **wrong)
