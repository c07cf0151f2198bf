"""Queries answered under each rule: the streams' law, the accounts' arithmetic, and the published accounting."""

from __future__ import annotations

import math
import os
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2_contingency
from streams import answered

from privalign.acceptance import THRESHOLDS, AcceptanceCurve, acceptance_ratio, kappa, snap, threshold_grid
from privalign.accounting.rules import Renyi, make_rule
from privalign.candidates.scored import read_scored
from privalign.errors import InvalidInput
from privalign.evaluation.halting import Pools, halt_of, normalisers, simulate
from privalign.events import Composed
from privalign.mechanisms.driver import select_from_pool
from privalign.mechanisms.normaliser import normaliser
from privalign.mechanisms.privitp import PrivITP
from privalign.randomness import SeededRandomness
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.studies.authors_composition import authors_stream, published_loss, z_scored
from privalign.studies.composition import (
    RULES,
    CompositionSettings,
    answered_halts,
    authors_composition,
    composition,
    endless,
)

RANGE = RewardRange(-1.0, 1.0)
SMALL = Sensitivity(0.02, RANGE)
# what the authors' published script prints for that file, seeds 0 to 9: mean and population deviation answered, mean of basic
PUBLISHED = {1.0: (2.6, 1.0, 1.1), 5.0: (13.1, 1.6, 3.4), 8.0: (19.2, 3.7, 5.6), 10.0: (23.7, 3.8, 6.6)}
PRIVITP = PrivITP(n=4, n2=5, beta=0.1, sigma_x=0.2, sigma_z=0.3, tail=3.0)


def pools(prompts: int = 6, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(rng.normal(0, 0.3), 0.4, rng.integers(11, 30)) for _ in range(prompts)]


def test_pools_are_clipped_and_shifted() -> None:
    data = Pools.of([[-5.0, 0.25], [5.0], []], RANGE, 1)
    assert data.rewards.tolist() == [0.0, 1.25, 2.0]
    assert data.offsets.tolist() == [0, 2, 3]
    assert Pools.of([[1.0], [0.0, 1.0]], RANGE, 2).rewards.tolist() == [1.0, 2.0]
    for bad in ([], [[1.0], []]):
        with pytest.raises(InvalidInput, match=r"no prompt has the 2 usable candidates that one query needs \(the most is [01]\)"):
            Pools.of(bad, RANGE, 2)


def test_normalisers_are_those_of_the_mechanism() -> None:
    rewards = np.random.default_rng(1).normal(size=(50, 7))
    assert normalisers(rewards, 0.3) == pytest.approx([normaliser(row, 0.3) for row in rewards], abs=1e-14)


@pytest.mark.slow
def test_simulation_has_the_law_of_the_mechanism() -> None:
    """Two-sample χ² on (coarse λ̃, t or fallback), 20,000 against 6,000 queries; false alarms: 1e-6."""
    pool = np.array([-0.8, -0.1, 0.0, 0.3, 0.9, 0.2, -0.3, -1.0, 0.5, 0.1, 0.7])
    data = Pools.of([np.zeros(10), pool], RANGE, PRIVITP.pool_size)
    positions, halts = simulate(PRIVITP, data, np.ones(20_000, dtype=np.int64), np.random.default_rng(2))
    rng, noise, grid = np.random.default_rng(3), SeededRandomness(4), threshold_grid(PRIVITP.beta, RANGE.width)
    table = np.zeros((2, 4, PRIVITP.n2 + 1))
    np.add.at(table[0], (positions // (THRESHOLDS // 4), halts - 1), 1)
    for _ in range(6_000):
        selection = select_from_pool(PRIVITP, Sensitivity.of_range(RANGE), noise, rng.choice(pool, PRIVITP.pool_size, replace=False))
        assert isinstance(selection.realised, Composed)
        position = int(np.searchsorted(grid, selection.realised.events[1].threshold - 1e-9))
        table[1, position // (THRESHOLDS // 4), PRIVITP.n2 if selection.fallback else selection.halting_time - 1] += 1
    cells = table.reshape(2, -1)
    assert chi2_contingency(cells[:, cells.sum(axis=0) > 0]).pvalue > 1e-6


def test_positions_are_those_that_the_mechanism_snaps_to() -> None:
    data = Pools.of([np.linspace(-1, 1, 9)], RANGE, 9)
    quiet = PrivITP(n=4, n2=5, beta=0.1, sigma_x=1e-12, sigma_z=0.3, tail=3.0)
    zeros = np.zeros(200, dtype=np.int64)
    positions, _ = simulate(quiet, data, zeros, np.random.default_rng(5))
    thresholds = normalisers(data.draw(zeros, 9, np.random.default_rng(5))[:, :4], 0.1)
    assert threshold_grid(0.1, 2.0)[positions].tolist() == [snap(float(t), 0.1, 2.0) for t in thresholds]


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("sensitivity", [Sensitivity.of_range(RANGE), Sensitivity(0.2, RANGE)], ids=["range", "small"])
def test_answered_is_what_an_account_answers(name: str, sensitivity: Sensitivity) -> None:
    """Against the naive twin that charges event by event."""
    data, worst = Pools.of(pools(), RANGE, 10), PRIVITP.event(sensitivity)
    rule = make_rule(name, 200.0, 1e-2, order=1.5 if name == "renyi" else None)
    grid = threshold_grid(PRIVITP.beta, RANGE.width)
    realised = (
        Composed((worst.events[0], worst.events[1].at(float(grid[position]), halt_of(PRIVITP, halt))))
        for position, halt in endless(PRIVITP, data, 7)
    )
    expected = answered(rule, worst, realised)
    (halts,) = answered_halts(rule, PRIVITP, sensitivity, [endless(PRIVITP, data, 7)], 10_000)
    assert len(halts) == expected > 0
    assert halts == [halt for _, halt in islice(endless(PRIVITP, data, 7), expected)]


@pytest.mark.slow
def test_realised_charges_answer_no_fewer_than_worst_cases() -> None:
    study = composition(pools(), SMALL, [0.2, 0.8], CompositionSettings(n=5, seeds=2, most=120, order=1.5))
    assert [(row["sigma"], row["rule"]) for row in study.rows] == [(sigma, rule) for sigma in (0.2, 0.8) for rule in RULES]
    counts = {(row["sigma"], row["rule"]): row for row in study.rows}
    for sigma in (0.2, 0.8):
        assert counts[sigma, "fsrc"]["answered_min"] >= counts[sigma, "basic"]["answered_max"] > 0
        assert counts[sigma, "basic"]["answered_sd"] == 0
    assert all(row["capped"] == (row["answered_max"] == 120) for row in study.rows)
    assert counts[0.8, "renyi"]["capped"]
    assert all(counts[0.8, rule]["answered_mean"] >= counts[0.2, rule]["answered_mean"] for rule in RULES)
    assert study.settings["prompts"] == 6
    again = composition(pools(), SMALL, [0.2, 0.8], CompositionSettings(n=5, seeds=2, most=120, order=1.5))
    assert again.rows == study.rows


@pytest.mark.slow
def test_rows_of_a_budget_that_answers_nothing() -> None:
    study = composition(pools(), Sensitivity.of_range(RANGE), [0.1], CompositionSettings(n=5, seeds=2, epsilon=20.0))
    assert {row["answered_mean"] for row in study.rows} == {0.0}
    assert {row["mean_halting"] for row in study.rows} == {None}
    orders = {row["rule"]: row["order"] for row in study.rows}
    assert orders["basic"] is None
    assert orders["renyi"] == Renyi.default(20.0, 1e-2, PrivITP(5, 5, 0.05, 0.05, 0.05, math.sqrt(2 * math.log(500))).event(
        Sensitivity.of_range(RANGE)
    )).order  # fmt: skip


def test_published_loss_is_theorem_4_1_without_a_tail() -> None:
    """(t − 1)κ + b at ceiling R: what the exact functions give as L → 0, up to the 512 midpoints."""
    largest, spread, scale, threshold = 2.0, 1.2, 0.7, 0.4
    curve = AcceptanceCurve(threshold, largest, scale, 1e-9)
    for halt in (1, 4, 16):
        expected = (halt - 1) * kappa(curve, spread) + acceptance_ratio(curve, spread)
        assert published_loss(threshold, largest, spread, scale, halt) == pytest.approx(expected, rel=1e-4)


def test_authors_stream_stops_at_the_budget_and_uses_no_prompt_twice() -> None:
    data, deviation = z_scored([*pools(40), np.zeros(3)], 4)
    assert np.concatenate(data).std() == pytest.approx(1)
    assert len(data) < 41
    assert deviation > 0
    rich = authors_stream(data, 5.0, n=4, beta=0.05, epsilon=1e9, seed=0)
    assert rich.answered == len(data)
    poor = authors_stream(data, 5.0, n=4, beta=0.05, epsilon=1e-9, seed=0)
    assert (poor.answered, poor.basic) == (0, 0)
    assert math.isnan(poor.mean_halting)
    study = authors_composition(pools(40), [5.0], CompositionSettings(n=4, seeds=2))
    assert [row["rule"] for row in study.rows] == ["basic", "fsrc"]
    assert "not a private mechanism" in study.title


@pytest.mark.realdata
def test_authors_accounting_agrees_with_their_script() -> None:
    """Numbers answered within 3 standard errors of the difference, ten seeds on either side."""
    folder = os.environ.get("PRIVALIGN_DATA")
    if folder is None:
        pytest.skip("set PRIVALIGN_DATA to the folder of real data sets")
    (block,) = read_scored(Path(folder) / "alpaca-judged" / "scored.jsonl.gz")
    rewards = np.split(block.rewards, block.offsets[1:-1])
    study = authors_composition(rewards, list(PUBLISHED))
    rows = {(row["sigma"], row["rule"]): row for row in study.rows}
    for sigma, (answered_mean, answered_sd, basic) in PUBLISHED.items():
        ours = rows[sigma, "fsrc"]
        error = math.hypot(ours["answered_sd"], answered_sd) / math.sqrt(10)
        assert abs(ours["answered_mean"] - answered_mean) <= 3 * error, sigma
        assert abs(rows[sigma, "basic"]["answered_mean"] - basic) <= max(0.5, 0.25 * basic)


@pytest.mark.parametrize(
    ("pools", "sigma", "said"),
    [
        ([], 0.5, "no prompt has 16 scored candidates"),
        ([np.zeros(3)], 0.5, "no prompt has 16 scored candidates"),
        ([np.full(20, 0.3)], 0.5, "rewards are all equal"),
        ([np.arange(20.0)], -0.5, "sigma: -0.5 is not"),
        ([np.arange(20.0)], 0.0, "sigma: 0.0 is not"),
    ],
)
def test_what_the_authors_accounting_cannot_use_is_named(pools: list[np.ndarray], sigma: float, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        authors_composition(pools, [sigma], CompositionSettings(seeds=1))
