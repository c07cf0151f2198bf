"""Randomness as an explicit argument: exact samplers on the operating system's entropy, and a seeded twin.

What is exact. `SecureRandomness` draws from the laws as they are written, over the reals, for the given floats: softmax
and Gaussian argmax, Bernoulli and the uniform index have no sampling error and nothing to charge. Each of them compares
uniform reals of which only the first binary digits are drawn. Floats with a proven error bound settle nearly every
comparison; what falls within the bound is settled with interval arithmetic and further digits, until it is certain.

What is charged. Only `gaussian` adds to the sensitivity: its input is rounded to the grid s, and the input is itself a
float with some error e, so that a change of Δ counts as ⌈(Δ + 2e)/s⌉·s. The noise on the grid is an exact discrete
Gaussian. The event `GaussianRelease` carries both figures.

What is not covered. Running time depends on the data, slightly and rarely for the argmaxes and `bernoulli`: keep
latencies that others can see coarse.
"""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from flint import arb
from numpy.typing import NDArray

from privalign.errors import InvalidInput, InvalidRewards
from privalign.intervals import MOST_BITS, at_precision

WORD = 64  # binary digits drawn of each uniform before anything is compared
GUARD_BITS = 64  # working precision beyond the known digits of a uniform


class Probability(Protocol):
    """A real number p ∈ [0, 1], known as sharply as one asks."""

    def enclose(self) -> arb:
        """A ball that encloses p at the current working precision; sharper at a higher one."""

    def __float__(self) -> float:
        """The float nearest to p, for seeded simulation."""


class Randomness(Protocol):
    """The draws that mechanisms make. `scores` have shape (n,), n ≥ 1; `scale` and `scores` share their unit.

    Every method that takes them raises InvalidInput for a scale that is not a finite number above 0, and
    InvalidRewards for a score that is not finite or an empty vector, before anything is drawn.
    """

    @property
    def private(self) -> bool:
        """Whether releases made with it may be called private and be charged to an account."""

    def gumbel_argmax(self, scores: NDArray[np.float64], scale: float) -> int:
        """The index of the largest scores_i + Gumbel(0, scale): index i with probability ∝ exp(scores_i/scale)."""

    def gaussian_argmax(self, scores: NDArray[np.float64], scale: float) -> int:
        """The index of the largest scores_i + N(0, scale²), with fresh noise for every index."""

    def gaussian(self, value: float, scale: float, grid: float) -> float:
        """`value` + N(0, scale²) on the multiples of `grid`, a power of two."""

    def bernoulli(self, probability: Probability) -> bool:
        """True with the given probability."""

    def index(self, n: int) -> int:
        """Uniform on 0 … n − 1."""


class SecureRandomness:
    """Exact samplers that read the operating system's entropy at every call.

    Nothing is buffered between calls, so processes forked from one another never share noise; one instance serves any
    number of threads. Formal guarantee: each result follows its stated law exactly (see the module); the law does not
    depend on flint's precision, which is put back after each call.
    """

    private = True

    def gumbel_argmax(self, scores: NDArray[np.float64], scale: float) -> int:
        """The index i with probability exactly exp(scores_i/scale) / Σ_j exp(scores_j/scale).

        Inverse distribution function: U uniform on [0, 1), cumulative weights C_i, total T, and the first index with
        U·T < C_i. Time grows with n only (13 µs at 16, 24 µs at 4,096), except once in about 2^38/n draws (2 ms at 4,096).

        Args:
            scores: finite, shape (n,), n ≥ 1, in any unit.
            scale: σ > 0, in the unit of the scores; any ratio to their spread.

        Raises:
            InvalidInput: the scale. InvalidRewards: the scores.
        """
        gaps = _gaps(scores, scale)
        # Weights as 61-bit fixed point, so that their sums are exact. With one unit = 2^−shift, each stored weight is off by
        #   at most 1 (truncation) + 2^−41 of itself: x = gap/scale has two roundings, hence an error ≤ |x|·2^−52 < 2^−42
        #   where exp does not underflow (|x| < 746), and exp itself is granted 2^−42 (about 2,000 ulps). Where it underflows, the
        #   true and the stored weight are below 2^−1021, nothing in this unit.
        # So C_i and T are off by ≤ T·2^−41 + 1.01n, and U·T against `target` by that + 2; together ≤ T·2^−40 + 2.02n + 2 < margin.
        with np.errstate(all="ignore"):
            weights = np.exp(gaps / scale)
        shift = 61 - math.frexp(float(weights.sum()))[1]
        sums = np.cumsum(np.ldexp(weights, shift).astype(np.int64))
        total = int(sums[-1])
        margin = (total >> 39) + 4 * len(sums)
        uniform = _LazyUniform(self._bits(WORD), WORD)
        target = (uniform.digits * total) >> WORD
        first, last = np.searchsorted(sums, [target - margin, target + margin], side="right").tolist()
        last = min(last, len(sums) - 1)  # U < 1: some index is always chosen
        while first < last:
            uniform.refine(self._bits)
            settle = functools.partial(_softmax_range, uniform, scores, scale, first, last)
            first, last = at_precision(uniform.bits + GUARD_BITS, settle)
        return int(first)

    def gaussian_argmax(self, scores: NDArray[np.float64], scale: float) -> int:
        """The index of the largest scores_i + scale·Z_i, with independent Z_i = Φ⁻¹(U_i), exactly.

        Args:
            scores: finite, shape (n,), n ≥ 1, in any unit.
            scale: σ > 0, in the unit of the scores; any ratio to their spread.

        Raises:
            InvalidInput: the scale. InvalidRewards: the scores.
        """
        from scipy.special import ndtri

        gaps = _gaps(scores, scale)
        n = len(gaps)
        words = np.frombuffer(self._bits(WORD * n).to_bytes(WORD // 8 * n, "big"), dtype=">u8").astype(np.uint64)
        # The nearer tail v = min(U, 1 − U) ∈ [m, m + 1]/2^64 is taken from integers, so that both tails are equally sharp.
        m = np.minimum(words, ~words).astype(np.float64)
        # |ẑ − Z| ≤ 1.26·(1/m + 2^−52) + 2^−40·(1 + |ẑ|): dz/dv = 1/φ(z) and v/φ(z) ≤ √(π/2) for z ≤ 0, so the unknown digits and
        # the rounding of v move z by at most 1.26·|log(v̂/v)|; and ndtri is granted 2^−40·(1 + |ẑ|), about 4,000 ulps. As |ẑ| < 10
        # this is below 2/m + 2^−36 (m = 0: unbounded). gap/scale and the sums below add at most 2^−50·|gap/scale|.
        # What is not certainly beaten stays in; so does a candidate whose bound is NaN, where gap/scale overflows.
        with np.errstate(all="ignore"):
            z = np.where(words >> np.uint64(63) == 0, 1.0, -1.0) * ndtri((m + 0.5) * 2.0**-WORD)
            x = gaps / scale
            error = 2 / m + 2.0**-36 + np.abs(x) * 2.0**-50
            unbeaten = ~(x + z + error < np.max(x + z - error))
        contenders = {i: _LazyUniform(int(words[i]), WORD) for i in np.flatnonzero(unbeaten).tolist()}
        while len(contenders) > 1:
            for uniform in contenders.values():
                uniform.refine(self._bits)
            bits = next(iter(contenders.values())).bits
            contenders = at_precision(bits + GUARD_BITS, functools.partial(_unbeaten, contenders, scores, scale))
        (winner,) = contenders
        return int(winner)

    def gaussian(self, value: float, scale: float, grid: float) -> float:
        """`value` rounded to the grid, plus a discrete Gaussian on the grid: P[k·grid] ∝ exp(−(k·grid)²/(2·scale²)).

        OpenDP's exact sampler. The result is the nearest float to a multiple of `grid`, infinite beyond the largest.

        Args:
            value: finite. Its rounding joins the sensitivity (see the module); keep scale/grid ≥ 2^30.
            scale: σ > 0, in the unit of the value.
            grid: the step s, a power of two, in the unit of the value.

        Raises:
            InvalidInput: the scale or the grid. InvalidRewards: the value is not finite.
        """
        _check_scale(scale)
        exponent = _grid_exponent(grid)
        _check_value(value)
        return float(_discrete_gaussian(float(scale), exponent)(float(value)))

    def bernoulli(self, probability: Probability) -> bool:
        """True with exactly the given probability, however near to 0 or to 1.

        U uniform on [0, 1) against p: more digits of U and a sharper enclosure of p until U < p or U ≥ p is certain.
        p = 0 and p = 1, enclosed exactly, end at the first comparison.

        Raises:
            ArithmeticError: the enclosure does not sharpen (a sound one gets here with probability below 2^−16000).
        """
        uniform = _LazyUniform(self._bits(WORD), WORD)
        while uniform.bits <= MOST_BITS:
            below = at_precision(uniform.bits + GUARD_BITS, functools.partial(_is_below, uniform, probability))
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

    def gumbel_argmax(self, scores: NDArray[np.float64], scale: float) -> int:
        """See `Randomness`."""
        gaps = _gaps(scores, scale)
        with np.errstate(over="ignore"):
            return int(np.argmax(gaps / scale + self._generator.gumbel(size=len(gaps))))

    def gaussian_argmax(self, scores: NDArray[np.float64], scale: float) -> int:
        """See `Randomness`."""
        gaps = _gaps(scores, scale)
        with np.errstate(over="ignore"):
            return int(np.argmax(gaps / scale + self._generator.standard_normal(len(gaps))))

    def gaussian(self, value: float, scale: float, grid: float) -> float:
        """See `Randomness`: a continuous Gaussian, rounded to the grid."""
        _check_scale(scale)
        _grid_exponent(grid)
        _check_value(value)
        noisy = float(value) + float(scale) * float(self._generator.standard_normal())
        return noisy - math.remainder(noisy, grid) if math.isfinite(noisy) else noisy

    def bernoulli(self, probability: Probability) -> bool:
        """See `Randomness`."""
        return bool(self._generator.random() < float(probability))

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


def _softmax_range(uniform: _LazyUniform, scores: NDArray[np.float64], scale: float, first: int, last: int) -> tuple[int, int]:
    """Narrows the range `first` … `last` of indices that U may choose, at the current precision."""
    top, sigma = arb(float(np.max(scores))), arb(float(scale))
    sums = []
    total = arb(0)
    for score in scores.tolist():
        total += ((arb(score) - top) / sigma).exp()
        sums.append(total)
    low, high = (end * total for end in uniform.bounds())
    while first < last and low >= sums[first]:
        first += 1
    while first < last and high <= sums[last - 1]:
        last -= 1
    return first, last


def _unbeaten(contenders: dict[int, _LazyUniform], scores: NDArray[np.float64], scale: float) -> dict[int, _LazyUniform]:
    """The contenders whose scores_i + scale·Φ⁻¹(U_i) may still be the largest, at the current precision."""
    bounds = {}
    for i, uniform in contenders.items():
        ends = _quantile(uniform.digits, uniform.bits), _quantile(uniform.digits + 1, uniform.bits)
        bounds[i] = [arb(float(scores[i])) + arb(float(scale)) * end for end in ends]
    best = max(low for low, _ in bounds.values())
    return {i: uniform for i, uniform in contenders.items() if not bounds[i][1] < best}


def _quantile(digits: int, bits: int) -> arb:
    """Φ⁻¹(digits/2^bits), equally sharp in both tails; infinite at 0 and at 1."""
    if 2 * digits > 1 << bits:
        return -_quantile((1 << bits) - digits, bits)
    if digits == 0:
        return arb.neg_inf()
    return -arb(2).sqrt() * arb((digits, 1 - bits)).erfcinv()


def _is_below(uniform: _LazyUniform, probability: Probability) -> bool | None:
    """Whether U < p; None where the current digits and precision cannot tell."""
    low, high = uniform.bounds()
    p = probability.enclose()
    if high <= p:
        return True
    if low >= p:
        return False
    return None


@functools.lru_cache(maxsize=64)
def _discrete_gaussian(scale: float, exponent: int) -> Any:
    """OpenDP's Gaussian measurement on the grid 2^exponent. It holds public settings only, no noise and no values."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
    return dp.m.make_gaussian(*space, scale=scale, k=exponent)


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


def _grid_exponent(grid: float) -> int:
    """k where grid = 2^k."""
    mantissa, exponent = math.frexp(grid)
    if mantissa != 0.5:
        raise InvalidInput("grid", f"{grid} is not a power of two; give a step such as 2**-40")
    return exponent - 1
