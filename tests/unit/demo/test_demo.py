"""The demo: what its preferences are about, its rows, and its files."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privalign.demo import arithmetic, demo
from privalign.demo.demo import DemoReport, Row, calibrated, demo_pairs, evaluate, interval, learn_reward, run_demo, write_report
from privalign.errors import InvalidInput
from privalign.sensitivity import Relation


def quiet(stage: str, done: int, total: int) -> None:
    assert 0 <= done <= total


@pytest.fixture(scope="module")
def reward() -> demo.HeadReward:
    return learn_reward(demo_pairs())


@pytest.fixture(scope="module")
def rows(reward: demo.HeadReward) -> tuple[Row, ...]:
    chance = np.random.default_rng(0)
    right = chance.random((30, demo.N + demo.N2 + 1)) < 0.3
    scores = np.clip(chance.normal(0, 0.2, right.shape) + 0.5 * right, 0, 1) * reward.sensitivity.width + reward.sensitivity.range.low
    return evaluate(calibrated(reward.sensitivity), reward.sensitivity, scores, right.astype(float), quiet)


@pytest.fixture
def report(rows: tuple[Row, ...], reward: demo.HeadReward) -> DemoReport:
    return DemoReport(rows, 30, 7, reward.certificate, 0, 1.25)


def test_preferences_are_about_other_sums_than_the_demo_and_validation() -> None:
    asked = {frozenset(map(int, re.findall(r"\d+", pair.prompt))) for pair in demo_pairs()}
    allowed = {frozenset((p.first, p.second)) for p in arithmetic.problems(arithmetic.PREFERENCES)}
    assert len(asked) > 1000
    assert asked <= allowed


def test_the_stated_label_noise_is_there() -> None:
    pairs = demo_pairs()
    wrong = 0
    for pair in pairs:
        first, second = map(int, re.findall(r"\d+", pair.prompt))
        problem = arithmetic.Problem(first, second)
        assert problem.is_right(pair.chosen) != problem.is_right(pair.rejected)
        wrong += problem.is_right(pair.rejected)
    assert wrong / len(pairs) == pytest.approx(0.05, abs=0.01)


def test_the_features_see_characters_at_places_and_no_sum(reward: demo.HeadReward) -> None:
    assert reward.certificate.features == demo.FEATURES.describe()
    assert {tuple(cross) for cross in reward.certificate.features["crosses"]} == {("weight", "picks")}  # type: ignore[attr-defined, index]
    assert reward.certificate.relation is Relation.REPLACE
    assert reward.certificate.records_per_person == 1


@pytest.mark.slow
def test_rows_and_their_prices(rows: tuple[Row, ...]) -> None:
    assert [row.mechanism for row in rows] == ["base", "bon", "privbon", "privbon", "privbon", "itp", "privitp"]
    base, bon, half, one, two, itp, privitp = rows
    assert (base.epsilon_query, base.epsilon_run, base.lift, base.candidates) == (0.0, 0.0, 0.0, 1.0)
    for row in (bon, itp):
        assert row.epsilon_query is None
        assert row.epsilon_run is None
    for row, target in ((half, 0.5), (one, 1.0), (two, 2.0), (privitp, 8.0)):
        assert row.epsilon_query is not None
        assert row.epsilon_run is not None
        assert target * (1 - 1e-6) < row.epsilon_query <= target
        assert row.epsilon_query < row.epsilon_run <= 30 * target
    assert (one.delta_query, privitp.delta_query) == (0.0, demo.DELTA)
    assert base.accuracy < half.accuracy < one.accuracy < two.accuracy < bon.accuracy
    assert bon.candidates == two.candidates == demo.N
    assert demo.N < itp.candidates <= demo.N + demo.N2 + 1
    for row in rows:
        assert row.ci95[0] <= row.accuracy <= row.ci95[1]
        assert row.lift == pytest.approx(row.accuracy - base.accuracy)


def test_interval_is_students() -> None:
    assert interval(np.array([1.0, 2.0, 3.0])) == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5), abs=1e-6)


def test_files_are_strict_json_and_a_picture_both_marked(report: DemoReport, tmp_path: Path) -> None:
    document, figure = write_report(report, tmp_path / "new" / "out")
    read = json.loads(document.read_text(encoding="utf-8"), parse_constant=lambda name: pytest.fail(name))
    assert next(iter(read)) == "notice"
    assert read["notice"].startswith("not a private release")
    assert {"mechanism", "accuracy", "ci95", "epsilon_query", "epsilon_run", "candidates"} <= set(read["rows"][0])
    assert read["sensitivity"]["relation"] == "replace"
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_a_folder_that_cannot_be_made_is_refused(report: DemoReport, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="out"):
        write_report(report, tmp_path / "file" / "out")


@pytest.mark.parametrize("prompts", [0, 1, 10_000])
def test_counts_of_prompts_out_of_range_are_refused(prompts: int) -> None:
    with pytest.raises(InvalidInput, match="prompts"):
        run_demo(prompts, quiet)


def test_seeds_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidInput, match="seed"):
        run_demo(2, quiet, seed=-1)


@pytest.mark.model
@pytest.mark.soak
def test_the_whole_run_is_reproducible() -> None:
    first, second = (run_demo(2, quiet, seed=3) for _ in range(2))
    assert replace(first, seconds=0.0) == replace(second, seconds=0.0)
    assert first.prompts == 2
    assert run_demo(2, quiet, seed=4).rows != first.rows
