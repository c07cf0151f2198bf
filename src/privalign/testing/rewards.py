"""What every reward owes its caller, as tests of a class to inherit from."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

from privalign.rewards.protocol import Reward
from privalign.types import Candidate, Message, Request

ASKED: Final = Request((Message("system", "Be brief."), Message("user", "Name a {city}.")))  # braces are no template


def candidates_of(count: int) -> list[Candidate]:
    """As many different answers."""
    return [Candidate(f"answer {'x' * (number % 7)} {number}") for number in range(count)]


def score(reward: Reward, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
    """Its scores."""
    return np.asarray(asyncio.run(reward.score(ASKED, candidates)), dtype=np.float64)


class RewardContract:
    """Inherit, and give a fixture `reward`: pytest then tries it."""

    @pytest.fixture
    def reward(self) -> Reward:
        """The reward to be tried."""
        raise NotImplementedError("give a fixture `reward`")

    def tolerance(self, reward: Reward) -> float:
        """By how much, relatively, the same text may be scored differently beside others: rounding."""
        return 1e-9

    def test_scores_are_one_number_a_candidate_in_order(self, reward: Reward) -> None:
        candidates = candidates_of(70)
        scores = score(reward, candidates)
        assert scores.shape == (70,)
        assert scores.dtype == np.float64
        assert np.isfinite(scores).all()
        assert np.unique(scores).size > 1
        order = np.random.default_rng(0).permutation(70)
        assert score(reward, [candidates[index] for index in order]) == pytest.approx(
            scores[order], rel=self.tolerance(reward), abs=self.tolerance(reward)
        )
        assert score(reward, [candidates[5]]) == pytest.approx(scores[[5]], rel=self.tolerance(reward), abs=self.tolerance(reward))
        assert score(reward, [candidates[5]] * 3) == pytest.approx(
            scores[[5, 5, 5]], rel=self.tolerance(reward), abs=self.tolerance(reward)
        )

    def test_nothing_to_score_asks_nobody(self, reward: Reward) -> None:
        assert score(reward, []).shape == (0,)

    def test_a_public_text_probes_it(self, reward: Reward) -> None:
        asyncio.run(reward.probe())

    def test_identity_is_public(self, reward: Reward) -> None:
        for text in (reward.name, repr(reward)):
            assert text
            assert not any(str(value) in text for value in score(reward, candidates_of(3)))
        assert reward.sensitivity.delta <= reward.sensitivity.range.width

    def test_concurrent_scorings_do_not_mix(self, reward: Reward) -> None:
        candidates = candidates_of(24)
        alone = score(reward, candidates)

        async def both() -> list[Any]:
            return await asyncio.gather(*(reward.score(ASKED, candidates[start : start + 8]) for start in (0, 8, 16)))

        assert np.concatenate(asyncio.run(both())) == pytest.approx(alone, rel=self.tolerance(reward), abs=self.tolerance(reward))

    def test_no_score_is_logged(self, reward: Reward, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG):
            scores = score(reward, candidates_of(5))
        assert not [value for value in scores for record in caplog.records if str(value)[:8] in record.getMessage()]

    def test_it_may_be_closed(self, reward: Reward) -> None:
        for _ in range(2):
            asyncio.run(reward.aclose())
