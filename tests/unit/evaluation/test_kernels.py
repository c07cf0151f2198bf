"""Kernels of `evaluate` against brute force: every draw enumerated, each with the closed-form law of the mechanism itself."""

from __future__ import annotations

import math
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, norm

from privalign.acceptance import acceptance_ratios, kappas, log_accept, threshold_grid
from privalign.evaluation import expectations, kernels
from privalign.evaluation.expectations import sequential_law, threshold_law
from privalign.evaluation.kernels import noisy_max, rejection, streams
from privalign.evaluation.outcomes import _smoothing, _to_sums, nodes_needed
from privalign.mechanisms.bon import BoN
from privalign.mechanisms.itp import ITP
from privalign.mechanisms.normaliser import normaliser
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privbon_gaussian import PrivBoNGaussian
from privalign.mechanisms.privitp import PrivITP

RAW = np.array([0.7, -0.2, 0.3, 0.3, 1.4])
GOLD = np.array([0.2, 0.9, 0.0, 1.0, 0.4])
CLIPPED = np.clip(RAW, 0.0, 1.0)
OFFSETS = np.array([0, RAW.size])
ONE = np.array([0])


def pool(raw: np.ndarray = RAW, gold: np.ndarray = GOLD) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return kernels.prepare(np.array([0, raw.size]), raw, gold, 0.0, 1.0, 1.0)


def beats(values: np.ndarray) -> np.ndarray:
    return np.array([np.mean((value > values) + 0.5 * (value == values)) for value in values])


WORTH = np.stack([GOLD, RAW, beats(RAW), beats(GOLD)], axis=1)


def enumerated(law, size: int, draws) -> np.ndarray:
    """The mean payoffs of `law(rewards of the draws)` over all ordered draws of `size` candidates."""
    orders = [list(order) for order in draws(size)]
    return np.mean([law(CLIPPED[order]) @ WORTH[order] for order in orders], axis=0)


def with_replacement(size: int):
    return product(range(RAW.size), repeat=size)


def without_replacement(size: int):
    return permutations(range(RAW.size), size)


def test_pools_are_sorted_clipped_and_worth_the_same_in_total() -> None:
    q, payoffs, means = pool()
    assert q.tolist() == sorted(CLIPPED)
    assert np.allclose(payoffs.sum(axis=0), WORTH.sum(axis=0), rtol=1e-14)
    assert np.allclose(means[0], WORTH.mean(axis=0), rtol=1e-14)
    assert payoffs[1, 0] == payoffs[2, 0] == 0.5  # two candidates of reward .3 are told apart by nothing


@pytest.mark.parametrize("draws", [with_replacement, without_replacement])
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_best_of_n_is_exact(draws, n: int) -> None:
    _, payoffs, _ = pool()
    computed = kernels.best_of(OFFSETS, payoffs, np.array([n]), draws is with_replacement)[0, 0]
    assert computed == pytest.approx(enumerated(lambda r: expectations.bon(BoN(n), r), n, draws), rel=1e-13)


@pytest.mark.parametrize("scale", [1e-3, 0.02, 0.3, 5.0])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_noisy_best_of_n_is_exact_with_replacement(n: int, scale: float) -> None:
    q, payoffs, _ = pool()
    for gumbel, law in (
        (True, lambda r: expectations.privbon(PrivBoN(n, scale), r)),
        (False, lambda r: expectations.privbon_gaussian(PrivBoNGaussian(n, scale), r)),
    ):
        computed = kernels.noisy_best_with(OFFSETS, q, payoffs, scale, np.array([n]), gumbel)[0, 0]
        assert computed == pytest.approx(enumerated(law, n, with_replacement), rel=1e-9, abs=1e-10)


@pytest.mark.parametrize("gumbel", [True, False])
def test_the_series_of_the_noise_are_its_density_and_survival_function(gumbel: bool) -> None:
    step, below, series = (0.375, 4.0, noisy_max._GUMBEL_SERIES) if gumbel else (0.1, 8.5, noisy_max._NORMAL_SERIES)
    places = np.linspace(0, 1, 101)
    x = (np.arange(series.shape[2]) - math.ceil(below / step) - places[:, None]) * step
    exact = (np.exp(-x - np.exp(-x)), -np.expm1(-np.exp(-x))) if gumbel else (norm.pdf(x), norm.sf(x))
    for row, law in zip(np.polynomial.chebyshev.chebvander(2 * places - 1, series.shape[1] - 1) @ series, exact, strict=True):
        assert np.abs(row - law).max() < 1e-14
        assert np.abs(row / law - 1)[x > 0].max() < 1e-13


@pytest.mark.parametrize("size", [1, 2, 7])
def test_moments_are_sums_of_chebyshev_polynomials(size: int) -> None:
    rng = np.random.default_rng(size)
    x, worth, moments = rng.uniform(-1, 1, size), rng.random((size, 4)), np.full((30, 5), np.nan)
    noisy_max.moments_of(x, worth, moments)
    polynomials = np.polynomial.chebyshev.chebvander(x, 29)
    assert moments == pytest.approx(np.concatenate([polynomials.T @ worth, polynomials.sum(axis=0)[:, None]], axis=1), abs=1e-13)


@pytest.mark.parametrize("sigma_z", [0.005, 0.02, 0.25, 10.0])
@pytest.mark.parametrize("edge", [True, False])
def test_acceptance_from_moments_is_the_sum_over_candidates(sigma_z: float, edge: bool) -> None:
    """Also where all rewards crowd at the end of the range, where the recurrence of the polynomials is least stable."""
    rng = np.random.default_rng(0)
    q, worth = (1 - 1e-3 * rng.random(300) if edge else rng.random(300)), rng.random((300, 4))
    q.sort()
    points, ceiling = np.linspace(-0.05, 0.95, 50), 1 + 4 * sigma_z
    to_sums = _to_sums((*points, ceiling), sigma_z, 1.0, 10_000)
    moments, direct = np.empty((to_sums.shape[1], 5)), np.empty((51, 5))
    noisy_max.moments_of(2 * q - 1, worth, moments)
    for row, x in zip(direct, (*points, ceiling), strict=True):
        rejection._ramp_sums(q, worth, x, sigma_z, row)
    unit = (sigma_z / (ceiling - points))[:, None]
    accept, exact = (unit * (sums[:-1] - sums[-1]) for sums in (to_sums @ moments / 300, direct))
    assert accept == pytest.approx(exact, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=30),
    st.integers(1, 20_000),
    st.floats(1e-6, 100),
    st.booleans(),
)
def test_a_law_has_mass_one_for_every_pool_size_and_scale(points: list[int], n: int, scale: float, gumbel: bool) -> None:
    raw = np.array(points) / 20
    q, payoffs, _ = pool(raw, np.ones(raw.size))
    computed = kernels.noisy_best_with(np.array([0, raw.size]), q, payoffs, scale, np.array([n]), gumbel)[0, 0]
    assert computed[0] == pytest.approx(1.0, abs=1e-9)
    exact = kernels.best_of(np.array([0, raw.size]), payoffs, np.array([n]), True)[0, 0]
    assert exact[0] == pytest.approx(1.0, abs=1e-12)
    assert computed[1] <= exact[1] + 1e-9  # noise only loses reward


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.floats(1e-4, 10), st.floats(-2, 2))
def test_the_threshold_is_the_normaliser_from_any_start(rewards: list[float], beta: float, start: float) -> None:
    expected = normaliser(rewards, beta)
    for begin in (math.inf, start):
        assert kernels.threshold_of(np.array(rewards), beta, begin) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_the_threshold_survives_a_beta_below_the_spacing_of_floats() -> None:
    assert kernels.threshold_of(np.array([0.5, 0.5, 0.5]), 1e-30, math.inf) == 0.5


def thresholds(n: int, beta: float) -> np.ndarray:
    """λ of every possible first batch, in place of random replicates: what the kernel returns is then exact."""
    return np.array([[[normaliser(CLIPPED[list(batch)], beta) for batch in with_replacement(n)]]])


@pytest.mark.parametrize("beta", [0.01, 0.1, 1.0, 1e-30])
def test_itp_given_its_thresholds_is_exact(beta: float) -> None:
    q, payoffs, means = pool()
    computed = kernels.itp_with(OFFSETS, q, payoffs, means, thresholds(2, beta), np.array([2]), 1.0)[0, 0]
    assert computed[:4] == pytest.approx(enumerated(lambda r: expectations.itp(ITP(2, 2, beta), r, 1.0), 5, with_replacement), rel=1e-12)


@pytest.mark.parametrize(("sigma_x", "sigma_z"), [(0.3, 0.2), (0.05, 0.02), (2.0, 5.0), (1e-4, 1e-4), (0.3, 1e-5)])
def test_privitp_given_its_thresholds_is_exact(sigma_x: float, sigma_z: float) -> None:
    """Payoffs, fallback, halting time and cost, with λ̃ marginalised over its 1,024 points."""
    rule = PrivITP(2, 2, 0.1, sigma_x, sigma_z, 3.0)
    q, payoffs, means = pool()
    grid = threshold_grid(rule.beta, 1.0)
    points, *parts = _smoothing(rule.beta, sigma_x, sigma_z, 1.0, 2)
    prices, exact_prices = (
        np.stack([price(points, 1.0, sigma_z, rule.tail, 0.4) for price in (kappas, acceptance_ratios)], axis=1)
        for points in (points, grid)
    )
    lambdas, ceiling = thresholds(2, rule.beta), 1.0 + 3.0 * sigma_z
    computed = kernels.privitp_with(
        OFFSETS, q, payoffs, means, lambdas, np.array([2]), np.array([ceiling]), sigma_x, sigma_z, 1.0,
        points, _to_sums((*points, ceiling), sigma_z, 1.0, points.size), *parts, prices[None],
    )[0, 0]  # fmt: skip

    weights = np.mean([threshold_law(threshold, sigma_x, rule.beta, 1.0) for threshold in lambdas[0, 0]], axis=0)
    accept = np.exp(log_accept(CLIPPED, grid[:, None], 1.0, sigma_z, rule.tail))
    a = accept.mean(axis=1)
    rounds, none = 1 + (1 - a), (1 - a) ** 2
    payoff = rounds[:, None] * (accept @ WORTH) / RAW.size + none[:, None] * WORTH.mean(axis=0)
    cost = a * exact_prices[:, 1] + (1 - a) * a * exact_prices.sum(axis=1) + none * 2 * exact_prices[:, 0]
    assert computed[:4] == pytest.approx(weights @ payoff, abs=1e-10)
    assert computed[kernels.FALLBACK] == pytest.approx(weights @ none, abs=1e-10)
    assert computed[kernels.HALTING] == pytest.approx(weights @ rounds, abs=1e-10)
    assert computed[kernels.COST] == pytest.approx(weights @ cost, rel=1e-9)


def test_privitp_agrees_with_the_law_of_the_mechanism_over_all_draws() -> None:
    rule = PrivITP(1, 1, 0.1, 0.3, 0.2, 3.0)
    q, payoffs, means = pool()
    points, *parts = _smoothing(0.1, 0.3, 0.2, 1.0, 1)
    computed = kernels.privitp_with(
        OFFSETS, q, payoffs, means, thresholds(1, 0.1), np.array([1]), np.array([1.6]), 0.3, 0.2, 1.0,
        points, _to_sums((*points, 1.6), 0.2, 1.0, points.size), *parts, np.zeros((1, points.size, 2)),
    )[0, 0]  # fmt: skip
    assert computed[:4] == pytest.approx(enumerated(lambda r: expectations.privitp(rule, r, 1.0), 3, with_replacement), abs=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("sigma_x", [0.05, 0.25, 2.0])
@pytest.mark.parametrize("sigma_z", [0.03, 0.1, 0.25, 1.0, 10.0])
@pytest.mark.parametrize("cap", [1, 32, 4096])
def test_interpolation_gives_what_all_1024_thresholds_give(sigma_x: float, sigma_z: float, cap: int) -> None:
    """A long cap turns what happens at λ̃ into a steep function of it; prices too are read at few points."""
    q, payoffs, means = pool()
    grid, tail = threshold_grid(0.05, 1.0), 4.0
    lambdas = np.linspace(-0.05, 0.95, 7)[None, None]
    points, *parts = _smoothing(0.05, sigma_x, sigma_z, 1.0, cap)
    to_sums = _to_sums((*points, 1 + tail * sigma_z), sigma_z, 1.0, points.size)
    everywhere = (grid, np.empty((0, 0)), np.empty(0), np.empty(0), np.empty((0, 0)))  # no interpolation at all
    results = []
    for means_of_averaging in ((points, to_sums, *parts), everywhere):
        prices = np.stack([price(means_of_averaging[0], 1.0, sigma_z, tail, 0.3) for price in (kappas, acceptance_ratios)], axis=1)[None]
        arguments = (lambdas, np.array([cap]), np.array([1 + tail * sigma_z]), sigma_x, sigma_z, 1.0, *means_of_averaging, prices)
        results.append(kernels.privitp_with(OFFSETS, q, payoffs, means, *arguments)[0, 0])
    count = nodes_needed(1.0, sigma_z)
    assert to_sums.shape == ((points.size + 1, count) if count < points.size else (0, 0))
    assert results[0][: kernels.FALLBACK + 1] == pytest.approx(results[1][: kernels.FALLBACK + 1], abs=1e-9)
    assert results[0][kernels.HALTING :] == pytest.approx(results[1][kernels.HALTING :], rel=1e-7, abs=1e-12)


def test_the_acceptance_probability_is_that_of_the_mechanism() -> None:
    for sigma_z in (1e-3, 0.2, 10.0):
        grid, ceiling = threshold_grid(0.05, 1.0), 1 + 4 * sigma_z
        for q in (0.0, 0.37, 1.0):
            mass = np.array([rejection.ramp_at((q - x) / sigma_z) for x in grid]) - rejection.ramp_at((q - ceiling) / sigma_z)
            assert sigma_z / (ceiling - grid) * mass == pytest.approx(np.exp(log_accept(q, grid, 1.0, sigma_z, 4.0)), abs=1e-13)


RANDOM = 40_000
DRAWN = kernels.draws_without(OFFSETS, RAW.size, RANDOM, 3, ONE)


def within(computed: np.ndarray, exact: np.ndarray) -> None:
    """Six standard errors, of a kernel that is told to be random: a false alarm in 5e8."""
    error = math.sqrt(computed[kernels.VARIANCE])
    assert error < 0.005
    assert abs(computed[0] - exact[0]) < 6 * error + 1e-12
    assert np.abs(computed[1:4] - exact[1:4]).max() < 0.02


@pytest.mark.parametrize("n", [1, 3, 5])
def test_noisy_best_of_n_without_replacement(n: int) -> None:
    q, payoffs, _ = pool()
    for scale in (0.3, 1e-3):  # so small that weights relative to the best of the pool vanish
        softmax = kernels.softmax_without(OFFSETS, q, payoffs, scale, np.array([n]), DRAWN)[0, 0]
        within(softmax, enumerated(lambda r, scale=scale: expectations.privbon(PrivBoN(n, scale), r), n, without_replacement))
        gaussian = kernels.gaussian_without(OFFSETS, q, payoffs, scale, np.array([n]), DRAWN, 3, ONE)[0, 0]
        within(
            gaussian, enumerated(lambda r, scale=scale: expectations.privbon_gaussian(PrivBoNGaussian(n, scale), r), n, without_replacement)
        )


def test_the_hazard_of_the_normal_law() -> None:
    for z in np.linspace(-8.7, 8.99, 5001):
        assert noisy_max._hazard(z) == pytest.approx(math.exp(norm.logpdf(z) - norm.logcdf(z)), abs=1e-9)
    assert noisy_max._hazard(9.0) == 0.0


@pytest.mark.parametrize("replacement", [True, False])
def test_draws_are_uniform_and_longer_ones_begin_alike(replacement: bool) -> None:
    """Each of 5 · 5 or 5 · 4 pairs as often as the others: χ², false-alarm rate 1e-6."""
    make = kernels.draws_with if replacement else kernels.draws_without
    drawn = make(OFFSETS, 2, RANDOM, 3, ONE)[0]
    assert np.array_equal(make(OFFSETS, 5, RANDOM, 3, ONE)[0, :, :2], drawn)
    counts = np.bincount(drawn[:, 0] * 5 + drawn[:, 1], minlength=25).reshape(5, 5)
    if not replacement:
        assert (np.diag(counts) == 0).all()
        counts = counts[~np.eye(5, dtype=bool)]
    assert chi2.sf(((counts - RANDOM / counts.size) ** 2).sum() / (RANDOM / counts.size), counts.size - 1) > 1e-6


def test_pools_that_are_too_small_are_not_read_beyond_their_end() -> None:
    q, payoffs, means = pool()
    drawn, sizes = kernels.draws_without(OFFSETS, 4, 3, 0, ONE), np.array([2, 9])
    lambdas = kernels.thresholds(OFFSETS, q, sizes, 0.1, drawn)
    assert np.isnan(lambdas).tolist() == [[[False] * 3], [[True] * 3]]
    grid = threshold_grid(0.1, 1.0)
    results = [
        kernels.best_of(OFFSETS, payoffs, sizes, False),
        kernels.softmax_without(OFFSETS, q, payoffs, 0.3, sizes, drawn),
        kernels.gaussian_without(OFFSETS, q, payoffs, 0.3, sizes, drawn, 0, ONE),
        kernels.rounds_without(
            OFFSETS, q, payoffs, means, lambdas, sizes, sizes, np.empty(0), 1.0, 1.0, np.empty((0, 0)), grid, np.empty((0, 0, 2)), drawn
        ),
    ]
    for result in results:
        assert (result[0] > 0).any()
        assert (result[1] == 0).all()


@pytest.mark.parametrize("replacement", [True, False])
def test_reuse_of_one_batch(replacement: bool) -> None:
    from privalign.mechanisms.itp_reuse import ITPReuse

    q, payoffs, _ = pool()
    drawn = kernels.draws_with(OFFSETS, 3, RANDOM, 3, ONE) if replacement else DRAWN
    lambdas = kernels.thresholds(OFFSETS, q, np.array([3]), 0.1, drawn)
    computed = kernels.reuse(OFFSETS, q, payoffs, lambdas, np.array([3]), drawn)[0, 0]
    draws = with_replacement if replacement else without_replacement
    within(computed, enumerated(lambda r: expectations.itp_reuse(ITPReuse(3, 0.1), r), 3, draws))


def test_rounds_without_replacement() -> None:
    q, payoffs, means = pool()
    two, grid = np.array([2]), threshold_grid(0.1, 1.0)
    pools = (OFFSETS, q, payoffs, means, kernels.thresholds(OFFSETS, q, two, 0.1, DRAWN), two, two)
    computed = kernels.rounds_without(*pools, np.empty(0), 1.0, 1.0, np.empty((0, 0)), grid, np.empty((0, 0, 2)), DRAWN)[0, 0]
    within(computed, enumerated(lambda r: expectations.itp(ITP(2, 2, 0.1), r, 1.0), 5, without_replacement))

    rule = PrivITP(2, 2, 0.1, 0.3, 0.2, 3.0)
    noise = 0.3 * np.random.default_rng(5).standard_normal((1, RANDOM))
    computed = kernels.rounds_without(*pools, np.array([1.6]), 1.0, 0.2, noise, grid, np.zeros((1, 1024, 2)), DRAWN)[0, 0]
    within(computed, enumerated(lambda r: expectations.privitp(rule, r, 1.0), 5, without_replacement))


def test_rounds_without_replacement_on_equal_rewards_are_exact() -> None:
    """Then no draw matters, and λ̃, the acceptance probability, the halting time and the cost are known to the last digit."""
    q, payoffs, means = pool(np.full(6, 0.6), np.full(6, 0.3))
    grid, prices = threshold_grid(0.1, 1.0), np.random.default_rng(0).random((1024, 2))
    point = int(np.rint((0.5 + 0.07 + 0.1) * 1023))
    offsets, two = np.array([0, 6]), np.array([2])
    drawn = kernels.draws_without(offsets, 6, 5, 3, ONE)
    lambdas = kernels.thresholds(offsets, q, two, 0.1, drawn)
    computed = kernels.rounds_without(
        offsets, q, payoffs, means, lambdas, two, two + 1, np.array([1.6]), 1.0, 0.2, np.full((1, 5), 0.07), grid, prices[None], drawn
    )[0, 0]
    reject = -np.expm1(log_accept(0.6, grid[point], 1.0, 0.2, 3.0))
    none, halting = reject**3, 1 + reject + reject**2
    kappa, last = prices[point]
    assert computed[kernels.GOLD] == pytest.approx(0.3, rel=1e-13)
    assert computed[kernels.FALLBACK] == pytest.approx(none, rel=1e-12)
    assert computed[kernels.HALTING] == pytest.approx(halting, rel=1e-12)
    assert computed[kernels.COST] == pytest.approx(kappa * (halting - 1 + none) + last * (1 - none), rel=1e-12)


def test_streams_of_prompts_and_replicates_differ_and_draws_are_nested() -> None:
    states = {int(kernels.stream(seed, prompt, replicate)) for seed in range(5) for prompt in range(20) for replicate in range(20)}
    assert len(states) == 2000
    long, short = np.empty(50, np.int64), np.empty(20, np.int64)
    for drawn in (long, short):
        streams.draw_without(kernels.stream(1, 2, 3), np.empty(60, np.int64), drawn)
    assert long[:20].tolist() == short.tolist()
    assert len(set(long.tolist())) == 50


def test_the_authors_rounds_are_sequential_on_one_pool() -> None:
    """ITP and PrivBoN at n = N: the sample is the whole pool, and only its order is random."""
    z, scale, beta = np.array([0.1, 0.9, 0.4]), 0.5, 0.3
    gold = np.array([1.0, 0.0, 0.5])
    q, payoffs, _ = kernels.prepare(np.array([0, 3]), z, gold, 0.1, 0.9, 0.8)
    base, normals = np.array([0.25, 0.0, 0.5, 0.5]), np.random.default_rng(0).standard_normal(4000, dtype=np.float32)
    computed = kernels.authors_comparison(
        np.array([0, 3]), q, payoffs, base, np.array([3]), scale, beta, 0.2, normals, 150, RANDOM // 4, 0, ONE
    )[:, 0, 0]
    weights = np.exp(z / scale)
    assert computed[0, 0] == pytest.approx(weights @ gold / weights.sum(), rel=1e-12)
    threshold = normaliser(z, beta)
    accept = np.minimum(np.maximum(z - threshold, 0) / (z.max() - threshold), 1)
    orders = [list(order) for order in permutations(range(3))]
    with np.errstate(divide="ignore"):
        laws = [sequential_law(np.log(accept[order]), np.log1p(-accept[order])) for order in orders]
    exact = np.mean([law @ gold[order] + none * base[0] for (law, none), order in zip(laws, orders, strict=True)])
    assert abs(computed[1, 0] - exact) < 6 * math.sqrt(computed[1, kernels.VARIANCE]) + 1e-12


def test_the_authors_fallback_earns_the_base_and_one_candidate_is_taken_half_the_time() -> None:
    """n = 1: λ = r − β, so PrivITP accepts with Φ(β/σ√2), 150 draws of noise in each of 2,000 replicates; seven deviations."""
    beta, sigma, normals = 0.05, 0.5, np.random.default_rng(0).standard_normal(1 << 20, dtype=np.float32)
    q, payoffs, _ = kernels.prepare(np.array([0, 4]), np.array([0.1, 0.9, 0.4, 1.6]), np.full(4, 0.75), 0.1, 1.6, 1.5)
    base = np.array([0.25, 0.0, 0.5, 0.5])
    computed = kernels.authors_comparison(
        np.array([0, 4]), q, payoffs, base, np.array([1, 3]), 1.0, beta, sigma, normals, 150, 2000, 0, ONE
    )[2, :, 0]
    accept = 0.5 * (1 + math.erf(beta / sigma / 2))
    assert abs(computed[0, kernels.FALLBACK] - (1 - accept)) < 7 * 0.5 / math.sqrt(150 * 2000)
    assert computed[:, kernels.GOLD] == pytest.approx(0.75 - 0.5 * computed[:, kernels.FALLBACK], rel=1e-12)
    assert computed[0, kernels.HALTING] == 1
