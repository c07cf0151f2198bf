"""Feature maps: positions, norms, and the description that rebuilds them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privalign.errors import InvalidInput
from privalign.preferences.features import CharacterCrosses, Cross, Pick

MAP = CharacterCrosses(
    (
        Cross(1.0, (Pick("prompt", 0, 0), Pick("answer", -1, -1))),
        Cross(0.5, (Pick("answer", 0, None),)),
    ),
    cells=97,
)


def cells(prompt: str, answer: str) -> list[int]:
    return list(MAP.rows([prompt], [answer], 10.0).indices)


def test_only_the_picked_characters_matter() -> None:
    assert cells("12 + 3", "45") == cells("19 + 7", "45")
    assert cells("12", "45")[0] != cells("22", "45")[0]
    assert cells("12", "45")[0] != cells("12", "46")[0]
    assert cells("12", "45")[1] == cells("99", "67")[1]
    assert cells("12", "45")[1] != cells("12", "456")[1]


def test_every_cross_has_cells_of_its_own() -> None:
    first, second = cells("12", "45")
    assert 0 <= first < 97 <= second < 194 == MAP.dimension


def test_characters_that_are_not_there_are_a_cell_too() -> None:
    assert cells("", "") == cells(" ", "\n")
    assert cells("", "") != cells("a", "")


@given(st.lists(st.tuples(st.text(), st.text()), max_size=4), st.floats(1e-3, 1e3))
def test_rows_are_no_longer_than_the_norm(texts: list[tuple[str, str]], norm: float) -> None:
    rows = MAP.rows([prompt for prompt, _ in texts], [answer for _, answer in texts], norm)
    assert rows.shape == (len(texts), MAP.dimension)
    lengths = np.sqrt((rows.toarray() ** 2).sum(axis=1))
    assert lengths == pytest.approx(min(norm, math.sqrt(1.25)), rel=2.0**-29)
    assert (lengths <= norm * (1 + 2.0**-50)).all()


def test_a_description_rebuilds_the_map() -> None:
    assert CharacterCrosses.from_description(json.loads(json.dumps(MAP.describe()))) == MAP


@pytest.mark.parametrize(
    "description",
    [
        {},
        {"kind": "other"},
        {"kind": "character-crosses", "cells": 4, "crosses": []},
        {"kind": "character-crosses", "cells": 4, "crosses": 3},
    ],
)
def test_unknown_descriptions_are_refused(description: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="features"):
        CharacterCrosses.from_description(description)


@pytest.mark.parametrize("weight", [0.0, -1.0, math.inf, math.nan])
def test_weights_out_of_range_are_refused(weight: float) -> None:
    with pytest.raises(InvalidInput, match="weight"):
        CharacterCrosses((Cross(weight, ()),))
