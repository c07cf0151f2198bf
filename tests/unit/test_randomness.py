"""The samplers against an independent oracle: mpmath's inverse distribution functions on the digits that were drawn."""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest
from flint import arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from numpy.typing import NDArray
from scipy.special import ndtri

from privalign.errors import InvalidInput, InvalidRewards
from privalign.intervals import cdf
from privalign.randomness import Probability, Randomness, SecureRandomness, SeededRandomness

ORACLE_BITS = 1500
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


# --- softmax ---------------------------------------------------------------------------------------------------------


def softmax_boundaries(scores: NDArray[np.float64], scale: float) -> list[mpf]:
    top = mpf(float(scores.max()))
    weights = [mp.exp((mpf(score) - top) / mpf(scale)) for score in scores.tolist()]
    total = mp.fsum(weights)
    return [mp.fsum(weights[: i + 1]) / total for i in range(len(weights))]


def assert_softmax_index(noise: Scripted, scores: NDArray[np.float64], scale: float) -> None:
    index = noise.gumbel_argmax(scores, scale)
    stream = "".join(noise.calls)
    low, high = mpf(int(stream, 2)) / 2 ** len(stream), mpf(int(stream, 2) + 1) / 2 ** len(stream)
    boundaries = softmax_boundaries(scores, scale)
    # The whole interval that U is known to lie in must belong to the index: [C_(i−1), C_i].
    slack = mpf(2) ** (30 - ORACLE_BITS)
    assert high <= boundaries[index] + slack or index == len(scores) - 1
    assert index == 0 or low >= boundaries[index - 1] - slack


finite_scores = st.lists(st.floats(-10, 10) | st.sampled_from([0.0, 1.0]), min_size=2, max_size=6)
scales = st.floats(-9, 9).map(lambda exponent: 10.0**exponent)


@given(finite_scores, scales, st.data())
@settings(max_examples=300, deadline=None)
def test_gumbel_argmax_next_to_a_boundary_agrees_with_the_oracle(values: list[float], scale: float, data: st.DataObject) -> None:
    with mp.workprec(ORACLE_BITS):
        scores = scores_of(*values)
        boundary = data.draw(st.sampled_from(softmax_boundaries(scores, scale)[:-1]))
        length = data.draw(st.sampled_from([64, 128, 256, 512]))
        value = int(mp.floor(boundary * 2**length)) + data.draw(st.integers(-3, 3))
        assert_softmax_index(Scripted(digits(value, length)), scores, scale)


@given(finite_scores, scales, st.integers(0, 2**64 - 1))
@settings(max_examples=300, deadline=None)
def test_gumbel_argmax_anywhere_agrees_with_the_oracle(values: list[float], scale: float, word: int) -> None:
    with mp.workprec(ORACLE_BITS):
        assert_softmax_index(Scripted(digits(word, 64)), scores_of(*values), scale)


@pytest.mark.parametrize("length", [64, 128, 256, 512])
@pytest.mark.parametrize(("offset", "expected"), [(-1, 1), (1, 2)])
def test_gumbel_argmax_refines_until_it_is_certain(length: int, offset: int, expected: int) -> None:
    scores = scores_of(0, 1, 2, 2.5)
    value = int(mp.floor(softmax_boundaries(scores, 1.0)[1] * 2**length)) + offset
    noise = Scripted(digits(value, length))
    assert noise.gumbel_argmax(scores, 1.0) == expected
    assert noise.drawn >= max(length, 128)


def test_gumbel_argmax_far_from_a_boundary_draws_one_word() -> None:
    noise = Scripted(digits(2**62, 64))
    assert noise.gumbel_argmax(scores_of(0, 1, 2, 2.5), 1.0) == 2
    assert noise.drawn == 64


@pytest.mark.parametrize(("stream", "expected"), [("1" + "0" * 511, 1), ("0" + "1" * 511, 0)])
def test_gumbel_argmax_of_equal_scores_with_u_at_the_exact_boundary_ends(stream: str, expected: int) -> None:
    noise = Scripted(stream)
    assert noise.gumbel_argmax(scores_of(3, 3), 1e-9) == expected
    assert noise.drawn == 128


def test_gumbel_argmax_reaches_weights_that_underflow_as_floats() -> None:
    # The second weight is exp(−1000), about 2^−1442.7: U within 2^−1443 of 1 selects it, U = 1 − 2^−1024 not yet.
    scores = scores_of(0, -1000)
    with mp.workprec(8000):
        assert Scripted("1" * 2048).gumbel_argmax(scores, 1.0) == 1
        assert Scripted("1" * 1024 + "0" * 1024).gumbel_argmax(scores, 1.0) == 0
        assert Scripted("0" * 2048).gumbel_argmax(scores[::-1].copy(), 1.0) == 0
        assert Scripted("0" * 1024 + "1" * 1024).gumbel_argmax(scores[::-1].copy(), 1.0) == 1


def test_gumbel_argmax_with_a_scale_that_overflows_the_exponent() -> None:
    assert {SecureRandomness().gumbel_argmax(scores_of(-1e300, 1e300), 1e-300) for _ in range(50)} == {1}
    assert {SecureRandomness().gumbel_argmax(scores_of(0, 1, 1), 5e-324) for _ in range(100)} == {1, 2}


# --- Gaussian argmax -------------------------------------------------------------------------------------------------


def quantile(value: int, length: int) -> mpf:
    """Φ⁻¹(value/2^length), by the complementary error function's own tail."""
    if value == 0:
        return mpf("-inf")
    if value == 1 << length:
        return mpf("inf")
    if 2 * value > 1 << length:
        return -quantile((1 << length) - value, length)
    v = mpf(value) / 2**length
    start = -mp.sqrt(-2 * mp.log(v)) if v < mpf("0.01") else mp.sqrt(2) * mp.erfinv(2 * mpf(float(v)) - 1)
    z = mpf(start)
    for _ in range(60):  # Newton on log Φ, which is concave: it converges from everywhere
        step = (mp.log(mp.ncdf(z)) - mp.log(v)) * mp.ncdf(z) / mp.npdf(z)
        z -= step
        if abs(step) < mpf(2) ** (40 - mp.prec):
            break
    return z


def pair_script(first: str, second: str) -> str:
    """The order in which two contenders draw: 64 digits each, then doubling."""
    script, known = first[:64] + second[:64], 64
    while known < len(first):
        script += first[known : 2 * known] + second[known : 2 * known]
        known *= 2
    return script


def pair_streams(calls: list[str]) -> tuple[str, str]:
    """The digits of either of two contenders, from what was drawn."""
    first, second = calls[0][:64], calls[0][64:]
    return first + "".join(calls[1::2]), second + "".join(calls[2::2])


def assert_pair_index(noise: Scripted, scores: NDArray[np.float64], scale: float) -> None:
    index = noise.gaussian_argmax(scores, scale)
    bounds = []
    for score, stream in zip(scores.tolist(), pair_streams(noise.calls), strict=True):
        ends = quantile(int(stream, 2), len(stream)), quantile(int(stream, 2) + 1, len(stream))
        bounds.append([mpf(score) + mpf(scale) * end for end in ends])
    assert bounds[index][0] >= bounds[1 - index][1]


@given(st.floats(-3, 3), st.integers(1, 2**64 - 2), st.sampled_from([64, 128, 256]), st.integers(-3, 3), st.floats(-3, 3), st.booleans())
@settings(max_examples=60, deadline=None)
def test_gaussian_argmax_next_to_a_tie_agrees_with_the_oracle(
    gap: float, word: int, length: int, offset: int, exponent: float, swapped: bool
) -> None:
    with mp.workprec(700):
        scale = 10.0**exponent
        scores = scores_of(gap * scale, 0.0)
        first = digits(word, 64).ljust(length, "1")
        tie = mp.ncdf(quantile(int(first, 2), length) + (mpf(scores[0]) - mpf(scores[1])) / mpf(scale))
        second = digits(int(mp.floor(tie * 2**length)) + offset, length)
        streams = [second, first] if swapped else [first, second]
        assert_pair_index(Scripted(pair_script(*streams)), scores[::-1].copy() if swapped else scores, scale)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=2), st.floats(-2, 2), scales)
@settings(max_examples=100, deadline=None)
def test_gaussian_argmax_anywhere_agrees_with_the_oracle(words: list[int], gap: float, scale: float) -> None:
    with mp.workprec(700):
        assert_pair_index(Scripted("".join(digits(word, 64) for word in words)), scores_of(gap, 0.0), scale)


EDGE_WORDS = [0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]


@pytest.mark.parametrize("first", EDGE_WORDS)
@pytest.mark.parametrize("second", EDGE_WORDS)
@pytest.mark.parametrize("gap", [0.0, 1.0, 18.0, -1e9])
def test_gaussian_argmax_in_the_tails(first: int, second: int, gap: float) -> None:
    with mp.workprec(1000):
        assert_pair_index(Scripted(digits(first, 64) + digits(second, 64)), scores_of(gap, 0.0), 1.0)


def test_gaussian_argmax_narrows_the_contenders_round_by_round() -> None:
    word, low, high, half = "01" * 32, "0" * 64, "1" * 64, "1" + "0" * 127
    script = word * 3 + digits(2**40, 64) + low + high + high + half + "0" * 128
    noise = Scripted(script)
    # Four equal scores: the last falls out at once, the first in round 2, the other two are told apart in round 3.
    assert noise.gaussian_argmax(scores_of(1, 1, 1, 1), 0.5) == 1
    assert [len(call) for call in noise.calls] == [256, 64, 64, 64, 128, 128]


def test_gaussian_argmax_gives_equal_scores_fresh_noise() -> None:
    assert {SecureRandomness().gaussian_argmax(np.zeros(3), 1.0) for _ in range(200)} == {0, 1, 2}


def test_gaussian_argmax_with_a_scale_that_overflows_the_gap() -> None:
    assert {SecureRandomness().gaussian_argmax(scores_of(-1e300, 1e300, 0), 1e-300) for _ in range(20)} == {1}
    assert {SecureRandomness().gaussian_argmax(scores_of(0, 1, 1), 5e-324) for _ in range(100)} == {1, 2}


# --- what the float paths take for granted ---------------------------------------------------------------------------


def test_exp_is_far_better_than_its_grant() -> None:
    x = np.concatenate([-np.linspace(0, 708, 2000), -np.logspace(-12, 2.8, 500)])
    error = max(abs(mpf(float(w)) / mp.exp(mpf(float(v))) - 1) for v, w in zip(x, np.exp(x), strict=True))
    assert error < mpf(2) ** -46  # granted: 2^−42


def test_ndtri_is_far_better_than_its_grant() -> None:
    with mp.workprec(200):
        m = 2.0 ** np.linspace(0, 63, 400)
        v = (m + 0.5) * 2.0**-64
        for tail, z in zip(v[v < 0.5].tolist(), ndtri(v[v < 0.5]).tolist(), strict=True):
            exact = quantile(int(mpf(tail) * 2**140), 140)
            assert abs(mpf(z) - exact) < mpf(2) ** -46 * (1 + abs(exact))  # granted: 2^−40·(1 + |z|)


# --- Bernoulli -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """A probability from its formula."""

    formula: Callable[[], arb]

    def enclose(self) -> arb:
        return self.formula()

    def __float__(self) -> float:
        return float(self.formula())


def ratio(p: Fraction) -> Known:
    return Known(lambda: arb(p.numerator) / arb(p.denominator))


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.sampled_from([64, 128, 256, 512]), st.integers(-3, 3))
@settings(max_examples=300, deadline=None)
def test_bernoulli_next_to_p_agrees_with_exact_fractions(a: int, b: int, length: int, offset: int) -> None:
    p = Fraction(min(a, b), b)
    noise = Scripted(digits(math.floor(p * 2**length) + offset, length))
    result = noise.bernoulli(ratio(p))
    stream = "".join(noise.calls)
    low, high = Fraction(int(stream, 2), 2 ** len(stream)), Fraction(int(stream, 2) + 1, 2 ** len(stream))
    assert high <= p if result else low >= p


@pytest.mark.parametrize("word", ["0" * 64, "1" * 64, ""])
def test_bernoulli_of_0_and_1_ends_at_once(word: str) -> None:
    for p, expected in ((0, False), (1, True)):
        noise = Scripted(word)
        assert noise.bernoulli(ratio(Fraction(p))) is expected
        assert noise.drawn == 64


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
    tiny, nearly_one = Known(formula), Known(lambda: 1 - formula())
    below, above = "0" * (zeros + 1), "0" * (zeros - 1) + "1"
    assert Scripted(below + "0" * 3000).bernoulli(tiny)
    assert not Scripted(above).bernoulli(tiny)
    assert Scripted("1" * (zeros - 1) + "0").bernoulli(nearly_one)
    assert not Scripted("1" * (zeros + 3000)).bernoulli(nearly_one)


def test_bernoulli_of_an_enclosure_that_never_sharpens_raises() -> None:
    with pytest.raises(ArithmeticError, match="acceptance probability"):
        SecureRandomness().bernoulli(Known(lambda: arb(0.5, 1)))
    with pytest.raises(ArithmeticError, match="acceptance probability"):
        SecureRandomness().bernoulli(Known(lambda: arb("nan")))


# --- Gaussian --------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(("value", "scale", "exponent"), [(0.3, 1.0, -40), (-7.3, 1e-9, -80), (0.1, 1e9, -10), (3.4, 2.0, 0)])
def test_gaussian_stays_on_its_grid(noise: Randomness, value: float, scale: float, exponent: int) -> None:
    grid = 2.0**exponent
    releases = {noise.gaussian(value, scale, grid) for _ in range(50)}
    assert len(releases) > 1
    assert all(math.remainder(release, grid) == 0 for release in releases)
    assert all(abs(release - value) < 12 * scale + grid for release in releases)


@both
def test_gaussian_at_the_ends_of_the_floats(noise: Randomness) -> None:
    assert noise.gaussian(1e300, 1e-300, 2.0**-1074) == 1e300
    assert not math.isnan(noise.gaussian(1.7e308, 1e308, 2.0**1000))


@both
@pytest.mark.parametrize("grid", [0.0, -0.5, 0.3, 3.0, math.nan, math.inf])
def test_gaussian_refuses_a_grid_that_is_not_a_power_of_two(noise: Randomness, grid: float) -> None:
    with pytest.raises(InvalidInput, match=r"^grid: .* power of two"):
        noise.gaussian(0.5, 1.0, grid)


# --- refusals, before anything is drawn or any library is asked -------------------------------------------------------


class Untouchable(SecureRandomness):
    def _bits(self, count: int) -> int:
        raise AssertionError("drew bits")


@pytest.fixture
def no_opendp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opendp", None)
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)


refusing = pytest.mark.parametrize("noise", [Untouchable(), SeededRandomness(1)], ids=["secure", "seeded"])


@refusing
@pytest.mark.usefixtures("no_opendp")
@pytest.mark.parametrize("scale", [0.0, -0.0, -1.0, math.nan, math.inf, -math.inf])
def test_bad_scales_are_refused(noise: Randomness, scale: float) -> None:
    for draw in (
        lambda: noise.gumbel_argmax(np.zeros(3), scale),
        lambda: noise.gaussian_argmax(np.zeros(3), scale),
        lambda: noise.gaussian(0.25, scale, 2.0**-40),
    ):
        with pytest.raises(InvalidInput, match=r"^scale: \S+ is not a finite number above 0; give ") as refusal:
            draw()
        assert str(scale) in str(refusal.value)


@refusing
@pytest.mark.usefixtures("no_opendp")
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
@pytest.mark.usefixtures("no_opendp")
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_refused(noise: Randomness, value: float) -> None:
    with pytest.raises(InvalidRewards, match="not finite"):
        noise.gaussian(value, 1.0, 2.0**-40)


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
    half: Probability = ratio(Fraction(1, 2))
    assert type(noise.gumbel_argmax(np.zeros(4), 1.0)) is int
    assert type(noise.gaussian_argmax(np.zeros(4), 1.0)) is int
    assert type(noise.index(4)) is int
    assert type(noise.gaussian(0.0, 1.0, 0.5)) is float
    assert type(noise.bernoulli(half)) is bool


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
        return [*chosen, noise.gaussian(0.0, 1.0, 2.0**-30), noise.bernoulli(ratio(Fraction(1, 2)))]

    assert draws(5) == draws(5) != draws(6)


@pytest.mark.parametrize("bits", [2, 10, 53, 5000])
def test_flints_precision_neither_matters_nor_changes(bits: int) -> None:
    scores = scores_of(0, 1, 2, 2.5)
    on_boundary = digits(int(mp.floor(softmax_boundaries(scores, 1.0)[1] * 2**128)) - 1, 128)
    before = ctx.prec
    ctx.prec = bits
    try:
        assert Scripted(on_boundary).gumbel_argmax(scores, 1.0) == 1
        assert Scripted(pair_script("0" * 127 + "1", "0" * 128)).gaussian_argmax(np.zeros(2), 1.0) == 0
        assert Scripted("0" * 3000).bernoulli(Known(functools.partial(cdf, arb(-40))))
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
            str(noise.gaussian(0.0, 1.0, 2.0**-40)),
            str([noise.bernoulli(ratio(Fraction(1, 2))) for _ in range(128)]),
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
