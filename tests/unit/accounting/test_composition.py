"""Many queries: every method's ε is valid against exact compositions, and the best of them is near the truth."""

from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privalign.accounting import composition, costs, gaussian, gumbel
from privalign.accounting.composition import compose, pure_delta
from privalign.accounting.gaussian_max import privbon_gaussian_epsilon
from privalign.errors import InvalidInput
from privalign.events import FALLBACK, Composed, Event, Free, GaussianMax, GaussianRelease, GumbelMax, NonPrivate, RejectionRounds
from privalign.sensitivity import RewardRange, Sensitivity

UNIT = RewardRange(0, 1)
FULL, TENTH = Sensitivity(1.0, UNIT), Sensitivity(0.1, UNIT)


def exact_response_delta(pure: float, queries: int, epsilon: float) -> mp.mpf:
    """δ(ε) of T randomised responses at ε₀: the loss is (2k − T)ε₀ with k binomial."""
    e0, e = mp.mpf(pure), mp.mpf(epsilon)
    p = 1 / (1 + mp.exp(-e0))
    total = mp.mpf(0)
    for k in range(queries + 1):
        loss = (2 * k - queries) * e0
        if loss > e:
            total += mp.binomial(queries, k) * p**k * (1 - p) ** (queries - k) * (1 - mp.exp(e - loss))
    return total


def numbers(result: composition.Composition) -> dict[str, float]:
    named = {"basic": result.basic, "zcdp": result.zcdp, "renyi": result.renyi}
    return named if result.pld is None else named | {"pld": result.pld}


@pytest.mark.parametrize("queries", [1, 2, 7, 60])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.03, 0.25])
@pytest.mark.parametrize("scale", [0.2, 1.0, 20.0])
def test_two_way_private_selection_is_randomised_response(queries: int, delta: float, scale: float) -> None:
    """n = 2, Δ = R: PrivBoN of either noise answers truthfully with probability e^ε/(1 + e^ε); T of them compose exactly."""
    events: list[tuple[Event, float]] = [
        (GumbelMax(FULL, scale, 2), gumbel.privbon_epsilon(1.0, 1.0, scale, 2)),
        (GaussianMax(FULL, scale, 2), privbon_gaussian_epsilon(1.0, 1.0, scale, 2)),
    ]
    with mp.workdps(40):
        for event, pure in events:
            result = compose(event, queries, delta)
            for name, epsilon in numbers(result).items():
                assert epsilon >= 0
                if epsilon < 300:
                    assert exact_response_delta(pure * (1 - 1e-15), queries, epsilon) <= delta, name
            assert result.best == min(numbers(result).values())
            assert result.basic == pytest.approx(queries * pure, rel=1e-14)


@pytest.mark.parametrize("queries", [1, 2, 50, 400])
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 1e-2])
def test_pld_of_pure_queries_is_tight(queries: int, delta: float) -> None:
    """GaussianMax is charged as randomised response, so its PLD should hit the exact composition almost."""
    event = GaussianMax(FULL, 4.0, 2)
    pure = privbon_gaussian_epsilon(1.0, 1.0, 4.0, 2)
    value = compose(event, queries, delta).pld
    assert value is not None
    with mp.workdps(40):
        exact = exact_response_delta(pure, queries, value)
        assert exact <= delta
        assert value == 0 or exact_response_delta(pure, queries, value * 0.99) > delta * 0.9


@pytest.mark.slow
@pytest.mark.parametrize("queries", [1, 2, 30, 1000])
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 1e-2, 0.25])
@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0])
def test_gaussian_releases_compose_to_one(queries: int, delta: float, mu: float) -> None:
    """T Gaussian releases are exactly one with μ√T."""
    result = compose(GaussianRelease(TENTH, 0.1 / mu), queries, delta)
    exact = gaussian.analytic_gaussian_epsilon(mu * math.sqrt(queries) * (1 - 1e-15), delta)
    for epsilon in numbers(result).values():
        assert epsilon >= exact
    assert result.pld is not None
    assert result.pld <= exact * 1.01 + 1e-3
    assert result.renyi >= result.zcdp * (1 - 1e-9)  # the zCDP conversion takes the best real order


def test_a_coarse_grid_is_out_of_reach_of_the_continuous_distribution() -> None:
    """σ/s = 32, m = 32: at the continuous ε the discrete δ is already above δ, so no PLD is given."""
    step = 2.0**-6
    event = GaussianRelease(Sensitivity(32 * step, UNIT), 32 * step, step)
    result = compose(event, 1, 1e-9)
    assert result.pld is None
    assert result.best == min(result.basic, result.zcdp, result.renyi)
    fine = GaussianRelease(Sensitivity(32 * step, UNIT), 32 * step, 2.0**-30)
    assert compose(fine, 1, 1e-9).pld is not None


@pytest.mark.parametrize("eta", [1e-3, 0.2, 1.0, 10.0, 200.0])
@pytest.mark.parametrize("points", [1, 7, 1500])
def test_the_bounded_range_distribution_is_a_distribution(eta: float, points: int) -> None:
    """Total mass 1; E[e^{−L}] = 1; and never below the exact curve between the grid points."""
    part = composition._discretised(GumbelMax(Sensitivity(eta / 2, RewardRange(0, max(eta, 1))), 1.0, 5), eta / points)
    reach = 40 + 2 * eta
    assert part.get_delta_for_epsilon(-reach) == pytest.approx(1.0, abs=1e-6)
    grid = np.linspace(-1.5, 1.5, 101) * eta
    curve = np.array([part.get_delta_for_epsilon(float(e)) for e in grid])
    assert (curve >= gumbel.bounded_range_delta(grid, eta) - 1e-9).all()
    assert (np.diff(curve) <= 1e-12).all()


@pytest.mark.parametrize("pure", [1e-3, 1.0, 30.0])
def test_the_curve_of_randomised_response(pure: float) -> None:
    points = np.linspace(-2, 2, 81) * pure
    with mp.workdps(40):
        for point, value in zip(points, pure_delta(points, pure), strict=True):
            exact = exact_response_delta(pure, 1, float(point))
            assert abs(float(value) - exact) <= 1e-13 * max(exact, mp.mpf(pure) * mp.mpf(10) ** -3)


def test_bounded_range_beats_randomised_response() -> None:
    """Its PLD comes from the supremum of the privacy curves, which no one pair attains: better than ε(n) alone, and for
    few queries than zCDP."""
    few, result = (compose(GumbelMax(TENTH, 1.0, 256), queries, 1e-6) for queries in (2, 200))
    assert few.pld is not None
    assert result.pld is not None
    assert few.pld < min(few.basic, few.zcdp)
    assert result.zcdp < result.pld < result.basic
    pure = gumbel.privbon_epsilon(0.1, 1.0, 1.0, 256)
    with mp.workdps(30):
        assert exact_response_delta(pure, 200, result.pld) > 1e-6  # randomised response at the same ε would cost more


@pytest.mark.slow
def test_mixed_events() -> None:
    """A composed event costs what its parts cost, and no less by any method."""
    release, rounds = GaussianRelease(TENTH, 0.5, 2.0**-34, 1e-15), RejectionRounds(TENTH, 0.05, 0.5, 3.0, 4)
    event = Composed((release, Free(), Composed((rounds,))))
    both, first, second = (compose(part, 3, 1e-5, (2.0, 8.0)) for part in (event, release, rounds))
    for name, value in numbers(both).items():
        assert value >= max(numbers(first)[name], numbers(second)[name])
    assert both.basic == pytest.approx(first.basic + second.basic, rel=1e-12)
    assert costs.count_releases(event) == 1
    assert costs.rho(event) == pytest.approx(costs.rho(release) + costs.rho(rounds), rel=1e-14)
    twice = Composed((release, release))
    assert costs.epsilon(twice, 1e-5) == pytest.approx(2 * costs.epsilon(release, 5e-6), rel=1e-14)


@pytest.mark.slow
def test_the_shares_of_delta_never_add_up_to_more(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    original = costs.gaussian_release_epsilon

    def recorded(release: GaussianRelease, delta: float) -> float:
        seen.append(delta)
        return original(release, delta)

    monkeypatch.setattr(costs, "gaussian_release_epsilon", recorded)
    release = GaussianRelease(TENTH, 0.5)
    for delta, queries, parts in itertools.product((0.1, 1e-5, 0.7), (1, 3, 7, 49), (1, 3)):
        seen.clear()
        compose(Composed((release,) * parts), queries, delta)
        assert sum(mp.mpf(share) * queries for share in seen) <= mp.mpf(delta)
        assert sum(seen) * queries >= delta * (1 - 1e-14)


def test_a_realised_halting_time_lowers_no_divergence() -> None:
    """What one outcome cost bounds neither zCDP nor Rényi divergence, and no stream can be priced with it."""
    rounds = RejectionRounds(TENTH, 0.05, 0.3, 3.0, 16)
    at_threshold = RejectionRounds(TENTH, 0.05, 0.3, 3.0, 16, threshold=0.25)
    for halt in (1, 16, FALLBACK):
        realised = rounds.at(0.25, halt)
        assert costs.rho(realised) == costs.rho(at_threshold)
        assert costs.renyi(realised, (2.0,)) == costs.renyi(at_threshold, (2.0,))
        with pytest.raises(InvalidInput, match="halt"):
            compose(Composed((realised,)), 2, 1e-5)
    assert costs.epsilon(rounds.at(0.25, 1), 1e-5) < costs.epsilon(at_threshold, 1e-5) <= costs.epsilon(rounds, 1e-5)
    assert costs.rho(at_threshold) <= costs.rho(rounds)


@pytest.mark.parametrize("delta", [1e-300, 1e-9, 0.25, 1 - 1e-9])
def test_events_without_cost(delta: float) -> None:
    for event in (Free(), GumbelMax(TENTH, 0.5, 1), Composed(())):
        result = compose(event, 5, delta)
        assert set(numbers(result).values()) == {0.0}
    private = compose(Composed((Free(), NonPrivate())), 2, delta)
    assert (private.basic, private.zcdp, private.renyi, private.pld) == (math.inf, math.inf, math.inf, None)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-9, 1e9])
@pytest.mark.parametrize("delta", [1e-300, 1e-5, 1 - 1e-9])
@pytest.mark.parametrize("queries", [1, 10**6])
def test_extreme_streams(scale: float, delta: float, queries: int) -> None:
    for event in (GumbelMax(TENTH, scale, 16), GaussianRelease(TENTH, scale), GaussianMax(TENTH, scale, 2)):
        for value in numbers(compose(event, queries, delta)).values():
            assert 0 <= value < math.inf
            if scale < 1 and delta < 0.9:
                assert value > 1


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(log_scale=st.floats(-1, 2), n=st.integers(2, 1000), queries=st.integers(1, 200), log_delta=st.floats(-12, -0.5))
def test_composition_is_monotone(log_scale: float, n: int, queries: int, log_delta: float) -> None:
    """More queries and a smaller δ cost more, more noise costs less, by every method (PLD: up to its grid)."""
    scale, delta = 10**log_scale, 10**log_delta
    base = numbers(compose(GumbelMax(TENTH, scale, n), queries, delta))
    more = numbers(compose(GumbelMax(TENTH, scale, n), queries + 1, delta))
    less_delta = numbers(compose(GumbelMax(TENTH, scale, n), queries, delta / 2))
    louder = numbers(compose(GumbelMax(TENTH, scale * 1.5, n), queries, delta))
    for name, value in base.items():
        slack = 1e-3 if name == "pld" else 1e-9
        for other, rises in ((more, True), (less_delta, True), (louder, False)):
            if name in other:
                high, low = (other[name], value) if rises else (value, other[name])
                assert low <= high * (1 + slack) + 1e-9


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -1.0, 1.5])
def test_refusals(bad: float) -> None:
    with pytest.raises(InvalidInput, match="queries"):
        compose(GumbelMax(TENTH, 0.5, 4), bad, 1e-5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="delta"):
        compose(GumbelMax(TENTH, 0.5, 4), 2, bad)
    if bad != 1.5:
        for event in (GumbelMax(TENTH, bad, 4), GaussianMax(TENTH, bad, 4), GaussianRelease(TENTH, bad)):
            with pytest.raises(InvalidInput):
                compose(event, 2, 1e-5)


def test_an_unknown_event_is_not_priced() -> None:
    class Surprise:
        pass

    for price in (lambda e: costs.epsilon(e, 0.1), costs.rho, lambda e: costs.renyi(e, (2.0,)), lambda e: compose(e, 2, 0.1)):
        with pytest.raises(TypeError, match="Surprise"):
            price(Surprise())
