"""What counts as a score, and what is put back in order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privalign.errors import InvalidInput
from privalign.rewards.scores import AffineMap, UnusableScores, by_index, entry, finite_scores, number, objects


@pytest.mark.parametrize("values", [[1, 2], [0.5, -1e308], np.array([1, 2], dtype=np.float32), np.array([1, 2], dtype=np.uint8), (1.0, 2)])
def test_finite_numbers_pass_unchanged(values: Any) -> None:
    scores = finite_scores(values, 2)
    assert scores.dtype == np.float64
    assert scores.tolist() == [float(value) for value in values]


@pytest.mark.parametrize(
    "values",
    [
        [1], [1, 2, 3], [[1, 2]], [[1], [2]], [1, None], ["1", "2"], [True, True], [1, math.nan], [math.inf, 1], 3.0, [[1], [1, 2]],
    ],
)  # fmt: skip
def test_everything_else_is_refused(values: Any) -> None:
    with pytest.raises(UnusableScores) as caught:
        finite_scores(values, 2)
    assert str(caught.value) == ""


@pytest.mark.parametrize("value", [None, "1", True, [1], math.nan, math.inf, 10**400, {}])
def test_a_json_value_that_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(UnusableScores):
        number(value)


def test_class_scores_are_chosen_by_index() -> None:
    assert entry([3], None) == 3.0
    assert entry([1, 2.5], 1) == 2.5
    for vector, label in (([1, 2], None), ([], None), ([1], 1), ([1], -1), (1.0, None), ([None], 0), ({"0": 1}, 0), ("5", None)):
        with pytest.raises(UnusableScores):
            entry(vector, label)


@given(st.permutations(range(9)))
def test_any_order_is_put_back(order: list[int]) -> None:
    items = [{"index": index} for index in order]
    assert by_index(items, [float(index) for index in order]) == [float(index) for index in range(9)]


@pytest.mark.parametrize("indices", [[0, 0], [0, 2], [-1, 0], [None, 0], ["0", "1"], [0.0, 1.0], [False, True], [1, 2]])
def test_indices_that_are_no_order_are_refused(indices: list[Any]) -> None:
    with pytest.raises(UnusableScores):
        by_index([{"index": index} for index in indices], [0.0, 0.0])
    with pytest.raises(UnusableScores):
        by_index([{}, {}], [0.0, 0.0])


def test_a_list_of_objects_has_the_size_asked_for() -> None:
    assert objects([{}, {}], 2) == [{}, {}]
    for answer in ([{}], [{}, 1], {}, None, "ab"):
        with pytest.raises(UnusableScores):
            objects(answer, 2)


def test_the_map_is_affine_and_public() -> None:
    assert AffineMap(2.0, -1.0).apply(np.array([0.0, 3.0])).tolist() == [-1.0, 5.0]
    assert str(AffineMap()) == ""
    assert str(AffineMap(0.1, 1.0)) == " ×0.1 +1.0"
    for scale, offset, field in ((0.0, 0.0, "scale"), (math.nan, 0.0, "scale"), (1.0, math.inf, "offset")):
        with pytest.raises(InvalidInput, match=field):
            AffineMap(scale, offset)
