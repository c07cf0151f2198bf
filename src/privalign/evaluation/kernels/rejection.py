"""Thresholds, and rejection rounds of fresh draws with replacement: itp, privitp."""

from __future__ import annotations

import math

import numpy as np

from privalign.evaluation.kernels.common import (
    COST,
    FALLBACK,
    GOLD,
    HALTING,
    NORMAL_REACH,
    PAYOFFS,
    PER_UNIT,
    ROOT_2PI,
    ROOT_HALF,
    VARIANCE,
    Counts,
    Floats,
    Places,
    compiled,
    vectorised,
)
from privalign.evaluation.kernels.noisy_max import finished, moments_of


@vectorised
def _sum_above(values: Floats, threshold: float) -> tuple[float, int]:
    """Sum and number of the values above a threshold."""
    total, count = 0.0, 0
    for i in range(values.size):
        above = values[i] > threshold
        total += values[i] if above else 0.0
        count += above
    return total, count


@compiled
def threshold_of(values: Floats, beta: float, start: float) -> float:
    """λ with Σ relu(v − λ) = nβ, by Newton's method on a convex piecewise linear function: finitely many steps from anywhere.

    From any start with a value above it the first step lands at or below λ; from there the steps rise to it.
    """
    n, threshold = values.size, start
    active = -1
    while True:
        total, count = _sum_above(values, threshold)
        if count == 0:
            if active >= 0:
                return threshold
            threshold = values.mean() - beta  # of all values: at or below λ
            active = 0
            continue
        following = (total - n * beta) / count
        if active > 0 and (count == active or following <= threshold):
            return following if count == active else threshold
        active = count
        threshold = following


@compiled
def thresholds(offsets: Counts, q: Floats, ns: Counts, beta: float, draws: Places) -> Floats:
    """λ of the first n draws (P, B, L); (J, P, B). `ns` ascending; NaN where n > L."""
    out = np.full((ns.size, offsets.size - 1, draws.shape[1]), np.nan)
    values = np.empty(ns[-1])
    for p in range(offsets.size - 1):
        pool = q[offsets[p] : offsets[p + 1]]
        for b in range(draws.shape[1]):
            threshold, done = np.inf, 0
            for j in range(ns.size):
                if ns[j] > draws.shape[2]:
                    break
                for i in range(done, ns[j]):
                    values[i] = pool[draws[p, b, i]]
                done = ns[j]
                threshold = threshold_of(values[:done], beta, threshold)
                out[j, p, b] = threshold
    return out


@compiled
def _rounds(accept: float, cap: int) -> tuple[float, float]:
    """E[rounds] = Σ_{t<cap} (1 − a)^t and P[none accepted] = (1 − a)^cap of i.i.d. rounds, by doubling: no logarithm, no division."""
    rounds, none = 0.0, 1.0
    some, reject = 1.0, min(max(1.0 - accept, 0.0), 1.0)  # the same of 1, 2, 4, … rounds
    while cap > 0:
        if cap & 1:
            rounds += none * some
            none *= reject
        some *= 1.0 + reject
        reject *= reject
        cap >>= 1
    return rounds, none


@compiled
def itp_with(offsets: Counts, q: Floats, payoffs: Floats, means: Floats, thresholds: Floats, caps: Counts, width: float) -> Floats:
    """ITP with fresh draws with replacement, given λ (J, P, B); (J, P, 8).

    Given λ a round accepts with a = mean_i p_i, p_i = relu(q_i − λ)/(R − λ), so the expected payoff is
    E[rounds]·mean_i(p_i payoff_i) + P[none accepted]·mean payoff; the means come from suffix sums.
    """
    replicates = thresholds.shape[2]
    out = np.zeros((thresholds.shape[0], offsets.size - 1, 8))
    for p in range(offsets.size - 1):
        start, size = offsets[p], offsets[p + 1] - offsets[p]
        pool = q[start : start + size]
        plain, scaled = np.zeros((size + 1, PAYOFFS + 1)), np.zeros((size + 1, PAYOFFS + 1))
        for i in range(size - 1, -1, -1):
            plain[i, PAYOFFS] = plain[i + 1, PAYOFFS] + 1.0
            scaled[i, PAYOFFS] = scaled[i + 1, PAYOFFS] + pool[i]
            for c in range(PAYOFFS):
                plain[i, c] = plain[i + 1, c] + payoffs[start + i, c]
                scaled[i, c] = scaled[i + 1, c] + pool[i] * payoffs[start + i, c]
        for j in range(thresholds.shape[0]):
            for b in range(replicates):
                threshold = thresholds[j, p, b]
                room = size * (width - threshold)
                if room > 0:
                    k, unit = np.searchsorted(pool, threshold, "right"), threshold
                else:  # β below the spacing of floats: only rewards at the ceiling are accepted
                    k, unit, room = np.searchsorted(pool, width, "left"), width - 1.0, float(size)
                accept = (scaled[k, PAYOFFS] - unit * plain[k, PAYOFFS]) / room
                rounds, none = _rounds(accept, caps[j])
                for c in range(PAYOFFS):
                    value = rounds * (scaled[k, c] - unit * plain[k, c]) / room + none * means[p, c]
                    out[j, p, c] += value
                    if c == GOLD:
                        out[j, p, VARIANCE] += value * value
                out[j, p, FALLBACK] += none
                out[j, p, HALTING] += rounds
    finished(out, replicates)
    return out


_RAMPS = np.empty((2 * int(NORMAL_REACH * PER_UNIT) + 1, 3))  # G, Φ and φ at multiples of 1/64 in [−8.5, 8.5]
for _row in range(len(_RAMPS)):
    _z = _row / PER_UNIT - NORMAL_REACH
    _RAMPS[_row, 1:] = 0.5 * math.erfc(-_z * ROOT_HALF), math.exp(-0.5 * _z * _z) / ROOT_2PI
    _RAMPS[_row, 0] = max(_z * _RAMPS[_row, 1] + _RAMPS[_row, 2], 0.0)


@compiled
def ramp_at(z: float) -> float:
    """G(z) = zΦ(z) + φ(z), by five terms of Taylor's series from the nearest multiple of 1/64; error ≤ 1e-15."""
    if z >= NORMAL_REACH:
        return z
    if z <= -NORMAL_REACH:
        return 0.0
    row = int((z + NORMAL_REACH) * PER_UNIT + 0.5)
    x = row * (1.0 / PER_UNIT) - NORMAL_REACH
    d, square = z - x, x * x
    bend = 1 - d * (x * (1 / 3) - d * ((square - 1) * (1 / 12) - d * x * (square - 3) * (1 / 60)))
    return float(_RAMPS[row, 0] + d * (_RAMPS[row, 1] + 0.5 * d * _RAMPS[row, 2] * bend))


@compiled
def _ramp_sums(pool: Floats, payoffs: Floats, x: float, scale: float, out: Floats) -> None:
    """mean_i G((q_i − x)/σ)·payoff_i for the four payoffs and for 1."""
    out[:] = 0.0
    for i in range(pool.size - 1, -1, -1):
        ramp = ramp_at((pool[i] - x) / scale)
        if ramp == 0.0:
            break  # rewards are ascending
        for c in range(PAYOFFS):
            out[c] += ramp * payoffs[i, c]
        out[PAYOFFS] += ramp
    out /= pool.size


@vectorised
def _product(matrix: Floats, vector: Floats, out: Floats) -> None:
    """out = matrix · vector. Not by BLAS: its threads, one set a worker, cost many times what they gain at these sizes."""
    for m in range(matrix.shape[0]):
        total = 0.0
        for k in range(vector.size):
            total += matrix[m, k] * vector[k]
        out[m] = total


@compiled
def privitp_with(
    offsets: Counts,
    q: Floats,
    payoffs: Floats,
    means: Floats,
    thresholds: Floats,
    caps: Counts,
    ceilings: Floats,
    sigma_x: float,
    sigma_z: float,
    width: float,
    points: Floats,
    to_sums: Floats,
    centres: Floats,
    centre_weights: Floats,
    smoothing: Floats,
    prices: Floats,
) -> Floats:
    """PrivITP with draws with replacement, given λ before its noise (J, P, B); (J, P, 8).

    Given λ̃ everything is a function of a = mean_i p(q_i; λ̃) and mean_i p(q_i; λ̃)·payoff_i, where
    p(q; λ̃) = (σ_Z/W)[G((q − λ̃)/σ_Z) − G((q − H)/σ_Z)] is a smooth function of q: the pool counts by its Chebyshev moments, from
    which `to_sums` (M + J, K) gives the sums at the `points` (M,) of λ̃ and at the ceilings (J,). Where it is empty, σ_Z is so
    small that candidates are summed one by one. The average over the law of λ̃ is a smooth function of λ: `smoothing` (K′, M)
    gives it at `centres`, and barycentric interpolation (`centre_weights`) elsewhere. Where `centres` is empty, σ_X is so small
    that the few of the 1,024 points near λ are averaged directly. `prices` (J, M, 2): κ and b at `points`.
    """
    sizes, replicates, count = thresholds.shape[0], thresholds.shape[2], points.size
    out = np.zeros((sizes, offsets.size - 1, 8))
    places = np.concatenate((points, ceilings))
    sums, moments = np.empty((places.size, PAYOFFS + 1)), np.empty((to_sums.shape[1], PAYOFFS + 1))
    table, mixed = np.empty((count, 7)), np.empty(count)
    golds, weights, terms = np.empty(centres.size), np.empty(centres.size), np.empty(centres.size)
    step = points[1] - points[0]
    for p in range(offsets.size - 1):
        start, end = offsets[p], offsets[p + 1]
        pool, worth = q[start:end], payoffs[start:end]
        if to_sums.size:
            moments_of(2 * pool / width - 1, worth, moments)
            for c in range(PAYOFFS + 1):
                _product(to_sums, moments[:, c] / pool.size, sums[:, c])
        else:
            for k in range(places.size):
                _ramp_sums(pool, worth, places[k], sigma_z, sums[k])
        for j in range(sizes):
            at_ceiling = sums[count + j]
            for g in range(count):
                unit = sigma_z / (ceilings[j] - points[g])
                rounds, none = _rounds(unit * (sums[g, PAYOFFS] - at_ceiling[PAYOFFS]), caps[j])
                for c in range(PAYOFFS):
                    table[g, c] = rounds * unit * (sums[g, c] - at_ceiling[c]) + none * means[p, c]
                table[g, FALLBACK], table[g, HALTING] = none, rounds
                table[g, COST] = prices[j, g, 0] * (rounds - (1 - none)) + prices[j, g, 1] * (1 - none)
            mixed[:] = 0.0  # the law of λ̃, averaged over replicates of λ
            if centres.size:
                _product(smoothing, table[:, GOLD].copy(), golds)
                weights[:] = 0.0
                for b in range(replicates):
                    out[j, p, VARIANCE] += _interpolated(thresholds[j, p, b], centres, centre_weights, golds, terms, weights) ** 2
                for k in range(centres.size):
                    for g in range(count):
                        mixed[g] += weights[k] * smoothing[k, g]
            else:
                for b in range(replicates):
                    out[j, p, VARIANCE] += _nearby(thresholds[j, p, b], sigma_x, points, step, table, mixed) ** 2
            for g in range(count):
                for c in range(7):
                    out[j, p, c] += mixed[g] * table[g, c]
    finished(out, replicates)
    return out


@vectorised
def _interpolated(x: float, centres: Floats, centre_weights: Floats, values: Floats, terms: Floats, weights: Floats) -> float:
    """The interpolant of `values` at x; adds the weight of each centre to `weights`. `terms` is scratch."""
    total, value = 0.0, 0.0
    for k in range(centres.size):
        distance = x - centres[k]
        terms[k] = centre_weights[k] / (distance if distance != 0.0 else 1e-200)  # at a centre its own term drowns the others
        total += terms[k]
        value += terms[k] * values[k]
    each = 1.0 / total
    for k in range(centres.size):
        weights[k] += terms[k] * each
    return value * each


@compiled
def _nearby(threshold: float, sigma_x: float, grid: Floats, step: float, table: Floats, weights: Floats) -> float:
    """Mean gold over the law of λ̃ on the grid, by the points within 9 σ_X; adds their probabilities to `weights`."""
    reach, last = 9 * sigma_x + step, grid.size - 1
    value = 0.0
    for g in range(
        min(max(int((threshold - reach - grid[0]) / step), 0), last), min(max(int((threshold + reach - grid[0]) / step) + 1, 0), last) + 1
    ):
        low = -np.inf if g == 0 else ((grid[g - 1] + grid[g]) / 2 - threshold) / sigma_x
        high = np.inf if g == last else ((grid[g] + grid[g + 1]) / 2 - threshold) / sigma_x
        mass = 0.5 * (math.erfc(-high * ROOT_HALF) - math.erfc(-low * ROOT_HALF))
        weights[g] += mass
        value += mass * table[g, GOLD]
    return value
