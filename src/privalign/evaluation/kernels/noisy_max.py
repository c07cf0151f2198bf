"""The largest of n, with Gumbel noise, with Gaussian noise, and without: bon, privbon, privbon-gaussian."""

from __future__ import annotations

import math

import numpy as np

from privalign.evaluation.kernels.common import (
    GOLD,
    GOLD_WIN,
    GOLDEN,
    NORMAL_REACH,
    PAYOFFS,
    PER_UNIT,
    PROXY,
    ROOT_2PI,
    ROOT_HALF,
    VARIANCE,
    WIN,
    Counts,
    Floats,
    Places,
    compiled,
    vectorised,
)
from privalign.evaluation.kernels.streams import mixed, stream, uniform_of

_GUMBEL_STEP = 3 / 8  # of the trapezoidal rule; error ≤ 5e-10 for every n (docs/evaluate.md)
_GUMBEL_BELOW, _GUMBEL_ABOVE = 4.0, 37.0  # beyond: e^{−e^4} and e^{−37}
_NORMAL_STEP = 1 / 10
_TERMS = 12  # of the series of either noise within one step: error below 1e-14, in the upper tail relative to it (tested)
_NEGLIGIBLE = 1e-18
_UNDERFLOW = 1e-250  # a sum of weights below it may have lost its terms
_HAZARD_REACH = 9.0  # no deviate that is drawn lies beyond ±8.6


@compiled
def _largest_of(ranked: Floats, n: int, with_replacement: bool, out: Floats) -> None:
    """Adds the payoffs (N, 4), ascending by score, of the best of n uniform draws: P[the k-th best wins] in closed form."""
    size = ranked.shape[0]
    below, chance = 1.0, n / size  # P[nobody better was drawn], P[the k-th best wins]
    for k in range(size):
        if with_replacement:
            following = ((size - 1 - k) / size) ** n
            chance = below - following
            below = following
        for c in range(PAYOFFS):
            out[c] += chance * ranked[size - 1 - k, c]
        if not with_replacement and k < size - 1:
            chance *= (size - n - k) / (size - 1 - k)
            below = chance
        if below < _NEGLIGIBLE:
            break


@compiled
def best_of(offsets: Counts, payoffs: Floats, ns: Counts, with_replacement: bool) -> Floats:
    """BoN, exactly; (J, P, 4). Without replacement nothing where n exceeds the pool."""
    out = np.zeros((ns.size, offsets.size - 1, PAYOFFS))
    for p in range(offsets.size - 1):
        for j in range(ns.size):
            if with_replacement or ns[j] <= offsets[p + 1] - offsets[p]:
                _largest_of(payoffs[offsets[p] : offsets[p + 1]], ns[j], with_replacement, out[j, p])
    return out


@compiled
def _contracted(q: Floats, scale: float, gap: float) -> Floats:
    """ρ = (q − max q)/σ with gaps wider than `gap` shortened to it: across them one candidate never beats another either way."""
    rho = np.empty(q.size)
    last = q.size - 1
    rho[last] = 0.0
    for i in range(last - 1, -1, -1):
        rho[i] = rho[i + 1] - min((q[i + 1] - q[i]) / scale, gap)
    return rho


def _noise_series(gumbel: bool) -> Floats:
    """Density and survival function of ρ + noise at the nodes around ρ, as Chebyshev series in ρ; (2, _TERMS, nodes).

    Nodes are the multiples of the step. With ρ = (cell + f)·step, f in [0, 1), they are at distances (j − f)·step from ρ, with j from
    −⌈below/step⌉ on. The series are in 2f − 1: both functions are analytic far beyond one step.
    """
    step, below, above = (_GUMBEL_STEP, _GUMBEL_BELOW, _GUMBEL_ABOVE) if gumbel else (_NORMAL_STEP, NORMAL_REACH, NORMAL_REACH)
    angles = (np.arange(_TERMS) + 0.5) * np.pi / _TERMS
    polynomials = np.cos(np.arange(_TERMS)[:, None] * angles) * np.where(np.arange(_TERMS) == 0, 1, 2)[:, None] / _TERMS
    j = np.arange(math.ceil(above / step) + math.ceil(below / step) + 2) - math.ceil(below / step)
    x = (j - ((np.cos(angles) + 1) / 2)[:, None]) * step
    if gumbel:
        values = np.stack([np.exp(-x - np.exp(-x)), -np.expm1(-np.exp(-x))])
    else:
        values = np.stack([np.exp(-x * x / 2) / ROOT_2PI, np.vectorize(math.erfc)(x * ROOT_HALF) / 2])
    return np.ascontiguousarray(polynomials @ values)


_GUMBEL_SERIES, _NORMAL_SERIES = _noise_series(True), _noise_series(False)


@vectorised
def moments_of(x: Floats, worth: Floats, out: Floats) -> None:
    """Σ_i T_k(x_i) times the four payoffs `worth` (C, 4), and Σ_i T_k(x_i) itself, into `out` (K, 5); x in [−1, 1]."""
    out[:] = 0.0
    last = x.size - 1
    for i in range(0, x.size, 2):  # two at a time: half the traffic to `out`
        j = min(i + 1, last)
        one, other = 1.0, 1.0 if j > i else 0.0  # T_0; an odd one out is beside a candidate that counts for nothing
        one_before, other_before = x[i], x[j] * other  # T_{−1} = T_1
        for k in range(out.shape[0]):
            for c in range(PAYOFFS):
                out[k, c] += one * worth[i, c] + other * worth[j, c]
            out[k, PAYOFFS] += one + other
            one_before, one = one, 2 * x[i] * one - one_before
            other_before, other = other, 2 * x[j] * other - other_before


@compiled
def _add_series(moments: Floats, column: int, series: Floats, out: Floats) -> None:
    """Adds Σ_k moments_k series_k to `out`."""
    for k in range(0, _TERMS, 4):
        a, b, c, d = moments[k, column], moments[k + 1, column], moments[k + 2, column], moments[k + 3, column]
        for j in range(out.size):
            out[j] += (a * series[k, j] + b * series[k + 1, j]) + (c * series[k + 2, j] + d * series[k + 3, j])


@compiled
def noisy_best_with(offsets: Counts, q: Floats, payoffs: Floats, scale: float, ns: Counts, gumbel: bool) -> Floats:
    """PrivBoN or PrivBoN-Gaussian of n draws with replacement, exactly by quadrature; (J, P, 4).

    A draw with its noise has distribution function F(x) = mean_i F₀(x − ρ_i); the best of n has n F^{n−1} f, so the expected
    payoff is ∫ n F(x)^{n−1} mean_i[payoff_i f₀(x − ρ_i)] dx for every n at once. Candidates within one step count by their
    Chebyshev moments (`_noise_series`).
    """
    out = np.zeros((ns.size, offsets.size - 1, PAYOFFS))
    step, series = (_GUMBEL_STEP, _GUMBEL_SERIES) if gumbel else (_NORMAL_STEP, _NORMAL_SERIES)
    gap = 2 * (_GUMBEL_BELOW + _GUMBEL_ABOVE) if gumbel else 4 * NORMAL_REACH
    window, moments = series.shape[2], np.empty((_TERMS, PAYOFFS + 1))
    for p in range(offsets.size - 1):
        start, size = offsets[p], offsets[p + 1] - offsets[p]
        place = _contracted(q[start : offsets[p + 1]], scale, gap) / step
        lowest = math.floor(place[0])
        nodes = window - int(lowest)
        density, survival, begun = np.zeros((PAYOFFS, nodes)), np.zeros(nodes), np.zeros(nodes)
        i = 0
        while i < size:
            cell, first = math.floor(place[i]), i
            while i < size and place[i] < cell + 1:
                i += 1
            moments_of(2 * (place[first:i] - cell) - 1, payoffs[start + first : start + i], moments)
            k = int(cell - lowest)
            begun[k] = i - first
            for c in range(PAYOFFS):
                _add_series(moments, c, series[0], density[c, k : k + window])
            _add_series(moments, PAYOFFS, series[1], survival[k : k + window])
        above = float(size)  # candidates so far above the node that their score exceeds it for certain
        for k in range(nodes):
            above -= begun[k]
            beyond = (survival[k] + above) / size
            if beyond >= 1.0:
                continue
            log_below = math.log1p(-max(beyond, 0.0))
            for j in range(ns.size):
                weight = ns[j] * step / size * math.exp((ns[j] - 1) * log_below)
                for c in range(PAYOFFS):
                    out[j, p, c] += weight * density[c, k]
    return out


@compiled
def softmax_without(offsets: Counts, q: Floats, payoffs: Floats, scale: float, ns: Counts, draws: Places) -> Floats:
    """PrivBoN of n draws without replacement (P, B, ≥ n): softmax over nested samples; (J, P, 8). `ns` ascending."""
    out = np.zeros((ns.size, offsets.size - 1, 8))
    replicates = draws.shape[1]
    for p in range(offsets.size - 1):
        start, size = offsets[p], offsets[p + 1] - offsets[p]
        worth, weights = payoffs[start : start + size], np.empty(size)
        for i in range(size):
            weights[i] = math.exp((q[start + i] - q[start + size - 1]) / scale)
        for b in range(replicates):
            order = draws[p, b]
            total, gold, proxy, win, gold_win, done = 0.0, 0.0, 0.0, 0.0, 0.0, 0  # scalars: sums in an array would wait for memory
            for j in range(ns.size):
                if ns[j] > size:
                    break
                for i in range(done, ns[j]):
                    candidate = order[i]
                    weight = weights[candidate]
                    total += weight
                    gold += weight * worth[candidate, GOLD]
                    proxy += weight * worth[candidate, PROXY]
                    win += weight * worth[candidate, WIN]
                    gold_win += weight * worth[candidate, GOLD_WIN]
                done = ns[j]
                if total > _UNDERFLOW:
                    out[j, p, GOLD] += gold / total
                    out[j, p, PROXY] += proxy / total
                    out[j, p, WIN] += win / total
                    out[j, p, GOLD_WIN] += gold_win / total
                    out[j, p, VARIANCE] += (gold / total) ** 2
                else:
                    out[j, p, VARIANCE] += _add_softmax(q, payoffs, start, order[: ns[j]], scale, out[j, p]) ** 2
    finished(out, replicates)
    return out


@compiled
def _add_softmax(q: Floats, payoffs: Floats, start: int, batch: Places, scale: float, out: Floats) -> float:
    """Adds the payoffs of softmax(q/σ) over one batch, and returns its gold, where every weight relative to the whole pool vanishes."""
    top, total, gold = -np.inf, 0.0, 0.0
    for i in range(batch.size):
        top = max(top, q[start + batch[i]])
    for i in range(batch.size):
        total += math.exp((q[start + batch[i]] - top) / scale)
    for i in range(batch.size):
        weight = math.exp((q[start + batch[i]] - top) / scale) / total
        gold += weight * payoffs[start + batch[i], GOLD]
        for c in range(PAYOFFS):
            out[c] += weight * payoffs[start + batch[i], c]
    return gold


_HAZARDS = np.empty((2 * int(_HAZARD_REACH * PER_UNIT) + 1, 2))  # φ/Φ and its derivative at multiples of 1/64 in [−9, 9]
for _row in range(len(_HAZARDS)):
    _z = _row / PER_UNIT - _HAZARD_REACH
    _HAZARDS[_row, 0] = math.exp(-0.5 * _z * _z) / ROOT_2PI / (0.5 * math.erfc(-_z * ROOT_HALF))
    _HAZARDS[_row, 1] = -_HAZARDS[_row, 0] * (_z + _HAZARDS[_row, 0])


@compiled
def _hazard(z: float) -> float:
    """φ(z)/Φ(z) by cubic interpolation between multiples of 1/64: error ≤ 1e-9 for z ≥ −9, 0 above 9."""
    if z >= _HAZARD_REACH:
        return 0.0
    place = (max(z, -_HAZARD_REACH) + _HAZARD_REACH) * PER_UNIT
    row = min(int(place), len(_HAZARDS) - 2)
    t = place - row
    low, low_slope = _HAZARDS[row, 0], _HAZARDS[row, 1] / PER_UNIT
    rise, high_slope = _HAZARDS[row + 1, 0] - low, _HAZARDS[row + 1, 1] / PER_UNIT
    return float(low + t * (low_slope + t * (3 * rise - 2 * low_slope - high_slope + t * (low_slope + high_slope - 2 * rise))))


@compiled
def gaussian_without(
    offsets: Counts, q: Floats, payoffs: Floats, scale: float, ns: Counts, draws: Places, seed: int, numbers: Counts
) -> Floats:
    """PrivBoN-Gaussian of n draws without replacement (P, B, ≥ n); (J, P, 8). `ns` ascending.

    Of a batch the largest noisy score m is drawn. Given m, candidate i is the one that has it with probability
    ∝ h(m/σ − ρ_i), h = φ/Φ: the expected payoff given the batch and m takes the place of one winner.
    """
    out = np.zeros((ns.size, offsets.size - 1, 8))
    replicates = draws.shape[1]
    sums = np.empty(PAYOFFS)
    for p in range(offsets.size - 1):
        start, size = offsets[p], offsets[p + 1] - offsets[p]
        for b in range(replicates):
            state, spare, top, done = mixed(stream(seed, numbers[p], b)), 0.0, -np.inf, 0
            for j in range(ns.size):
                if ns[j] > size:
                    break
                for i in range(done, ns[j]):
                    noise = spare
                    if i % 2 == 0:  # Box and Muller: two at a time
                        radius = math.sqrt(-2 * math.log1p(-uniform_of(state + GOLDEN)))
                        angle = 2 * math.pi * uniform_of(state + GOLDEN + GOLDEN)
                        state += GOLDEN + GOLDEN
                        noise, spare = radius * math.cos(angle), radius * math.sin(angle)
                    top = max(top, q[start + draws[p, b, i]] / scale + noise)
                done = ns[j]
                sums[:] = 0.0
                total = 0.0
                for i in range(ns[j]):
                    candidate = start + draws[p, b, i]
                    z = top - q[candidate] / scale
                    if z < _HAZARD_REACH:
                        weight = _hazard(z)
                        total += weight
                        for c in range(PAYOFFS):
                            sums[c] += weight * payoffs[candidate, c]
                for c in range(PAYOFFS):
                    out[j, p, c] += sums[c] / total
                out[j, p, VARIANCE] += (sums[0] / total) ** 2
    finished(out, replicates)
    return out


@compiled
def finished(out: Floats, replicates: int) -> None:
    """Sums over replicates into means; the sum of squares of gold into the variance of its mean (0 with one replicate)."""
    for j in range(out.shape[0]):
        for p in range(out.shape[1]):
            squares = out[j, p, VARIANCE]
            for c in range(VARIANCE):
                out[j, p, c] /= replicates
            spread = max(squares - replicates * out[j, p, GOLD] ** 2, 0.0)
            out[j, p, VARIANCE] = spread / (replicates - 1) / replicates if replicates > 1 else np.nan
