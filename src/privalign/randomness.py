"""Randomness as an explicit argument: exact samplers on the operating system's entropy, and a seeded twin.

What is exact. `SecureRandomness` draws from the laws as they are written, over the reals, for the given floats: there is no sampling
error and nothing to charge. Every draw compares uniform reals, of which only the first binary digits are known, with boundaries that
are known as sharply as one asks.

What is constant. Scores are protected, so the work is the same for all of them. For n scores a sampler draws a fixed number of digits
and makes (1) one pass in floats over all of them, with a proved error bound; (2) one look in ball arithmetic at a fixed number of
candidates, those that the pass left least certain, in a fixed number of steps. Only if that leaves anything open (3) further digits are
drawn, until all is certain. The law is exact because of (3), and (3) is so rare that it tells nothing: a query over n candidates is
continued with probability below `continued(n)` = n²·2⁻⁹⁴ + n·2⁻⁸⁸. Without a continuation the trace is the same whatever the scores; so
T queries that have a guarantee (ε, δ) by their values have (ε, δ + (1 + e^ε)·T·continued(n)) with their trace. At ε = 8 a million
queries add 2·10⁻¹⁶ for n = 16 and 3·10⁻¹² for n = 4,096.

Why not a library. A discrete Gaussian by rejection, as others sample it, runs as long as its noise and its input say; inverting the
distribution function between public edges takes the same steps for every value, and needs no grid.

What is not covered. The time of a machine instruction may depend on its operands by nanoseconds; the aligner's deadline covers that.
"""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from flint import arb
from numpy.typing import NDArray

from privalign import normal
from privalign.errors import InvalidInput, InvalidRewards
from privalign.intervals import MOST_BITS, at_precision, cdf, phi

Floats = NDArray[np.float64]

WORD = 64  # binary digits drawn of the uniform of a Bernoulli round
LONG = 128  # of the uniform of an argmax, a release, or the round that is looked at again
GUARD_BITS = 64  # working precision beyond the known digits of a uniform
LOOKS = 3  # contenders of an argmax that are looked at in balls
_FAR_BELOW = 2.0**1000  # standard deviations that noise never makes up for
_FAR = 2.0**-90  # a uniform of a release nearer than this to 0 or 1 (probability 2^−89) is left to further digits


def continued(n: int) -> float:
    """A bound on the probability that a query over n candidates, in whatever batches, needs more than the fixed work."""
    return n**2 * 2.0**-94 + n * 2.0**-88


class Probabilities(Protocol):
    """Real numbers p_1 … p_n ∈ [0, 1], known as sharply as one asks. As an array: the nearest floats, for seeded simulation."""

    def estimate(self) -> tuple[Floats, float]:
        """Floats near all of them, shape (n,), and a bound on their distance; the same steps whatever they are."""

    def look(self, index: int) -> arb:
        """A sharp ball around one of them at the precision `normal.BITS`, in the same steps whatever it is."""

    def enclose(self, index: int) -> arb:
        """A ball around one of them at the current working precision; sharper at a higher one."""

    def __array__(self, dtype: object = None, copy: bool | None = None) -> Floats:
        """The nearest floats, shape (n,)."""


class Randomness(Protocol):
    """The draws that mechanisms make. `scores` have shape (n,), n ≥ 1; `scale` and `scores` share their unit.

    Every method that takes them raises InvalidInput for a scale that is not a finite number above 0, and
    InvalidRewards for a score that is not finite or an empty vector, before anything is drawn.
    """

    @property
    def private(self) -> bool:
        """Whether releases made with it may be called private and be charged to an account."""

    def gumbel_argmax(self, scores: Floats, scale: float) -> int:
        """The index of the largest scores_i + Gumbel(0, scale): index i with probability ∝ exp(scores_i/scale)."""

    def gaussian_argmax(self, scores: Floats, scale: float) -> int:
        """The index of the largest scores_i + N(0, scale²), with fresh noise for every index."""

    def gaussian_cell(self, value: float, scale: float, edges: Floats) -> int:
        """Between which of the increasing public `edges` the number `value` + N(0, scale²) lies: how many of them are below it."""

    def bernoullis(self, probabilities: Probabilities) -> NDArray[np.bool_]:
        """Independent trials with the given probabilities, shape (n,)."""

    def index(self, n: int) -> int:
        """Uniform on 0 … n − 1."""


class SecureRandomness:
    """Exact samplers that read the operating system's entropy at every call.

    Nothing is buffered between calls, so processes forked from one another never share noise; one instance serves any
    number of threads. Formal guarantee: each result follows its stated law exactly, and but for continuations (see the module) Python
    runs the same lines and the same digits are drawn for all scores; neither depends on flint's precision, which is put back
    after each call.
    """

    private = True

    def gumbel_argmax(self, scores: Floats, scale: float) -> int:
        """The index i with probability exactly exp(scores_i/scale) / Σ_j exp(scores_j/scale).

        The largest scores_i/scale + G_i with independent G_i = −log(−log U_i), 128 digits of each U_i. Continued with probability below
        n·2⁻⁸⁸: the j-th and (j + 1)-th of a race of exponential clocks are within a factor 1 ± e of each other with probability
        at most j·e, and four of them have to be within e = 2⁻³⁴, or one uniform within 2⁻⁹⁰ of 0 or 1.

        Args:
            scores: finite, shape (n,), n ≥ 1, in any unit.
            scale: σ > 0, in the unit of the scores; any ratio to their spread.

        Raises:
            InvalidInput: the scale. InvalidRewards: the scores.
        """
        return self._noisy_argmax(scores, scale, _GUMBEL)

    def gaussian_argmax(self, scores: Floats, scale: float) -> int:
        """The index of the largest scores_i + scale·Z_i, with independent Z_i = Φ⁻¹(U_i), exactly; 128 digits of each U_i.

        Continued with probability below n·2⁻⁸⁸: four contenders have to be within 2⁻³⁴ of each other at the top, where one more of them
        has a density of at most 12, or one uniform within 2⁻⁹⁰ of 0 or 1.

        Args:
            scores: finite, shape (n,), n ≥ 1, in any unit.
            scale: σ > 0, in the unit of the scores; any ratio to their spread.

        Raises:
            InvalidInput: the scale. InvalidRewards: the scores.
        """
        return self._noisy_argmax(scores, scale, _GAUSSIAN)

    def _noisy_argmax(self, scores: Floats, scale: float, noise: _Noise) -> int:
        gaps = _gaps(scores, scale)
        n = len(gaps)
        uniforms = np.frombuffer(self._bits(LONG * n).to_bytes(LONG // 8 * n, "big"), dtype=">u8").reshape(n, 2)
        # The nearer tail v = min(U, 1 − U) ∈ [m, m + 1]/2^128 is taken from integers, so that both tails are equally sharp; the unknown
        # digits move its quantile by at most 1.5/m.
        upper = uniforms[:, 0] >> np.uint64(63) == 1
        high, low = (np.where(upper, ~words, words).astype(np.float64) for words in uniforms.astype(np.uint64).T)
        v = (high + (low + 0.5) * 2.0**-64) * 2.0**-64
        # scores/scale has two roundings and is kept from where floats end, in steps of less than the error: no overflow, nothing subnormal.
        # Without a digit before the last of v its noise has no bound. What is not certainly beaten stays in.
        with np.errstate(all="ignore"):
            z = noise.floats(v, upper)
            x = np.clip(gaps / scale, -_FAR_BELOW, -(2.0**-60))
            total = x + z
            error = np.where(v < 2.0**-LONG, np.inf, 2.0**-36 + 2.0 ** (1 - LONG) / v + (np.abs(x) + np.abs(z)) * 2.0**-50)
            unbeaten = ~(total + error < np.max(total - error))
            looked = _largest(total, LOOKS)
        best = at_precision(normal.BITS, lambda: _look(noise, uniforms, z, scores, scale, looked))
        unbeaten[looked] = [place in best for place in looked]
        contenders = np.flatnonzero(unbeaten).tolist()
        if len(contenders) == 1:
            return int(contenders[0])
        return self._settle(scores, scale, noise, {i: _LazyUniform(_joined(uniforms[i]), LONG) for i in contenders})

    def _settle(self, scores: Floats, scale: float, noise: _Noise, contenders: dict[int, _LazyUniform]) -> int:
        """The winner among those that may still be the largest, with as many further digits as it takes."""
        while len(contenders) > 1:
            for uniform in contenders.values():
                uniform.refine(self._bits)
            bits = next(iter(contenders.values())).bits
            contenders = at_precision(bits + GUARD_BITS, functools.partial(_unbeaten, contenders, scores, scale, noise))
        (winner,) = contenders
        return int(winner)

    def gaussian_cell(self, value: float, scale: float, edges: Floats) -> int:
        """How many of the edges are below value + scale·Z, Z standard normal over the reals, exactly; 128 digits of Φ(Z).

        Only the edge nearest to the float value + scale·ẑ is in question; a ball around Φ((edge − value)/scale) decides on which
        side of it the real number lies. Continued with probability below 2⁻⁸⁸. Nothing is added to the sensitivity of `value`.

        Args:
            value: finite. scale: σ > 0, in its unit. edges: as `check_edges` asks, shape (k,), k ≥ 1.

        Raises:
            InvalidInput: the scale, or the edges are too close for it. InvalidRewards: the value is not finite.
        """
        from scipy.special import ndtri

        check_edges(scale, edges)
        _check_value(value)
        uniform = _LazyUniform(self._bits(LONG), LONG)
        v = min(uniform.digits, (1 << LONG) - 1 - uniform.digits) * 2.0**-LONG
        z = math.copysign(1.0, uniform.digits - (1 << (LONG - 1))) * -float(ndtri(v))
        # |ẑ − Z| ≤ 2^−36·(1 + |ẑ|) for v ≥ 2^−90 as for the argmax, |ẑ| < 12; two roundings more: less than half of what `check_edges` asks
        nearest = int(np.argmin(np.abs(edges - np.clip(value + scale * z, edges[0], edges[-1]))))
        below = at_precision(
            normal.BITS, lambda: _compare(uniform, normal.cdf_ball((arb(float(edges[nearest])) - arb(value)) / arb(scale)))
        )
        if below is not None and v >= _FAR:
            return nearest + (not below)
        return self._settle_cell(value, scale, edges, uniform)

    def _settle_cell(self, value: float, scale: float, edges: Floats, uniform: _LazyUniform) -> int:
        """The same by bisection, with as many further digits as it takes."""
        first, last = 0, len(edges)
        while first < last:
            middle = (first + last) // 2
            distribution = functools.partial(_cdf_at, float(edges[middle]), value, scale)
            if self._is_below(uniform, distribution):
                last = middle
            else:
                first = middle + 1
        return first

    @np.errstate(all="ignore")
    def bernoullis(self, probabilities: Probabilities) -> NDArray[np.bool_]:
        """Independent trials, each True with exactly its probability, however near to 0 or to 1.

        64 digits of a uniform U_i each, against a float p̂_i with |p̂_i − p_i| ≤ e; the one with the least |U_i − p̂_i| is looked at
        again with 128 digits. Floats leave a width w = 2e + 2⁻⁵⁰ open, into which two of n trials fall with probability below
        (n·w)²/2: with e = 2⁻⁴⁸ (`acceptance.Acceptances`) n²·2⁻⁹⁴. The look itself leaves 2⁻¹⁰⁰ or less open.

        Raises:
            ArithmeticError: an enclosure does not sharpen (a sound one gets here with probability below 2^−16000).
        """
        p, error = probabilities.estimate()
        n = len(p)
        words = np.frombuffer(self._bits(WORD * n).to_bytes(WORD // 8 * n, "big"), dtype=">u8").astype(np.uint64)
        distance = words.astype(np.float64) * 2.0**-WORD - p  # the word, its unknown digits and the difference are within 2^−52
        happened = distance < 0
        nearest = int(np.argmin(np.abs(distance)))
        unsure = ~(np.abs(distance) > error + 2.0**-51)  # a NaN is unsure
        longer = (int(words[nearest]) << WORD) | self._bits(WORD)
        below = at_precision(normal.BITS, lambda: _compare(_LazyUniform(longer, LONG), probabilities.look(nearest)))
        happened[nearest] = bool(below)
        unsure[nearest] = below is None
        for i in np.flatnonzero(unsure).tolist():
            uniform = _LazyUniform(longer, LONG) if i == nearest else _LazyUniform(int(words[i]), WORD)
            happened[i] = self._is_below(uniform, functools.partial(probabilities.enclose, i))
        result: NDArray[np.bool_] = happened
        return result

    def _is_below(self, uniform: _LazyUniform, number: Callable[[], arb]) -> bool:
        """Whether U is below a number, with as many further digits and as sharp an enclosure as it takes."""
        while uniform.bits <= MOST_BITS:
            below = at_precision(uniform.bits + GUARD_BITS, lambda: _compare(uniform, number()))
            if below is not None:
                return below
            uniform.refine(self._bits)
        raise ArithmeticError("no sharp enclosure of an acceptance probability; a setting is too extreme")

    def index(self, n: int) -> int:
        """Uniform on 0 … n − 1, exactly.

        Raises:
            InvalidInput: n < 1.
        """
        _check_count(n)
        return secrets.randbelow(n)

    def _bits(self, count: int) -> int:
        """`count` fresh uniform bits as an integer, most significant first: the only source of the samplers above."""
        return secrets.randbits(count)


class SeededRandomness:
    """For experiments, not private: reproducible, fast, plain floats.

    The same interface and, up to floating error, the same laws as `SecureRandomness`. A seeded generator is no source
    of noise for protected data: who learns the seed, or enough of its output, removes the noise.

    Args:
        seed: a non-negative integer; the same seed gives the same draws.
    """

    private = False

    def __init__(self, seed: int) -> None:
        if seed < 0:
            raise InvalidInput("seed", f"{seed} is negative; give an integer of 0 or more")
        self._generator = np.random.default_rng(seed)

    def gumbel_argmax(self, scores: Floats, scale: float) -> int:
        """See `Randomness`."""
        gaps = _gaps(scores, scale)
        with np.errstate(over="ignore"):
            return int(np.argmax(gaps / scale + self._generator.gumbel(size=len(gaps))))

    def gaussian_argmax(self, scores: Floats, scale: float) -> int:
        """See `Randomness`."""
        gaps = _gaps(scores, scale)
        with np.errstate(over="ignore"):
            return int(np.argmax(gaps / scale + self._generator.standard_normal(len(gaps))))

    def gaussian_cell(self, value: float, scale: float, edges: Floats) -> int:
        """See `Randomness`."""
        check_edges(scale, edges)
        _check_value(value)
        return int(np.searchsorted(edges, value + scale * float(self._generator.standard_normal())))

    def bernoullis(self, probabilities: Probabilities) -> NDArray[np.bool_]:
        """See `Randomness`."""
        p = np.asarray(probabilities)
        result: NDArray[np.bool_] = self._generator.random(len(p)) < p
        return result

    def index(self, n: int) -> int:
        """See `Randomness`."""
        _check_count(n)
        return int(self._generator.integers(n))


@dataclass(slots=True)
class _LazyUniform:
    """A uniform real U on [0, 1) of which the first `bits` binary digits are drawn: U ∈ [digits, digits + 1]/2^bits."""

    digits: int
    bits: int

    def refine(self, source: Callable[[int], int]) -> None:
        """Draws as many digits again as are known."""
        self.digits = (self.digits << self.bits) | source(self.bits)
        self.bits *= 2

    def bounds(self) -> tuple[arb, arb]:
        """The ends of the interval, exact."""
        return arb((self.digits, -self.bits)), arb((self.digits + 1, -self.bits))

    def ball(self) -> arb:
        """The interval as a ball."""
        return arb((2 * self.digits + 1, -self.bits - 1), (1, -self.bits - 1))


def _joined(words: NDArray[np.uint64]) -> int:
    return (int(words[0]) << 64) | int(words[1])


def _compare(uniform: _LazyUniform, number: arb) -> bool | None:
    """Whether U is below a number; None where the digits and the ball cannot tell."""
    low, high = uniform.bounds()
    below, above = bool(high <= number), bool(low >= number)
    return {(True, False): True, (False, True): False}.get((below, above))


def _cdf_at(edge: float, value: float, scale: float) -> arb:
    """Φ((edge − value)/scale), equally sharp in both tails."""
    z = (arb(edge) - arb(value)) / arb(scale)
    return cdf(z) if z < 0 else 1 - cdf(-z)


# ---- noise as a quantile function: in floats for all candidates, in balls for few, in balls of any precision ------------------------


@dataclass(frozen=True, slots=True)
class _Noise:
    """A law by its quantile function.

    Args:
        floats: of the nearer tail v of the uniforms and on which side they lie, within 2⁻³⁶ + 2⁻⁵⁰·|z| for v ≥ 2⁻¹²⁹.
        near: a ball around the quantile of a ball, given the float near it; the same steps for every argument.
        quantile: of digits/2^bits, at the current precision.
    """

    floats: Callable[[Floats, NDArray[np.bool_]], Floats]
    near: Callable[[arb, float], arb]
    quantile: Callable[[int, int], arb]


def _gumbel_floats(v: Floats, upper: NDArray[np.bool_]) -> Floats:
    """−log(−log U): log and log1p are granted 2⁻⁴⁶ relative (128 ulps), so −log U has 2⁻⁴⁵, its logarithm 2⁻⁴⁴·(1 + |z|), |z| < 90."""
    result: Floats = -np.log(np.where(upper, -np.log1p(-v), -np.log(v)))
    return result


def _gumbel_near(uniform: arb, _: float) -> arb:
    return -(-uniform.log()).log()


def _gumbel_quantile(digits: int, bits: int) -> arb:
    if digits == 0:
        return arb.neg_inf()
    return arb.pos_inf() if digits == 1 << bits else _gumbel_near(arb((digits, -bits)), 0.0)


def _gaussian_floats(v: Floats, upper: NDArray[np.bool_]) -> Floats:
    """Φ⁻¹(U): dz/dv = 1/φ(z) and v/φ(z) ≤ √(π/2), so rounding v moves z by at most 2⁻⁵²; ndtri is granted 2⁻⁴⁶·(1 + |z|), |z| < 14."""
    from scipy.special import ndtri

    z = ndtri(v)
    result: Floats = np.where(upper, -z, z)
    return result


def _gaussian_near(uniform: arb, estimate: float) -> arb:
    """Φ⁻¹(U) by Taylor's formula in U about Φ(z₀): with w = (U − Φ(z₀))/φ(z₀)

    Φ⁻¹(U) = z₀ + w + z₀w²/2 + (2z₀² + 1)w³/6 + R,   |R| ≤ (6ζ³ + 7ζ)/24 · 1.1·w⁴ < 2⁻¹²⁰ for |w| ≤ 2⁻³³, |ζ| < 14.
    """
    z = arb(estimate)
    w = (uniform - normal.cdf_ball(z)) / phi(z)
    return z + w + z * w**2 / 2 + (2 * z**2 + 1) * w**3 / 6 + arb(0, (math.inf, 2.0**-120)[abs(w) < 2.0**-33])


_GUMBEL = _Noise(_gumbel_floats, _gumbel_near, _gumbel_quantile)
_GAUSSIAN = _Noise(_gaussian_floats, _gaussian_near, normal.quantile)


def _largest(values: Floats, count: int) -> list[int]:
    """The places of the largest values, in as many passes, whatever they are."""
    left, places = values.copy(), []
    for _ in range(min(count, len(values))):
        place = int(np.argmax(left))
        places.append(place)
        left[place] = -np.inf
    return places


def _look(noise: _Noise, uniforms: NDArray[np.uint64], z: Floats, scores: Floats, scale: float, looked: list[int]) -> list[int]:
    """Which of a few contenders may be the largest of them."""
    top = float(np.max(scores))
    totals = {}
    for i in looked:
        uniform = _LazyUniform(_joined(uniforms[i]), LONG).ball()
        totals[i] = _gap(float(scores[i]), top, scale) + noise.near(uniform, float(z[i]))
    return [i for i in looked if not sum([bool(totals[i] < totals[j]) for j in looked])]


def _unbeaten(contenders: dict[int, _LazyUniform], scores: Floats, scale: float, noise: _Noise) -> dict[int, _LazyUniform]:
    """The contenders whose scores_i/scale + Q(U_i) may still be the largest, at the current precision."""
    top = float(np.max(scores))
    bounds = {}
    for i, uniform in contenders.items():
        ends = noise.quantile(uniform.digits, uniform.bits), noise.quantile(uniform.digits + 1, uniform.bits)
        bounds[i] = [_gap(float(scores[i]), top, scale) + end for end in ends]
    best = max(low for low, _ in bounds.values())
    return {i: uniform for i, uniform in contenders.items() if not bounds[i][1] < best}


def _gap(score: float, top: float, scale: float) -> arb:
    """(score − top)/scale: how small a scale may be beside the scores does not matter to its digits."""
    return (arb(score) - arb(top)) / arb(float(scale))


def _gaps(scores: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    """Checks both arguments of an argmax; returns scores − max(scores), each within one rounding."""
    _check_scale(scale)
    if scores.ndim != 1 or len(scores) == 0:
        raise InvalidRewards(f"scores of shape {scores.shape} where a vector of at least one is needed; refusing to select")
    if not np.isfinite(scores).all():
        raise InvalidRewards("a score is not a finite number; refusing to select")
    with np.errstate(over="ignore"):
        gaps = scores - np.max(scores)
    if not np.isfinite(gaps).all():
        raise InvalidRewards("the scores spread over more than a float can hold; clip them to a range first")
    return gaps


def _check_scale(scale: float) -> None:
    # A library handed a scale of 0 would release the raw value.
    if not (math.isfinite(scale) and scale > 0):
        raise InvalidInput("scale", f"{scale} is not a finite number above 0; give the size of the noise in units of the score")


def _check_value(value: float) -> None:
    if not math.isfinite(value):
        raise InvalidRewards("the number to release is not finite; refusing to release it")


def _check_count(n: int) -> None:
    if n < 1:
        raise InvalidInput("n", f"{n} candidates to choose from; give at least 1")


def check_edges(scale: float, edges: Floats) -> None:
    """Refuses, from public settings, edges that floats could not tell apart at this scale.

    Raises:
        InvalidInput: the scale is not a finite number above 0, or two edges are nearer than 2⁻³¹·scale + 2⁻⁵⁰·max |edge|.
    """
    _check_scale(scale)
    nearest = float(np.diff(edges).min(initial=math.inf))
    if not nearest > math.ldexp(scale, -31) + math.ldexp(float(np.abs(edges).max()), -50):
        raise InvalidInput("scale", f"{scale} is more than two million times the range, or β is; give milder settings")
