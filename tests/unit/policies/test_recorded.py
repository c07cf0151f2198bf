"""The orders in which recorded candidates are drawn."""

from __future__ import annotations

import random
from collections import Counter

from privalign.policies.recorded import DrawOrder


def test_draws_in_file_order() -> None:
    assert list(DrawOrder.FIRST.positions(9, 5, random.Random(1))) == [0, 1, 2, 3, 4]


def test_draws_without_replacement_are_uniform_orders() -> None:
    """Each ordered pair of 4 has probability 1/12; false alarm below 1e-8 (6.5 binomial standard deviations)."""
    source = random.SystemRandom()
    counts = Counter(tuple(DrawOrder.WITHOUT.positions(4, 2, source)) for _ in range(12_000))
    assert set(counts) == {(i, j) for i in range(4) for j in range(4) if i != j}
    assert all(abs(count - 1_000) < 6.5 * (12_000 / 12 * 11 / 12) ** 0.5 for count in counts.values())


def test_draws_with_replacement_are_independent_and_uniform() -> None:
    """Each ordered pair of 3 has probability 1/9; false alarm below 1e-8 (6.5 binomial standard deviations)."""
    source = random.SystemRandom()
    counts = Counter(tuple(DrawOrder.WITH.positions(3, 2, source)) for _ in range(9_000))
    assert set(counts) == {(i, j) for i in range(3) for j in range(3)}
    assert all(abs(count - 1_000) < 6.5 * (9_000 / 9 * 8 / 9) ** 0.5 for count in counts.values())


def test_more_draws_than_candidates_with_replacement() -> None:
    assert set(DrawOrder.WITH.positions(2, 100, random.Random(1))) == {0, 1}
