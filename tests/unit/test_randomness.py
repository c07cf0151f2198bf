"""The samplers against an independent oracle: mpmath's inverse distribution functions on the digits that were drawn."""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from flint import arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from numpy.typing import NDArray
from scipy.special import ndtri

from privalign import normal, randomness
from privalign.acceptance import AcceptanceCurve, FloatProbabilities, threshold_edges
from privalign.errors import InvalidInput, InvalidRewards
from privalign.intervals import at_precision, cdf
from privalign.randomness import Probabilities, Randomness, SecureRandomness, SeededRandomness, check_edges

ORACLE_BITS = 1500
EDGES = np.linspace(-1, 1, 100)
both = pytest.mark.parametrize("noise", [SecureRandomness(), SeededRandomness(1)], ids=["secure", "seeded"])


@dataclass
class Scripted(SecureRandomness):
    """Draws scripted bits first, then real ones, and remembers all of them."""

    script: str = ""
    calls: list[str] = field(default_factory=list)

    def _bits(self, count: int) -> int:
        used = sum(map(len, self.calls))
        scripted = self.script[used : used + count]
        missing = count - len(scripted)
        drawn = scripted + (format(super()._bits(missing), f"0{missing}b") if missing else "")
        self.calls.append(drawn)
        return int(drawn, 2)

    @property
    def drawn(self) -> int:
        return sum(map(len, self.calls))


def digits(value: int, length: int) -> str:
    """`value` as binary digits, moved into the range that `length` digits have."""
    return format(min(max(value, 0), (1 << length) - 1), f"0{length}b")


def scores_of(*values: float) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)


@pytest.fixture(autouse=True)
def oracle_precision() -> Iterator[None]:
    with mp.workprec(ORACLE_BITS):
        yield


# --- argmaxes ----------------------------------------------------------------------------------------------------------


Known = dict[int, tuple[int, int]]  # of each candidate: the digits of its uniform that were drawn, and how many
LENGTH = 128


def gumbel_quantile(value: int, length: int) -> mpf:
    """−log(−log(value/2^length))."""
    if value in (0, 1 << length):
        return mpf("-inf") if value == 0 else mpf("inf")
    return -mp.log(-mp.log(mpf(value) / 2**length))


def gaussian_quantile(value: int, length: int) -> mpf:
    """Φ⁻¹(value/2^length), by the complementary error function's own tail."""
    if value == 0:
        return mpf("-inf")
    if value == 1 << length:
        return mpf("inf")
    if 2 * value > 1 << length:
        return -gaussian_quantile((1 << length) - value, length)
    v = mpf(value) / 2**length
    start = -mp.sqrt(-2 * mp.log(v)) if v < mpf("0.01") else mp.sqrt(2) * mp.erfinv(2 * mpf(float(v)) - 1)
    z = mpf(start)
    for _ in range(60):  # Newton on log Φ, which is concave: it converges from everywhere
        step = (mp.log(mp.ncdf(z)) - mp.log(v)) * mp.ncdf(z) / mp.npdf(z)
        z -= step
        if abs(step) < mpf(2) ** (40 - mp.prec):
            break
    return z


def gumbel_cdf(z: mpf) -> mpf:
    return mp.exp(-mp.exp(-z))


QUANTILES: dict[str, Callable[[int, int], mpf]] = {"gumbel": gumbel_quantile, "gaussian": gaussian_quantile}
CDFS: dict[str, Callable[[mpf], mpf]] = {"gumbel": gumbel_cdf, "gaussian": mp.ncdf}
laws = pytest.mark.parametrize("law", ["gumbel", "gaussian"])


def interleaved(*streams: str) -> str:
    """The order in which contenders draw: 128 digits each, then doubling, as long as all of them stay."""
    script, known = "".join(stream[:LENGTH] for stream in streams), LENGTH
    while known < len(streams[0]):
        script += "".join(stream[known : 2 * known] for stream in streams)
        known *= 2
    return script


def argmax_of(law: str, noise: Scripted, scores: NDArray[np.float64], scale: float) -> tuple[int, Known]:
    """The index, and what is known of every uniform in the end."""
    original, known = randomness._unbeaten, {}

    def recorded(contenders: dict[int, Any], *arguments: Any) -> dict[int, Any]:
        known.update({i: (uniform.digits, uniform.bits) for i, uniform in contenders.items()})
        return original(contenders, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(randomness, "_unbeaten", recorded)
        index = getattr(noise, f"{law}_argmax")(scores, scale)
    first = noise.calls[0]
    return index, {i: (int(first[LENGTH * i : LENGTH * (i + 1)], 2), LENGTH) for i in range(len(scores))} | known


def assert_index(law: str, noise: Scripted, scores: NDArray[np.float64], scale: float) -> int:
    """Whatever the digits that are not known may be, the index is that of the largest."""
    index, known = argmax_of(law, noise, scores, scale)
    low, high = ([mpf(score) + mpf(scale) * end for score, end in zip(scores.tolist(), ends, strict=True)] for ends in _ends(law, known))
    slack = mpf(2) ** (30 - mp.prec) * (1 + abs(low[index]) if mp.isfinite(low[index]) else 1)
    assert all(low[index] >= other - slack for i, other in enumerate(high) if i != index)
    return index


def _ends(law: str, known: Known) -> list[list[mpf]]:
    return [[QUANTILES[law](known[i][0] + step, known[i][1]) for i in range(len(known))] for step in (0, 1)]


def near(law: str, stream: str, gap: mpf, length: int, offset: int) -> str:
    """The digits of a uniform whose noise is `gap` above that of `stream`, some last digits off."""
    tie = CDFS[law](QUANTILES[law](int(stream, 2), len(stream)) + gap)
    return digits(int(mp.floor(tie * 2**length)) + offset, length)


scales = st.floats(-9, 9).map(lambda exponent: 10.0**exponent)
offsets = st.integers(-3, 3) | st.builds(lambda k, sign: sign << k, st.integers(2, 110), st.sampled_from([-1, 1]))
words = st.integers(0, 2**LENGTH - 1) | st.integers(0, 2**40) | st.integers(2**LENGTH - 2**40, 2**LENGTH - 1)


@laws
@given(
    gaps=st.lists(st.floats(-3, 3), min_size=1, max_size=3),
    word=st.integers(2**100, 2**LENGTH - 2**100),
    length=st.sampled_from([128, 256, 512]),
    moved=st.lists(offsets, min_size=3, max_size=3),
    exponent=st.floats(-3, 3),
    turn=st.integers(0, 3),
)
@settings(max_examples=75, deadline=None)
def test_argmax_next_to_a_tie_of_two_to_four_agrees_with_the_oracle(
    law: str, gaps: list[float], word: int, length: int, moved: list[int], exponent: float, turn: int
) -> None:
    with mp.workprec(900):
        scale = 10.0**exponent
        scores = scores_of(0.0, *(gap * scale for gap in gaps))
        first = digits(word, LENGTH).ljust(length, "1")
        streams = [first] + [
            near(law, first, -mpf(score) / mpf(scale), length, o) for score, o in zip(scores[1:].tolist(), moved, strict=False)
        ]
        order = np.roll(np.arange(len(scores)), turn)
        assert_index(law, Scripted(interleaved(*(streams[i] for i in order))), scores[order], scale)


@laws
@given(st.lists(st.tuples(words, st.floats(-10, 10) | st.sampled_from([0.0, 1.0])), min_size=1, max_size=6), scales)
@settings(max_examples=150, deadline=None)
def test_argmax_anywhere_agrees_with_the_oracle(law: str, candidates: list[tuple[int, float]], scale: float) -> None:
    with mp.workprec(700):
        scores = scores_of(*(score for _, score in candidates))
        assert_index(law, Scripted("".join(digits(word, LENGTH) for word, _ in candidates)), scores, scale)


@laws
@pytest.mark.parametrize("length", [64, 128, 256, 512])
@pytest.mark.parametrize(("offset", "expected"), [(-4, 0), (4, 1)])
def test_argmax_refines_until_it_is_certain(law: str, length: int, offset: int, expected: int) -> None:
    """The noise of the second is a few digits below or above what makes up for its score."""
    first = "01" * (max(length, LENGTH) // 2)
    cut = max(length, LENGTH)
    second = near(law, first, mpf(1) / 2, cut, offset << (cut - length))
    noise = Scripted(interleaved(first, second))
    assert getattr(noise, f"{law}_argmax")(scores_of(0, -0.5), 1.0) == expected
    assert noise.drawn >= 2 * cut
    assert length == LENGTH or (noise.drawn > 2 * LENGTH) == (length > LENGTH)


@laws
def test_argmax_far_from_a_tie_draws_128_digits_each(law: str) -> None:
    noise = Scripted(digits(2**126, LENGTH) * 3 + digits(2**127, LENGTH))
    assert getattr(noise, f"{law}_argmax")(scores_of(0, 1, 2, 2.5), 1.0) == 3
    assert noise.drawn == 4 * LENGTH


@laws
@pytest.mark.parametrize("swapped", [False, True])
def test_equal_scores_with_equal_digits_are_told_apart_by_the_first_that_differ(law: str, swapped: bool) -> None:
    streams = ["01" * 256, "01" * 255 + "11"]
    noise = Scripted(interleaved(*streams[:: -1 if swapped else 1]))
    assert getattr(noise, f"{law}_argmax")(scores_of(3, 3), 1e-9) == (0 if swapped else 1)
    assert noise.drawn == 2 * 512


@laws
@pytest.mark.parametrize("unbounded", [1, 3])
def test_argmax_reaches_noise_that_128_digits_cannot_bound(law: str, unbounded: int) -> None:
    """U < 2⁻¹²⁸ has any noise from −∞ on, in floats that of 2⁻¹²⁹: it may lose to a candidate that is far below in floats."""
    gap = {"gumbel": 4.5, "gaussian": 14.0}[law]
    low = digits(int(CDFS[law](mpf(-4)) * 2**LENGTH), LENGTH)
    scores = scores_of(*[0.0] * unbounded, -gap)
    for further, expected in (("0" * 100_000, unbounded), ("1" * 100_000, 0)):
        noise = Scripted("0" * LENGTH * unbounded + low + further)
        index = getattr(noise, f"{law}_argmax")(scores, 1.0)
        assert (index == unbounded) == (expected == unbounded)


@laws
@pytest.mark.parametrize("gap", [0.0, 20.0, pytest.param(100.0, marks=pytest.mark.soak)])
def test_argmax_with_noise_that_128_digits_cannot_bound_above(law: str, gap: float) -> None:
    with mp.workprec(9000):
        assert_index(law, Scripted("1" * LENGTH + digits(2**120, LENGTH) + "1" * 3000), scores_of(-gap, 0), 1.0)


@laws
def test_argmax_with_a_scale_that_overflows_the_gap(law: str) -> None:
    """And without a continuation: what no noise makes up for is certainly beaten."""
    for scores, scale, expected in (((-1e300, 1e300, 0), 1e-300, {1}), ((0, 1, 1), 5e-324, {1, 2}), ((0, 1), 1e-300, {1})):
        noises = [Scripted() for _ in range(50)]
        assert {getattr(noise, f"{law}_argmax")(scores_of(*scores), scale) for noise in noises} == expected
        assert {noise.drawn for noise in noises} == {LENGTH * len(scores)}


EDGE_WORDS = [0, 1, 2**127 - 1, 2**127, 2**128 - 2, 2**128 - 1]


@laws
@pytest.mark.parametrize("first", EDGE_WORDS)
@pytest.mark.parametrize("second", EDGE_WORDS)
@pytest.mark.parametrize("gap", [0.0, 1.0, 18.0, -1e9])
def test_argmax_in_the_tails(law: str, first: int, second: int, gap: float) -> None:
    with mp.workprec(1000):
        assert_index(law, Scripted(digits(first, LENGTH) + digits(second, LENGTH)), scores_of(gap, 0.0), 1.0)


def test_gaussian_argmax_narrows_the_contenders_round_by_round() -> None:
    word, low, high, half = "01" * 64, "0" * 128, "1" * 128, "1" + "0" * 255
    script = word * 3 + digits(2**100, 128) + low + high + high + half + "0" * 256
    noise = Scripted(script)
    # Four equal scores: the last falls out at once, the first in round 2, the other two are told apart in round 3.
    assert noise.gaussian_argmax(scores_of(1, 1, 1, 1), 0.5) == 1
    assert [len(call) for call in noise.calls] == [512, 128, 128, 128, 256, 256]


@laws
def test_argmax_gives_equal_scores_fresh_noise(law: str) -> None:
    assert {getattr(SecureRandomness(), f"{law}_argmax")(np.zeros(3), 1.0) for _ in range(200)} == {0, 1, 2}


# --- the way through further digits, forced on everything ----------------------------------------------------------------


def nothing_known(v: NDArray[np.float64], upper: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.full(len(v), np.nan)


@laws
@pytest.mark.parametrize("n", [2, 3, 4, 17])
@pytest.mark.parametrize("scale", [1e-3, 0.3, 1e6])
def test_argmax_by_further_digits_alone_is_the_same(law: str, n: int, scale: float) -> None:
    rng = np.random.default_rng(n)
    unseen = replace(getattr(randomness, f"_{law.upper()}"), floats=nothing_known, near=lambda uniform, estimate: arb(0, math.inf))
    for scores in (np.zeros(n), rng.uniform(0, 1, n), np.round(rng.uniform(0, 1, n), 1)):
        noise = Scripted()
        index = getattr(noise, f"{law}_argmax")(scores, scale)
        again = Scripted(noise.calls[0])
        assert again._noisy_argmax(scores, scale, unseen) == index
        assert again.drawn > noise.drawn


@pytest.mark.parametrize("n", [1, 2, 31, 200])
def test_bernoullis_by_further_digits_alone_are_the_same(n: int) -> None:
    curve = AcceptanceCurve(0.3, 1.0, 0.2, 3.0)
    rewards = np.random.default_rng(n).uniform(0, 1, n)
    noise = Scripted()
    usual = noise.bernoullis(curve.accept(rewards))

    @dataclass(frozen=True)
    class Unseen:
        """Nothing is known of the floats and nothing of the look."""

        inner: Probabilities

        def estimate(self) -> tuple[NDArray[np.float64], float]:
            return self.inner.estimate()[0], 1.0

        def look(self, index: int) -> arb:
            return arb(0.5, 1)

        def enclose(self, index: int) -> arb:
            return self.inner.enclose(index)

        def __array__(self, dtype: object = None, copy: bool | None = None) -> NDArray[np.float64]:
            return np.asarray(self.inner)

    again = Scripted("".join(noise.calls))
    assert again.bernoullis(Unseen(curve.accept(rewards))).tolist() == usual.tolist()


@pytest.mark.parametrize("value", [-0.05, 0.3, 0.95])
@pytest.mark.parametrize("scale", [1e-7, 0.2, 1e4])
def test_a_cell_by_further_digits_alone_is_the_same(monkeypatch: pytest.MonkeyPatch, value: float, scale: float) -> None:
    edges = threshold_edges(0.05, 1.0)
    for _ in range(20):
        noise = Scripted()
        usual = noise.gaussian_cell(value, scale, edges)
        with monkeypatch.context() as patch:
            patch.setattr(randomness, "_FAR", 1.0)
            assert Scripted(noise.calls[0]).gaussian_cell(value, scale, edges) == usual


# --- what the float paths take for granted ---------------------------------------------------------------------------


def test_the_logarithms_are_far_better_than_their_grant() -> None:
    with mp.workprec(200):
        v = np.concatenate([2.0 ** -np.linspace(1, 129, 2000), np.linspace(2.0**-20, 0.5, 2000)])
        for exact, found in ((lambda x: mp.log(x), np.log(v)), (lambda x: mp.log(1 - x), np.log1p(-v))):
            assert (
                max(abs(mpf(float(f)) / exact(mpf(float(x))) - 1) for x, f in zip(v, found, strict=True)) < mpf(2) ** -50
            )  # granted: 2^−46
        arguments = np.concatenate([-np.log(v), -np.log1p(-v)])
        found = np.log(arguments)
        exact_logs = [mp.log(mpf(float(x))) for x in arguments]
        assert max(abs(mpf(float(f)) - e) / abs(e) for f, e in zip(found, exact_logs, strict=True) if e) < mpf(2) ** -50


def test_ndtri_is_far_better_than_its_grant() -> None:
    with mp.workprec(200):
        m = 2.0 ** np.linspace(0, 127, 400)
        v = (m + 0.5) * 2.0**-128
        for tail, z in zip(v[v < 0.5].tolist(), ndtri(v[v < 0.5]).tolist(), strict=True):
            exact = gaussian_quantile(int(mpf(tail) * 2**190), 190)
            assert abs(mpf(z) - exact) < mpf(2) ** -48 * (1 + abs(exact))  # granted: 2^−46·(1 + |z|)


@laws
def test_quantiles_in_floats_and_in_balls_are_as_near_as_is_said(law: str) -> None:
    noise = getattr(randomness, f"_{law.upper()}")
    rng = np.random.default_rng(0)
    tails = [int(2.0**e) for e in rng.uniform(38, 127, 150)]
    for m in [*tails, *((1 << LENGTH) - 1 - tail for tail in tails)]:
        upper = 2 * m >= 1 << LENGTH
        v = (min(m, (1 << LENGTH) - 1 - m) + 0.5) * 2.0**-LENGTH
        z = float(noise.floats(np.array([v]), np.array([upper]))[0])
        with mp.workprec(400):
            ends = [QUANTILES[law](m + step, LENGTH) for step in (0, 1)]
            assert max(abs(mpf(z) - end) for end in ends) <= mpf(2) ** -36 + mpf(2) ** (1 - LENGTH) / mpf(v) + mpf(2) ** -50 * abs(mpf(z))
            ball = at_precision(normal.BITS, lambda m=m, z=z: noise.near(randomness._LazyUniform(m, LENGTH).ball(), z))
            assert all(ball.contains(arb(str(end))) or ball.overlaps(arb(mp.nstr(end, 100))) for end in ends)
            assert float(ball.rad()) < 2.0**-34


# --- Bernoulli -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Formulas:
    """Probabilities from their formulas."""

    formulas: tuple[Callable[[], arb], ...]
    error: float = 2.0**-50

    def estimate(self) -> tuple[NDArray[np.float64], float]:
        return np.asarray(self), self.error

    def look(self, index: int) -> arb:
        return self.formulas[index]()

    enclose = look

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NDArray[np.float64]:
        return np.array([float(at_precision(4000, formula).mid()) for formula in self.formulas])


def ratios(*p: Fraction) -> Formulas:
    return Formulas(tuple(functools.partial(lambda p: arb(p.numerator) / arb(p.denominator), one) for one in p))


def one(noise: Randomness, probabilities: Probabilities) -> bool:
    (happened,) = noise.bernoullis(probabilities).tolist()
    return bool(happened)


@dataclass
class Remembering(Scripted):
    """Keeps the digits of every uniform of a batch, as far as they were drawn."""

    further: dict[int, tuple[int, int]] = field(default_factory=dict)

    def _is_below(self, uniform: Any, number: Any) -> bool:
        below = super()._is_below(uniform, number)
        if isinstance(number, functools.partial):
            self.further[number.args[0]] = (uniform.digits, uniform.bits)
        return below

    def uniforms(self, n: int) -> dict[int, tuple[int, int]]:
        return {i: (int(self.calls[0][64 * i : 64 * (i + 1)], 2), 64) for i in range(n)} | self.further


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.sampled_from([64, 128, 256, 512]), st.integers(-3, 3))
@settings(max_examples=300, deadline=None)
def test_bernoulli_next_to_p_agrees_with_exact_fractions(a: int, b: int, length: int, offset: int) -> None:
    p = Fraction(min(a, b), b)
    noise = Scripted(digits(math.floor(p * 2**length) + offset, length))
    result = one(noise, ratios(p))
    stream = "".join(noise.calls)
    low, high = Fraction(int(stream, 2), 2 ** len(stream)), Fraction(int(stream, 2) + 1, 2 ** len(stream))
    assert high <= p if result else low >= p


fractions = st.builds(lambda a, b: Fraction(min(a, b), b), st.integers(0, 10**6), st.integers(1, 10**6))
nearly = st.sampled_from([Fraction(0), Fraction(1), Fraction(1, 10**300), 1 - Fraction(1, 10**16), Fraction(1, 2)])


@given(st.lists(st.tuples(fractions | nearly, st.integers(-2000, 2000) | st.integers(-3, 3)), min_size=1, max_size=9))
@settings(max_examples=200, deadline=None)
def test_a_batch_with_many_next_to_their_p_agrees_with_exact_fractions(rounds: list[tuple[Fraction, int]]) -> None:
    """Several within the error of the floats: what the look at one of them leaves is settled for each."""
    noise = Remembering("".join(digits(math.floor(p * 2**64) + offset, 64) for p, offset in rounds))
    results = noise.bernoullis(ratios(*(p for p, _ in rounds)))
    for i, (digits_, bits) in noise.uniforms(len(rounds)).items():
        p, low, high = rounds[i][0], Fraction(digits_, 2**bits), Fraction(digits_ + 1, 2**bits)
        if not low < p < high:  # else it is the one that was looked at with 128 digits
            assert bool(results[i]) == (high <= p)
        else:
            longer = int(noise.calls[0][64 * i : 64 * (i + 1)] + noise.calls[1], 2)
            assert bool(results[i]) == (Fraction(longer + 1, 2**128) <= p)


@pytest.mark.parametrize("word", ["0" * 128, "1" * 128, ""])
def test_bernoulli_of_0_and_1_ends_at_once(word: str) -> None:
    for p, expected in ((0, False), (1, True)):
        for probabilities in (ratios(Fraction(p)), FloatProbabilities(np.array([float(p)]))):
            noise = Scripted(word)
            assert one(noise, probabilities) is expected
            assert noise.drawn == 128


@pytest.mark.parametrize(
    ("formula", "zeros"),  # p and the number z with 2^−z > p > 2^−(z + 1)
    [
        (lambda: cdf(arb(-40)), 1160),
        (lambda: arb((3, -1202)), 1200),
        (lambda: 1 - cdf(arb(40)), 1160),  # cancels: [−2^−prec, 2^−prec] until the precision is high enough
    ],
    ids=["tail", "power", "cancelling"],
)
def test_bernoulli_of_tiny_probabilities_and_of_their_complements(formula: Callable[[], arb], zeros: int) -> None:
    tiny, nearly_one = Formulas((formula,)), Formulas((lambda: 1 - formula(),))
    below, above = "0" * (zeros + 1), "0" * (zeros - 1) + "1"
    assert one(Scripted(below + "0" * 3000), tiny)
    assert not one(Scripted(above), tiny)
    assert one(Scripted("1" * (zeros - 1) + "0"), nearly_one)
    assert not one(Scripted("1" * (zeros + 3000)), nearly_one)


def test_bernoulli_of_an_enclosure_that_never_sharpens_raises() -> None:
    for formula in (lambda: arb(0.5, 1), lambda: arb("nan")):
        with pytest.raises(ArithmeticError, match="acceptance probability"):
            SecureRandomness().bernoullis(Formulas((formula,), error=1.0))


@given(
    q=st.floats(0, 1) | st.sampled_from([0.0, 1.0, 5e-324, 1e-300]),
    index=st.sampled_from([0, 500, 1023]),
    beta=st.sampled_from([1e-9, 0.05, 3.0]),
    exponent=st.floats(-6, 4),
    tail=st.sampled_from([2.0**-20, 0.01, 3.0, 30.0]),
    length=st.sampled_from([64, 128, 256]),
    offset=st.integers(-3, 3),
)
@settings(max_examples=250, deadline=None)
def test_a_round_next_to_its_acceptance_probability_agrees_with_the_formula(
    q: float, index: int, beta: float, exponent: float, tail: float, length: int, offset: int
) -> None:
    with mp.workprec(1200):
        scale, threshold = 10.0**exponent, float(np.linspace(-beta, 1.0 - beta, 1024)[index])
        ceiling = 1 + mpf(scale) * mpf(tail)
        h = (ceiling - mpf(threshold)) / mpf(scale)
        p = (ramp((mpf(q) - mpf(threshold)) / mpf(scale)) - ramp((mpf(q) - ceiling) / mpf(scale))) / h
        noise = Scripted(digits(int(mp.floor(p * 2**length)) + offset, length))
        result = one(noise, AcceptanceCurve(threshold, 1.0, scale, tail).accept([q]))
        stream = "".join(noise.calls)
        low, high = mpf(int(stream, 2)) / 2 ** len(stream), mpf(int(stream, 2) + 1) / 2 ** len(stream)
        assert high <= p if result else low >= p


def ramp(z: mpf) -> mpf:
    return z * mp.ncdf(z) + mp.npdf(z)


# --- a Gaussian between public edges -----------------------------------------------------------------------------------


cell_cases = pytest.mark.parametrize(("value", "scale", "step"), [(0.3, 1.0, 0.01), (-7.3, 1e-9, 1e-6), (0.1, 1e9, 10.0), (3.4, 2.0, 1.0)])


@both
@cell_cases
def test_gaussian_cell_counts_the_edges_below(noise: Randomness, value: float, scale: float, step: float) -> None:
    edges = value + step * np.arange(-500.0, 500.0) + step / 3
    cells = {noise.gaussian_cell(value, scale, edges) for _ in range(50)}
    assert cells <= set(range(1001))
    assert (len(cells) > 1) == (scale > step / 5)
    assert all(abs(edges[min(max(cell, 1), 999)] - value) < 12 * scale + step for cell in cells if 0 < cell < 1000)


@given(
    value=st.floats(-0.1, 1.1),
    exponent=st.floats(-9, 5.9),
    index=st.integers(0, 1022) | st.sampled_from([0, 1022]),
    length=st.sampled_from([64, 128, 256]),
    offset=offsets,
)
@settings(max_examples=250, deadline=None)
def test_gaussian_cell_next_to_an_edge_agrees_with_the_oracle(value: float, exponent: float, index: int, length: int, offset: int) -> None:
    """U a few digits from Φ of an edge, for σ from 10⁻⁹ R to near the refusal."""
    with mp.workprec(900):
        scale, edges = 10.0**exponent, threshold_edges(0.05, 1.0)
        at = mp.ncdf((mpf(float(edges[index])) - mpf(value)) / mpf(scale))
        noise = Scripted(digits(int(mp.floor(at * 2**length)) + offset, length))
        cell = noise.gaussian_cell(value, scale, edges)
        stream = "".join(noise.calls)
        low, high = mpf(int(stream, 2)) / 2 ** len(stream), mpf(int(stream, 2) + 1) / 2 ** len(stream)
        below = mp.ncdf((mpf(float(edges[cell - 1])) - mpf(value)) / mpf(scale)) if cell > 0 else mpf(0)
        above = mp.ncdf((mpf(float(edges[cell])) - mpf(value)) / mpf(scale)) if cell < len(edges) else mpf(1)
        slack = mpf(2) ** -890
        assert below - slack <= low
        assert high <= above + slack


@both
def test_gaussian_cell_at_the_ends_of_the_floats(noise: Randomness) -> None:
    edges = scores_of(-1e300, 1e299, 1e300)
    assert noise.gaussian_cell(5e299, 1e-300, edges) == 2
    assert noise.gaussian_cell(1.7e308, 1e300, edges) == 3
    assert noise.gaussian_cell(0.0, 5e-324, scores_of(-1.0, 1.0)) == 1


@both
@pytest.mark.parametrize("step", [0.0, -0.5, 2.0**-31, math.nan, 2.0**-60, -math.inf])
def test_gaussian_cell_refuses_edges_that_floats_cannot_tell_apart(noise: Randomness, step: float) -> None:
    with pytest.raises(InvalidInput, match=r"^scale: .* two million times the range"):
        noise.gaussian_cell(0.5, 1.0, scores_of(0.25, 0.25 + step))


def test_edges_are_checked_at_the_size_of_the_noise_and_of_themselves() -> None:
    edges = threshold_edges(0.05, 1.0)
    check_edges(2.0**20, edges)
    for scale, refused in ((2.0**22, edges), (1.0, threshold_edges(1e13, 1.0))):
        with pytest.raises(InvalidInput, match="milder"):
            check_edges(scale, refused)


# --- refusals, before anything is drawn ---------------------------------------------------------------------------------


class Untouchable(SecureRandomness):
    def _bits(self, count: int) -> int:
        raise AssertionError("drew bits")


refusing = pytest.mark.parametrize("noise", [Untouchable(), SeededRandomness(1)], ids=["secure", "seeded"])


@refusing
@pytest.mark.parametrize("scale", [0.0, -0.0, -1.0, math.nan, math.inf, -math.inf])
def test_bad_scales_are_refused(noise: Randomness, scale: float) -> None:
    for draw in (
        lambda: noise.gumbel_argmax(np.zeros(3), scale),
        lambda: noise.gaussian_argmax(np.zeros(3), scale),
        lambda: noise.gaussian_cell(0.25, scale, EDGES),
    ):
        with pytest.raises(InvalidInput, match=r"^scale: \S+ is not a finite number above 0; give ") as refusal:
            draw()
        assert str(scale) in str(refusal.value)


@refusing
@pytest.mark.parametrize(
    "scores",
    [[], [[0.0, 1.0]], [0.0, math.nan], [math.inf, 0.0], [-math.inf, 0.0], [-1.7e308, 1.7e308]],
    ids=["empty", "matrix", "nan", "inf", "-inf", "spread"],
)
def test_bad_scores_are_refused_without_saying_which(noise: Randomness, scores: list[float]) -> None:
    for draw in (noise.gumbel_argmax, noise.gaussian_argmax):
        with pytest.raises(InvalidRewards) as refusal:
            draw(np.array(scores, dtype=np.float64), 1.0)
        assert "nan" not in str(refusal.value)
        assert "inf" not in str(refusal.value).replace("finite", "")


@refusing
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_refused(noise: Randomness, value: float) -> None:
    with pytest.raises(InvalidRewards, match="not finite"):
        noise.gaussian_cell(value, 1.0, EDGES)


@both
@pytest.mark.parametrize("n", [0, -3])
def test_an_index_among_none_is_refused(noise: Randomness, n: int) -> None:
    with pytest.raises(InvalidInput, match=f"^n: {n} "):
        noise.index(n)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^seed: -1 "):
        SeededRandomness(-1)


# --- both classes ----------------------------------------------------------------------------------------------------


def test_only_secure_randomness_is_private() -> None:
    noises: list[Randomness] = [SecureRandomness(), SeededRandomness(0)]
    assert [noise.private for noise in noises] == [True, False]


@both
def test_results_are_plain_python_values(noise: Randomness) -> None:
    half: Probabilities = ratios(Fraction(1, 2))
    assert type(noise.gumbel_argmax(np.zeros(4), 1.0)) is int
    assert type(noise.gaussian_argmax(np.zeros(4), 1.0)) is int
    assert type(noise.index(4)) is int
    assert type(noise.gaussian_cell(0.0, 1.0, EDGES)) is int
    assert noise.bernoullis(half).dtype == np.bool_


@both
def test_one_candidate_is_always_chosen(noise: Randomness) -> None:
    assert noise.gumbel_argmax(scores_of(0.7), 1e-9) == noise.gaussian_argmax(scores_of(0.7), 1e9) == noise.index(1) == 0


@both
def test_the_best_of_many_wins_as_the_scale_vanishes(noise: Randomness) -> None:
    scores = np.linspace(0, 1, 5000)
    assert noise.gumbel_argmax(scores, 1e-9) == noise.gaussian_argmax(scores, 1e-9) == 4999


def test_seeds_reproduce() -> None:
    def draws(seed: int) -> list[object]:
        noise = SeededRandomness(seed)
        flat = np.zeros(100)
        chosen = [noise.gumbel_argmax(flat, 1.0), noise.gaussian_argmax(flat, 1.0), noise.index(10**6)]
        return [*chosen, noise.gaussian_cell(0.0, 1.0, EDGES), one(noise, ratios(Fraction(1, 2)))]

    assert draws(5) == draws(5) != draws(6)


@pytest.mark.parametrize("bits", [2, 10, 53, 5000])
def test_flints_precision_neither_matters_nor_changes(bits: int) -> None:
    first = "01" * 128
    second = near("gumbel", first, mpf(1) / 2, 256, 1)
    before = ctx.prec
    ctx.prec = bits
    try:
        assert Scripted(interleaved(first, second)).gumbel_argmax(scores_of(0, -0.5), 1.0) == 1
        assert Scripted(interleaved("0" * 255 + "1", "0" * 256)).gaussian_argmax(np.zeros(2), 1.0) == 0
        assert one(Scripted("0" * 3000), Formulas((lambda: cdf(arb(-40)),)))
        assert ctx.prec == bits
    finally:
        ctx.prec = before


def test_numpy_set_to_raise_does_not_matter() -> None:
    with np.errstate(all="raise"):
        assert SecureRandomness().gumbel_argmax(scores_of(0, 1), 1e-5) == 1
        assert SecureRandomness().gaussian_argmax(scores_of(0, 1), 1e-5) == 1
        assert SeededRandomness(0).gumbel_argmax(scores_of(0, 1), 1e-310) == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_processes_never_share_noise() -> None:
    noise = SecureRandomness()

    def draws() -> list[str]:
        flat = np.zeros(4096)
        return [
            str([noise.gumbel_argmax(flat, 1.0) for _ in range(10)]),
            str([noise.gaussian_argmax(flat, 1.0) for _ in range(10)]),
            str([noise.gaussian_cell(0.0, 1.0, EDGES) for _ in range(20)]),
            str(noise.bernoullis(ratios(*[Fraction(1, 2)] * 128))),
            str(noise.index(2**100)),
        ]

    before = draws()  # so that whatever a library may buffer is buffered before the fork
    families = [before]
    for _ in range(3):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(writer, json.dumps(draws()).encode())
            finally:
                os._exit(0)  # never back into the test runner; a failed child shows as an empty pipe
        os.close(writer)
        with os.fdopen(reader) as pipe:
            families.append(json.load(pipe))
        os.waitpid(child, 0)
    families.append(draws())
    for same_draw in zip(*families, strict=True):
        assert len(set(same_draw)) == len(families)


def test_importing_it_loads_no_slow_library() -> None:
    code = "import sys, privalign.randomness; print(*sorted({'scipy', 'opendp', 'mpmath'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
