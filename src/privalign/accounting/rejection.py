"""Phase 2 of PrivITP: ex-post cost of an outcome, worst cases over λ̃ and t, and Rényi cost.

`RejectionRounds` carries the settings. All numbers are upper bounds, rounded up.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
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
LEVELS = ((32, 60), (8, 200), (2, 700), (1, CELLS))  # of that search: thresholds bounded together, and with how many cells
SEEDS = 11  # of its thresholds are bounded with CELLS beforehand, so that little is looked at in vain


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
    value is exact; below, cells in q give a rigorous bound (measured at the default orders: σ_Z ≥ R/10 within 2 %, rarely 6 %;
    σ_Z from R/1000 to R/10 within .02 % in half of the settings, within 18 % in nearly all). Never above the worst outcome
    ε₂max(λ̃), which bounds every divergence.
    """
    check_order(order)
    return min(_bound(rounds, float(threshold), float(order), CELLS), worst_halt_epsilon(rounds, float(threshold)))


@lru_cache(maxsize=1024)
def worst_case_renyi(rounds: RejectionRounds, orders: tuple[float, ...]) -> tuple[float, ...]:
    """The maximum of RDP₂(α; λ̃) over the 1,024 thresholds, for each order.

    Best first: the span of thresholds with the largest bound is cut and bounded anew with more cells, until the largest
    bound is within 0.1 % of one of a single threshold with CELLS. For most spans a coarse bound shows that the worst
    threshold is not there. Never above the worst outcome.
    """
    for order in orders:
        check_order(order)
    grid = _grid(rounds)
    if rounds.sensitivity.charged >= rounds.sensitivity.width:
        table = [[_bound(rounds, float(threshold), order, CELLS) for order in orders] for threshold in grid]
        return tuple(map(max, zip(*table, strict=True)))
    pure = worst_case_epsilon(rounds)
    finest = np.max([_bounds(rounds, (seed, seed), orders, CELLS) for seed in grid[:: (grid.size - 1) // SEEDS]], axis=0)
    everything, worst = _Span(0, grid.size, -1, np.full(len(orders), math.inf)), []
    for number in range(len(orders)):
        heap = [(-math.inf, -1, 0, everything)]
        while finest[number] < pure and -heap[0][0] > finest[number] * (1 + NEAR_ENOUGH):
            span = heapq.heappop(heap)[-1]
            span.parts = span.parts or _cut(span, rounds, grid, orders, finest)
            for part in span.parts:
                heapq.heappush(heap, (-float(part.bounds[number]), part.level, part.first, part))
        worst.append(min(-heap[0][0], pure))
    return tuple(worst)


@dataclass(slots=True)
class _Span:
    """Thresholds first … end − 1 of the grid, a bound for each order, and what they were cut into, shared by all orders."""

    first: int
    end: int
    level: int
    bounds: Floats
    parts: list[_Span] = field(default_factory=list)


def _cut(span: _Span, rounds: RejectionRounds, grid: Floats, orders: tuple[float, ...], finest: Floats) -> list[_Span]:
    """The spans of the next level, bounded for the orders whose worst threshold may be there; the last level raises `finest`."""
    size, cells = LEVELS[span.level + 1]
    needed = span.bounds > finest * (1 + NEAR_ENOUGH)
    parts = []
    for first in range(span.first, span.end, size):
        part = _Span(first, min(first + size, span.end), span.level + 1, span.bounds.copy())
        bounds = _bounds(rounds, (grid[first], grid[part.end - 1]), tuple(np.array(orders)[needed].tolist()), cells)
        part.bounds[needed] = np.minimum(part.bounds[needed], bounds)
        if cells == CELLS:
            np.maximum(finest, part.bounds, out=finest, where=needed)
        parts.append(part)
    return parts


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
    width = rounds.sensitivity.width
    if rounds.sensitivity.charged < width:
        return float(_bounds(rounds, (threshold, threshold), (order,), cells)[0])
    return _divergence(*_exact_lines(_exact_logs(curve_at(rounds, threshold)), width, order), rounds.cap, order)


@np.errstate(all="ignore")  # where floats end the bound is infinite
def _bounds(rounds: RejectionRounds, ends: tuple[float, float], orders: tuple[float, ...], cells: int) -> Floats:
    """A bound on RDP₂(α; λ̃) for every λ̃ between the two ends and Δ < R, for each order; shape (orders,)."""
    width = rounds.sensitivity.width
    halves = _cells(curve_at(rounds, ends[0]), curve_at(rounds, ends[1]), rounds.sensitivity.charged, cells)
    lines = zip(*_cell_lines(halves, orders), orders, strict=True)
    bounds = np.array([_divergence(log_e, log_b, rounds.cap, order) for log_e, log_b, order in lines])
    # a product of α-th powers of probabilities, the log of each of which may be off by this much
    error = evaluation_error(ends, width, rounds.scale).max()
    return np.asarray(bounds * np.exp(2 * np.array(orders) * error))


def _divergence(log_e: Floats, log_b: Floats, cap: int, order: float) -> float:
    """log V_n/(α − 1) of V = 1 + U, where a round maps U to the maximum of the lines; rounded up, also where it underflows."""
    if not (log_e.max() < math.inf and log_b.max() < math.inf):  # NaN too
        return math.inf
    log_excess = _log_excess(*_frontier(log_e, log_b), cap)
    log_value = float(np.logaddexp(0.0, log_excess)) if log_excess > -30 else math.exp(log_excess)
    return log_value / (order - 1) * (1 + 2.0**-44) + 4 * math.ulp(0.0)


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
    """One half of the rewards as a path (u, u′ = u + g) along which u and g grow, cut into cells; all logs, shape (cells,).

    Below the mode of the increment g = p(q+Δ) − p(q) u is the acceptance probability p(q); above it, in mirrored order,
    the rejection probability of q + Δ. w = 1 − u, w′ = w − g; t = g/u, lost = g/w. p and 1 − p are log-concave in q, so
    along the path u and lost rise, w and t fall. Over thresholds, too, u and lost move one way (down below the mode, up
    above it), w and t the other. So over a cell and a span of thresholds u and lost are largest at one corner, its end,
    w and t at the opposite one, its start. `rise` = log(u′/u) = log(1 + t) and `fall` = log(w′/w) = log(1 − lost) are
    kept for both: (start, end).
    """

    u: Floats
    lost: Floats
    w: Floats
    t: Floats
    rise: tuple[Floats, Floats]
    fall: tuple[Floats, Floats]
    reject_is_u: bool


def _cells(first: AcceptanceCurve, last: AcceptanceCurve, delta: float, cells: int) -> tuple[_Half, _Half]:
    """The two halves for the thresholds between two, in about `cells` cells that meet at the mode q = (λ̃ + H − Δ)/2.

    Half of the cells are spread evenly; the others lie where log p bends on the scale of σ_Z, at λ̃ and, mirrored, at H.
    The cells are those of the first threshold; any cells give a bound.
    """
    thresholds = np.unique([first.threshold, last.threshold])[:, None]
    args = (thresholds, first.width, first.scale, first.tail)
    top, ceiling, reach = first.width - delta, first.width + first.scale * first.tail, 10 * first.scale
    mode = min(max((first.threshold + ceiling - delta) / 2, 0.0), top)
    spots = [np.linspace(0.0, top, max(cells // 2, 1) + 1)]
    for left, right in ((first.threshold - delta - reach, first.threshold + reach), (ceiling - delta - reach, ceiling + reach)):
        if max(left, 0.0) < min(right, top):
            spots.append(np.linspace(max(left, 0.0), min(right, top), cells // 4))
    spread = np.unique(np.concatenate(spots))
    below, above = np.append(spread[spread < mode], mode), np.append(spread[spread > mode][::-1], mode)
    edges = np.concatenate([below, above])
    both = np.concatenate([edges, edges + delta])
    (p, p_next), (c, c_next) = np.split(log_accept(both, *args), 2, axis=1), np.split(log_reject(both, *args), 2, axis=1)
    g = log_gain(edges, delta, *args)
    g[np.isinf(g)] = math.nan  # a gain is positive: floats have lost it, so no line is known
    low, high = np.s_[:, : below.size], np.s_[::-1, below.size :]
    return (
        _half(p[low], c[low], c_next[low], g[low], reject_is_u=False),
        _half(c_next[high], p_next[high], p[high], g[high], reject_is_u=True),
    )


def _half(u: Floats, w: Floats, w_next: Floats, g: Floats, reject_is_u: bool) -> _Half:
    """Logs at the edges of the cells, shape (thresholds, edges), the threshold of the largest u first."""
    t, lost = g - u, np.minimum(g - w, 0.0)
    some = lost < -0.7
    fall = np.where(some, np.log1p(-np.exp(np.where(some, lost, -1.0))), w_next - w)
    rise = np.logaddexp(0.0, t)
    start, end = np.s_[-1, :-1], np.s_[0, 1:]
    return _Half(u[end], lost[end], w[start], t[start], (rise[start], rise[end]), (fall[start], fall[end]), reject_is_u)


def _cell_lines(halves: tuple[_Half, ...], orders: tuple[float, ...]) -> tuple[Floats, Floats]:
    """Lines (log E, log B), shape (orders, lines), whose maximum E + B·U bounds one round for every pair at distance Δ.

    With U = V − 1 a round maps U to E + B·U, where E = p^α p′^{1−α} + (1−p)^α(1−p′)^{1−α} − 1 and B is its second term.
    A pair appears as u^{1−s}u′^s + w^{1−s}w′^s with s = α and s = 1 − α, the two orders of the data sets. Since
    u·t = w·lost, the first-order parts cancel exactly:

        E = u·φ(t) + w·φ(−lost)        φ(t) = (1 + t)^s − 1 − st ≥ 0

    both products positive, φ falling below t = 0 and rising above it. So over a cell each factor is at most its value
    at one corner. The same for B, w(1 − lost)^s or u(1 + t)^s.
    """
    powers = np.array([(order, 1 - order) for order in orders])[:, :, None]
    excess, slope = [], []
    for half in halves:
        grown = half.u + _log_remainder(powers, 1, half.t, half.rise[0])
        shrunk = half.w + _log_remainder(powers, -1, half.lost, half.fall[1])
        both = np.logaddexp(grown, shrunk)
        size, change = (half.u, half.rise) if half.reject_is_u else (half.w, half.fall)
        power = size + powers * np.stack(change)  # s > 0: the largest change, at the start; s < 0: the least one
        excess.append(both + 2.0**-49 * (2 + np.abs(both)))
        slope.append(power + 2.0**-49 * (1 + np.abs(size) + np.abs(power)))
    shape = len(orders), -1
    return np.concatenate(excess, axis=2).reshape(shape), np.concatenate(slope, axis=2).reshape(shape)


def _log_remainder(s: Floats, sign: int, log_t: Floats, log_sum: Floats) -> Floats:
    """log φ(t) of φ(t) = (1 + t)^s − 1 − st for t = ±e^{log_t}, where log_sum = log(1 + t); s outside [0, 1], rounded up.

    Sixteen terms of the binomial series where |st| and |t| are below 1/10, else the difference, plus a bound on its error.
    Where a term overflows, φ ≤ (1 + t)^s, or −st for s < 0 < t, where the power is below 1. Broadcast.
    """
    s, log_t, log_sum = np.broadcast_arrays(s, log_t, log_sum)
    near = log_t + np.log(np.maximum(1.0, np.abs(s))) < math.log(0.1)
    out = np.empty(near.shape)
    out[near] = _small_remainder(s[near], sign, log_t[near])
    out[~near] = _large_remainder(s[~near], sign, log_t[~near], log_sum[~near])
    return out


def _small_remainder(s: Floats, sign: int, log_t: Floats) -> Floats:
    t = sign * np.exp(log_t)
    series = np.ones_like(t)
    for k in range(17, 1, -1):
        series *= (s - k) * (t / (k + 1))
        series += 1
    logs: Floats = np.log(s * (s - 1) / 2) + 2 * log_t + np.log(series) + 2.0**-44
    return logs


def _large_remainder(s: Floats, sign: int, log_t: Floats, log_sum: Floats) -> Floats:
    exponent, log_linear = s * log_sum, log_t + np.log(np.abs(s))
    plain = (exponent < 600) & (log_linear < 600)
    power, linear = np.exp(np.where(plain, exponent, 0.0)), np.exp(np.where(plain, log_linear, 0.0))
    error = 2.0**-49 * (power * (1 + np.abs(np.where(plain, exponent, 0.0))) + linear + 1)
    difference = np.log(np.maximum(power - 1 - np.copysign(linear, sign * s), 0.0) + error)
    bound = np.where((s < 0) & (sign > 0), log_linear, exponent)
    return np.where(plain, difference, bound + 2.0**-49 * np.abs(bound))


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
        # the largest number of steps before the last of which U is still below the crossing: few, or all that are left
        low, high = (left if crossing == math.inf else 1), left
        while low < high:
            middle = min(2 * low, (low + high + 1) // 2)
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
