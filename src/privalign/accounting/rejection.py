"""Phase 2 of PrivITP: ex-post cost of an outcome, worst cases over λ̃ and t, and Rényi cost.

`RejectionRounds` carries the settings. All numbers are upper bounds, rounded up.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import pairwise

import numpy as np
from flint import arb, ctx
from numpy.typing import NDArray

from privalign.acceptance import (
    AcceptanceCurve,
    acceptance_ratio,
    acceptance_ratios,
    evaluation_error,
    kappa,
    kappas,
    log_accept,
    log_gain,
    log_reject,
    positive,
    threshold_grid,
    whole,
)
from privalign.accounting.gumbel import check_order
from privalign.errors import InvalidInput
from privalign.events import FALLBACK, Fallback, Halt, RejectionRounds
from privalign.intervals import upper

Floats = NDArray[np.float64]

CELLS = 2000  # cells of the Rényi bound in q; its slack falls as 1/CELLS
NEAR_ENOUGH = 1e-3  # the search for the worst threshold ends when its bound is within this of a finest one
REFINEMENTS = (60, 300)  # cells of the passes that look for the worst threshold, before the last with CELLS


def curve_at(rounds: RejectionRounds, threshold: float) -> AcceptanceCurve:
    """p(·) of these rounds at threshold λ̃."""
    whole("cap", rounds.cap)
    return AcceptanceCurve(threshold, rounds.sensitivity.width, rounds.scale, rounds.tail)


def ex_post_epsilon(rounds: RejectionRounds, threshold: float, halt: Halt) -> float:
    """The cost of one outcome at λ̃: (t − 1)κ + b for stopping at t ≤ n₂, n₂κ for the fallback.

    Formal guarantee (pathwise): for neighbouring data and every outcome, log of the ratio of its probabilities is at
    most this. Covers λ̃'s use, all candidate texts, t and the answer.

    Raises:
        InvalidInput: t outside 1 … n₂.
    """
    curve, delta = curve_at(rounds, threshold), rounds.sensitivity.charged
    if isinstance(halt, Fallback):
        return _combine(rounds.cap, kappa(curve, delta), 0.0)
    if not 1 <= whole("halt", halt) <= rounds.cap:
        raise InvalidInput("halt", f"{halt} is not between 1 and the cap of {rounds.cap}; or say 'fallback'")
    return _combine(halt - 1, kappa(curve, delta), acceptance_ratio(curve, delta))


def worst_halt_epsilon(rounds: RejectionRounds, threshold: float) -> float:
    """ε₂max(λ̃) = max((n₂ − 1)κ + b, n₂κ): the worst outcome at this threshold."""
    return max(ex_post_epsilon(rounds, threshold, rounds.cap), ex_post_epsilon(rounds, threshold, FALLBACK))


@lru_cache(maxsize=1024)
def worst_case_epsilon(rounds: RejectionRounds) -> float:
    """The maximum of ε₂max over the 1,024 thresholds: what a rule reserves before λ̃ exists.

    Best first: floats with a stated slack bound every threshold, and balls price those that may be the worst.
    """
    grid, n = _grid(rounds), rounds.cap
    worst = worst_halt_epsilon(rounds, float(grid[0]))  # refuses settings out of their range
    args = (rounds.sensitivity.width, rounds.scale, rounds.tail, rounds.sensitivity.charged)
    with np.errstate(all="ignore"):
        k, b = kappas(grid, *args), acceptance_ratios(grid, *args)
        bounds = np.maximum((n - 1) * k + b, n * k) * (1 + 2.0**-40) + 2.0**-1000
    bounds[~np.isfinite(bounds)] = math.inf  # then the balls decide
    for index in np.argsort(-bounds, kind="stable"):
        if bounds[index] <= worst:
            break
        worst = max(worst, worst_halt_epsilon(rounds, float(grid[index])))
    return worst


def worst_ingredients(rounds: RejectionRounds) -> tuple[float, float]:
    """The suprema of κ and of b over the 1,024 thresholds: κ falls and b rises with λ̃, so they lie at its two ends."""
    grid, delta = _grid(rounds), rounds.sensitivity.charged
    return kappa(curve_at(rounds, float(grid[0])), delta), acceptance_ratio(curve_at(rounds, float(grid[-1])), delta)


def interval_epsilon(rounds: RejectionRounds, cells: int = 1) -> float:
    """A bound on ε₂max over every real λ̃ in [−β, R − β], for a threshold that is not snapped.

    The maximum over cells [λᵢ, λᵢ₊₁] of max((n₂−1)κ(λᵢ) + b(λᵢ₊₁), n₂κ(λᵢ)): κ falls and b rises in λ̃.
    """
    width, delta, n = rounds.sensitivity.width, rounds.sensitivity.charged, rounds.cap
    edges = np.linspace(-positive("beta", rounds.beta), width - rounds.beta, whole("cells", cells) + 1)
    worst = 0.0
    for left, right in pairwise(edges):
        k = kappa(curve_at(rounds, float(left)), delta)
        b = acceptance_ratio(curve_at(rounds, float(right)), delta)
        worst = max(worst, _combine(n - 1, k, b), _combine(n, k, 0.0))
    return worst


def renyi_at(rounds: RejectionRounds, threshold: float, order: float) -> float:
    """RDP₂(α; λ̃): Rényi divergence of order α > 1 of phase 2 at one threshold.

    V₀ = 1, V_k = sup_{|q−q′|≤Δ} [p^α p′^{1−α} + V_{k−1}(1−p)^α(1−p′)^{1−α}], RDP = log V_{n₂}/(α−1): exact for a stopped
    sequence of Bernoulli rounds with adversarial rewards. At Δ = R only the pairs (0, R) and (R, 0) matter and the
    value is exact; below, cells in q give a rigorous bound (measured: within 2 % for σ_Z ≥ R/10, a few per cent for smaller σ_Z).
    """
    check_order(order)
    return _bound(rounds, float(threshold), float(order), CELLS)


@lru_cache(maxsize=1024)
def worst_case_renyi(rounds: RejectionRounds, orders: tuple[float, ...]) -> tuple[float, ...]:
    """The maximum of RDP₂(α; λ̃) over the 1,024 thresholds, for each order.

    Best first: the threshold with the largest bound is bounded anew with more cells, until the largest bound is within
    0.1 % of one of the finest. A coarse bound shows for most thresholds that they cannot be the worst.
    """
    for order in orders:
        check_order(order)
    grid = [float(threshold) for threshold in _grid(rounds)]
    exact = rounds.sensitivity.charged >= rounds.sensitivity.width
    levels = (CELLS,) if exact else (*REFINEMENTS, CELLS)
    first = [[_bound(rounds, threshold, order, levels[0]) for order in orders] for threshold in grid]
    worst = []
    for number, order in enumerate(orders):
        heap = [(-bounds[number], index, 0) for index, bounds in enumerate(first)]
        heapq.heapify(heap)
        finest = 0.0
        while heap[0][2] < len(levels) - 1 and -heap[0][0] > finest * (1 + NEAR_ENOUGH):
            bound, index, level = heap[0]
            finer = _bound(rounds, grid[index], order, levels[level + 1])
            heapq.heapreplace(heap, (max(bound, -finer), index, level + 1))
            if level + 1 == len(levels) - 1:
                finest = max(finest, min(-bound, finer))
        worst.append(-heap[0][0])
    _cells.cache_clear()
    return tuple(worst)


def renyi_table(rounds: RejectionRounds, order: float) -> Floats:
    """RDP₂(α; λ̃) at each of the 1,024 thresholds; shape (1024,)."""
    return np.array([renyi_at(rounds, float(threshold), order) for threshold in _grid(rounds)])


def _grid(rounds: RejectionRounds) -> Floats:
    return threshold_grid(positive("beta", rounds.beta), rounds.sensitivity.width)


def _combine(count: int, k: float, b: float) -> float:
    return upper(lambda: count * arb(k) + arb(b))


@lru_cache(maxsize=65536)
def _bound(rounds: RejectionRounds, threshold: float, order: float, cells: int) -> float:
    """RDP₂(α; λ̃) with this many cells; exact at Δ = R."""
    width, delta = rounds.sensitivity.width, rounds.sensitivity.charged
    curve = curve_at(rounds, threshold)
    if delta >= width:
        lines, slack = _exact_lines(_exact_logs(curve), width, order), 0.0
    else:
        lines = _cell_lines(_cells(curve, delta, cells), order)
        slack = float(evaluation_error(threshold, width, rounds.scale)) * 2 * order
    log_excess = _log_excess(*_frontier(*lines), rounds.cap)
    log_value = float(np.logaddexp(0.0, log_excess)) if log_excess > -30 else math.exp(log_excess)
    return log_value / (order - 1) * (1 + slack + 2.0**-44)


@lru_cache(maxsize=16)
def _exact_logs(curve: AcceptanceCurve) -> Callable[[bool, float, int], arb]:
    """log p(q) or log(1 − p(q)) as balls, remembered: (accepted, q, the precision in force)."""

    @cache
    def logs(accepted: bool, q: float, _bits: int) -> arb:
        return (curve.enclose_accept(q) if accepted else curve.enclose_reject(q)).log()

    return logs


def _exact_lines(logs: Callable[[bool, float, int], arb], width: float, order: float) -> tuple[Floats, Floats]:
    """log E and log B of the pairs (R, 0) and (0, R), from ball arithmetic."""

    def term(accepted: bool, q: float, other: float) -> arb:
        return arb(order) * logs(accepted, q, ctx.prec) + (1 - arb(order)) * logs(accepted, other, ctx.prec)

    def excess(q: float, other: float) -> arb:
        return (term(True, q, other).exp() + term(False, q, other).exp() - 1).log()

    pairs = ((width, 0.0), (0.0, width))
    return (
        np.array([upper(partial(excess, *pair)) for pair in pairs]),
        np.array([upper(partial(term, False, *pair)) for pair in pairs]),
    )


@dataclass(frozen=True, slots=True)
class _Half:
    """One half of the rewards as a path (u, u′ = u + g) along which u and g grow; all logs, shape (points,).

    Below the mode of the increment g = p(q+Δ) − p(q) u is the acceptance probability p(q); above it, in mirrored order,
    the rejection probability of q + Δ. w = 1 − u and w′ = 1 − u′ are kept as their own logs. p and 1 − p are
    log-concave, so g/u falls along the path, and g/w rises.
    """

    u: Floats
    w: Floats
    w_next: Floats
    g: Floats
    reject_is_u: bool


@lru_cache(maxsize=600)
def _cells(curve: AcceptanceCurve, delta: float, cells: int) -> tuple[_Half, _Half]:
    """The two halves, cut into about `cells` cells, with the mode q = (λ̃ + H − Δ)/2 as the last point of both.

    Half of the cells are spread evenly; the others lie where log p bends on the scale of σ_Z, at λ̃ and, mirrored, at H.
    """
    args = (curve.threshold, curve.width, curve.scale, curve.tail)
    top, ceiling, reach = curve.width - delta, curve.width + curve.scale * curve.tail, 10 * curve.scale
    mode = min(max((curve.threshold + ceiling - delta) / 2, 0.0), top)
    spots = [np.linspace(0.0, top, max(cells // 2, 1) + 1)]
    for left, right in ((curve.threshold - delta - reach, curve.threshold + reach), (ceiling - delta - reach, ceiling + reach)):
        if max(left, 0.0) < min(right, top):
            spots.append(np.linspace(max(left, 0.0), min(right, top), cells // 4))
    spread = np.unique(np.concatenate(spots))
    below, above = np.append(spread[spread < mode], mode), np.append(spread[spread > mode][::-1], mode)
    edges = np.concatenate([below, above])
    both = np.concatenate([edges, edges + delta])
    (p, p_next), (c, c_next) = np.split(log_accept(both, *args), 2), np.split(log_reject(both, *args), 2)
    g = log_gain(edges, delta, *args)
    low, high = slice(None, below.size), slice(below.size, None)
    return (
        _Half(p[low], c[low], c_next[low], g[low], reject_is_u=False),
        _Half(c_next[high], p_next[high], p[high], g[high], reject_is_u=True),
    )


def _cell_lines(halves: tuple[_Half, ...], order: float) -> tuple[Floats, Floats]:
    """Lines (log E, log B) whose maximum E + B·U bounds one round for every pair of rewards at distance Δ.

    With U = V − 1 a round maps U to E + B·U, where E = p^α p′^{1−α} + (1−p)^α(1−p′)^{1−α} − 1 and B is its second term.
    A pair appears as u^{1−s}u′^s + w^{1−s}w′^s with s = α and s = 1 − α, the two orders of the data sets. Since
    u·(g/u) = w·(g/w), the first-order parts cancel exactly:

        E = u·φ(g/u) + w·φ(−g/w)        φ(t) = (1 + t)^s − 1 − st ≥ 0

    both products positive, φ falling below t = 0 and rising above it. Along a cell u rises, g/u falls, w falls and g/w
    rises, so each factor is at most its value at one end. The same for B, w(1 − g/w)^s or u(1 + g/u)^s.
    """
    excess, slope = [], []
    for half in halves:
        log_ratio, log_lost = half.g - half.u, np.minimum(half.g - half.w, 0.0)
        x = np.logaddexp(0.0, log_ratio)  # log(u′/u)
        some = log_lost < -0.7
        y = np.where(some, np.log1p(-np.exp(np.where(some, log_lost, -1.0))), half.w_next - half.w)  # log(w′/w)
        for s in (order, 1 - order):
            grown = half.u[1:] + _log_remainder(s, 1, log_ratio, x)[:-1]
            shrunk = half.w[:-1] + _log_remainder(s, -1, log_lost, y)[1:]
            both = np.logaddexp(grown, shrunk)
            first = slice(None, -1) if s > 0 else slice(1, None)
            power = half.u[1:] + s * x[first] if half.reject_is_u else half.w[:-1] + s * y[first]
            size = np.abs(half.u[1:] if half.reject_is_u else half.w[:-1])
            excess.append(both + 2.0**-49 * (2 + np.abs(both)))
            slope.append(power + 2.0**-49 * (1 + size + np.abs(power)))
    return np.concatenate(excess), np.concatenate(slope)


def _log_remainder(s: float, sign: int, log_t: Floats, log_sum: Floats) -> Floats:
    """log φ(t) of φ(t) = (1 + t)^s − 1 − st for t = ±e^{log_t}, where log_sum = log(1 + t); s outside [0, 1], rounded up.

    Sixteen terms of the binomial series where |st| and |t| are below 1/10, else the difference, plus a bound on its error.
    Where a term overflows, φ ≤ (1 + t)^s, or −st for s < 0 < t, where the power is below 1.
    """
    near = log_t + math.log(max(1.0, abs(s))) < math.log(0.1)
    t = sign * np.exp(np.where(near, log_t, -1.0))
    series = np.ones_like(t)
    for k in range(17, 1, -1):
        series = 1 + (s - k) / (k + 1) * t * series
    small = math.log(s * (s - 1) / 2) + 2 * log_t + np.log(np.where(near, series, 1.0)) + 2.0**-44
    exponent, log_linear = s * log_sum, log_t + math.log(abs(s))
    plain = ~near & (exponent < 600) & (log_linear < 600)
    power, linear = np.exp(np.where(plain, exponent, 0.0)), np.exp(np.where(plain, log_linear, 0.0))
    error = 2.0**-49 * (power * (1 + np.abs(np.where(plain, exponent, 0.0))) + linear + 1)
    difference = np.log(np.maximum(power - 1 - math.copysign(1.0, sign * s) * linear, 0.0) + error)
    bound = log_linear if s < 0 < sign else exponent
    huge = bound + 2.0**-49 * np.abs(bound)
    return np.where(near, small, np.where(plain, difference, huge))


def _frontier(log_e: Floats, log_b: Floats) -> tuple[Floats, Floats]:
    """The lines that no other line beats in both E and B, from the largest E down."""
    order = np.argsort(-log_e, kind="stable")
    e, b = log_e[order], log_b[order]
    best_before = np.concatenate([[-np.inf], np.maximum.accumulate(b)[:-1]])
    kept = b > best_before
    return e[kept], b[kept]


def _log_excess(log_e: Floats, log_b: Floats, rounds: int) -> float:
    """log U_n of U₀ = 0, U_k = max_i (E_i + B_i U_{k−1}).

    U never falls, so the maximising line only moves towards larger B. While it stays the same the recursion is
    geometric and is done in one step; the cost is the number of changes, at most min(n, lines), not n. Lines come in
    the order of `_frontier`, B rising.
    """
    log_u, left = -math.inf, rounds
    while left > 0:
        active = int(np.argmax(np.logaddexp(log_e, log_b + log_u)))
        e, b = float(log_e[active]), float(log_b[active])
        log_e, log_b = log_e[active:], log_b[active:]
        crossing = _next_crossing(log_e, log_b, 0)
        # the largest number of steps before the last of which U is still below the crossing
        low, high = 1, left
        while low < high:
            middle = (low + high + 1) // 2
            if _advance(log_u, e, b, middle - 1) <= crossing:
                low = middle
            else:
                high = middle - 1
        log_u = max(log_u, _advance(log_u, e, b, low))
        left -= low
        log_e, log_b = log_e[1:], log_b[1:]  # the crossing is passed: this line cannot win again, whatever rounding says
    return log_u


def _advance(log_u: float, e: float, b: float, steps: int) -> float:
    """log of B^m U + E (B^m − 1)/(B − 1)."""
    if steps == 0:
        return log_u
    series = math.log(steps) if b == 0 else _log_expm1(steps * b) - _log_expm1(b)
    return float(np.logaddexp(steps * b + log_u, e + series))


def _log_expm1(z: float) -> float:
    """log|e^z − 1|, z ≠ 0."""
    return z + math.log(-math.expm1(-z)) if z > 0 else math.log(-math.expm1(z))


def _next_crossing(log_e: Floats, log_b: Floats, active: int) -> float:
    """The log of the least U beyond which a line of larger B beats the active one; infinity where none does."""
    e, b = log_e[active], log_b[active]
    steeper = log_b > b
    if not steeper.any():
        return math.inf
    with np.errstate(divide="ignore"):
        head_start = e + np.log(-np.expm1(np.minimum(log_e[steeper] - e, 0.0)))
        advantage = log_b[steeper] + np.log(-np.expm1(b - log_b[steeper]))
    return float((head_start - advantage).min())
