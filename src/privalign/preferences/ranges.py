"""A range for the raw scores w·φ of a head, released with differential privacy: two order statistics, each with Gaussian noise.

One person moves *every* score of a reward model that was fitted on their preferences, not one row of a table: what libraries call
a private quantile, which is about one changed row, bounds nothing here. But where no score moves by more than Δ, no order statistic
of any number of scores does: as many as before lie at most Δ below or above. Raw scores of a head move by at most B·‖w − w′‖.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from flint import arb
from numpy.typing import NDArray

from privalign.accounting.gaussian import analytic_gaussian_epsilon
from privalign.errors import InvalidInput
from privalign.events import GaussianRelease
from privalign.intervals import upper
from privalign.preferences.bounds import UNIT, weight_norm
from privalign.preferences.release import furthest, gaussian_vector, release_scale
from privalign.sensitivity import FARTHEST, Certificate, RewardRange, Sensitivity

Floats = NDArray[np.float64]
STEPS: Final = 4  # at least so many steps, a power of two each, that ends are rounded outward to make one scale of the noise


def raw_movement(certificate: Certificate) -> float:
    """Δ of the raw float scores of a head, before they are clipped or squashed: B·S + rounding, rounded up.

    S bounds ‖w − w′‖. w·φ rounds by at most 3u·B·W (`rewards.sums`) and the projection of w by 4u·B·W, ‖w‖ ≤ W, of both heads.

    Raises:
        InvalidInput: the certificate bounds no movement of raw scores.
    """
    if certificate.released is not None:
        raise InvalidInput("head", "was released, so that its scores are public; score with it, and give --public")
    norm, moves = certificate.feature_norm, certificate.movement
    if certificate.kind != "head" or norm is None or moves is None:
        raise InvalidInput("head", f"a certificate of kind '{certificate.kind}' bounds no movement of raw scores; give that of one head")
    reach = certificate.weight_norm or weight_norm(norm, certificate.range, certificate.output)
    return upper(lambda: arb(norm) * (arb(moves) + 16 * arb(UNIT) * arb(reach)))


def end_event(certificate: Certificate, scale: float) -> GaussianRelease:
    """What an account pays for each of the two ends.

    Raw scores have no range that they are clipped to; the one stated here is only wider than the bound, so that it never takes the
    bound's place.
    """
    bound = raw_movement(certificate)
    sensitivity = Sensitivity(
        bound, RewardRange(0.0, 4 * bound), "certificate", certificate.relation, certificate.records_per_person, dataset=certificate.dataset
    )
    return GaussianRelease(sensitivity, scale)


def ends_scale(movement: float, epsilon: float, delta: float) -> float:
    """The least noise at which both ends together are (ε, δ)-DP: the pair moves by at most √2·Δ."""
    return release_scale(upper(lambda: arb(2).sqrt() * arb(movement)), epsilon, delta)


def ends_epsilon(movement: float, scale: float, delta: float) -> float:
    """ε of both ends together at δ, rounded up."""
    return analytic_gaussian_epsilon(upper(lambda: arb(2).sqrt() * arb(movement) / arb(scale)), delta)


def released_ends(scores: Floats, coverage: float, scale: float) -> RewardRange:
    """A range that holds about this share of the scores: keep it to yourself until both ends are paid for, then never draw again.

    The order statistics that leave (1 − coverage)/2 on either side, each with N(0, scale²) over the reals, put in order and rounded
    outward to a public step. Nothing is refused, widened or repeated because of what the scores are.

    Args:
        scores: finite, shape (m,), m ≥ 1: raw scores of public texts. coverage: in (0, 1].

    Formal guarantee: each end is a function of an order statistic + N(0, scale²).

    Raises:
        InvalidInput: the scale is not a finite number above 0 and within ±2^53, or too small for a grid below it.
    """
    if not 0 < scale < FARTHEST:
        raise InvalidInput("scale", f"{scale} is not a number above 0 and below 2^53; fit the head with a larger Λ, or give a larger ε")
    ordered = np.sort(scores)
    outside = math.floor((1 - coverage) / 2 * (len(ordered) - 1))
    ends = ordered[[outside, len(ordered) - 1 - outside]]
    most = furthest(scale)
    low, high = sorted(gaussian_vector(np.clip(ends, -most, most), scale).tolist())
    return _outward(low, high, 2.0 ** math.floor(math.log2(scale)) / STEPS)


def _outward(low: float, high: float, step: float) -> RewardRange:
    """Whole steps, exactly, within ±2^53; one step wide where both ends are the same."""
    low, high = (min(max(end, -FARTHEST), FARTHEST) for end in (math.floor(low / step) * step, math.ceil(high / step) * step))
    if low == high:
        low, high = (low, high + step) if high + step <= FARTHEST else (low - step, high)
    return RewardRange(low, high)
