"""Scores: one per candidate or null, never another's, and nothing but a failure from a scorer that is down."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privalign.errors import BackendFailed
from privalign.rewards.function import FunctionReward
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.stages import score
from privalign.stages.score import prompt_runs, score_each
from privalign.types import Candidate, Request

UNIT = Sensitivity.of_range(RewardRange(0.0, 1.0))
REQUEST = Request.of_prompt("p")


class Scorer:
    """Scores a text by its length; fails on texts with an x."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, request: Request, candidates: Sequence[Candidate]) -> list[float]:
        self.calls += 1
        return [float("nan") if "x" in candidate.text else float(len(candidate.text)) for candidate in candidates]


def scores(scorer: Any, texts: list[str]) -> list[float | None]:
    reward = FunctionReward(scorer, name="length", sensitivity=UNIT)
    return asyncio.run(score_each(reward, REQUEST, [Candidate(text) for text in texts]))


@given(st.lists(st.text("abx", max_size=4), min_size=1, max_size=20))
def test_every_candidate_has_its_own_score_or_none(texts: list[str]) -> None:
    assert scores(Scorer(), texts) == [None if "x" in text else len(text) for text in texts]


def test_one_bad_candidate_costs_a_logarithmic_number_of_calls() -> None:
    scorer = Scorer()
    found = scores(scorer, ["a"] * 63 + ["x"])
    assert found == [1.0] * 63 + [None]
    assert scorer.calls <= 3 * 7 + 1  # 7 batches that fail with a probe each, their 6 other halves, the last attempt


def test_what_fails_once_is_scored_by_the_second_attempt() -> None:
    scorer = Scorer()

    def failing_once(request: Request, candidates: Sequence[Candidate]) -> list[float]:
        if scorer.calls == 0:
            scorer.calls = 1
            raise RuntimeError
        return scorer(request, candidates)

    assert scores(failing_once, ["abc"]) == [3.0]


def test_a_scorer_that_is_down_is_a_failure_and_no_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score, "FIRST_WAIT", 0.001)
    calls = 0

    def down(request: Request, candidates: Sequence[Candidate]) -> list[float]:
        nonlocal calls
        calls += 1
        raise OSError

    with pytest.raises(BackendFailed, match="reward length"):
        scores(down, ["a", "b"])
    assert calls == 1 + score.ATTEMPTS


def test_rows_of_a_prompt_stay_together() -> None:
    table = pa.table({"prompt_id": [3, 3, 4, 7, 7, 7], "prompt": ["a", "a", "b", "a", "a", "a"]})
    assert prompt_runs(table) == [("a", range(0, 2)), ("b", range(2, 3)), ("a", range(3, 6))]
    assert prompt_runs(table.slice(0, 0)) == []
