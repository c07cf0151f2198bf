"""Compiled loops of `evaluate`, over prompts. Each is a vectorised twin of a mechanism; the formulas are in docs/evaluate.md.

Every kernel reads a block of prompts: `offsets` (P + 1,), `q` (C,) rewards in units shifted to [0, R], ascending within a
prompt, and `payoffs` (C, 4), what each candidate is worth if it is released: gold, proxy, P[proxy beats a base draw], P[gold
beats a base draw]. Draws are taken from counter-based streams, one for each (seed, prompt, replicate): a kernel that draws more
candidates draws the same first ones (common random numbers), and no result depends on the order in which prompts are done.
Draws are made once (`draws_with`, `draws_without`: (P, B, length)) and read by all kernels. Without replacement a kernel leaves a
result at 0 where a pool has fewer candidates than one query draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from privalign.errors import MissingDependency

try:
    import numba
except ImportError:
    raise MissingDependency("evaluating needs numba; get it with: pip install 'privalign[experiments]'") from None

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Places = NDArray[np.int32]
Singles = NDArray[np.float32]
Four = tuple[float, float, float, float]

PAYOFFS: Final = 4
GOLD, PROXY, WIN, GOLD_WIN, FALLBACK, HALTING, COST, VARIANCE = range(8)  # columns of the results; variance is of the mean gold

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])

_GUMBEL_STEP = 3 / 8  # of the trapezoidal rule; error ≤ 5e-10 for every n (docs/evaluate.md)
_GUMBEL_BELOW, _GUMBEL_ABOVE = 4.0, 37.0  # beyond: e^{−e^4} and e^{−37}
_NORMAL_STEP = 1 / 10
_NORMAL_REACH = 8.5
_TERMS = 12  # of the series of either noise within one step: error below 1e-14, in the upper tail relative to it (tested)
_NEGLIGIBLE = 1e-18
_UNLIKELY = 1e-9  # a chance to get to a round that is not worth a round: gold errs by no more
_UNDERFLOW = 1e-250  # a sum of weights below it may have lost its terms
_PER_UNIT = 64  # rows of a table of a function of a normal deviate
_HAZARD_REACH = 9.0  # no deviate that is drawn lies beyond ±8.6
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S11 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(11)
_NOUGHT, _ONE = np.float32(0), np.float32(1)
_ROOT_HALF = math.sqrt(0.5)
_ROOT_2PI = math.sqrt(2 * math.pi)


def _compiled(function: _Kernel) -> _Kernel:
    """Compiled on first use, cached on disk across runs, without the interpreter's lock."""
    return cast(_Kernel, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def _vectorised(function: _Kernel) -> _Kernel:
    """The same, and sums may be taken in any order; only where no value is infinite or NaN in what is returned."""
    return cast(_Kernel, numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp"})(function))


# ---- random streams ----------------------------------------------------------------------------------------------------


@_compiled
def _mix(z: np.uint64) -> np.uint64:
    """The output function of SplitMix64 (Steele, Lea & Flood 2014)."""
    z = (z ^ (z >> _S30)) * _MIX_1
    z = (z ^ (z >> _S27)) * _MIX_2
    return z ^ (z >> _S31)


@_compiled
def stream(seed: int, prompt: int, replicate: int) -> np.uint64:
    """The state from which the draws of one replicate on one prompt start."""
    state = _mix(np.uint64(seed) + _GOLDEN)
    state = _mix(state ^ (np.uint64(prompt) * _MIX_1 + _GOLDEN))
    return _mix(state ^ (np.uint64(replicate) * _MIX_2 + _GOLDEN))


@_compiled
def _uniform(state: np.uint64) -> float:
    """A float in [0, 1) of 53 bits; the next one is at `state + _GOLDEN`."""
    return float(np.int64(_mix(state) >> _S11)) * 2.0**-53  # signed: one instruction


@_compiled
def draws_with(offsets: Counts, length: int, replicates: int, seed: int, numbers: Counts) -> Places:
    """Positions of candidates within their pools, drawn with replacement; (P, B, length)."""
    out = np.empty((offsets.size - 1, replicates, length), np.int32)
    for p in range(offsets.size - 1):
        size = offsets[p + 1] - offsets[p]
        for b in range(replicates):
            state = stream(seed, numbers[p], b)
            for i in range(length):
                state += _GOLDEN
                out[p, b, i] = np.int32(_uniform(state) * size)
    return out


@_compiled
def _draw_without(state: np.uint64, pool: Places, drawn: Places) -> None:
    """Positions without replacement, in random order (Fisher–Yates); `pool` is scratch of the size of the pool."""
    size = pool.size
    for i in range(size):
        pool[i] = i
    for i in range(drawn.size):
        state += _GOLDEN
        j = i + int(_uniform(state) * (size - i))
        drawn[i] = pool[j]
        pool[j] = pool[i]


@_compiled
def draws_without(offsets: Counts, length: int, replicates: int, seed: int, numbers: Counts) -> Places:
    """The first candidates of a random order of each pool; (P, B, length). Beyond the size of a pool: 0, which is no draw."""
    out = np.empty((offsets.size - 1, replicates, length), np.int32)
    for p in range(offsets.size - 1):
        pool = np.empty(offsets[p + 1] - offsets[p], np.int32)
        for b in range(replicates):
            _draw_without(stream(seed, numbers[p], b), pool, out[p, b, : min(pool.size, length)])
            out[p, b, pool.size :] = 0
    return out


@_compiled
def queries_without(offsets: Counts, prompts: Counts, count: int, seed: int) -> Places:
    """The first candidates of a fresh random order for each query, a prompt's number each; (Q, count)."""
    out = np.empty((prompts.size, count), np.int32)
    for query in range(prompts.size):
        pool = np.empty(offsets[prompts[query] + 1] - offsets[prompts[query]], np.int32)
        _draw_without(stream(seed, prompts[query], query), pool, out[query])
    return out


# ---- pools -------------------------------------------------------------------------------------------------------------


@_compiled
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


@_compiled
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


# ---- the largest of n --------------------------------------------------------------------------------------------------


@_compiled
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


@_compiled
def best_of(offsets: Counts, payoffs: Floats, ns: Counts, with_replacement: bool) -> Floats:
    """BoN, exactly; (J, P, 4). Without replacement nothing where n exceeds the pool."""
    out = np.zeros((ns.size, offsets.size - 1, PAYOFFS))
    for p in range(offsets.size - 1):
        for j in range(ns.size):
            if with_replacement or ns[j] <= offsets[p + 1] - offsets[p]:
                _largest_of(payoffs[offsets[p] : offsets[p + 1]], ns[j], with_replacement, out[j, p])
    return out


@_compiled
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
    step, below, above = (_GUMBEL_STEP, _GUMBEL_BELOW, _GUMBEL_ABOVE) if gumbel else (_NORMAL_STEP, _NORMAL_REACH, _NORMAL_REACH)
    angles = (np.arange(_TERMS) + 0.5) * np.pi / _TERMS
    polynomials = np.cos(np.arange(_TERMS)[:, None] * angles) * np.where(np.arange(_TERMS) == 0, 1, 2)[:, None] / _TERMS
    j = np.arange(math.ceil(above / step) + math.ceil(below / step) + 2) - math.ceil(below / step)
    x = (j - ((np.cos(angles) + 1) / 2)[:, None]) * step
    if gumbel:
        values = np.stack([np.exp(-x - np.exp(-x)), -np.expm1(-np.exp(-x))])
    else:
        values = np.stack([np.exp(-x * x / 2) / _ROOT_2PI, np.vectorize(math.erfc)(x * _ROOT_HALF) / 2])
    return np.ascontiguousarray(polynomials @ values)


_GUMBEL_SERIES, _NORMAL_SERIES = _noise_series(True), _noise_series(False)


@_vectorised
def _moments(x: Floats, worth: Floats, out: Floats) -> None:
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


@_compiled
def _add_series(moments: Floats, column: int, series: Floats, out: Floats) -> None:
    """Adds Σ_k moments_k series_k to `out`."""
    for k in range(0, _TERMS, 4):
        a, b, c, d = moments[k, column], moments[k + 1, column], moments[k + 2, column], moments[k + 3, column]
        for j in range(out.size):
            out[j] += (a * series[k, j] + b * series[k + 1, j]) + (c * series[k + 2, j] + d * series[k + 3, j])


@_compiled
def noisy_best_with(offsets: Counts, q: Floats, payoffs: Floats, scale: float, ns: Counts, gumbel: bool) -> Floats:
    """PrivBoN or PrivBoN-Gaussian of n draws with replacement, exactly by quadrature; (J, P, 4).

    A draw with its noise has distribution function F(x) = mean_i F₀(x − ρ_i); the best of n has n F^{n−1} f, so the expected
    payoff is ∫ n F(x)^{n−1} mean_i[payoff_i f₀(x − ρ_i)] dx for every n at once. Candidates within one step count by their
    Chebyshev moments (`_noise_series`).
    """
    out = np.zeros((ns.size, offsets.size - 1, PAYOFFS))
    step, series = (_GUMBEL_STEP, _GUMBEL_SERIES) if gumbel else (_NORMAL_STEP, _NORMAL_SERIES)
    gap = 2 * (_GUMBEL_BELOW + _GUMBEL_ABOVE) if gumbel else 4 * _NORMAL_REACH
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
            _moments(2 * (place[first:i] - cell) - 1, payoffs[start + first : start + i], moments)
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


@_compiled
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
    _finish(out, replicates)
    return out


@_compiled
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


_HAZARDS = np.empty((2 * int(_HAZARD_REACH * _PER_UNIT) + 1, 2))  # φ/Φ and its derivative at multiples of 1/64 in [−9, 9]
for _row in range(len(_HAZARDS)):
    _z = _row / _PER_UNIT - _HAZARD_REACH
    _HAZARDS[_row, 0] = math.exp(-0.5 * _z * _z) / _ROOT_2PI / (0.5 * math.erfc(-_z * _ROOT_HALF))
    _HAZARDS[_row, 1] = -_HAZARDS[_row, 0] * (_z + _HAZARDS[_row, 0])


@_compiled
def _hazard(z: float) -> float:
    """φ(z)/Φ(z) by cubic interpolation between multiples of 1/64: error ≤ 1e-9 for z ≥ −9, 0 above 9."""
    if z >= _HAZARD_REACH:
        return 0.0
    place = (max(z, -_HAZARD_REACH) + _HAZARD_REACH) * _PER_UNIT
    row = min(int(place), len(_HAZARDS) - 2)
    t = place - row
    low, low_slope = _HAZARDS[row, 0], _HAZARDS[row, 1] / _PER_UNIT
    rise, high_slope = _HAZARDS[row + 1, 0] - low, _HAZARDS[row + 1, 1] / _PER_UNIT
    return float(low + t * (low_slope + t * (3 * rise - 2 * low_slope - high_slope + t * (low_slope + high_slope - 2 * rise))))


@_compiled
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
            state, spare, top, done = _mix(stream(seed, numbers[p], b)), 0.0, -np.inf, 0
            for j in range(ns.size):
                if ns[j] > size:
                    break
                for i in range(done, ns[j]):
                    noise = spare
                    if i % 2 == 0:  # Box and Muller: two at a time
                        radius = math.sqrt(-2 * math.log1p(-_uniform(state + _GOLDEN)))
                        angle = 2 * math.pi * _uniform(state + _GOLDEN + _GOLDEN)
                        state += _GOLDEN + _GOLDEN
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
    _finish(out, replicates)
    return out


@_compiled
def _finish(out: Floats, replicates: int) -> None:
    """Sums over replicates into means; the sum of squares of gold into the variance of its mean (0 with one replicate)."""
    for j in range(out.shape[0]):
        for p in range(out.shape[1]):
            squares = out[j, p, VARIANCE]
            for c in range(VARIANCE):
                out[j, p, c] /= replicates
            spread = max(squares - replicates * out[j, p, GOLD] ** 2, 0.0)
            out[j, p, VARIANCE] = spread / (replicates - 1) / replicates if replicates > 1 else np.nan


# ---- thresholds --------------------------------------------------------------------------------------------------------


@_vectorised
def _sum_above(values: Floats, threshold: float) -> tuple[float, int]:
    """Sum and number of the values above a threshold."""
    total, count = 0.0, 0
    for i in range(values.size):
        above = values[i] > threshold
        total += values[i] if above else 0.0
        count += above
    return total, count


@_compiled
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


@_compiled
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


@_compiled
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


@_compiled
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
    _finish(out, replicates)
    return out


_RAMPS = np.empty((2 * int(_NORMAL_REACH * _PER_UNIT) + 1, 3))  # G, Φ and φ at multiples of 1/64 in [−8.5, 8.5]
for _row in range(len(_RAMPS)):
    _z = _row / _PER_UNIT - _NORMAL_REACH
    _RAMPS[_row, 1:] = 0.5 * math.erfc(-_z * _ROOT_HALF), math.exp(-0.5 * _z * _z) / _ROOT_2PI
    _RAMPS[_row, 0] = max(_z * _RAMPS[_row, 1] + _RAMPS[_row, 2], 0.0)


@_compiled
def _ramp(z: float) -> float:
    """G(z) = zΦ(z) + φ(z), by five terms of Taylor's series from the nearest multiple of 1/64; error ≤ 1e-15."""
    if z >= _NORMAL_REACH:
        return z
    if z <= -_NORMAL_REACH:
        return 0.0
    row = int((z + _NORMAL_REACH) * _PER_UNIT + 0.5)
    x = row * (1.0 / _PER_UNIT) - _NORMAL_REACH
    d, square = z - x, x * x
    bend = 1 - d * (x * (1 / 3) - d * ((square - 1) * (1 / 12) - d * x * (square - 3) * (1 / 60)))
    return float(_RAMPS[row, 0] + d * (_RAMPS[row, 1] + 0.5 * d * _RAMPS[row, 2] * bend))


@_compiled
def _ramp_sums(pool: Floats, payoffs: Floats, x: float, scale: float, out: Floats) -> None:
    """mean_i G((q_i − x)/σ)·payoff_i for the four payoffs and for 1."""
    out[:] = 0.0
    for i in range(pool.size - 1, -1, -1):
        ramp = _ramp((pool[i] - x) / scale)
        if ramp == 0.0:
            break  # rewards are ascending
        for c in range(PAYOFFS):
            out[c] += ramp * payoffs[i, c]
        out[PAYOFFS] += ramp
    out /= pool.size


@_vectorised
def _product(matrix: Floats, vector: Floats, out: Floats) -> None:
    """out = matrix · vector. Not by BLAS: its threads, one set a worker, cost many times what they gain at these sizes."""
    for m in range(matrix.shape[0]):
        total = 0.0
        for k in range(vector.size):
            total += matrix[m, k] * vector[k]
        out[m] = total


@_compiled
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
            _moments(2 * pool / width - 1, worth, moments)
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
    _finish(out, replicates)
    return out


@_vectorised
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


@_compiled
def _nearby(threshold: float, sigma_x: float, grid: Floats, step: float, table: Floats, weights: Floats) -> float:
    """Mean gold over the law of λ̃ on the grid, by the points within 9 σ_X; adds their probabilities to `weights`."""
    reach, last = 9 * sigma_x + step, grid.size - 1
    value = 0.0
    for g in range(
        min(max(int((threshold - reach - grid[0]) / step), 0), last), min(max(int((threshold + reach - grid[0]) / step) + 1, 0), last) + 1
    ):
        low = -np.inf if g == 0 else ((grid[g - 1] + grid[g]) / 2 - threshold) / sigma_x
        high = np.inf if g == last else ((grid[g] + grid[g + 1]) / 2 - threshold) / sigma_x
        mass = 0.5 * (math.erfc(-high * _ROOT_HALF) - math.erfc(-low * _ROOT_HALF))
        weights[g] += mass
        value += mass * table[g, GOLD]
    return value


# ---- one drawn order: sequential rounds --------------------------------------------------------------------------------


@_compiled
def _pessimistic(reward: float, threshold: float, ceiling: float) -> float:
    """See `mechanisms.normaliser.pessimistic_acceptance`."""
    if ceiling > threshold:
        return max(reward - threshold, 0.0) / (ceiling - threshold)
    return 1.0 if reward >= ceiling else 0.0


@_compiled
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
    _finish(out, replicates)
    return out


@_compiled
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
    _finish(out, replicates)
    return out


@_compiled
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
            mass = _ramp((pool[candidate] - threshold) * steepness) - _ramp((pool[candidate] - ceiling) * steepness)
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


@_compiled
def _with_more(sums: Four, worth: Floats, more: Places) -> Four:
    """Payoffs summed over some more candidates."""
    gold, proxy, win, gold_win = sums
    for i in range(more.size):
        gold += worth[more[i], GOLD]
        proxy += worth[more[i], PROXY]
        win += worth[more[i], WIN]
        gold_win += worth[more[i], GOLD_WIN]
    return gold, proxy, win, gold_win


# ---- the authors' protocol ---------------------------------------------------------------------------------------------


@_compiled
def authors_comparison(
    offsets: Counts,
    z: Floats,
    payoffs: Floats,
    base: Floats,
    ns: Counts,
    scale: float,
    beta: float,
    sigma_phase: float,
    normals: Singles,
    noise_draws: int,
    replicates: int,
    seed: int,
    numbers: Counts,
) -> Floats:
    """PrivBoN, ITP and PrivITP on one pool, as the authors' code compares them; (3, J, P, 8). Not private mechanisms.

    `z` are rewards as z-scores, `payoffs` (C, 4) as elsewhere, `base` (4,) what a fallback earns. Samples are nested over the
    ascending `ns`. Noise is read from the table `normals` of independent N(0, 1), from a random place on for each replicate and
    n: within a replicate it is independent, and the table is read many times faster than fresh normals are made.
    """
    out = np.zeros((3, ns.size, offsets.size - 1, 8))
    drawn, values, accept = np.empty(ns[-1], np.int32), np.empty(ns[-1]), np.empty(ns[-1])
    highest, shift = np.empty(noise_draws, np.float32), np.empty(noise_draws, np.float32)
    for p in range(offsets.size - 1):
        start, end = offsets[p], offsets[p + 1]
        pool = np.empty(end - start, np.int32)
        for b in range(replicates):
            state = stream(seed, numbers[p], b)
            _draw_without(state, pool, drawn)
            state = _mix(state)
            for i in range(drawn.size):
                values[i] = z[start + drawn[i]]
            threshold = np.inf
            for j in range(ns.size):
                n = ns[j]
                batch = values[:n]
                threshold = threshold_of(batch, beta, threshold)
                top = batch.max()
                total = 0.0
                for i in range(n):
                    accept[i] = math.exp((batch[i] - top) / scale)
                    total += accept[i]
                gold = 0.0
                for i in range(n):
                    for c in range(PAYOFFS):
                        out[0, j, p, c] += accept[i] / total * payoffs[start + drawn[i], c]
                    gold += accept[i] / total * payoffs[start + drawn[i], GOLD]
                out[0, j, p, VARIANCE] += gold * gold
                most = max((top - threshold) / beta, 1e-8)
                for i in range(n):
                    accept[i] = min(max((batch[i] - threshold) / beta, 0.0) / most, 1.0)
                _earn(out[1, j, p], payoffs, start, drawn, accept, n, base)
                state += _GOLDEN
                place = int(_uniform(state) * (normals.size - (n + 1) * noise_draws))
                _noisy_acceptance(batch, threshold, beta, sigma_phase, normals[place:], highest, shift, accept)
                _earn(out[2, j, p], payoffs, start, drawn, accept, n, base)
    for kind in range(3):
        _finish(out[kind], replicates)
    return out


@_vectorised
def _noisy_acceptance(
    batch: Floats, threshold: float, beta: float, sigma: float, normals: Singles, highest: Singles, shift: Singles, accept: Floats
) -> None:
    """mean_s min(relu(r_{s,i} − λ_s)/max(max_k r_{s,k} − λ_s, 1e-8 β), 1) into `accept`; the noise of (i, s) lies at (i + 1) S + s.

    In single precision, relative to λ: an error of 1e-6, under noise drawn 150 times. Comparisons instead of min and max:
    the compiler turns only these into vector instructions.
    """
    draws, spread, floor = highest.size, np.float32(sigma), np.float32(1e-8 * beta)
    for s in range(draws):
        shift[s] = spread * normals[s]
        highest[s] = floor
    for i in range(batch.size):
        reward, row = np.float32(batch[i] - threshold), normals[(i + 1) * draws : (i + 2) * draws]
        for s in range(draws):
            above = reward + spread * row[s] - shift[s]
            highest[s] = above if above > highest[s] else highest[s]
    for s in range(draws):
        highest[s] = _ONE / highest[s]
    for i in range(batch.size):
        reward, row = np.float32(batch[i] - threshold), normals[(i + 1) * draws : (i + 2) * draws]
        total = _NOUGHT
        for s in range(draws):
            above = reward + spread * row[s] - shift[s]
            total += (above if above > _NOUGHT else _NOUGHT) * highest[s]
        accept[i] = min(float(total) / draws, 1.0)  # no term is above 1, but by rounding: `highest` is at least each of them


@_compiled
def _earn(out: Floats, payoffs: Floats, start: int, drawn: Places, accept: Floats, n: int, base: Floats) -> None:
    """Adds the payoffs of sequential rounds over the first n drawn candidates, else the fallback's."""
    alive, gold = 1.0, 0.0
    for i in range(n):
        chance = alive * accept[i]
        for c in range(PAYOFFS):
            out[c] += chance * payoffs[start + drawn[i], c]
        gold += chance * payoffs[start + drawn[i], GOLD]
        out[HALTING] += alive
        alive -= chance
    for c in range(PAYOFFS):
        out[c] += alive * base[c]
    out[FALLBACK] += alive
    out[VARIANCE] += (gold + alive * base[GOLD]) ** 2
