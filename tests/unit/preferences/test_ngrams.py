"""Hashed n-grams: what is counted, norms, and the description that rebuilds the map."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from privalign.errors import InvalidInput
from privalign.preferences.features import clipped, feature_map
from privalign.preferences.ngrams import HashedNgrams


def row(features: HashedNgrams, answer: str) -> np.ndarray:
    return np.asarray(features.rows(["p"], [answer], 1e6).toarray()[0])


def test_weightings() -> None:
    text = "tea tea TEA cup"
    sizes = {kind: sorted(np.abs(row(HashedNgrams(weighting=kind, length=0.0), text)))[-2:] for kind in ("binary", "counts", "log")}
    assert sizes["binary"] == [1, 1]
    assert sizes["counts"] == [1, 3]
    assert sizes["log"] == pytest.approx([math.log(2), math.log(4)])


def test_longer_ngrams_see_the_order_and_the_length_has_a_cell_of_its_own() -> None:
    assert (row(HashedNgrams(), "red hot tea") == row(HashedNgrams(), "tea hot red")).all()
    assert (row(HashedNgrams(longest=2), "red hot tea") != row(HashedNgrams(longest=2), "tea hot red")).any()
    assert row(HashedNgrams(length=2.0), "tea pot")[-1] == pytest.approx(2 * math.log(8))
    assert not row(HashedNgrams(), "").any()


def test_the_prompt_cancels_and_is_left_out() -> None:
    rows = HashedNgrams().rows(["one", "two"], ["same", "same"], 1.0).toarray()
    assert (rows[0] == rows[1]).all()


@given(st.lists(st.text(max_size=80), min_size=1, max_size=4), st.floats(1e-3, 10), st.sampled_from(["binary", "counts", "log"]))
def test_rows_are_no_longer_than_the_norm_and_alone_as_among_others(texts: list[str], norm: float, weighting: str) -> None:
    features = HashedNgrams(bits=10, longest=2, weighting=weighting)
    texts = [*texts, *texts[:2]]  # pairs of a prompt share their answers
    rows = features.rows(texts, texts, norm)
    assert rows.shape == (len(texts), 1025)
    exact = [math.sqrt(math.fsum(value * value for value in vector)) for vector in rows.toarray()]
    assert max(exact) <= norm
    for text, together in zip(texts, rows.toarray(), strict=True):
        assert (features.rows([text], [text], norm).toarray()[0] == together).all()


@pytest.mark.parametrize("features", [HashedNgrams(), HashedNgrams(bits=5, longest=3, weighting="log", length=0.5)])
def test_a_description_rebuilds_the_map(features: HashedNgrams) -> None:
    assert feature_map(json.loads(json.dumps(features.describe()))) == features


@pytest.mark.parametrize(
    "change", [{"bits": 0}, {"bits": 40}, {"bits": 2.5}, {"longest": 0}, {"weighting": "idf"}, {"length": -1.0}, {"length": math.inf}]
)
def test_settings_out_of_range_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="features"):
        feature_map({"kind": "hashed-ngrams", **change})


@pytest.mark.parametrize("description", [None, 3, {}, {"kind": ["x"]}, {"kind": "other"}, {"kind": "hashed-ngrams", "length": True}])
def test_unknown_descriptions_are_refused(description: object) -> None:
    with pytest.raises(InvalidInput, match="features"):
        feature_map(description)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e200])
def test_features_that_are_no_numbers_are_refused(value: float) -> None:
    with pytest.raises(InvalidInput, match="not a finite number"):
        clipped(csr_array(np.array([[1.0, value]])), 1.0)
