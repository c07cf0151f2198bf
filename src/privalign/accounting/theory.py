"""What the theory promises about quality: optimal scales, regret bounds, win rates. Not privacy guarantees.

Symbols: Δ sensitivity; C ≥ 1 coverage C^π* of the comparator; ε_RM > 0 root mean squared error of the reward model
under π₀ (`error`); R range; n candidates. Bounds that the paper states with ≲ hide constants and are "up to constants".
Functions that have conditions return them as warnings beside the value; regrets are in reward units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from privalign.acceptance import positive
from privalign.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound and the conditions of its theorem that are not met (empty: all are). `constants`: up to constants."""

    value: float
    warnings: tuple[str, ...] = ()
    up_to_constants: bool = True


def best_privbon_scale(error: float, coverage: float) -> float:
    """σ* = ε_RM/√C: the Gumbel scale that minimises PrivBoN's regret bound."""
    return _error(error) / math.sqrt(_coverage(coverage))


def free_privacy_epsilon(sensitivity: float, error: float, coverage: float) -> float:
    """ε* = 2Δ√C/ε_RM: above it the noise that privacy asks for is below σ*."""
    return 2 * positive("sensitivity", sensitivity) * math.sqrt(_coverage(coverage)) / _error(error)


def privbon_regret(epsilon: float, sensitivity: float, error: float, coverage: float, width: float, n: int) -> Bound:
    """2ΔC/ε + ε·ε_RM²/(2Δ) + √C·ε_RM + R e^{(R + ε_RM√ln n)/σ}/√n at σ = 2Δ/ε (Theorem 3.3).

    Condition: n ≥ 2e^{2c/σ} ln(R/ε_RM), c = R + ε_RM√ln n (eq. 14; Theorem 3.3 drops the 2 in the exponent).
    """
    scale = 2 * positive("sensitivity", sensitivity) / positive("epsilon", epsilon)
    tilt = (positive("range", width) + _error(error) * math.sqrt(math.log(_candidates(n)))) / scale
    root = math.sqrt(n)
    finite = width * math.exp(tilt) / root if tilt < 700 else math.inf
    value = scale * _coverage(coverage) + error**2 / scale + math.sqrt(coverage) * error + finite
    warnings = []
    if error < width and math.log(n) < math.log(2) + 2 * tilt + math.log(math.log(width / error)):
        warnings.append(f"n = {n} is below 2e^(2c/σ)·ln(R/ε_RM): the finite-sample condition of eq. 14 is not met")
    return Bound(value, tuple(warnings))


def privbon_regret_at_best(error: float, coverage: float) -> float:
    """3√(C ε_RM²): PrivBoN's bound at σ*, without the finite-sample term."""
    return 3 * math.sqrt(_coverage(coverage)) * _error(error)


def best_beta(error: float, coverage: float, width: float, sigma_x: float, sigma_z: float) -> float:
    """β* = √((ε_RM² + Rσ)/C), σ = σ_X + σ_Z: balances PrivITP's bias and overoptimisation."""
    noise = positive("sigma_x", sigma_x) + positive("sigma_z", sigma_z)
    return math.sqrt((_error(error) ** 2 + positive("range", width) * noise) / _coverage(coverage))


def privitp_regret(beta: float, sigma_x: float, sigma_z: float, error: float, coverage: float, width: float, n: int) -> Bound:
    """βC + (ε_RM² + Rσ)/β + √C·ε_RM + R/√n, σ = σ_X + σ_Z (Theorem 4.3, up to constants).

    Conditions: β ≥ 2σ_X and n ≥ max(R/β·ln(R/(βε_RM)), (R + σ_Z)/β).
    """
    noise = positive("sigma_x", sigma_x) + positive("sigma_z", sigma_z)
    positive("beta", beta)
    positive("range", width)
    variance = _error(error) ** 2 + width * noise
    value = beta * _coverage(coverage) + variance / beta + math.sqrt(coverage) * error + width / math.sqrt(_candidates(n))
    warnings = []
    if beta < 2 * sigma_x:
        warnings.append(f"β = {beta:g} is below 2σ_X = {2 * sigma_x:g}: a condition of Theorem 4.3 is not met")
    needed = max(width / beta * math.log(max(width / (beta * error), 1.0)), (width + sigma_z) / beta)
    if n < needed:
        warnings.append(f"n = {n} is below {math.ceil(needed)} = max(R/β·ln(R/(βε_RM)), (R+σ_Z)/β): a condition of Theorem 4.3 is not met")
    return Bound(value, tuple(warnings))


def privitp_regret_at_best(sigma_x: float, sigma_z: float, error: float, coverage: float, width: float, n: int) -> Bound:
    """3√(C(ε_RM² + Rσ)) + R/√n: PrivITP's bound at β* (up to constants)."""
    beta = best_beta(error, coverage, width, sigma_x, sigma_z)
    conditions = privitp_regret(beta, sigma_x, sigma_z, error, coverage, width, n).warnings
    variance = error**2 + width * (sigma_x + sigma_z)
    return Bound(3 * math.sqrt(coverage * variance) + width / math.sqrt(n), conditions)


def privacy_mandated_regret(
    epsilon_1: float, epsilon_2: float, delta: float, halting_time: int, sensitivity: float, error: float, coverage: float, width: float
) -> Bound:
    """3√(C(ε_RM² + R·tΔ/ε₂ + R·Δ√(ln 1/δ)/ε₁)): PrivITP at the noise that (ε₁, δ) and ε₂(t) ask for (eq. 6).

    An order of magnitude: it linearises both costs in Δ/σ, so it is up to constants and for small Δ/σ only.
    """
    positive("epsilon", epsilon_1)
    positive("epsilon", epsilon_2)
    if not 0 < delta < 1:
        raise InvalidInput("delta", f"{delta} is not strictly between 0 and 1")
    sigma_z = _candidates(halting_time) * positive("sensitivity", sensitivity) / epsilon_2
    sigma_x = sensitivity * math.sqrt(math.log(1 / delta)) / epsilon_1
    variance = _error(error) ** 2 + positive("range", width) * (sigma_x + sigma_z)
    return Bound(3 * math.sqrt(_coverage(coverage) * variance))


def skyline(error: float, coverage: float) -> float:
    """¼√(C ε_RM²): no inference-time algorithm has a smaller regret against every reward (Prop. 2.1)."""
    return math.sqrt(_coverage(coverage)) * _error(error) / 4


def bon_win_rate(n: int) -> float:
    """n/(n + 1): how often BoN's proxy reward beats that of one base draw, continuous rewards."""
    return _candidates(n) / (n + 1)


def privbon_win_rate(reward_deviation: float, scale: float, truth_deviation: float = 0.0) -> float:
    """The large-n limit of PrivBoN's proxy win rate: Φ(√(σ_r² + τ²)/(σ√2)).

    For a proxy that is true reward plus an independent N(0, σ_r²) error, true reward constant (τ = 0) or N(·, τ²).
    """
    spread = math.hypot(positive("reward-deviation", reward_deviation), _deviation(truth_deviation))
    return NormalDist().cdf(spread / (positive("scale", scale) * math.sqrt(2)))


def privbon_hacking_gap(reward_deviation: float, scale: float) -> float:
    """σ_r²/σ: the large-n limit of proxy minus true reward of PrivBoN's answer."""
    return positive("reward-deviation", reward_deviation) ** 2 / positive("scale", scale)


def bon_hacking_gap(reward_deviation: float, n: int, truth_deviation: float = 0.0) -> float:
    """σ_r²√(2 ln n)/√(σ_r² + τ²): how BoN's gap grows without end (σ_r√(2 ln n) for constant true reward)."""
    variance = positive("reward-deviation", reward_deviation) ** 2
    _deviation(truth_deviation)
    return variance * math.sqrt(2 * math.log(_candidates(n))) / math.hypot(reward_deviation, truth_deviation)


def _deviation(deviation: float) -> float:
    if not 0 <= deviation < math.inf:
        raise InvalidInput("truth-deviation", f"{deviation} is not a finite number ≥ 0")
    return deviation


def _error(error: float) -> float:
    return positive("error", error)


def _coverage(coverage: float) -> float:
    if not (math.isfinite(coverage) and coverage >= 1):
        raise InvalidInput("coverage", f"{coverage} is not a finite number ≥ 1")
    return coverage


def _candidates(n: int) -> int:
    if n < 1:
        raise InvalidInput("n", f"{n} is below 1")
    return n
