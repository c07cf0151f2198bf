"""What mechanisms let in: scores that a float holds, clipped and shifted; and the normaliser's error at any magnitude."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from privalign.errors import InvalidRewards
from privalign.mechanisms.normaliser import normaliser, normaliser_error
from privalign.mechanisms.protocol import admit
from privalign.sensitivity import RewardRange, Sensitivity

WIDE = Sensitivity(1.0, RewardRange(0.0, 2.0**53))


@pytest.mark.parametrize("scores", [np.array([2**59 + 64, 0.5], np.longdouble), [np.longdouble(0.5), 1]], ids=["array", "list"])
def test_scores_that_a_float_would_round_are_refused(scores: Any) -> None:
    with pytest.raises(InvalidRewards, match="more digits") as refusal:
        admit(scores, WIDE, 2)
    assert "57646" not in str(refusal.value)


@pytest.mark.parametrize("others", [[], [0.5], [-1, 2**63], [np.float32(0.5)]], ids=["whole", "float", "huge", "float32"])
@pytest.mark.parametrize("score", [0, 2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, 2**59 + 64, 2**63 - 2])
def test_whole_numbers_never_come_further_apart(score: int, others: list[Any]) -> None:
    """Also where NumPy makes floats of them, as beside a float, and rounds."""
    one, other = (admit([value, *others], WIDE, 1 + len(others)) for value in (score, score + 1))
    assert abs(one - other).max() <= 1.0


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.int32, np.uint8, np.float64, np.float32, np.float16])
def test_scores_are_exact_within_a_range_that_floats_cover(kind: type[np.generic]) -> None:
    for high in (100.0, 2.0**53):
        assert admit(np.array([0, 7, 99]).astype(kind), Sensitivity(1.0, RewardRange(0.0, high)), 3).tolist() == [0.0, 7.0, 99.0]


def test_whole_numbers_beyond_the_range_are_clipped_exactly() -> None:
    scores = np.array([-(2**62) - 1, 2**53 - 1, 2**62 + 1], np.int64)
    assert admit(scores, Sensitivity(1.0, RewardRange(0.0, 2.0**53)), 3).tolist() == [0.0, 2.0**53 - 1, 2.0**53]


@pytest.mark.parametrize("exponent", [-1074, -1068, -1050, -1022, -500, 0, 900])
def test_the_error_of_the_normaliser_at_any_magnitude(exponent: int) -> None:
    """Also among the subnormal floats, where a product or a quotient is off by more than a share of itself."""
    rng = np.random.default_rng(1)
    for n in (1, 2, 3, 7, 50):
        for _ in range(40):
            rewards = np.ldexp(rng.integers(0, 97, n).astype(np.float64), exponent)
            beta = float(np.ldexp(float(rng.integers(1, 60)), exponent))
            total, best = Fraction(0), Fraction(-(10**400))
            for k, reward in enumerate(sorted(map(Fraction, rewards.tolist()), reverse=True), 1):
                total += reward
                best = max(best, (total - n * Fraction(beta)) / k)
            error = normaliser_error(n, beta, float(np.ldexp(96.0, exponent)))
            assert abs(Fraction(normaliser(rewards, beta)) - best) <= Fraction(error)
