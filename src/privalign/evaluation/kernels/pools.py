"""A block of prompts as kernels read it: sorted, shifted, and what each candidate is worth."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from privalign.evaluation.kernels.common import PAYOFFS, Counts, Floats, compiled


@compiled
def _beats(values: Floats, order: Counts, out: Floats) -> None:
    """P[a value exceeds that of an independent uniform draw from the pool] + half of P[they are equal]."""
    size = values.size
    first = 0
    while first < size:
        last = first
        while last + 1 < size and values[order[last + 1]] == values[order[first]]:
            last += 1
        for i in range(first, last + 1):
            out[order[i]] = (first + 0.5 * (last - first + 1)) / size
        first = last + 1


def prepare(offsets: Counts, rewards: Floats, gold: Floats, low: float, high: float, width: float) -> tuple[Floats, Floats, Floats]:
    """`q`, `payoffs` (averaged over candidates of equal q, which every law treats alike) and each prompt's mean payoffs (P, 4)."""
    orders, gold_orders = np.empty(rewards.size, np.int64), np.empty(rewards.size, np.int64)
    for start, end in pairwise(offsets.tolist()):  # NumPy's sort uses vector instructions, ten times faster than a compiled one here
        orders[start:end], gold_orders[start:end] = np.argsort(rewards[start:end]), np.argsort(gold[start:end])
    return _prepared(offsets, rewards, gold, orders, gold_orders, low, high, width)


@compiled
def _prepared(
    offsets: Counts, rewards: Floats, gold: Floats, orders: Counts, gold_orders: Counts, low: float, high: float, width: float
) -> tuple[Floats, Floats, Floats]:
    """`prepare`, given the order of each prompt's rewards and gold."""
    q, payoffs = np.empty(rewards.size), np.empty((rewards.size, PAYOFFS))
    means = np.zeros((offsets.size - 1, PAYOFFS))
    for p in range(offsets.size - 1):
        start, end = offsets[p], offsets[p + 1]
        raw, grades, size = rewards[start:end], gold[start:end], end - start
        order = orders[start:end]
        wins, gold_wins = np.empty(size), np.empty(size)
        _beats(raw, order, wins)
        _beats(grades, gold_orders[start:end], gold_wins)
        for i in range(size):
            j = order[i]
            q[start + i] = min(max(min(max(raw[j], low), high) - low, 0.0), width)
            worth = payoffs[start + i]
            worth[0], worth[1], worth[2], worth[3] = grades[j], raw[j], wins[j], gold_wins[j]
        for c in range(PAYOFFS):
            means[p, c] = payoffs[start:end, c].mean()
        first = start
        while first < end:
            last = first
            while last + 1 < end and q[last + 1] == q[first]:
                last += 1
            if last > first:
                for c in range(PAYOFFS):
                    payoffs[first : last + 1, c] = payoffs[first : last + 1, c].mean()
            first = last + 1
    return q, payoffs, means
