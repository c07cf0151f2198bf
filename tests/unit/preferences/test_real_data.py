"""A certified head on real judged answers: what a small Δ is worth."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from certified_rewards import (
    PAIRS_PER_PROMPT,
    PUBLIC_PROMPTS,
    SIZES,
    N,
    Pools,
    choose_features,
    fit_certified,
    fit_harmless,
    hacking,
    judged_pairs,
    privbon,
    read_judged,
    stream_scale,
    uniform,
)

from privalign.preferences.ngrams import HashedNgrams
from privalign.preferences.pairs import read_pairs
from privalign.sensitivity import Sensitivity

pytestmark = [
    pytest.mark.realdata,
    pytest.mark.skipif("PRIVALIGN_DATA" not in os.environ, reason="set PRIVALIGN_DATA to the folder of real data sets"),
]


def folder() -> Path:
    return Path(os.environ["PRIVALIGN_DATA"]) / "alpaca-judged"


@pytest.mark.soak
def test_eighteen_points_over_base_at_one_epsilon() -> None:
    training = read_judged(folder() / "train.jsonl.gz")
    prompts = read_judged(folder() / "scored.jsonl.gz")
    features, _ = choose_features(training[:PUBLIC_PROMPTS])
    fitted = fit_certified(features, training[:PUBLIC_PROMPTS], training[PUBLIC_PROMPTS:], PAIRS_PER_PROMPT)
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


def test_reward_hacking_shows_on_untouched_prompts_and_noise_bounds_it() -> None:
    """The settings and the peak are those that the experiment chooses on the training prompts; nothing is random but fixed seeds."""
    pairs = read_pairs(Path(os.environ["PRIVALIGN_DATA"]) / "hh-rlhf" / "harmless-base-test.jsonl.gz")
    shown = hacking(fit_harmless(pairs, HashedNgrams(), 10.0), 16, read_judged(folder() / "scored.jsonl.gz"))
    fall = {name: difference["gold"] for name, difference in shown["last_minus_peak"].items()}
    assert fall["bon"] < -2 * shown["last_minus_peak"]["bon"]["se"]
    assert fall["bon"] < fall["privbon 4"] < fall["privbon 2"] < fall["privbon 1"] < fall["privbon 0.5"]
    for epsilon in ("0.5", "1", "2"):
        difference = shown["loses_less_than_bon"][f"privbon {epsilon}"]
        assert difference["gold"] > 2 * difference["se"]
    scores = [row["bon"]["score"] for row in shown["rows"]]
    assert sorted(scores) == scores
    assert len(scores) == len(SIZES)
