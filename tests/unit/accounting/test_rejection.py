"""Phase 2 of PrivITP: ex-post costs and Rényi divergence against brute force in high precision."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privalign.acceptance import acceptance_ratio, default_tail, kappa, threshold_grid
from privalign.accounting import costs, rejection
from privalign.errors import InvalidInput
from privalign.events import FALLBACK, RejectionRounds
from privalign.intervals import TooExtreme
from privalign.sensitivity import RewardRange, Sensitivity

UNIT = RewardRange(0, 1)


def rounds_of(delta: float, scale: float, cap: int, beta: float = 0.05, tail: float | None = None) -> RejectionRounds:
    return RejectionRounds(Sensitivity(delta, UNIT), beta, scale, default_tail(cap) if tail is None else tail, cap)


def ramp(z: mp.mpf) -> mp.mpf:
    return z * mp.ncdf(z) + mp.npdf(z)


class Truth:
    """p(q) and 1 − p(q) as the formulas are written, at the precision in force when it was made: each is worked out once."""

    def __init__(self, rounds: RejectionRounds, threshold: float) -> None:
        self.scale, self.threshold = mp.mpf(rounds.scale), mp.mpf(threshold)
        self.ceiling = mp.mpf(rounds.sensitivity.width) + self.scale * mp.mpf(rounds.tail)
        self.h = (self.ceiling - self.threshold) / self.scale
        self.accept, self.reject = functools.cache(self._accept), functools.cache(self._reject)

    def _accept(self, q: mp.mpf) -> mp.mpf:
        return (ramp((q - self.threshold) / self.scale) - ramp((q - self.ceiling) / self.scale)) / self.h

    def _reject(self, q: mp.mpf) -> mp.mpf:
        return (ramp((self.ceiling - q) / self.scale) - ramp((self.threshold - q) / self.scale)) / self.h

    def outcomes(self, rewards: Sequence[mp.mpf]) -> list[mp.mpf]:
        """The probabilities of stopping at 1 … n and of the fallback."""
        survival, law = mp.mpf(1), []
        for q in rewards:
            law.append(survival * self.accept(q))
            survival *= self.reject(q)
        return [*law, survival]

    def divergence(self, pairs: Sequence[tuple[mp.mpf, mp.mpf]], order: float, cap: int) -> mp.mpf:
        """log V_n/(α − 1) of the recursion over the given pairs of rewards, one step at a time."""
        a = mp.mpf(order)
        lines = []
        for q, other in pairs:
            p, c, p_other, c_other = self.accept(q), self.reject(q), self.accept(other), self.reject(other)
            lines.append((p**a * p_other ** (1 - a), c**a * c_other ** (1 - a)))
        excess = [(first + second - 1, second) for first, second in lines]
        u = mp.mpf(0)
        for _ in range(cap):
            u = max(e + b * u for e, b in excess)
        return mp.log1p(u) / (a - 1)


# ---- ex-post costs -----------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_outcome_of_every_pair_is_covered(data: st.DataObject) -> None:
    """Neighbouring reward sequences: no outcome's log-ratio is above its ex-post cost, nor above the worst halting time."""
    cap = data.draw(st.integers(1, 5))
    share = data.draw(st.one_of(st.just(1.0), st.floats(1e-3, 1)))
    rounds = rounds_of(share, 10 ** data.draw(st.floats(-1.3, 1)), cap, beta=10 ** data.draw(st.floats(-2, 1)))
    threshold = float(threshold_grid(rounds.beta, 1.0)[data.draw(st.integers(0, 1023))])
    unit = st.floats(0, 1)
    rewards = data.draw(st.lists(st.one_of(unit, st.sampled_from([0.0, share, 1 - share, 1.0])), min_size=cap, max_size=cap))
    moves = data.draw(st.lists(st.one_of(st.floats(-share, share), st.sampled_from([-share, share])), min_size=cap, max_size=cap))
    with mp.workdps(60):
        here = [mp.mpf(q) for q in rewards]
        there = [min(max(q + mp.mpf(move), mp.mpf(0)), mp.mpf(1)) for q, move in zip(here, moves, strict=True)]
        truth = Truth(rounds, threshold)
        law, other = truth.outcomes(here), truth.outcomes(there)
        assert abs(mp.fsum(law) - 1) < mp.mpf(10) ** -40
        worst = rejection.worst_halt_epsilon(rounds, threshold)
        for halt, p, q in zip([*range(1, cap + 1), FALLBACK], law, other, strict=True):
            loss = abs(mp.log(p / q))
            cost = rejection.ex_post_epsilon(rounds, threshold, halt)
            assert loss <= cost <= worst <= rejection.interval_epsilon(rounds) * (1 + 1e-15)


@pytest.mark.parametrize(("share", "scale", "index"), [(0.1, 0.1, 0), (0.3, 1.0, 400), (1.0, 0.2, 1023), (1e-6, 30.0, 700)])
def test_the_extremal_pair_attains_the_cost(share: float, scale: float, index: int) -> None:
    """Rejections at (R − Δ, R) and an acceptance at (Δ, 0): the cost of each halting time and of the fallback is exact."""
    cap = 4
    rounds = rounds_of(share, scale, cap)
    threshold = float(threshold_grid(rounds.beta, 1.0)[index])
    with mp.workdps(80):
        truth, delta = Truth(rounds, threshold), mp.mpf(share)
        for halt in range(1, cap + 1):
            here, there = [1 - delta] * (halt - 1) + [delta], [mp.mpf(1)] * (halt - 1) + [mp.mpf(0)]
            loss = mp.log(truth.outcomes(here)[halt - 1] / truth.outcomes(there)[halt - 1])
            assert loss <= rejection.ex_post_epsilon(rounds, threshold, halt) <= loss * (1 + mp.mpf(2) ** -50)
        loss = mp.log(truth.outcomes([1 - delta] * cap)[-1] / truth.outcomes([mp.mpf(1)] * cap)[-1])
        assert loss <= rejection.ex_post_epsilon(rounds, threshold, FALLBACK) <= loss * (1 + mp.mpf(2) ** -50)


def test_the_papers_counterexample_of_the_uncharged_fallback() -> None:
    """n = 2, R = 1, Δ = .1, β = .5, σ_Z = .05, L = 3.8, λ̃ = −.5: the fallback loses .8457, more than stopping at 2 costs (.6052)."""
    rounds = rounds_of(0.1, 0.05, 2, beta=0.5, tail=3.8)
    with mp.workdps(40):
        truth = Truth(rounds, -0.5)
        here, there = [mp.mpf(1) - mp.mpf(0.1)] * 2, [mp.mpf(1)] * 2
        loss = mp.log(truth.outcomes(here)[-1] / truth.outcomes(there)[-1])
    stopping = rejection.ex_post_epsilon(rounds, -0.5, 2)
    assert float(loss) == pytest.approx(0.8457, abs=5e-5)
    assert stopping == pytest.approx(0.6052, abs=5e-5)
    assert stopping < loss <= rejection.ex_post_epsilon(rounds, -0.5, FALLBACK) == rejection.worst_halt_epsilon(rounds, -0.5)


@pytest.mark.parametrize(
    ("share", "scale", "cap", "beta"), [(0.1, 0.1, 16, 0.05), (1.0, 0.5, 256, 2.0), (0.01, 1e-3, 4, 1e-3), (0.5, 1e3, 1, 1e6)]
)
def test_worst_cases(share: float, scale: float, cap: int, beta: float) -> None:
    rounds = rounds_of(share, scale, cap, beta)
    grid = [float(threshold) for threshold in threshold_grid(beta, 1.0)]
    table = [rejection.worst_halt_epsilon(rounds, threshold) for threshold in grid]
    worst = rejection.worst_case_epsilon(rounds)
    assert worst == max(table)
    bounds = [rejection.interval_epsilon(rounds, cells) for cells in (1, 16, 256)]
    assert bounds[0] >= bounds[1] >= bounds[2] >= worst
    curves = [rejection.curve_at(rounds, threshold) for threshold in grid]
    largest = max(kappa(curve, share) for curve in curves), max(acceptance_ratio(curve, share) for curve in curves)
    assert rejection.worst_ingredients(rounds) == largest


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_the_worst_threshold_is_found_without_pricing_all(seed: int) -> None:
    """Settings over many magnitudes, those included whose floats underflow: the plain maximum over all balls, to an ulp."""
    rng = np.random.default_rng(seed)
    width = 10.0 ** rng.uniform(-2, 2)
    sensitivity = Sensitivity(width * 10.0 ** rng.uniform(-6, 0), RewardRange(0.0, width))
    scale = width * 10.0 ** rng.uniform(-2.5, 5)
    cap = int(rng.choice([1, 2, 16, 4096]))
    rounds = RejectionRounds(sensitivity, width * 10.0 ** rng.uniform(-3, 1), scale, rng.uniform(0.5, 5), cap)
    grid = threshold_grid(rounds.beta, width)
    plain = max(rejection.worst_halt_epsilon(rounds, float(threshold)) for threshold in grid)
    assert plain * (1 - 1e-15) <= rejection.worst_case_epsilon(rounds) <= plain


@settings(max_examples=50, deadline=None)
@given(
    share=st.floats(1e-4, 1),
    less=st.floats(0.1, 1),
    log_scale=st.floats(-2, 2),
    louder=st.floats(1, 10),
    cap=st.integers(1, 50),
    index=st.integers(0, 1023),
)
def test_ex_post_cost_is_monotone(share: float, less: float, log_scale: float, louder: float, cap: int, index: int) -> None:
    """Up in t, in Δ and in n₂; the worst halting time also down in σ_Z, with the tail fixed."""
    scale = 10**log_scale
    rounds = rounds_of(share, scale, cap, tail=3.0)
    threshold = float(threshold_grid(rounds.beta, 1.0)[index])

    def worst(share: float, scale: float, cap: int) -> float:
        return rejection.worst_halt_epsilon(rounds_of(share, scale, cap, tail=3.0), threshold)

    by_time = [rejection.ex_post_epsilon(rounds, threshold, halt) for halt in range(1, cap + 1)]
    assert by_time == sorted(by_time)
    value = worst(share, scale, cap)
    assert worst(share * less, scale, cap) <= value
    assert worst(share, scale, cap + 1) > value
    assert worst(share, scale * louder, cap) <= value * (1 + 1e-14)


# ---- Rényi -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1.05, 1.5, 4.0, 64.0, 1000.0])
@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 1e3])
def test_renyi_is_exact_at_full_sensitivity(order: float, scale: float) -> None:
    for cap, index in itertools.product((1, 2, 256), (0, 600, 1023)):
        rounds = rounds_of(1.0, scale, cap)
        threshold = float(threshold_grid(rounds.beta, 1.0)[index])
        with mp.workdps(50):
            true = Truth(rounds, threshold).divergence([(mp.mpf(0), mp.mpf(1)), (mp.mpf(1), mp.mpf(0))], order, cap)
        value = rejection.renyi_at(rounds, threshold, order)
        assert true <= value <= true * (1 + 1e-12)


WORST_SLACK = 0.03  # σ_Z ≥ R/10; measured 2.5 % over a wider net, against the best of a few hundred pairs of rewards


def pairs_at_distance(rounds: RejectionRounds, threshold: float, count: int) -> list[tuple[mp.mpf, mp.mpf]]:
    """Rewards at distance exactly Δ: evenly spread, and around the places where p bends and where its increment peaks."""
    delta = mp.mpf(rounds.sensitivity.delta)
    truth, top = Truth(rounds, threshold), 1 - mp.mpf(rounds.sensitivity.delta)
    near = np.concatenate([np.linspace(-6, 6, count // 2), np.linspace(-1, 1, count // 4)])
    spots = [top * k / count for k in range(count + 1)]
    for centre in (truth.threshold, truth.threshold - delta, (truth.threshold + truth.ceiling - delta) / 2, mp.mpf(0), top):
        spots += [centre + truth.scale * mp.mpf(float(offset)) for offset in near]
    inside = {q for q in spots if 0 <= q <= top}
    return [pair for q in inside for pair in ((q, q + delta), (q + delta, q))]


def renyi_cases() -> list[tuple[float, float, float, int]]:
    shares, scales = (1e-9, 1e-4, 0.03, 0.5, 0.999), (1e-3, 0.1, 1.0, 1e3)
    cases = list(itertools.product(shares, scales))
    orders, indices = itertools.cycle((1.05, 2.0, 32.0, 1000.0, 4.0)), itertools.cycle((0, 1023, 350))
    return [(share, scale, next(orders), next(indices)) for share, scale in cases]


@pytest.mark.slow
@pytest.mark.parametrize(("share", "scale", "order", "index"), renyi_cases())
def test_renyi_bound_below_full_sensitivity(share: float, scale: float, order: float, index: int) -> None:
    """Never below the best pairs that a search finds, and above them by no more than the stated slack and rounding."""
    cap = 16
    rounds = rounds_of(share, scale, cap)
    threshold = float(threshold_grid(rounds.beta, 1.0)[index])
    with mp.workdps(70):
        true = Truth(rounds, threshold).divergence(pairs_at_distance(rounds, threshold, 40), order, cap)
    value = rejection.renyi_at(rounds, threshold, order)
    rounding = cap * 2.0**-46 * share / scale / (order - 1)
    assert true <= value
    assert value <= true * (1 + WORST_SLACK) + rounding or scale < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("cells", [2, 5, 30])
@pytest.mark.parametrize(
    ("share", "scale", "cap"), [(0.05, 0.1, 1), (0.3, 0.2, 16), (0.01, 0.5, 64), (0.7, 1.0, 4), (0.6, 0.02, 3), (0.95, 0.05, 1)]
)
def test_a_few_cells_bound_everything_between_their_edges(share: float, scale: float, cap: int, cells: int) -> None:
    """The bound is rigorous for any number of cells: none of the pairs inside wide cells is above it."""
    rounds = rounds_of(share, scale, cap)
    for index in (0, 500, 1023):
        threshold = float(threshold_grid(rounds.beta, 1.0)[index])
        with mp.workdps(30):
            truth, pairs = Truth(rounds, threshold), pairs_at_distance(rounds, threshold, 12)
            for order in (1.05, 2.0, 20.0):
                bound = rejection._bound(rounds, threshold, order, cells)
                assert truth.divergence(pairs, order, cap) <= bound
                assert rejection.renyi_at(rounds, threshold, order) <= bound


@pytest.mark.slow
@pytest.mark.parametrize("cells", [2, 30])
@pytest.mark.parametrize(("share", "scale", "cap"), [(0.05, 0.1, 1), (0.3, 0.2, 16), (0.7, 1.0, 4), (0.6, 0.02, 3), (1e-4, 0.3, 256)])
def test_a_span_bounds_every_threshold_in_it(share: float, scale: float, cap: int, cells: int) -> None:
    """Rigorous for any span, not only where one of its ends is the worst; and each order as if it were alone."""
    rounds, orders = rounds_of(share, scale, cap), (1.05, 2.0, 20.0)
    grid = threshold_grid(rounds.beta, 1.0)
    for first, last in ((0, 1023), (0, 7), (500, 531), (1000, 1023)):
        bounds = rejection._bounds(rounds, (grid[first], grid[last]), orders, cells)
        for order, bound in zip(orders, bounds, strict=True):
            assert rejection._bounds(rounds, (grid[first], grid[last]), (order,), cells)[0] == bound
        with mp.workdps(30):
            for index in {first, (first + last) // 2, last}:
                truth, pairs = Truth(rounds, float(grid[index])), pairs_at_distance(rounds, float(grid[index]), 8)
                for order, bound in zip(orders, bounds, strict=True):
                    assert truth.divergence(pairs, order, cap) <= bound


@pytest.mark.slow
@pytest.mark.parametrize(("share", "scale"), [(0.05, 0.1), (0.3, 0.2), (0.7, 1.0), (0.4, 0.05), (1e-4, 0.3)])
def test_every_pair_of_a_span_is_below_a_line_of_its_half(share: float, scale: float) -> None:
    """Below the mode and above it: at every threshold of a span some line is no lower than the pair in both E and B."""
    rounds, orders = rounds_of(share, scale, 1), (1.05, 4.0)
    for ends in ((0.1, 0.1), (-0.05, 0.05), (0.3, 0.4), (0.2, 0.95)):
        halves = rejection._cells(*(rejection.curve_at(rounds, end) for end in ends), share, 200)
        mode = min(max((ends[0] + 1 + scale * rounds.tail - share) / 2, 0.0), 1 - share)
        for half, (low, high) in zip(halves, ((0.0, mode), (mode, 1 - share)), strict=True):
            if not half.u.size:
                continue
            log_e, log_b = rejection._cell_lines((half,), orders)
            for threshold, q in itertools.product(np.linspace(*ends, 3), np.linspace(low, high, 7)):
                with mp.workdps(250):
                    truth, here, there = Truth(rounds, float(threshold)), mp.mpf(q), mp.mpf(q) + mp.mpf(share)
                    for (number, order), (one, other) in itertools.product(enumerate(orders), ((here, there), (there, here))):
                        second = truth.reject(one) ** order * truth.reject(other) ** (1 - mp.mpf(order))
                        first = truth.accept(one) ** order * truth.accept(other) ** (1 - mp.mpf(order)) + second - 1
                        above = (log_e[number] >= float(mp.log(first))) & (log_b[number] >= float(mp.log(second)))
                        assert above.any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "order", "cap", "scale"),
    [
        pytest.param(0.1, 4.0, 16, 0.2, marks=pytest.mark.soak),
        pytest.param(0.05, 1.5, 64, 0.2, marks=pytest.mark.soak),
        (1.0, 2.0, 16, 0.3),
    ],
)
def test_worst_renyi_is_the_maximum_of_the_table(
    share: float, order: float, cap: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejection, "LEVELS", ((64, 20), (4, 60), (1, 150)))
    monkeypatch.setattr(rejection, "CELLS", 150)  # the search is the same, and every threshold can be looked at
    rejection.worst_case_renyi.cache_clear()
    rounds = rounds_of(share, scale, cap)
    orders = (1.25, order, 32.0)
    worst = rejection.worst_case_renyi(rounds, orders)
    largest = rejection.renyi_table(rounds, order).max()
    assert largest <= worst[1] <= largest * (1 + rejection.NEAR_ENOUGH)
    assert largest <= rejection.worst_case_renyi(rounds, (order,))[0] <= largest * (1 + rejection.NEAR_ENOUGH)
    rejection.worst_case_renyi.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize(("share", "cap", "scale"), [(0.1, 16, 0.2), pytest.param(0.1, 4096, 0.5, marks=pytest.mark.soak), (1e-6, 4, 10.0)])
def test_no_threshold_costs_more_than_the_worst(share: float, cap: int, scale: float) -> None:
    rounds, orders = rounds_of(share, scale, cap), (3.0,)
    worst = rejection.worst_case_renyi(rounds, orders)
    for threshold in threshold_grid(rounds.beta, 1.0)[::60]:
        for order, bound in zip(orders, worst, strict=True):
            assert rejection.renyi_at(rounds, float(threshold), order) <= bound


@settings(max_examples=40, deadline=None)
@given(
    share=st.floats(1e-3, 0.8),
    more=st.floats(1.1, 1.2),
    log_scale=st.floats(-1, 1.5),
    cap=st.integers(1, 200),
    index=st.integers(0, 1023),
)
def test_renyi_is_monotone(share: float, more: float, log_scale: float, cap: int, index: int) -> None:
    """Up in Δ, n₂ and α; below the worst outcome, and below the divergence of randomised response at it."""
    rounds = rounds_of(share, 10**log_scale, cap, tail=3.0)
    threshold = float(threshold_grid(rounds.beta, 1.0)[index])
    value = rejection.renyi_at(rounds, threshold, 4.0)
    assert 0 < value <= rejection.renyi_at(rounds_of(share * more, 10**log_scale, cap, tail=3.0), threshold, 4.0)
    assert value < rejection.renyi_at(rounds_of(share, 10**log_scale, 2 * cap, tail=3.0), threshold, 4.0) * (1 + 1e-12)
    assert rejection.renyi_at(rounds, threshold, 3.9) <= value * 1.01
    pure = rejection.worst_halt_epsilon(rounds, threshold)
    assert value <= 1.01 * costs.randomised_response_renyi(pure, 4.0)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_jumps_agree_with_a_plain_loop(data: st.DataObject) -> None:
    """U ← max_i (E_i + B_i U), n times, against the closed form of geometric stretches."""
    count, cap = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 4096))
    e = np.array(data.draw(st.lists(st.floats(1e-12, 1e3), min_size=count, max_size=count)))
    b = np.array(data.draw(st.lists(st.one_of(st.floats(0.9, 1.05), st.sampled_from([0.5, 1.0])), min_size=count, max_size=count)))
    u = 0.0
    for _ in range(cap):
        u = float((e + b * u).max())
    value = rejection._log_excess(*rejection._frontier(np.log(e), np.log(b)), cap)
    assert value == pytest.approx(math.log(u), rel=1e-12, abs=1e-11)


def test_a_million_rounds_agree_with_a_plain_loop() -> None:
    lines = [(1e-3, 0.9999), (2e-4, 1 - 1e-7), (1e-5, 1 + 2e-6)]
    u = 0.0
    for _ in range(10**6):
        u = max(e + b * u for e, b in lines)
    log_e, log_b = np.log(np.array(lines)).T
    value = rejection._log_excess(*rejection._frontier(log_e, log_b), 10**6)
    assert value == pytest.approx(math.log(u), rel=1e-9)


def test_a_million_rounds_are_priced_at_once() -> None:
    """Two lines whose slopes differ by less than the rounding of log U: each is left at most once."""
    rounds = rounds_of(0.1, 1e-9, 10**6, beta=1e-12)
    threshold = float(threshold_grid(rounds.beta, 1.0)[-1])
    curve = rejection.curve_at(rounds, threshold)
    (log_e,), (log_b,) = rejection._cell_lines(rejection._cells(curve, curve, 0.1, 100), (1.05,))
    lines = rejection._frontier(log_e, log_b)
    visits = 0
    original = rejection._next_crossing

    def counted(log_e: np.ndarray, log_b: np.ndarray, active: int) -> float:
        nonlocal visits
        visits += 1
        return original(log_e, log_b, active)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rejection, "_next_crossing", counted)
        rejection._log_excess(*lines, 10**6)
    assert visits <= lines[0].size


# ---- where floats end --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [-3, -5, -6, -7, -9, -20, -100, -153, -156, -160, -300])
@pytest.mark.parametrize("order", [1.0001, 1.5, 4.0, 1000.0])
def test_little_noise_never_makes_a_divergence_small(exponent: int, order: float) -> None:
    """σ_Z down to where squares of λ̃/σ_Z overflow. At λ̃ = .95 p(1) > ½ and p(.9) < e^{−(.05/σ_Z)²/2}, and so diverge."""
    rounds = rounds_of(0.1, 10.0**exponent, 4, tail=3.0)
    try:
        kullback_leibler = 0.5 * 0.05**2 / 2 * 10.0 ** (-2 * exponent) - 1
        assert rejection.renyi_at(rounds, float(threshold_grid(rounds.beta, 1.0)[-1]), order) >= kullback_leibler
    except (TooExtreme, OverflowError):
        assert exponent < -150
    for threshold in (-0.05, 0.5):
        try:
            assert rejection.renyi_at(rounds, threshold, order) <= rejection.worst_halt_epsilon(rounds, threshold)
        except TooExtreme:
            assert exponent < -150


def test_the_worst_case_is_never_above_the_worst_outcome() -> None:
    for exponent in (-3, -5, -9):
        rounds = rounds_of(0.1, 10.0**exponent, 4, tail=3.0)
        for order in (1.0001, 1000.0):
            assert 0.9 <= rejection.worst_case_renyi(rounds, (order,))[0] / rejection.worst_case_epsilon(rounds) <= 1


@pytest.mark.parametrize(("share", "scale"), [(1e-160, 1.0), (1e-165, 2.0), (1e-200, 1.0), (0.1, 1e162), (1.0, 1e200)])
@pytest.mark.parametrize("order", [1.01, 3.0, 64.0])
def test_a_divergence_that_underflows_is_rounded_up(share: float, scale: float, order: float) -> None:
    rounds = rounds_of(share, scale, 4, tail=3.0)
    with mp.workdps(700):
        true = Truth(rounds, 0.3).divergence([(mp.mpf(0), mp.mpf(share)), (mp.mpf(share), mp.mpf(0))], order, 4)
        assert 0 < true <= rejection.renyi_at(rounds, 0.3, order)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_line_that_is_no_number_costs_infinity(bad: float) -> None:
    for log_e, log_b in (([-1.0, bad], [0.0, 0.1]), ([-1.0, -2.0], [bad, 0.1])):
        assert rejection._divergence(np.array(log_e), np.array(log_b), 4, 2.0) == math.inf


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["beta", "scale", "tail", "cap"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_bad_settings_are_refused_by_every_price(field: str, bad: float) -> None:
    settings_of = {"beta": 0.05, "scale": 0.2, "tail": 3.0, "cap": 4} | {field: bad}
    rounds = RejectionRounds(Sensitivity(0.1, UNIT), **settings_of)  # type: ignore[arg-type]
    for price in (
        lambda: rejection.worst_case_epsilon(rounds),
        lambda: rejection.worst_case_renyi(rounds, (2.0,)),
        lambda: rejection.interval_epsilon(rounds),
        lambda: rejection.renyi_table(rounds, 2.0),
    ):
        with pytest.raises(InvalidInput):
            price()


@pytest.mark.parametrize("halt", [0, -1, 5, math.nan, 1.5, math.inf])
def test_halting_times_beyond_the_cap_are_refused(halt: float) -> None:
    with pytest.raises(InvalidInput, match="halt"):
        rejection.ex_post_epsilon(rounds_of(0.1, 0.2, 4), 0.3, halt)  # type: ignore[arg-type]


def test_other_refusals() -> None:
    rounds = rounds_of(0.1, 0.2, 4)
    for bad in (math.nan, math.inf, 2.0):
        with pytest.raises(InvalidInput, match="threshold"):
            rejection.renyi_at(rounds, bad, 2.0)
        with pytest.raises(InvalidInput, match="threshold"):
            rejection.ex_post_epsilon(rounds, bad, 1)
    for bad in (math.nan, math.inf, 1.0, 0.5, -2.0):
        with pytest.raises(InvalidInput, match="order"):
            rejection.renyi_at(rounds, 0.3, bad)
        with pytest.raises(InvalidInput, match="order"):
            rejection.worst_case_renyi(rounds, (2.0, bad))
    with pytest.raises(InvalidInput, match="cells"):
        rejection.interval_epsilon(rounds, 0)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1.0, 1e9])
@pytest.mark.parametrize("beta", [1e-12, 0.05, 1e6])
def test_extreme_settings_give_positive_finite_prices(width: float, scale: float, beta: float) -> None:
    for share, cap in itertools.product((1e-9, 0.5, 1.0, 7.0), (1, 10**6)):
        rounds = RejectionRounds(Sensitivity(share * width, RewardRange(0, width)), beta, scale * width, default_tail(cap), cap)
        grid = threshold_grid(beta, width)
        for threshold in (float(grid[0]), float(grid[-1])):
            pure = rejection.worst_halt_epsilon(rounds, threshold)
            assert 0 < pure < math.inf
            for order in (1.05, 1000.0):
                assert 0 < rejection.renyi_at(rounds, threshold, order) < math.inf
        assert pure <= rejection.interval_epsilon(rounds) * (1 + 1e-15)
