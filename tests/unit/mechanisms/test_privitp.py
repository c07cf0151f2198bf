"""PrivITP: lazy phase 2, the snapped threshold, realised events, both phases' noise through the interface."""

from __future__ import annotations

import numpy as np
import pytest

from privalign.acceptance import THRESHOLDS, snap, threshold_grid
from privalign.events import FALLBACK, Composed, RejectionRounds
from privalign.mechanisms.privitp import PrivITP, release_grid
from privalign.mechanisms.protocol import Draw
from privalign.randomness import Probability, SeededRandomness
from privalign.sensitivity import RewardRange, Sensitivity

SENSITIVITY = Sensitivity(0.1, RewardRange(0.0, 1.0))
RULE = PrivITP(n=5, n2=3, beta=0.05, sigma_x=0.2, sigma_z=0.2, tail=3.0)


class Scripted(SeededRandomness):
    """Releases a fixed number in phase 1 and accepts in a fixed round; keeps what it was asked."""

    def __init__(self, released: float, accepted_round: int | None) -> None:
        super().__init__(0)
        self.released, self.accepted_round = released, accepted_round
        self.gaussians: list[tuple[float, float, float]] = []
        self.chances: list[float] = []

    def gaussian(self, value: float, scale: float, grid: float) -> float:
        self.gaussians.append((value, scale, grid))
        return self.released

    def bernoulli(self, probability: Probability) -> bool:
        self.chances.append(float(probability))
        return len(self.chances) == self.accepted_round


def run(noise: Scripted, rule: PrivITP = RULE, phase_2: float = 0.7) -> tuple[list[int], object]:
    steps, asked = rule.run(SENSITIVITY, noise), []
    request = next(steps)
    try:
        while True:
            assert isinstance(request, Draw)
            asked.append(request.count)
            request = steps.send([0.4] * request.count if len(asked) == 1 else [phase_2] * request.count)
    except StopIteration as stop:
        return asked, stop.value


def rounds(selection: object) -> RejectionRounds:
    realised = selection.realised  # type: ignore[attr-defined]
    assert isinstance(realised, Composed)
    part = realised.events[1]
    assert isinstance(part, RejectionRounds)
    return part


def test_phase_2_is_lazy_and_stops_at_the_first_acceptance() -> None:
    noise = Scripted(0.5, accepted_round=2)
    asked, selection = run(noise)
    assert asked == [5, 1, 1]
    assert (selection.index, selection.halting_time, selection.fallback) == (6, 2, False)
    assert rounds(selection).halt == 2


def test_after_the_cap_the_next_draw_is_released_unscored() -> None:
    asked, selection = run(Scripted(0.5, accepted_round=None))
    assert asked == [5, 1, 1, 1]
    assert (selection.index, selection.fallback) == (8, True)
    assert rounds(selection).halt is FALLBACK


def test_every_round_draws_fresh_noise_for_equal_texts() -> None:
    noise = Scripted(0.5, accepted_round=None)
    run(noise)
    assert len(noise.chances) == 3


def test_the_threshold_charged_is_the_snapped_one_that_was_used() -> None:
    noise = Scripted(0.512345, accepted_round=1)
    _, selection = run(noise)
    threshold = rounds(selection).threshold
    assert threshold in threshold_grid(RULE.beta, 1.0)
    assert abs(threshold - 0.512345) <= 0.5 / (THRESHOLDS - 1)


@pytest.mark.parametrize(("released", "expected"), [(-7.0, -0.05), (9.0, 0.95), (float("inf"), 0.95), (float("-inf"), -0.05)])
def test_the_threshold_is_clamped(released: float, expected: float) -> None:
    _, selection = run(Scripted(released, accepted_round=1))
    assert rounds(selection).threshold == pytest.approx(expected, abs=1e-15)


def test_phase_1_releases_the_normaliser_on_a_fine_grid() -> None:
    noise = Scripted(0.5, accepted_round=1)
    run(noise)
    ((value, scale, grid),) = noise.gaussians
    assert value == pytest.approx(0.35)
    assert scale == RULE.sigma_x
    assert grid == release_grid(scale)
    assert 2**30 <= scale / grid < 2**34


@pytest.mark.parametrize("scale", [1e-300, 1e-9, 0.1, 1.0, 2.0, 1e9, 1e300])
def test_the_grid_is_a_power_of_two_below_the_noise(scale: float) -> None:
    grid = release_grid(scale)
    assert np.frexp(grid)[0] == 0.5
    assert 2**32 <= scale / grid < 2**33


def test_snapping_is_nearest_and_idempotent() -> None:
    grid = threshold_grid(0.05, 1.0)
    for value in np.random.default_rng(0).uniform(-1, 2, 500):
        snapped = snap(float(value), 0.05, 1.0)
        assert abs(grid - value).min() == pytest.approx(abs(snapped - value), abs=1e-12)
        assert snap(snapped, 0.05, 1.0) == snapped
