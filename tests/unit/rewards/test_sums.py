"""Sums, means and the sigmoid against exact fractions, and the work they do against the values they do it on."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flint import arb
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from privalign.errors import InvalidInput
from privalign.preferences.bounds import weight_norm
from privalign.preferences.bradley_terry import HeadSettings
from privalign.preferences.ngrams import HashedNgrams
from privalign.rewards import sums
from privalign.rewards.head import HeadReward
from privalign.sensitivity import Relation, RewardRange

Floats = NDArray[np.float64]
U = Fraction(1, 2**53)
UNIT_FLOATS = st.one_of(st.floats(-1, 1), st.sampled_from([0.0, 1.0, -1.0, 5e-324, 2.0**-1022, 2.0**-60, 1 / 3]))


def fractions(values: Any) -> list[Fraction]:
    return [Fraction(value) for value in np.asarray(values).ravel().tolist()]


@settings(max_examples=300, deadline=None)
@given(st.lists(UNIT_FLOATS, max_size=50), st.lists(UNIT_FLOATS, max_size=50))
@example([1.0], [2.0**-54, -1.0, 2.0**-54])
def test_a_sum_is_off_by_its_one_rounding_and_its_steps(first: list[float], second: list[float]) -> None:
    """Two sums, one after the other: neither feels the other."""
    sides = [np.array(side) / max(1.0, sum(map(abs, side))) * (1 - 1e-15) for side in (first, second)]
    ends = np.array([0, len(first), len(first), len(first) + len(second)])
    found = sums.sums(np.concatenate(sides), ends)
    for value, side in zip(found[[0, 2]], sides, strict=True):
        exact = sum(fractions(side), Fraction(0))
        assert abs(Fraction(float(value)) - exact) <= U * abs(exact) + len(side) * Fraction(1, 2**82) * 2
    assert found[1] == 0


def test_a_text_of_too_many_features_is_refused() -> None:
    with pytest.raises(InvalidInput, match="33,554,432"):
        sums.sums(np.zeros(0), np.array([0, 2**25 + 1]))


SIZES = st.sampled_from([2.0**-40, 1e-3, 0.3, 1.0, 1.5, 1e4, 2.0**40])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(UNIT_FLOATS, UNIT_FLOATS), min_size=1, max_size=40), SIZES, SIZES)
@example([(1.0, 1.0), (2.0**-30, -1.0)], 1.0, 1.0)
def test_products_are_off_by_less_than_certificates_charge(pairs: list[tuple[float, float]], norm: float, reach: float) -> None:
    """w·φ within 3u·BW, for ‖φ‖ ≤ B and ‖w‖ ≤ W: of floats as they are, in exact fractions."""
    phi, w = (np.array(side) for side in zip(*pairs, strict=True))
    phi = phi * (norm / max(1.0, float(np.linalg.norm(phi))) * (1 - 1e-15))
    w = w * (reach / max(1.0, float(np.linalg.norm(w))) * (1 - 1e-15))
    (values, low), (weights, high) = sums.scaled(phi, norm), sums.scaled(w, reach)
    found = sums.times_power(sums.sums(values * weights, np.array([0, len(w)])), low + high)[0]
    exact = sum((a * b for a, b in zip(fractions(phi), fractions(w), strict=True)), Fraction(0))
    assert abs(Fraction(float(found)) - exact) <= Fraction(23, 10) * U * Fraction(norm) * Fraction(reach)
    products = np.abs(values * weights)
    assert products[products > 0].min(initial=1.0) >= 2.0**-200  # never subnormal


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(UNIT_FLOATS, min_size=n, max_size=n), min_size=2, max_size=20)  # K rows of n scores
    ),
    SIZES,
)
def test_means_are_off_by_less_than_ensembles_charge(rows: list[list[float]], largest: float) -> None:
    scores = np.array(rows) * largest
    for found, column in zip(sums.means(scores, largest), scores.T, strict=True):
        exact = sum(fractions(column), Fraction(0)) / len(rows)
        assert abs(Fraction(float(found)) - exact) <= Fraction(22, 10) * U * Fraction(largest)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.floats(-50, 50), st.floats(allow_nan=False, allow_infinity=True), st.sampled_from([0.0, 5e-324, -40.0, 40.0])))
def test_a_sigmoid_is_off_by_less_than_certificates_charge(logit: float) -> None:
    found = float(sums.sigmoid(np.array([logit]))[0])
    cut = arb(min(max(logit, -40.0), 40.0))
    error = abs(arb(found) - 1 / (1 + (-cut).exp()))
    assert error < arb(2) ** -49 + 5 * arb(2) ** -53
    assert 0 < found <= 1


# Work: the same Python lines for any weights, and no call whose arguments could take longer for some


def lines_of(work: Callable[[], object]) -> int:
    """How many lines of privalign the work runs through; other packages look up what they cached."""
    count = 0

    def trace(frame: FrameType, event: str, __: object) -> Any:
        nonlocal count
        count += event == "line" and "privalign" in frame.f_code.co_filename
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


TEXTS = ["amber birch cedar delta", "", "birch " * 40, "ember fjord grove heath inlet"]
EXTREMES = st.sampled_from([0.0, -0.0, 5e-324, 1e-310, 2.0**-60, 1.0, -1.0, 1e3, 2.0**17, -(2.0**17)])


def head(weights: Floats, output: str, shards: int) -> HeadReward:
    setting = HeadSettings(HashedNgrams(bits=4), 10.0, Relation.REPLACE, RewardRange(-1.0, 1.0), output=output, shards=shards)
    return HeadReward(weights, setting.certificate())


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["clip", "sigmoid"]),
    st.sampled_from([1, 3]),
    st.data(),
)
def test_scoring_a_text_takes_the_same_lines_whatever_the_weights(output: str, shards: int, data: st.DataObject) -> None:
    shape = (17,) if shards == 1 else (3, 17)
    numbers = st.lists(st.one_of(EXTREMES, st.floats(-1e3, 1e3)), min_size=17 * shards, max_size=17 * shards)
    counts = set()
    for weights in (np.zeros(shape), np.array(data.draw(numbers)).reshape(shape)):
        loaded = head(weights, output, shards)
        loaded.score("p", TEXTS)  # what is made once, at the first text
        counts.add(lines_of(partial(loaded.score, "p", TEXTS)))
        assert np.isfinite(loaded.score("p", TEXTS)).all()
    assert len(counts) == 1
    assert min(counts) > 20


def test_scores_take_as_long_for_digits_of_all_sizes() -> None:
    """`math.fsum` took four times as long for weights of many sizes as for equal ones; turns alternate, so that load strikes both."""
    features = HashedNgrams(bits=12)
    setting = HeadSettings(features, 10.0, Relation.REPLACE, RewardRange(0.0, 1.0))
    chance = np.random.default_rng(3)
    sizes = np.ldexp(1 + chance.random(features.dimension), chance.integers(-900, 10, features.dimension))
    texts = [" ".join(f"w{(line * word) % 3977}" for word in range(2000)) for line in range(1, 5)]
    rows = features.rows(["p"] * 4, texts, 1.0)
    times: tuple[list[float], list[float]] = ([], [])
    heads = [HeadReward(weights, setting.certificate()) for weights in (np.ones(features.dimension), sizes)]
    for loaded in heads:
        loaded._features = SimpleNamespace(rows=lambda *_: rows)  # type: ignore[assignment]  # texts are public: their time may differ
    for _ in range(300):
        for loaded, taken in zip(heads, times, strict=True):
            started = time.perf_counter()
            loaded.score("p", texts)
            taken.append(time.perf_counter() - started)
    equal, many = map(statistics.median, times)
    assert 1 / 1.5 < many / equal < 1.5


@pytest.mark.parametrize("bad", [math.nan, math.inf, 2.0**21])
def test_weights_that_no_fit_makes_are_refused(bad: float) -> None:
    assert weight_norm(1.0, RewardRange(-1.0, 1.0), "sigmoid") < 2.0**21
    weights = np.zeros(17)
    weights[3] = bad
    with pytest.raises(InvalidInput, match="longer than any that are fitted, or not finite"):
        head(weights, "sigmoid", 1)
