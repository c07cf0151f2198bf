"""How far one person moves a head and its scores: the bounds that certificates state, in ball arithmetic, rounded up.

F(w) = Σ log(1 + e^{−w·d}) + (Λ/2)‖w‖² is Λ-strongly convex, so minimisers on two data sets are at most ‖∇F − ∇F′‖/Λ apart, at
either of them (Chaudhuri, Monteleoni & Sarwate 2011). One record contributes −s·d to the gradient, s = 1/(1 + e^{w·d}) in
(0, 1) and ‖d‖ ≤ 2B. Hence, for one record,

    add-remove: 2B/Λ        replace: 4B/Λ        flip: ‖s·d + (1 − s)·d‖/Λ = ‖d‖/Λ ≤ 2B/Λ

k times as much for k records, and 2τ/Λ more for two solves that stop at ‖∇F‖ ≤ τ. Proofs: explanation page on sensitivity.
"""

from __future__ import annotations

from typing import Final

from flint import arb

from privalign.intervals import upper
from privalign.sensitivity import Relation, RewardRange

UNIT: Final = 2.0**-53  # unit roundoff of a float
LARGEST_SCORE: Final = 2.0**20  # ‖w‖·B is projected to at most this many range widths (clip) or logits (sigmoid)
DIFFERENCE: Final = 2.0**-40  # ‖φ‖ ≤ B is exact; the float difference of two φ is longer than 2B by at most this, relatively
MOVES: Final = {Relation.ADD_REMOVE: 2, Relation.REPLACE: 4, Relation.FLIP: 2}  # ‖∇F − ∇F′‖/B of one record


def weight_bound(relation: Relation, records: int, norm: float, regularisation: float, tolerance: float) -> float:
    """‖w − w′‖ ≤ (c·k·B + 2τ)/Λ of one head: c = 2 (add-remove, flip) or 4 (replace)."""
    return upper(lambda: _distance(relation, records, norm, regularisation, tolerance, 1))


def weight_norm(norm: float, range: RewardRange, output: str) -> float:
    """W with ‖w‖ ≤ W for weights that were projected to ‖w‖·B ≤ 2²⁰ range widths (clip) or logits (sigmoid) in floats.

    A float norm of 2²⁸ values is off by less than a relative 2⁻²⁵, and the projection rounds by less than that.
    """
    return upper(lambda: largest_norm(norm, range, output) * (1 + arb(2) ** -20))


def largest_norm(norm: float, range: RewardRange, output: str) -> float:
    """What weights are projected to."""
    return LARGEST_SCORE * (range.width if output == "clip" else 1.0) / norm


def score_bound(
    relation: Relation, records: int, norm: float, regularisation: float, tolerance: float, range: RewardRange, output: str
) -> float:
    """Δ of the float scores of one head: slope·B·‖w − w′‖ + rounding; slope 1 (clip) or R/4 (sigmoid)."""
    return upper(
        lambda: (
            _slope(range, output) * arb(norm) * _distance(relation, records, norm, regularisation, tolerance, 1) + _rounding(range, output)
        )
    )


def ensemble_bound(
    relation: Relation,
    records: int,
    norm: float,
    regularisation: float,
    tolerance: float,
    range: RewardRange,
    output: str,
    *,
    shards: int,
    by_person: bool,
) -> float:
    """Δ of the mean of K heads on disjoint shards: slope·B·(c·k·B + 2Kτ)/(ΛK) + rounding, or t·R/K and the tolerances of the rest.

    t shards at most feel one person: min(k, K) by pair and 1 by person, twice that (at most K) with `replace`, whose records
    leave some shards and arrive in others. Heads that are moved by k_j records each, Σk_j = k, move by Σ c·k_j·B = c·k·B
    in all, however the records spread: the bound is linear in k, where t times the bound of one head would be quadratic. All K
    solves count with 2τ: the floats of an untouched shard are summed in another order when records elsewhere come or go.
    """
    touched = min(shards, (1 if by_person else records) * (2 if relation is Relation.REPLACE else 1))

    def sum_of_moves(records: int, heads: int) -> arb:
        distance = _distance(relation, records, norm, regularisation, tolerance, heads)
        return _slope(range, output) * arb(norm) * distance + heads * _rounding(range, output)

    def mean(total: arb) -> arb:
        return total / shards + _largest(range) * 8 * UNIT

    linear = upper(lambda: mean(sum_of_moves(records, shards)))
    capped = upper(lambda: mean(touched * arb(range.width) + sum_of_moves(0, shards - touched)))
    return min(linear, capped)


def _distance(relation: Relation, records: int, norm: float, regularisation: float, tolerance: float, heads: int) -> arb:
    """Σ ‖w_j − w_j′‖ over several heads that share the records."""
    moves = MOVES[relation] * records * arb(norm) * (1 + arb(DIFFERENCE))
    return (moves + 2 * heads * arb(tolerance)) / arb(regularisation)


def _slope(range: RewardRange, output: str) -> arb:
    return arb(1) if output == "clip" else arb(range.width) / 4


def _rounding(range: RewardRange, output: str) -> arb:
    """What two scores as computed in floats differ by more than two exact ones.

    w·φ is off by at most 3u‖φ‖‖w‖, as `rewards.sums` shows; the projection of w rounds it by 4u. Both scores: 14u·2²⁰ range
    widths, or logits, of which a sigmoid passes a quarter; its own last steps round by at most 8u of R and of the ends of the range.
    """
    rounding = 16 * arb(UNIT) * arb(LARGEST_SCORE) * arb(range.width)
    return rounding if output == "clip" else rounding + 32 * arb(UNIT) * (arb(range.width) + _largest(range))


def _largest(range: RewardRange) -> arb:
    return arb(max(abs(range.low), abs(range.high)))
