"""The laws of the samplers, drawn through the secure path.

Secure noise cannot be seeded, so each test here fails for a right sampler once in 10⁸ runs (`FALSE_ALARM`), and the
whole file less than once in 10⁶. Tests that a wrong law must fail ask for a p-value below 10⁻⁶ and miss it more rarely than that.
`make test` draws from two or three shapes of each law, `make soak` from all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import opendp.prelude as dp
import pytest
from flint import arb
from numpy.typing import NDArray
from scipy import stats

from privalign import randomness
from privalign.acceptance import FloatProbabilities, threshold_edges
from privalign.randomness import Randomness, SecureRandomness, SeededRandomness

pytestmark = pytest.mark.statistical

FALSE_ALARM = 1e-8
ENOUGH = 100.0  # expected counts below this are pooled: the χ² tail is trusted down to FALSE_ALARM only above it

secure = SecureRandomness()
Law = NDArray[np.float64]


def index_p_value(draw: Callable[[], int], law: Law, draws: int) -> float:
    """The χ² p-value of `draws` indices against `law`; rare indices count as one."""
    observed = np.bincount([draw() for _ in range(draws)], minlength=len(law)).astype(np.float64)
    expected = law / law.sum() * draws
    rare = expected < ENOUGH
    pooled = [(observed[~rare], expected[~rare])]
    if rare.any():
        if expected[rare].sum() < ENOUGH:  # still too few for χ²: they join the likeliest index, impossible ones must not occur
            assert observed[expected < FALSE_ALARM / len(law)].sum() == 0
            rare[np.argmax(expected)] = True
            pooled = [(observed[~rare], expected[~rare])]
        pooled.append((observed[rare].sum(keepdims=True), expected[rare].sum(keepdims=True)))
    counts, means = (np.concatenate(part) for part in zip(*pooled, strict=True))
    return 1.0 if len(counts) == 1 else float(stats.chisquare(counts, means).pvalue)


def softmax(scores: NDArray[np.float64], scale: float) -> Law:
    weights = np.exp((scores - scores.max()) / scale)
    law: Law = weights / weights.sum()
    return law


def gaussian_law(scores: NDArray[np.float64], scale: float) -> Law:
    """Prop. E.2: w_i = E_Z Π_{j≠i} Φ(Z + (r_i − r_j)/σ), by the trapezoidal rule (exponentially accurate here)."""
    z = np.linspace(-12, 12, 4001)
    log_factors = stats.norm.logcdf(z[:, None, None] + (scores[:, None] - scores[None, :]) / scale)
    log_factors[:, range(len(scores)), range(len(scores))] = 0
    law: Law = np.sum(stats.norm.pdf(z)[:, None] * np.exp(log_factors.sum(axis=2)), axis=0) * (z[1] - z[0])
    return law


def peaked(n: int, scale: float) -> NDArray[np.float64]:
    """One score so far above n − 1 equal ones that it has about half of the probability."""
    scores = np.full(n, 0.25)
    scores[n // 3] += scale * math.log(n - 1)
    return scores


LADDER = np.array([0, 1, 2, 2.5])

SOFTMAX_CASES = {
    "ladder": (LADDER, 1.0),
    "flat": (np.zeros(16), 1.0),
    "flat-256": (np.full(256, 0.7), 0.1),
    "peak": (peaked(16, 0.1), 0.1),
    "peak-256": (peaked(256, 1e-3), 1e-3),
    "ties": (np.array([0.2, 0.9, 0.9, 0.2, 0.9, 0.5]), 0.4),
    "tiny scale, near ties": (np.array([0, 1, 1 - 1e-9, 1]), 1e-9),
    "tiny scale, one winner": (np.array([0, 0.5, 1]), 1e-9),
    "huge scale": (LADDER, 1e9),
    "huge scores": (LADDER * 1e12 - 1e12, 1e12),
}


def shapes(cases: dict[str, tuple[NDArray[np.float64], float]], *everywhere: str) -> list[object]:
    """The cases as parameters of a test, all but a few of them for `make soak` alone."""
    return [pytest.param(*case, id=name, marks=[] if name in everywhere else pytest.mark.soak) for name, case in cases.items()]


@pytest.mark.parametrize(("scores", "scale"), shapes(SOFTMAX_CASES, "ladder", "peak", "ties"))
def test_gumbel_argmax_is_softmax(scores: NDArray[np.float64], scale: float) -> None:
    assert index_p_value(lambda: secure.gumbel_argmax(scores, scale), softmax(scores, scale), 60_000) > FALSE_ALARM


def test_the_ladders_law_is_the_published_one() -> None:
    np.testing.assert_allclose(softmax(LADDER, 1.0), [0.0429, 0.1167, 0.3173, 0.5231], atol=5e-5)


def opendp_noisy_max(measure: dp.Measure, scale: float) -> Callable[[], int]:
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.linf_distance(T=float)
    measurement = dp.m.make_noisy_max(*space, measure, scale=scale)
    return lambda: int(measurement(LADDER.tolist()))


def test_an_independent_sampler_of_the_same_law_passes_the_same_test() -> None:
    draw = opendp_noisy_max(dp.zero_concentrated_divergence(), 1.0)
    assert index_p_value(draw, softmax(LADDER, 1.0), 5_000) > FALSE_ALARM


def test_permute_and_flip_fails_the_same_test() -> None:
    draw = opendp_noisy_max(dp.max_divergence(), 1.0)
    assert index_p_value(draw, softmax(LADDER, 1.0), 5_000) < 1e-6


GAUSSIAN_GOLDEN = [
    ([0.2, 0.9, 0.5, 0.1], 0.5, [0.09323804495982992, 0.6108114933970686, 0.22935580401618527, 0.06659465762691616]),
    ([0.5, 0.5, 0.1], 0.5, [0.42696151060675974, 0.42696151060675974, 0.14607697878648057]),
]


@pytest.mark.parametrize(("rewards", "scale", "golden"), [GAUSSIAN_GOLDEN[0], pytest.param(*GAUSSIAN_GOLDEN[1], marks=pytest.mark.soak)])
def test_gaussian_argmax_follows_proposition_e2(rewards: list[float], scale: float, golden: list[float]) -> None:
    scores = np.array(rewards)
    np.testing.assert_allclose(gaussian_law(scores, scale), golden, rtol=1e-11)
    assert index_p_value(lambda: secure.gaussian_argmax(scores, scale), np.array(golden), 60_000) > FALSE_ALARM


GAUSSIAN_CASES = {
    "flat": (np.full(40, 0.3), 1.0),
    "peak": (np.array([0.0] * 15 + [2.0]), 1.0),
    "tiny scale, near ties": (np.array([0, 1, 1 - 1e-9, 1]), 1e-9),
    "tiny scale, one winner": (np.array([0, 0.5, 1]), 1e-9),
    "huge scale": (LADDER, 1e9),
}


@pytest.mark.parametrize(("scores", "scale"), shapes(GAUSSIAN_CASES, "tiny scale, near ties"))
def test_gaussian_argmax_of_other_shapes(scores: NDArray[np.float64], scale: float) -> None:
    assert index_p_value(lambda: secure.gaussian_argmax(scores, scale), gaussian_law(scores, scale), 40_000) > FALSE_ALARM


def test_the_softmax_law_fails_for_gaussian_noise() -> None:
    scores = np.array([0.2, 0.9, 0.5, 0.1])
    assert index_p_value(lambda: secure.gaussian_argmax(scores, 0.5), softmax(scores, 0.5), 40_000) < 1e-6


@dataclass(frozen=True)
class Constant:
    """One real number as the probability of each round of a batch, and floats that say little about it."""

    value: arb
    count: int
    error: float = 2.0**-48

    def estimate(self) -> tuple[NDArray[np.float64], float]:
        return np.asarray(self), self.error

    def look(self, index: int) -> arb:
        return self.value

    enclose = look

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NDArray[np.float64]:
        return np.full(self.count, float(self.value))


BATCH = 500


@pytest.mark.parametrize("p", [0.3, 1e-3, 0.5, 1 - 1e-3])
def test_bernoulli_is_as_likely_as_stated(p: float) -> None:
    successes = sum(int(secure.bernoullis(Constant(arb(p), BATCH)).sum()) for _ in range(100_000 // BATCH))
    assert stats.binomtest(successes, 100_000, p).pvalue > FALSE_ALARM


def test_bernoulli_is_as_likely_as_stated_where_floats_settle_little() -> None:
    """A fifth of the rounds are within the error of the floats and settled by further digits."""
    successes = sum(int(secure.bernoullis(Constant(arb(0.3), BATCH, error=0.1)).sum()) for _ in range(20))
    assert stats.binomtest(successes, 20 * BATCH, 0.3).pvalue > FALSE_ALARM


def test_bernoulli_of_2_to_the_minus_1200_never_happens() -> None:
    assert not any(secure.bernoullis(Constant(arb((1, -1200)), BATCH)).any() for _ in range(5_000 // BATCH))
    assert all(secure.bernoullis(Constant(1 - arb((1, -40)), BATCH)).all() for _ in range(5_000 // BATCH))


MIXED = [0.0, 1.0, 1e-300, 1 - 1e-16, 0.5, 0.25, 0.9, 1e-3]


@pytest.mark.parametrize("n", [*(pytest.param(n, marks=pytest.mark.soak) for n in (1, 2)), 5, 8, 64, 257, 600])
def test_every_round_of_a_batch_has_its_own_probability(n: int) -> None:
    p = np.resize(MIXED, n)
    draws = 120_000 // n
    happened = sum(secure.bernoullis(FloatProbabilities(p)).astype(np.int64) for _ in range(draws))
    assert isinstance(happened, np.ndarray)
    assert not happened[p < 1e-200].any()
    assert (happened[p > 1 - 1e-10] == draws).all()
    for value in (0.5, 0.25, 0.9, 1e-3):
        if (p == value).any():
            assert stats.binomtest(int(happened[p == value].sum()), draws * int((p == value).sum()), value).pvalue > FALSE_ALARM


def test_neighbours_in_a_batch_are_independent() -> None:
    pairs = np.concatenate([secure.bernoullis(FloatProbabilities(np.full(600, 0.5))).reshape(-1, 2) for _ in range(100)])
    assert index_p_value(iter((2 * pairs[:, 0] + pairs[:, 1]).tolist()).__next__, np.full(4, 0.25), len(pairs)) > FALSE_ALARM


@pytest.mark.parametrize("n", [2, 7, 100])
def test_index_is_uniform(n: int) -> None:
    assert index_p_value(lambda: secure.index(n), np.full(n, 1 / n), 50_000) > FALSE_ALARM


def cell_law(value: float, scale: float, edges: NDArray[np.float64]) -> Law:
    """Φ differences, taken in the nearer tail."""
    z = (edges - value) / scale
    below, above = np.concatenate([[-np.inf], z]), np.concatenate([z, [np.inf]])
    law: Law = np.where(below > 0, stats.norm.sf(below) - stats.norm.sf(above), stats.norm.cdf(above) - stats.norm.cdf(below))
    return law


@pytest.mark.parametrize(("value", "scale"), [(0.3, 2.0), (-5.0, 1e-4), (1e4, 1e6)])
def test_gaussian_cell_is_normal_on_many_cells(value: float, scale: float) -> None:
    edges = value + scale * stats.norm.ppf(np.arange(1, 40) / 40)
    assert index_p_value(lambda: secure.gaussian_cell(value, scale, edges), cell_law(value, scale, edges), 5_000) > FALSE_ALARM


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 0.2, 30.0, 2e6])
@pytest.mark.parametrize("share", [-0.05, 0.3, 0.95])
def test_gaussian_cell_of_every_scale_that_is_let_in(scale: float, share: float) -> None:
    """σ from 10⁻⁹ R to where edges are refused; the normaliser at the ends of its range and inside."""
    edges = threshold_edges(0.05, 1.0)
    assert index_p_value(lambda: secure.gaussian_cell(share, scale, edges), cell_law(share, scale, edges), 5_000) > FALSE_ALARM


def test_gaussian_cell_by_further_digits_has_the_same_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(randomness, "_FAR", 1.0)
    edges = threshold_edges(0.05, 1.0)
    assert index_p_value(lambda: secure.gaussian_cell(0.3, 0.2, edges), cell_law(0.3, 0.2, edges), 3_000) > FALSE_ALARM


@pytest.mark.parametrize("law", ["gumbel", "gaussian"])
def test_argmaxes_by_further_digits_have_the_same_laws(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of the floats and nothing of the looks, so that all candidates draw further digits."""
    unseen = replace(getattr(randomness, f"_{law.upper()}"), floats=lambda v, upper: v * np.nan, near=lambda u, z: arb(0, math.inf))
    monkeypatch.setattr(randomness, f"_{law.upper()}", unseen)
    scores = np.array([0.2, 0.9, 0.5, 0.1])
    expected = softmax(scores, 0.5) if law == "gumbel" else np.array(GAUSSIAN_GOLDEN[0][2])
    assert index_p_value(lambda: getattr(secure, f"{law}_argmax")(scores, 0.5), expected, 2_000) > FALSE_ALARM


def test_gaussian_cell_is_a_discrete_law_on_a_coarse_grid() -> None:
    edges = np.arange(-30, 31) + 0.5
    assert index_p_value(lambda: secure.gaussian_cell(3.4, 1.5, edges), cell_law(3.4, 1.5, edges), 10_000) > FALSE_ALARM


@pytest.mark.parametrize(("scores", "scale"), SOFTMAX_CASES.values(), ids=SOFTMAX_CASES)
def test_seeded_gumbel_argmax_has_the_same_law(scores: NDArray[np.float64], scale: float) -> None:
    noise: Randomness = SeededRandomness(20)
    assert index_p_value(lambda: noise.gumbel_argmax(scores, scale), softmax(scores, scale), 30_000) > FALSE_ALARM


def test_the_other_seeded_draws_have_the_same_laws() -> None:
    noise: Randomness = SeededRandomness(21)
    rewards, scale, golden = GAUSSIAN_GOLDEN[0]
    assert index_p_value(lambda: noise.gaussian_argmax(np.array(rewards), scale), np.array(golden), 30_000) > FALSE_ALARM
    assert index_p_value(lambda: noise.index(7), np.full(7, 1 / 7), 30_000) > FALSE_ALARM
    edges = stats.norm.ppf(np.arange(1, 40) / 40)
    assert index_p_value(lambda: noise.gaussian_cell(0.0, 1.0, edges), cell_law(0.0, 1.0, edges), 30_000) > FALSE_ALARM
    assert stats.binomtest(int(noise.bernoullis(Constant(arb(0.3), 30_000)).sum()), 30_000, 0.3).pvalue > FALSE_ALARM
