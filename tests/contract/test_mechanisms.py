"""What every mechanism must do, whatever its rule."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from privalign.errors import InvalidInput, InvalidRewards
from privalign.events import Composed, Event, Free, NonPrivate, RejectionRounds
from privalign.mechanisms.base import Base
from privalign.mechanisms.bon import BoN
from privalign.mechanisms.driver import select_from_pool
from privalign.mechanisms.itp import ITP
from privalign.mechanisms.itp_reuse import ITPReuse
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privbon_gaussian import PrivBoNGaussian
from privalign.mechanisms.privitp import PrivITP
from privalign.mechanisms.protocol import Draw, Mechanism, Selection
from privalign.randomness import SecureRandomness, SeededRandomness
from privalign.sensitivity import RewardRange, Sensitivity

N, N2 = 6, 4
MECHANISMS: dict[str, Mechanism] = {
    "base": Base(),
    "bon": BoN(N),
    "privbon": PrivBoN(N, 0.2),
    "privbon-gaussian": PrivBoNGaussian(N, 0.2),
    "itp": ITP(N, N2, 0.05),
    "itp-reuse": ITPReuse(N, 0.05),
    "privitp": PrivITP(N, N2, 0.05, 0.2, 0.2, 3.0),
}
SENSITIVITY = Sensitivity(0.1, RewardRange(-1.0, 1.0))
POOL = np.linspace(-1.2, 1.1, N + N2 + 1)

every = pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS)
scoring = pytest.mark.parametrize("mechanism", [m for name, m in MECHANISMS.items() if name != "base"], ids=lambda m: m.name)


def drive(mechanism: Mechanism, chunk: Any, noise: Any = None) -> tuple[list[int], Selection]:
    """Runs a mechanism, answering every request with `chunk` of the least that it asks for; that, and what it chose."""
    run, asked = mechanism.run(SENSITIVITY, noise or SeededRandomness(0)), []
    try:
        request = next(run)
        while True:
            assert isinstance(request, Draw)
            assert 1 <= request.least <= request.most
            asked.append(request.least)
            request = run.send(chunk(request.least))
    except StopIteration as stop:
        return asked, stop.value


@every
def test_name_is_the_one_of_the_command_line(mechanism: Mechanism) -> None:
    assert MECHANISMS[mechanism.name] is mechanism


@every
def test_index_is_within_the_pool_and_names_what_was_drawn(mechanism: Mechanism) -> None:
    rng = np.random.default_rng(0)
    for seed in range(50):
        asked, selection = drive(mechanism, lambda count: rng.uniform(-1, 1, count), SeededRandomness(seed))
        assert sum(asked) <= mechanism.pool_size
        assert 0 <= selection.index < mechanism.pool_size
        # the chosen candidate was drawn, or is the very next one
        assert selection.index <= sum(asked)
        assert selection.fallback == (selection.index == sum(asked) and mechanism.name in ("itp", "privitp"))


@every
def test_event_needs_public_settings_only_and_covers_the_realised_one(mechanism: Mechanism) -> None:
    reserved = mechanism.event(SENSITIVITY)
    _, selection = drive(mechanism, lambda count: np.zeros(count))
    assert unrealised(selection.realised) == reserved


def unrealised(event: Event) -> Event:
    if isinstance(event, Composed):
        return Composed(tuple(unrealised(part) for part in event.events))
    if isinstance(event, RejectionRounds):
        return RejectionRounds(event.sensitivity, event.beta, event.scale, event.tail, event.cap)
    return event


@scoring
@pytest.mark.parametrize(
    "bad",
    [
        lambda count: np.full(count, math.nan),
        lambda count: np.full(count, math.inf),
        lambda count: np.full(count, -math.inf),
        lambda count: np.zeros(count + 1),
        lambda count: np.zeros(count - 1),
        lambda count: np.zeros((count, 1)),
        lambda count: ["0.5"] * count,
        lambda count: [None] * count,
        lambda count: [True] * count,
        lambda count: [0.5j] * count,
        lambda count: 0.5,
    ],
    ids=["nan", "inf", "-inf", "too many", "too few", "matrix", "strings", "null", "booleans", "complex", "scalar"],
)
def test_unusable_rewards_are_refused_without_saying_them(mechanism: Mechanism, bad: Any) -> None:
    with pytest.raises(InvalidRewards) as refusal:
        drive(mechanism, bad)
    assert "0.5" not in str(refusal.value)


@scoring
def test_one_bad_reward_among_good_ones_is_refused(mechanism: Mechanism) -> None:
    pool = POOL.copy()
    pool[0] = math.nan
    with pytest.raises(InvalidRewards):
        select_from_pool(mechanism, SENSITIVITY, SeededRandomness(0), pool)


@every
def test_a_pool_that_is_too_small_is_refused(mechanism: Mechanism) -> None:
    with pytest.raises(InvalidInput, match=str(mechanism.pool_size)):
        select_from_pool(mechanism, SENSITIVITY, SeededRandomness(0), POOL[: mechanism.pool_size - 1])


@every
def test_rewards_are_clipped_to_the_public_range(mechanism: Mechanism) -> None:
    wild = np.where(np.arange(N + N2 + 1) % 2, 1e300, -1e300)
    tame = np.clip(wild, -1.0, 1.0)
    for seed in range(20):
        chosen = [select_from_pool(mechanism, SENSITIVITY, SeededRandomness(seed), pool).index for pool in (wild, tame)]
        assert chosen[0] == chosen[1]


@every
def test_secure_path_runs_with_equal_rewards_and_one_candidate(mechanism: Mechanism) -> None:
    small = {
        "base": Base(),
        "bon": BoN(1),
        "privbon": PrivBoN(1, 0.2),
        "privbon-gaussian": PrivBoNGaussian(1, 0.2),
        "itp": ITP(1, 1, 0.05),
        "itp-reuse": ITPReuse(1, 0.05),
        "privitp": PrivITP(1, 1, 0.05, 0.2, 0.2, 3.0),
    }[mechanism.name]
    for one in (mechanism, small):
        selection = select_from_pool(one, SENSITIVITY, SecureRandomness(), np.full(one.pool_size, 0.3))
        assert 0 <= selection.index < one.pool_size


@every
def test_guarantee_is_free_none_or_priced(mechanism: Mechanism) -> None:
    event = mechanism.event(SENSITIVITY)
    if mechanism.name == "base":
        assert event == Free()
    elif mechanism.name in ("bon", "itp", "itp-reuse"):
        assert event == NonPrivate()
    else:
        assert not isinstance(event, Free | NonPrivate)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_scales_out_of_range_are_refused_when_the_mechanism_is_made(bad: float) -> None:
    for make in (
        lambda: PrivBoN(4, bad),
        lambda: PrivBoNGaussian(4, bad),
        lambda: ITP(4, 4, bad),
        lambda: ITPReuse(4, bad),
        lambda: PrivITP(4, 4, bad, 0.1, 0.1, 3.0),
        lambda: PrivITP(4, 4, 0.05, bad, 0.1, 3.0),
        lambda: PrivITP(4, 4, 0.05, 0.1, bad, 3.0),
        lambda: PrivITP(4, 4, 0.05, 0.1, 0.1, bad),
    ):
        with pytest.raises(InvalidInput, match="above 0"):
            make()


@pytest.mark.parametrize("bad", [0, -1, 1_000_001, 2.0, "4"])
def test_counts_out_of_range_are_refused_when_the_mechanism_is_made(bad: Any) -> None:
    for make in (
        lambda: BoN(bad),
        lambda: PrivBoN(bad, 0.1),
        lambda: PrivBoNGaussian(bad, 0.1),
        lambda: ITP(4, bad, 0.05),
        lambda: ITPReuse(bad, 0.05),
        lambda: PrivITP(bad, 4, 0.05, 0.1, 0.1, 3.0),
        lambda: PrivITP(4, bad, 0.05, 0.1, 0.1, 3.0),
    ):
        with pytest.raises(InvalidInput, match="whole number"):
            make()
