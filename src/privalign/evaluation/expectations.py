"""The law of each mechanism's choice, in closed form: the vectorised twins of `mechanisms`, without any sampling.

Rewards are in units shifted to [0, R], in the order in which candidates were drawn. Every function returns the
probability of each candidate, shape as the pool; expected outcomes are sums against it. It is computed exactly from
rewards: not private.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtr, softmax

from privalign.acceptance import log_accept, log_reject, threshold_grid
from privalign.mechanisms.bon import BoN
from privalign.mechanisms.itp import ITP
from privalign.mechanisms.itp_reuse import ITPReuse
from privalign.mechanisms.normaliser import pessimistic_acceptances, public_normaliser
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privbon_gaussian import PrivBoNGaussian
from privalign.mechanisms.privitp import PrivITP

Floats = NDArray[np.float64]

_REACH: Final = 40.0  # beyond this many standard deviations φ is 0 in floats
_STEP: Final = 1 / 8  # of the trapezoidal rule; its error for these Gaussian-like integrands is below 1e-20


def bon(mechanism: BoN, rewards: ArrayLike) -> Floats:
    """The first of the largest of n rewards."""
    rewards = _pool(rewards, mechanism.n)
    law = np.zeros(mechanism.n)
    law[rewards.argmax()] = 1.0
    return law


def privbon(mechanism: PrivBoN, rewards: ArrayLike) -> Floats:
    """softmax(r/σ) over n candidates."""
    law: Floats = softmax(_relative(_pool(rewards, mechanism.n)) / mechanism.scale)
    return law


def privbon_gaussian(mechanism: PrivBoNGaussian, rewards: ArrayLike) -> Floats:
    """wᵢ = ∫ φ(x − ρᵢ) ∏_{j≠i} Φ(x − ρⱼ) dx with ρ = r/σ, over n candidates, to 1e-12 (Prop. E.2).

    The integrand is entire and falls like a Gaussian: the trapezoidal rule converges faster than any power of its step.
    Of interest are only x within 40 of the largest ρ; elsewhere the integrand is 0 in floats.
    """
    rho = _relative(_pool(rewards, mechanism.n)) / mechanism.scale
    x = np.arange(-_REACH, _REACH + _STEP, _STEP)[:, None] - rho
    log_below = log_ndtr(x)
    log_density = -x * x / 2 - 0.5 * np.log(2 * np.pi) + log_below.sum(axis=1, keepdims=True) - log_below
    law: Floats = np.exp(log_density).sum(axis=0) * _STEP
    return law


def itp(mechanism: ITP, rewards: ArrayLike, width: float) -> Floats:
    """λ from the first n rewards, rounds on the next n₂, else the one after them; shape (n + n₂ + 1,)."""
    n, pool = mechanism.n, _pool(rewards, mechanism.pool_size)
    chosen, fallback = pessimistic_rounds(pool[n:-1], public_normaliser(pool[:n], mechanism.beta), width)
    return np.concatenate([np.zeros(n), chosen, [fallback]])


def itp_reuse(mechanism: ITPReuse, rewards: ArrayLike) -> Floats:
    """λ and rounds on the same n rewards with ceiling max r, else one of them uniformly; shape (n,)."""
    pool = _pool(rewards, mechanism.n)
    chosen, fallback = pessimistic_rounds(pool, public_normaliser(pool, mechanism.beta), float(pool.max()))
    return chosen + fallback / mechanism.n


def privitp(mechanism: PrivITP, rewards: ArrayLike, width: float) -> Floats:
    """The law of the choice, λ̃ averaged over its 1,024 points; shape (n + n₂ + 1,)."""
    n, pool = mechanism.n, _pool(rewards, mechanism.pool_size)
    weights = threshold_law(public_normaliser(pool[:n], mechanism.beta), mechanism.sigma_x, mechanism.beta, width)
    grid = threshold_grid(mechanism.beta, width)[weights > 0, None]
    accept = log_accept(pool[n:-1], grid, width, mechanism.sigma_z, mechanism.tail)
    reject = log_reject(pool[n:-1], grid, width, mechanism.sigma_z, mechanism.tail)
    chosen, fallback = sequential_law(accept, reject)
    weights = weights[weights > 0]
    return np.concatenate([np.zeros(n), weights @ chosen, [weights @ fallback]])


def threshold_law(threshold: float, sigma_x: float, beta: float, width: float) -> Floats:
    """P[λ̃ = each of the 1,024 grid points] for λ̃ = snap(clamp(λ + N(0, σ_X²))); shape (1024,).

    Differences of Φ between the middles of neighbouring points, in the tail where they do not cancel; the clamp gives
    each end all that lies beyond it.
    """
    grid = threshold_grid(beta, width)
    edges = np.concatenate([[-np.inf], ((grid[:-1] + grid[1:]) / 2 - threshold) / sigma_x, [np.inf]])
    low, high = edges[:-1], edges[1:]
    mirrored = low > 0
    low, high = np.where(mirrored, -high, low), np.where(mirrored, -low, high)
    law: Floats = ndtr(high) - ndtr(low)
    return law


def pessimistic_rounds(rewards: Floats, threshold: float, ceiling: float) -> tuple[Floats, float]:
    """Rounds of inference-time pessimism without noise: probability of each reward, and of none."""
    accept = pessimistic_acceptances(rewards, threshold, ceiling)
    with np.errstate(divide="ignore"):
        chosen, none = sequential_law(np.log(accept), np.log1p(-accept))
    return chosen, float(none)


def sequential_law(log_accept: Floats, log_reject: Floats) -> tuple[Floats, Floats]:
    """P[the first acceptance is at t] = ∏_{j<t} (1 − p_j) p_t along the last axis, and P[none]."""
    passed = np.cumsum(log_reject, axis=-1)
    before = np.concatenate([np.zeros((*passed.shape[:-1], 1)), passed[..., :-1]], axis=-1)
    return np.exp(before + log_accept), np.exp(passed[..., -1])


def _pool(rewards: ArrayLike, count: int) -> Floats:
    """The first `count` rewards of a pool."""
    return np.asarray(rewards, dtype=np.float64)[:count]


def _relative(rewards: Floats) -> Floats:
    """Differences to the largest reward: exact selection laws depend on nothing else."""
    result: Floats = rewards - rewards.max()
    return result
