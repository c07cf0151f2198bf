"""Rounds over one drawn order: itp and privitp without replacement, itp-reuse."""

from __future__ import annotations

import numpy as np

from privalign.evaluation.kernels.common import (
    COST,
    FALLBACK,
    GOLD,
    GOLD_WIN,
    HALTING,
    PAYOFFS,
    PROXY,
    VARIANCE,
    WIN,
    Counts,
    Floats,
    Places,
    compiled,
)
from privalign.evaluation.kernels.noisy_max import finished
from privalign.evaluation.kernels.rejection import ramp_at

Four = tuple[float, float, float, float]
_UNLIKELY = 1e-9  # a chance to get to a round that is not worth a round: gold errs by no more


@compiled
def _pessimistic(reward: float, threshold: float, ceiling: float) -> float:
    """See `mechanisms.normaliser.pessimistic_acceptance`."""
    if ceiling > threshold:
        return max(reward - threshold, 0.0) / (ceiling - threshold)
    return 1.0 if reward >= ceiling else 0.0


@compiled
def reuse(offsets: Counts, q: Floats, payoffs: Floats, lambdas: Floats, ns: Counts, draws: Places) -> Floats:
    """ITP on one batch (`itp-reuse`): λ (J, P, B), the ceiling max r and the rounds from the same n draws; (J, P, 8)."""
    replicates = draws.shape[1]
    out = np.zeros((ns.size, offsets.size - 1, 8))
    for j in range(ns.size):
        for p in range(offsets.size - 1):
            start = offsets[p]
            for b in range(replicates):
                batch, threshold = draws[p, b, : ns[j]], lambdas[j, p, b]
                top = -np.inf
                for i in range(batch.size):
                    top = max(top, q[start + batch[i]])
                alive, gold = 1.0, 0.0
                for i in range(batch.size):
                    accept = _pessimistic(q[start + batch[i]], threshold, top)
                    for c in range(PAYOFFS):
                        out[j, p, c] += alive * accept * payoffs[start + batch[i], c]
                    gold += alive * accept * payoffs[start + batch[i], GOLD]
                    out[j, p, HALTING] += alive
                    alive *= 1 - accept
                    if alive < _UNLIKELY:
                        break
                if alive >= _UNLIKELY:
                    for i in range(batch.size):
                        for c in range(PAYOFFS):
                            out[j, p, c] += alive * payoffs[start + batch[i], c] / batch.size
                        gold += alive * payoffs[start + batch[i], GOLD] / batch.size
                out[j, p, FALLBACK] += alive
                out[j, p, VARIANCE] += gold**2
    finished(out, replicates)
    return out


@compiled
def rounds_without(
    offsets: Counts,
    q: Floats,
    payoffs: Floats,
    means: Floats,
    lambdas: Floats,
    ns: Counts,
    caps: Counts,
    ceilings: Floats,
    width: float,
    sigma_z: float,
    noise: Floats,
    grid: Floats,
    prices: Floats,
    draws: Places,
) -> Floats:
    """ITP (`noise` empty) or PrivITP (`noise` (P, B): what is added to λ (J, P, B)) on draws without replacement; (J, P, 8).

    The first n draws gave λ, the next n₂ are tried in turn, each with its acceptance probability; the fallback is one more
    draw, uniform over what is left of the pool. Rounds end where the chance to get there is negligible.
    """
    replicates, noisy = draws.shape[1], noise.size > 0
    out = np.zeros((ns.size, offsets.size - 1, 8))
    for p in range(offsets.size - 1):
        start, size = offsets[p], offsets[p + 1] - offsets[p]
        pool, worth = q[start : start + size], payoffs[start : start + size]
        for b in range(replicates):
            order = draws[p, b]
            drawn, summed = (0.0, 0.0, 0.0, 0.0), 0  # payoffs of so many first draws
            for j in range(ns.size):
                last = ns[j] + caps[j]
                if size <= last:
                    continue
                threshold, point, ceiling = lambdas[j, p, b], 0, width
                if noisy:
                    place = (threshold + noise[p, b] - grid[0]) / width * (grid.size - 1)
                    point = int(np.rint(min(max(place, 0.0), grid.size - 1.0)))
                    threshold, ceiling = grid[point], ceilings[j]
                alive, halting, gold, proxy, win, gold_win = _tried(pool, worth, order[ns[j] : last], threshold, ceiling, sigma_z, noisy)
                if alive >= _UNLIKELY:
                    if last < summed:
                        drawn, summed = (0.0, 0.0, 0.0, 0.0), 0
                    drawn, summed = _with_more(drawn, worth, order[summed:last]), last
                    each = alive / (size - last)
                    gold += each * (size * means[p, GOLD] - drawn[GOLD])
                    proxy += each * (size * means[p, PROXY] - drawn[PROXY])
                    win += each * (size * means[p, WIN] - drawn[WIN])
                    gold_win += each * (size * means[p, GOLD_WIN] - drawn[GOLD_WIN])
                out[j, p, GOLD] += gold
                out[j, p, PROXY] += proxy
                out[j, p, WIN] += win
                out[j, p, GOLD_WIN] += gold_win
                out[j, p, FALLBACK] += alive
                out[j, p, HALTING] += halting
                if noisy:
                    out[j, p, COST] += prices[j, point, 0] * (halting - (1 - alive)) + prices[j, point, 1] * (1 - alive)
                out[j, p, VARIANCE] += gold**2
    finished(out, replicates)
    return out


@compiled
def _tried(
    pool: Floats, worth: Floats, order: Places, threshold: float, ceiling: float, sigma_z: float, noisy: bool
) -> tuple[float, float, float, float, float, float]:
    """Candidates tried in turn: P[all rejected], E[rounds], and the four payoffs that are earned by acceptance."""
    alive, halting, gold, proxy, win, gold_win = 1.0, 0.0, 0.0, 0.0, 0.0, 0.0  # scalars: sums in an array would wait for memory
    steepness, unit = 1 / sigma_z, sigma_z / (ceiling - threshold)
    for i in range(order.size):
        candidate = order[i]
        halting += alive
        if noisy:
            mass = ramp_at((pool[candidate] - threshold) * steepness) - ramp_at((pool[candidate] - ceiling) * steepness)
            chance = alive * min(max(unit * mass, 0.0), 1.0)
        else:
            chance = alive * _pessimistic(pool[candidate], threshold, ceiling)
        if chance > 0.0:
            gold += chance * worth[candidate, GOLD]
            proxy += chance * worth[candidate, PROXY]
            win += chance * worth[candidate, WIN]
            gold_win += chance * worth[candidate, GOLD_WIN]
            alive -= chance
            if alive < _UNLIKELY:
                break
    return alive, halting, gold, proxy, win, gold_win


@compiled
def _with_more(sums: Four, worth: Floats, more: Places) -> Four:
    """Payoffs summed over some more candidates."""
    gold, proxy, win, gold_win = sums
    for i in range(more.size):
        gold += worth[more[i], GOLD]
        proxy += worth[more[i], PROXY]
        win += worth[more[i], WIN]
        gold_win += worth[more[i], GOLD_WIN]
    return gold, proxy, win, gold_win
