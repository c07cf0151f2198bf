"""Choosing Λ on public pairs: what is good for private selection, and only that."""

from __future__ import annotations

import numpy as np
import pytest

from privalign.errors import InvalidInput
from privalign.preferences.ngrams import HashedNgrams
from privalign.preferences.pairs import PreferencePair
from privalign.preferences.tuning import GRID, choose_regularisation
from privalign.sensitivity import Relation

FEATURES = HashedNgrams(bits=8, weighting="counts")


def pairs(count: int, informative: bool) -> list[PreferencePair]:
    chance = np.random.default_rng(0)
    words = ["good", "bad", "tea", "cup", "sun", "rain"]
    made = []
    for number in range(count):
        texts = [" ".join(chance.choice(words, 10)) + side for side in (" aa", " bb")]
        if informative:
            texts.sort(key=lambda text: text.count("good"), reverse=True)
        elif chance.random() < 0.5:
            texts.reverse()
        made.append(PreferencePair(f"p{number}", texts[0], texts[1]))
    return made


def choose(data: list[PreferencePair], records: int = 1) -> tuple[float, float, float]:
    tuned = choose_regularisation(data, FEATURES, relation=Relation.REPLACE, records_per_person=records, feature_norm=1.0, tolerance=1e-3)
    return tuned.regularisation, tuned.accuracy, tuned.private_accuracy


def test_what_can_be_learned_is_learned_within_the_price() -> None:
    regularisation, accuracy, private = choose(pairs(400, True))
    assert regularisation in GRID
    assert accuracy > 0.7
    assert 0.5 < private < accuracy
    assert choose(pairs(400, True), records=10)[2] < private  # ten times the sensitivity for the same scores
    assert choose(pairs(400, False))[1] < 0.6


def test_progress_is_told_and_one_half_is_refused() -> None:
    shares: list[float] = []
    choose_regularisation(
        pairs(50, True),
        FEATURES,
        relation=Relation.FLIP,
        records_per_person=1,
        feature_norm=1.0,
        tolerance=1e-3,
        progress=shares.append,
    )
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    with pytest.raises(InvalidInput, match="too few prompts"):
        choose(pairs(1, True))
