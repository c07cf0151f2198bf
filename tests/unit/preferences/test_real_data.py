"""A certified head on real judged answers: what a small Δ is worth."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from privalign.experiments.certified_rewards import (
    FEATURES,
    PAIRS_PER_PROMPT,
    PUBLIC_PROMPTS,
    N,
    Pools,
    fit_certified,
    judged_pairs,
    privbon,
    read_judged,
    stream_scale,
    uniform,
)
from privalign.sensitivity import Sensitivity

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif("PRIVALIGN_DATA" not in os.environ, reason="set PRIVALIGN_DATA to the folder of real data sets"),
]


def folder() -> Path:
    return Path(os.environ["PRIVALIGN_DATA"]) / "alpaca-judged"


def test_eighteen_points_over_base_at_one_epsilon() -> None:
    training = read_judged(folder() / "train.jsonl.gz")
    prompts = read_judged(folder() / "scored.jsonl.gz")
    fitted = fit_certified(FEATURES, training[:PUBLIC_PROMPTS], training[PUBLIC_PROMPTS:], PAIRS_PER_PROMPT)
    pools = Pools(prompts, fitted.scores(prompts), fitted.settings.range, 5)
    base = pools.gold(uniform(N))["gold"]
    assert base == pytest.approx(0.147, abs=0.01)
    assert pools.gold(privbon(N, stream_scale(fitted.certified, 1.0, 1)))["gold"] > base + 0.18
    assumed = Sensitivity.of_range(fitted.settings.range)
    assert pools.gold(privbon(N, stream_scale(assumed, 1.0, 1)))["gold"] < base + 0.03


def test_every_answer_is_in_at_most_one_pair_where_asked() -> None:
    pairs = list(judged_pairs(read_judged(folder() / "train.jsonl.gz"), None, seed=0))
    texts = [(pair.prompt, text) for pair in pairs for text in (pair.chosen, pair.rejected)]
    assert len(pairs) > 7_000
    assert len(texts) - len(set(texts)) < 0.02 * len(texts)  # different models may give the same answer
