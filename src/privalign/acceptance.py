"""PrivITP's acceptance probability p(q), its complement, and the two ratios κ and b that its privacy loss is made of.

Shared by mechanisms, accounting and experiments. Rewards q, thresholds λ̃ and scales are in units shifted to [0, R].
With H = R + σ_Z·L and W = H − λ̃ a candidate of reward q, with noise marginalised, is accepted with probability

    p(q)     = (σ_Z/W) [G((q − λ̃)/σ_Z) − G((q − H)/σ_Z)]        G(z) = zΦ(z) + φ(z)
    1 − p(q) = (σ_Z/W) [G((H − q)/σ_Z) − G((λ̃ − q)/σ_Z)]

the mean of Φ over an interval of length h = W/σ_Z. `AcceptanceCurve` gives rigorous enclosures of one value; the `log_…`
functions are their vectorised floats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import Any

import numpy as np
from flint import arb
from numpy.typing import ArrayLike, NDArray

from privalign import normal
from privalign.errors import InvalidInput
from privalign.intervals import at_precision, ramp, upper

Floats = NDArray[np.float64]

ACCEPT_ERROR = 2.0**-48  # of the floats p(q) that settle nearly every round
LEAST_TAIL = 2.0**-20  # of a mechanism: h ≥ L, so that a ball of 2⁻¹²¹ around p·h is one of 2⁻¹⁰¹ around p
THRESHOLDS = 1024  # λ̃ is snapped to this many public points, so that its costs can be tabulated


def positive(field: str, value: float) -> float:
    """`value` where it is a finite number above 0.

    Raises:
        InvalidInput: it is not; `field` names it.
    """
    if not (math.isfinite(value) and value > 0):
        raise InvalidInput(field, f"{value} is not a finite number above 0")
    return float(value)


def whole(field: str, value: int) -> int:
    """`value` where it is a whole number ≥ 1.

    Raises:
        InvalidInput: it is not; `field` names it.
    """
    if not (isinstance(value, Integral) and value >= 1):
        raise InvalidInput(field, f"{value} is not a whole number ≥ 1")
    return int(value)


def default_tail(cap: int) -> float:
    """L = √(2 ln(n₂/0.01)): how many σ_Z above R the ceiling H lies (the paper's choice; public)."""
    return math.sqrt(2 * math.log(cap / 0.01))


def threshold_grid(beta: float, width: float) -> Floats:
    """The 1,024 public points on [−β, R − β], ends included, that λ̃ is snapped to; shape (1024,)."""
    return np.linspace(-beta, width - beta, THRESHOLDS)


def threshold_edges(beta: float, width: float) -> Floats:
    """The 1,023 midpoints between the public points: λ + noise below the first is released as the first point, and so on.

    To clamp to [−β, R − β] and to move to the nearest point is to say between which edges a number lies; W > 0 always.
    """
    grid = threshold_grid(beta, width)
    return (grid[:-1] + grid[1:]) / 2


def snap(threshold: float, beta: float, width: float) -> float:
    """The public point that λ + noise is released as (post-processing)."""
    return float(threshold_grid(beta, width)[np.searchsorted(threshold_edges(beta, width), threshold)])


@dataclass(frozen=True, slots=True)
class AcceptanceCurve:
    """p(·) at one threshold.

    Args:
        threshold: λ̃ < R + σ_Z·L; any float of that kind, on the grid or not.
        width: R > 0. scale: σ_Z > 0. tail: L > 0.
    """

    threshold: float
    width: float
    scale: float
    tail: float

    def __post_init__(self) -> None:
        positive("range", self.width)
        positive("sigma_z", self.scale)
        positive("tail", self.tail)
        if not math.isfinite(self.threshold):
            raise InvalidInput("threshold", f"{self.threshold} is not a finite number")
        if not self.threshold < self.width + self.scale * self.tail:
            raise InvalidInput("threshold", f"{self.threshold:g} is not below the ceiling R + σ_Z·L; give a threshold in [−β, R − β]")

    def _mass(self, start: arb, length: arb) -> arb:
        """∫ Φ over [start, start + length]."""
        return ramp(start + length) - ramp(start)

    def _frame(self) -> tuple[arb, arb, arb, arb]:
        """Exact balls of σ_Z, λ̃, H and h = W/σ_Z."""
        scale, threshold = arb(self.scale), arb(self.threshold)
        ceiling = arb(self.width) + scale * arb(self.tail)
        return scale, threshold, ceiling, (arb(self.width) - threshold) / scale + arb(self.tail)

    def enclose_accept(self, reward: float) -> arb:
        """A ball around p(q) at the current precision."""
        scale, _, ceiling, h = self._frame()
        return self._mass((arb(reward) - ceiling) / scale, h) / h

    def enclose_reject(self, reward: float) -> arb:
        """A ball around 1 − p(q) at the current precision; never computed as 1 − p."""
        scale, threshold, _, h = self._frame()
        return self._mass((threshold - arb(reward)) / scale, h) / h

    def accept(self, rewards: ArrayLike) -> Acceptances:
        """The events that candidates of these rewards are accepted, as probabilities known to any precision; shape (count,)."""
        return Acceptances(self, np.asarray(rewards, np.float64))

    def enclose_kappa(self, sensitivity: float) -> arb:
        """A ball around κ = log[(1 − p(R − Δ))/(1 − p(R))]."""
        scale, threshold, _, h = self._frame()
        start = (threshold - arb(self.width)) / scale
        return self._log_ratio(start, h, arb(sensitivity) / scale)

    def enclose_b(self, sensitivity: float) -> arb:
        """A ball around b = log[p(Δ)/p(0)]."""
        scale, _, ceiling, h = self._frame()
        return self._log_ratio(-ceiling / scale, h, arb(sensitivity) / scale)

    def _log_ratio(self, start: arb, h: arb, step: arb) -> arb:
        """log(∫_{a+d}^{a+d+h} Φ / ∫_a^{a+h} Φ) as log1p of the relative increment."""
        before = self._mass(start, h)
        return ((self._mass(start + step, h) - before) / before).log1p()


@dataclass(frozen=True, slots=True)
class Acceptances:
    """The probabilities p(q_i) of one batch of rounds, in steps that do not depend on the rewards.

    With a = (q − λ̃)/σ_Z, b = ((q − R) − σ_Z·L)/σ_Z ≤ 0 and h = ((R − λ̃) + σ_Z·L)/σ_Z, which is public,

        p(q) = [max(a, 0) + g(|a|) − g(|b|)]/h,   g(y) = φ(y) − yΦ(−y).

    Floats. No difference above cancels beyond one rounding, so with u = 2⁻⁵³ the relative errors of a, b, h are at most 2u, 3u, 3u. A
    relative error η of z moves max(z, 0) + g(|z|) by η|z|Φ(z) ≤ η·max(z, .17). With the tables' 2u and the roundings of two sums the
    bracket is off by at most 4u·max(a, 0) + 3.7u, and as a ≤ h, p by at most (4u·max(a, 0) + 3.7u)/h + 4u ≤ 12u where h ≥ 1. Where
    h < 1, p is the mean of Φ over [b, b + h] by the 8-point Gauss–Legendre rule: its remainder is below 2⁻⁵⁶
    (h¹⁶ (8!)⁴/(17 (16!)³) · max|Φ⁽¹⁶⁾|, |Φ⁽¹⁶⁾| ≤ .434 √15!), nodes off by at most 7u·|b| + 5u move Φ by at most 6u, its values are within
    2u, weights and sum add 9u. Both are below 2⁻⁴⁸ = 32u.
    """

    curve: AcceptanceCurve
    rewards: Floats

    @np.errstate(all="ignore")
    def estimate(self) -> tuple[Floats, float]:
        """Floats near p(q_i), shape (count,), and a bound on their distance."""
        curve = self.curve
        a = (self.rewards - curve.threshold) / curve.scale
        b = (self.rewards - curve.width) / curve.scale - curve.tail
        h = (curve.width - curve.threshold) / curve.scale + curve.tail
        if h >= 1:  # public
            return (np.maximum(a, 0.0) + normal.tail_integral(np.abs(a)) - normal.tail_integral(np.abs(b))) / h, ACCEPT_ERROR
        nodes, weights = _mean_rule()
        return normal.cdf_estimate(b[:, None] + h * nodes) @ weights, ACCEPT_ERROR

    def look(self, index: int) -> arb:
        """A ball around p(q_index) at the precision `normal.BITS`, of radius about 2⁻¹²¹/min(h, 1); the same steps for every reward."""
        scale, threshold, _, h = self.curve._frame()
        reward = arb(float(self.rewards[index]))
        a, b = (reward - threshold) / scale, (arb(self.curve.width) - reward) / scale + arb(self.curve.tail)  # H would swallow a small σ_Z
        return ((a + abs(a)) / 2 + normal.tail_integral_ball(abs(a)) - normal.tail_integral_ball(abs(b))) / h

    def enclose(self, index: int) -> arb:
        """A ball around p(q_index) at the current precision, sharper at a higher one."""
        return self.curve.enclose_accept(float(self.rewards[index]))

    @np.errstate(all="ignore")
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        """The floats nearest to the probabilities, with relative accuracy far out too: for seeded simulation."""
        curve = self.curve
        return np.exp(log_accept(self.rewards, curve.threshold, curve.width, curve.scale, curve.tail))


@dataclass(frozen=True, slots=True)
class FloatProbabilities:
    """Probabilities that are exactly these floats, in [0, 1]; shape (count,)."""

    values: Floats

    def estimate(self) -> tuple[Floats, float]:
        """The floats, and that they are exact."""
        return self.values, 0.0

    def look(self, index: int) -> arb:
        """The float as a ball of radius 0."""
        return arb(float(self.values[index]))

    enclose = look

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        return self.values


@lru_cache(maxsize=1)
def _mean_rule() -> tuple[Floats, Floats]:
    """Nodes and weights of the 8-point Gauss–Legendre rule on [0, 1]; the weights add up to 1."""
    pairs = at_precision(96, lambda: [arb.legendre_p_root(8, k, weight=True) for k in range(8)])
    return np.array([float((node + 1) / 2) for node, _ in pairs]), np.array([float(weight / 2) for _, weight in pairs])


@lru_cache(maxsize=65536)
def kappa(curve: AcceptanceCurve, sensitivity: float) -> float:
    """κ = log[(1 − p(R − Δ))/(1 − p(R))] ≥ 0, rounded up: what one rejection can tell at most.

    Args:
        sensitivity: Δ in (0, R]; larger values are clipped to R.
    """
    positive("sensitivity", sensitivity)
    return upper(lambda: curve.enclose_kappa(min(sensitivity, curve.width)))


@lru_cache(maxsize=65536)
def acceptance_ratio(curve: AcceptanceCurve, sensitivity: float) -> float:
    """b = log[p(Δ)/p(0)] ≥ 0, rounded up: what one acceptance can tell at most."""
    positive("sensitivity", sensitivity)
    return upper(lambda: curve.enclose_b(min(sensitivity, curve.width)))


# ---- vectorised floats -------------------------------------------------------------------------------------------


def _gauss_legendre(points: int) -> tuple[Floats, Floats]:
    """Nodes on [0, 1] and the logs of their weights."""
    nodes, weights = np.polynomial.legendre.leggauss(points)
    return (nodes + 1) / 2, np.log(weights / 2)


_RULE = _gauss_legendre(24)  # for Φ-like functions over lengths up to 2, exact to the last bit
_SHORT_RULE = _gauss_legendre(10)  # the same over lengths up to 1
_CONTINUED = 40  # terms of the continued fraction of the Mills ratio; converged to the last bit for y ≥ 4
_LOG_ROOT_2PI = 0.5 * math.log(2 * math.pi)


def log_mass(start: ArrayLike, length: ArrayLike) -> Floats:
    """log ∫ Φ over [a, a + h], broadcast; relative error ≤ 1e-15·max(1, |log|) for a in [−1000, 1000], h > 0.

    Three regimes (a + h is never formed where it could round to a): Gauss–Legendre where Φ is smooth on the interval;
    h minus the mirrored tails where a ≥ 0; else G(a + h)·(1 − G(a)/G(a + h)).
    """
    a, h = np.broadcast_arrays(np.asarray(start, np.float64), np.asarray(length, np.float64))
    out = np.empty(a.shape)
    reach = h * (1 + np.maximum(0, -a))
    smooth, brief = reach <= 2, reach <= 1
    right = ~smooth & (a >= 0)
    left = ~smooth & ~right
    for part, rule in ((brief, _SHORT_RULE), (smooth & ~brief, _RULE)):
        if part.any():
            out[part] = np.log(h[part]) + _log_mean_exp(_log_ndtr(a[part, None] + h[part, None] * rule[0]), rule)
    if right.any():
        x, length_x = a[right], h[right]
        out[right] = np.log(length_x - (np.exp(_log_ramp(-x)) - np.exp(_log_ramp(-x - length_x))))
    if left.any():
        x, end = a[left], a[left] + h[left]
        top = _log_ramp(end)
        out[left] = top + np.log1p(-np.exp(_log_ramp(x) - top))
    return out


def log_accept(reward: ArrayLike, threshold: ArrayLike, width: float, scale: float, tail: float) -> Floats:
    """log p(q), broadcast over rewards and thresholds; floats, for simulation and as ingredients of bounds with slack."""
    ceiling = width + scale * tail
    h = (ceiling - np.asarray(threshold, np.float64)) / scale
    return np.minimum(log_mass((np.asarray(reward, np.float64) - ceiling) / scale, h) - np.log(h), 0.0)


def log_reject(reward: ArrayLike, threshold: ArrayLike, width: float, scale: float, tail: float) -> Floats:
    """log(1 − p(q)), broadcast; never computed as 1 − p."""
    ceiling = width + scale * tail
    threshold = np.asarray(threshold, np.float64)
    h = (ceiling - threshold) / scale
    return np.minimum(log_mass((threshold - np.asarray(reward, np.float64)) / scale, h) - np.log(h), 0.0)


def log_gain(reward: ArrayLike, step: float, threshold: ArrayLike, width: float, scale: float, tail: float) -> Floats:
    """log[p(q + step) − p(q)], step > 0, as the integral of a positive function: (1/h) ∫∫ φ(a + s + t) ds dt.

    Over s in [0, d], d = step/σ_Z, and t in [0, h]; symmetric in the two lengths. Relative error ≤ 1e-11 (tests).
    """
    ceiling = width + scale * tail
    h = (ceiling - np.asarray(threshold, np.float64)) / scale
    a = (np.asarray(reward, np.float64) - ceiling) / scale
    a, h = np.broadcast_arrays(a, h)
    return _log_box(a, h, np.full(a.shape, step / scale)) - np.log(h)


def _log_box(a: Floats, h: Floats, d: Floats) -> Floats:
    """log ∫₀^h ∫₀^d φ(a + s + t), the second difference of G.

    φ is even: a box to the right of 0 is mirrored to the left of it. Smooth over the shorter side: quadrature there of
    the increment of Φ over the longer one. Else the second difference itself, whose terms are well apart; across 0
    with G(z) = max(z, 0) + G(−|z|), so that the large linear parts cancel exactly.
    """
    mirrored = a > -(a + h + d)
    a = np.where(mirrored, -(a + h + d), a)
    shorter, longer = np.minimum(h, d), np.maximum(h, d)
    end = a + h + d
    reach = shorter * (1 + np.maximum(0, -end))
    smooth, brief = reach <= 2, reach <= 1
    out = np.empty(a.shape)
    for part, rule in ((brief, _SHORT_RULE), (smooth & ~brief, _RULE)):
        if part.any():
            nodes = a[part, None] + shorter[part, None] * rule[0]
            out[part] = np.log(shorter[part]) + _log_mean_exp(_log_increment(nodes, longer[part, None]), rule)
    tail = ~smooth & (end <= 0)
    if tail.any():
        top = _log_ramp(end[tail])
        near, far = np.exp(_log_ramp(end[tail] - shorter[tail]) - top), np.exp(_log_ramp(end[tail] - longer[tail]) - top)
        out[tail] = top + np.log1p(np.exp(_log_ramp(a[tail]) - top) - near - far)
    across = ~smooth & ~tail
    if across.any():
        x, s, m, e = a[across], shorter[across], longer[across], end[across]
        overlap = np.maximum(0, np.minimum(x + s, 0) - np.maximum(x, -m))
        curved = [np.exp(_log_ramp(-np.abs(z))) for z in (e, x + s, x + m, x)]
        out[across] = np.log(overlap + (curved[0] + curved[3]) - (curved[1] + curved[2]))
    return out


def _log_increment(z: Floats, h: Floats) -> Floats:
    """log[Φ(z + h) − Φ(z)] = log ∫ φ; quadrature where h is short, mirrored into the lower tail elsewhere."""
    z, h = np.broadcast_arrays(z, h)
    flip = z > -(z + h)
    z = np.where(flip, -(z + h), z)
    out = np.empty(z.shape)
    short = h * (1 + np.abs(z)) <= 1
    if short.any():
        points = z[short, None] + h[short, None] * _SHORT_RULE[0]
        out[short] = np.log(h[short]) + _log_mean_exp(-points * points / 2 - _LOG_ROOT_2PI, _SHORT_RULE)
    long = ~short
    if long.any():
        top = _log_ndtr(z[long] + h[long])
        out[long] = top + np.log1p(-np.exp(_log_ndtr(z[long]) - top))
    return out


def _log_ndtr(z: Floats) -> Floats:
    from scipy.special import log_ndtr  # imported late: it costs .25 s that `import privalign` must not pay

    result: Floats = log_ndtr(z)
    return result


def _log_mean_exp(values: Floats, rule: tuple[Floats, Floats]) -> Floats:
    """log Σ_j w_j exp(values_j) over the last axis, with the weights of a quadrature rule."""
    shifted = values + rule[1]
    top = shifted.max(axis=-1)
    result: Floats = top + np.log(np.exp(shifted - top[..., None]).sum(axis=-1))
    return result


def _log_ramp(z: Floats) -> Floats:
    """log G(z), G(z) = zΦ(z) + φ(z).

    For y = −z ≥ 4: G = φ(y)·t/(y + t) with the continued fraction t = 1/(y + 2/(y + 3/(y + …))); for 0 ≤ y < 4
    through erfcx; for z > 0 directly.
    """
    from scipy.special import erfcx, ndtr

    z = np.asarray(z, np.float64)
    out = np.empty(z.shape)
    far, near = z <= -4, (z > -4) & (z <= 0)
    positive_side = z > 0
    if far.any():
        y = -z[far]
        t = np.zeros_like(y)
        for k in range(_CONTINUED, 0, -1):
            t = k / (y + t)
        out[far] = -y * y / 2 - _LOG_ROOT_2PI + np.log(t) - np.log(y + t)
    if near.any():
        y = -z[near]
        mills = math.sqrt(math.pi / 2) * erfcx(y / math.sqrt(2))
        out[near] = -y * y / 2 - _LOG_ROOT_2PI + np.log1p(-y * mills)
    if positive_side.any():
        x = z[positive_side]
        out[positive_side] = np.log(x * ndtr(x) + np.exp(-x * x / 2 - _LOG_ROOT_2PI))
    return out


def kappas(thresholds: ArrayLike, width: float, scale: float, tail: float, sensitivity: float) -> Floats:
    """κ at many thresholds, broadcast: log1p([p(R) − p(R − Δ)]/[1 − p(R)]), inflated by its evaluation error."""
    delta = min(sensitivity, width)
    gain = log_gain(width - delta, delta, thresholds, width, scale, tail)
    exact = np.logaddexp(0, gain - log_reject(width, thresholds, width, scale, tail))
    return exact * (1 + evaluation_error(thresholds, width, scale))


def acceptance_ratios(thresholds: ArrayLike, width: float, scale: float, tail: float, sensitivity: float) -> Floats:
    """b at many thresholds, broadcast: log1p([p(Δ) − p(0)]/p(0)), inflated by its evaluation error."""
    delta = min(sensitivity, width)
    gain = log_gain(0.0, delta, thresholds, width, scale, tail)
    exact = np.logaddexp(0, gain - log_accept(0.0, thresholds, width, scale, tail))
    return exact * (1 + evaluation_error(thresholds, width, scale))


def evaluation_error(thresholds: ArrayLike, width: float, scale: float) -> Floats:
    """A relative bound on the error of `log_gain`, `kappas` and `acceptance_ratios` (tested against ball arithmetic).

    1e-10 where quadrature and differences are well-conditioned. With x the arguments in units of σ_Z, rounding moves x by 2^-53 x
    and the exponents −x²/2 by 2^-53 x², which for x ≫ 1 is no small part of a small difference of two of them.
    """
    x = (width + np.abs(thresholds)) / scale
    return 1e-10 + 2.0**-49 * x * (1 + x)
