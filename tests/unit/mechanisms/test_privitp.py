"""PrivITP: phase 2 in batches, the snapped threshold, realised events, both phases' noise through the interface."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from privalign.acceptance import LEAST_TAIL, THRESHOLDS, snap, threshold_edges, threshold_grid
from privalign.errors import InvalidInput
from privalign.events import FALLBACK, Composed, RejectionRounds
from privalign.mechanisms.privitp import PrivITP, PrivITPPhase2
from privalign.mechanisms.protocol import Draw
from privalign.randomness import Probabilities, SeededRandomness
from privalign.sensitivity import RewardRange, Sensitivity

Floats = NDArray[np.float64]
SENSITIVITY = Sensitivity(0.1, RewardRange(0.0, 1.0))
RULE = PrivITP(n=5, n2=3, beta=0.05, sigma_x=0.2, sigma_z=0.2, tail=3.0)


class Scripted(SeededRandomness):
    """Releases a fixed number in phase 1 and accepts in a fixed round; keeps what it was asked."""

    def __init__(self, released: float, accepted_round: int | None) -> None:
        super().__init__(0)
        self.released, self.accepted_round = released, accepted_round
        self.gaussians: list[tuple[float, float, list[float]]] = []
        self.batches: list[list[float]] = []

    def gaussian_cell(self, value: float, scale: float, edges: Floats) -> int:
        self.gaussians.append((value, scale, edges.tolist()))
        return int(np.searchsorted(edges, self.released))

    def bernoullis(self, probabilities: Probabilities) -> NDArray[np.bool_]:
        before = sum(map(len, self.batches))
        self.batches.append(np.asarray(probabilities).tolist())
        return before + 1 + np.arange(len(self.batches[-1])) == self.accepted_round


def run(noise: Scripted, rule: PrivITP = RULE, phase_2: float = 0.7, chunk: int = 1) -> tuple[list[tuple[int, int, int]], object]:
    steps, asked = rule.run(SENSITIVITY, noise), []
    request = next(steps)
    try:
        while True:
            assert isinstance(request, Draw)
            asked.append((request.least, request.most, request.ahead))
            request = steps.send([0.4] * request.most if len(asked) == 1 else [phase_2] * min(max(request.least, chunk), request.most))
    except StopIteration as stop:
        return asked, stop.value


def rounds(selection: object) -> RejectionRounds:
    realised = selection.realised  # type: ignore[attr-defined]
    assert isinstance(realised, Composed)
    part = realised.events[1]
    assert isinstance(part, RejectionRounds)
    return part


def test_phase_2_stops_at_the_first_acceptance() -> None:
    noise = Scripted(0.5, accepted_round=2)
    asked, selection = run(noise)
    assert asked == [(5, 5, 3), (1, 3, 0), (1, 2, 0)]
    assert (selection.index, selection.halting_time, selection.fallback) == (6, 2, False)
    assert rounds(selection).halt == 2


@pytest.mark.parametrize("chunk", [1, 2, 3, 9])
@pytest.mark.parametrize("accepted_round", [1, 2, 3, None])
def test_the_size_of_a_batch_changes_nothing(chunk: int, accepted_round: int | None) -> None:
    """A batch is decided in one; of its acceptances the first counts."""
    asked, selection = run(Scripted(0.5, accepted_round), chunk=chunk)
    _, one_by_one = run(Scripted(0.5, accepted_round))
    assert selection == one_by_one
    halt = accepted_round or 3
    assert len(asked) == 1 + -(-halt // min(chunk, 3))


def test_the_first_of_several_acceptances_counts() -> None:
    class Eager(Scripted):
        def bernoullis(self, probabilities: Probabilities) -> NDArray[np.bool_]:
            return np.array([False, True, True])

    _, selection = run(Eager(0.5, None), chunk=3)
    assert (selection.index, selection.halting_time) == (6, 2)
    assert rounds(selection).halt == 2


def test_after_the_cap_the_next_draw_is_released_unscored() -> None:
    asked, selection = run(Scripted(0.5, accepted_round=None))
    assert asked == [(5, 5, 3), (1, 3, 0), (1, 2, 0), (1, 1, 0)]
    assert (selection.index, selection.fallback) == (8, True)
    assert rounds(selection).halt is FALLBACK


def test_every_round_draws_fresh_noise_for_equal_texts() -> None:
    noise = Scripted(0.5, accepted_round=None)
    run(noise)
    assert [len(batch) for batch in noise.batches] == [1, 1, 1]


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


def test_phase_1_releases_the_normaliser_between_public_edges() -> None:
    noise = Scripted(0.5, accepted_round=1)
    run(noise)
    ((value, scale, edges),) = noise.gaussians
    assert value == pytest.approx(0.35)
    assert scale == RULE.sigma_x
    assert edges == threshold_edges(RULE.beta, 1.0).tolist()


@pytest.mark.parametrize("scale", [1e-100, 1e-9, 0.1, 1.0, 2.0, 1e6])
def test_every_noise_that_an_event_takes_is_released(scale: float) -> None:
    rule = replace(RULE, sigma_x=scale)
    rule.event(SENSITIVITY)
    _, selection = run(Scripted(0.5, accepted_round=1), rule)
    assert rounds(selection).threshold in threshold_grid(RULE.beta, 1.0)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"sigma_x": 1e7}, "scale"),
        ({"beta": 1e14}, "scale"),
        ({"beta": 1e200}, "beta"),
        ({"sigma_x": 1e-130}, "sigma_x"),
        ({"sigma_z": 1e130}, "sigma_z"),
        ({"tail": 1e130}, "tail"),
        ({"tail": LEAST_TAIL / 2}, "tail"),
        ({"beta": 1e-100, "sigma_z": 1e-100}, "threshold"),
        ({"sigma_z": 1e-20, "beta": 1e-20}, "threshold"),
    ],
)
def test_settings_at_which_floats_end_are_refused_before_any_score(settings: dict[str, float], field: str) -> None:
    rule = replace(RULE, **settings)
    with pytest.raises(InvalidInput, match=f"^{field}: "):
        rule.event(SENSITIVITY)
    if field not in ("sigma_x", "scale"):
        with pytest.raises(InvalidInput, match=f"^{field}: "):
            PrivITPPhase2(rule, 0.5).event(SENSITIVITY)


def test_snapping_is_nearest_and_idempotent() -> None:
    grid = threshold_grid(0.05, 1.0)
    for value in np.random.default_rng(0).uniform(-1, 2, 500):
        snapped = snap(float(value), 0.05, 1.0)
        assert abs(grid - value).min() == pytest.approx(abs(snapped - value), abs=1e-12)
        assert snap(snapped, 0.05, 1.0) == snapped
