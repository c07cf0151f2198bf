"""The mean of disjoint shards: its value, and how far one person's data can move it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from privalign.errors import InvalidInput
from privalign.preferences.persons import ShardBy
from privalign.rewards.ensemble import EnsembleReward, disjoint_shards
from privalign.rewards.function import FunctionReward
from privalign.rewards.recorded import RecordedReward
from privalign.sensitivity import Certificate, HeadRelease, Relation, RewardRange, Sensitivity
from privalign.types import Candidate, Request

RANGE = RewardRange(-1.0, 3.0)
WHOLE = Sensitivity.of_range(RANGE)


def member(scores: Sequence[float], sensitivity: Sensitivity = WHOLE) -> FunctionReward:
    return FunctionReward(lambda request, candidates: list(scores)[: len(candidates)], name="member", sensitivity=sensitivity)


def mean(members: Sequence[FunctionReward], count: int) -> list[float]:
    ensemble = EnsembleReward(members, WHOLE, name="e")
    return asyncio.run(ensemble.score(Request.of_prompt("x"), [Candidate("y")] * count)).tolist()


def shards(count: int, sharding: ShardBy, relation: Relation, k: int = 1, of: Sensitivity = WHOLE) -> Sensitivity:
    return disjoint_shards([of] * count, sharding=sharding, relation=relation, records_per_person=k, reason="audited")


def test_an_ensemble_scores_here_where_all_of_its_members_do() -> None:
    class Here(RecordedReward):
        in_process = True

    there, here = RecordedReward("there", [], WHOLE), Here("here", [], WHOLE)
    assert not EnsembleReward([here, there], WHOLE, name="e").in_process
    assert not EnsembleReward([there, there], WHOLE, name="e").in_process
    assert EnsembleReward([here, here], WHOLE, name="e").in_process


def test_members_are_clipped_before_the_mean() -> None:
    assert mean([member([9.0, 0.5]), member([-9.0, 0.25]), member([1.0, 0.75])], 2) == [1.0, 0.5]


def test_the_mean_is_within_the_rounding_that_is_charged() -> None:
    rng = np.random.default_rng(0)
    columns = rng.uniform(-1, 3, (7, 200))
    computed = mean([member(row.tolist()) for row in columns], 200)
    slack = Fraction(3, 2**52)
    for value, column in zip(computed, columns.T, strict=True):
        assert abs(Fraction(value) - sum(map(Fraction, column)) / 7) <= slack
    stated = shards(7, ShardBy.PERSON, Relation.FLIP)
    charged = EnsembleReward([member([])] * 7, stated, name="e").sensitivity.value
    assert Fraction(stated.value) + 2 * slack <= Fraction(charged) < Fraction(stated.value) + 10 * slack


@pytest.mark.parametrize(
    ("sharding", "relation", "k", "touched"),
    [
        (ShardBy.PERSON, Relation.FLIP, 1, 1), (ShardBy.PERSON, Relation.REPLACE, 9, 2),
        (ShardBy.PERSON, Relation.ADD_REMOVE, 3, 1),
        (ShardBy.PAIR, Relation.FLIP, 1, 1), (ShardBy.PAIR, Relation.FLIP, 3, 3), (ShardBy.PAIR, Relation.ADD_REMOVE, 9, 8),
        (ShardBy.PAIR, Relation.REPLACE, 1, 2), (ShardBy.PAIR, Relation.REPLACE, 3, 6), (ShardBy.PAIR, Relation.REPLACE, 5, 8),
    ],
)  # fmt: skip
def test_delta_is_the_share_of_the_shards_that_one_person_touches(sharding: ShardBy, relation: Relation, k: int, touched: int) -> None:
    stated = shards(8, sharding, relation, k)
    exact = Fraction(4 * touched, 8)
    assert exact <= Fraction(stated.value) <= exact * (1 + Fraction(1, 2**50))
    assert stated.delta <= RANGE.width
    assert (stated.source, stated.relation, stated.records_per_person) == ("declared", relation, k)
    assert stated.reason == f"8 disjoint shards by {sharding.value}: audited"


@pytest.mark.slow
@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("sharding", list(ShardBy))
@pytest.mark.parametrize("k", [1, 2, 3])
def test_no_person_moves_the_mean_further(sharding: ShardBy, relation: Relation, k: int) -> None:
    """Brute force: shards whose model is the clipped sum of their records' labels; the person's k records fall anywhere."""
    rng = np.random.default_rng(k)
    bound = shards(4, sharding, relation, k).delta

    def scores(records: Sequence[tuple[int, float]]) -> float:
        sums = [sum(label for shard, label in records if shard == index) for index in range(4)]
        return float(np.clip(sums, RANGE.low, RANGE.high).mean())

    largest = 0.0
    for _ in range(3000):
        rest = [(int(rng.integers(4)), float(rng.choice([-4, 4]))) for _ in range(rng.integers(3))]

        def place() -> list[tuple[int, float]]:
            home = int(rng.integers(4))  # of the person, or of the one she is exchanged for
            return [(home if sharding is ShardBy.PERSON else int(rng.integers(4)), float(rng.choice([-4, 4]))) for _ in range(k)]

        mine = place()
        other = {Relation.FLIP: [(shard, -label) for shard, label in mine], Relation.ADD_REMOVE: [], Relation.REPLACE: place()}[relation]
        largest = max(largest, abs(scores(rest + mine) - scores(rest + other)))
    assert 0 < largest <= bound


def test_a_members_own_delta_counts_only_where_it_covers_the_person() -> None:
    certified = Sensitivity(0.5, RANGE, "certificate", Relation.REPLACE, 2)
    assert shards(4, ShardBy.PERSON, Relation.REPLACE, 2, certified).delta == pytest.approx(0.25)
    assert shards(4, ShardBy.PAIR, Relation.REPLACE, 1, certified).delta == pytest.approx(0.25)
    for relation, k in ((Relation.FLIP, 1), (Relation.REPLACE, 3)):
        with pytest.raises(InvalidInput, match="relation"):
            shards(4, ShardBy.PERSON, relation, k, certified)
    declared = replace(certified, source="declared", reason="x")
    for sharding in ShardBy:
        with pytest.raises(InvalidInput, match="only leave"):
            shards(4, sharding, Relation.REPLACE, 2, declared)
    assert shards(4, ShardBy.PERSON, Relation.FLIP, 2, replace(declared, relation=Relation.FLIP)).delta == pytest.approx(0.125)
    mixed = disjoint_shards([WHOLE, certified], sharding=ShardBy.PERSON, relation=Relation.REPLACE, records_per_person=1, reason="x")
    assert mixed.delta == pytest.approx(4.0)


@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_person_exchanged_for_anybody_moves_two_shards(count: int) -> None:
    assert shards(count, ShardBy.PERSON, Relation.REPLACE).delta == pytest.approx(RANGE.width * 2 / count)


def test_the_mean_is_about_the_one_data_set_of_its_members() -> None:
    def about(dataset: str | None) -> Sensitivity:
        return Sensitivity(0.5, RANGE, "certificate", Relation.FLIP, 1, dataset=dataset)

    flip: dict[str, Any] = {"sharding": ShardBy.PERSON, "relation": Relation.FLIP, "records_per_person": 1, "reason": "audited"}
    assert disjoint_shards([about(None), about("votes"), WHOLE], **flip).dataset == "votes"
    assert disjoint_shards([about(None), WHOLE], **flip).dataset is None
    with pytest.raises(InvalidInput, match=r"several data sets \(survey, votes\)"):
        disjoint_shards([about("votes"), about("survey")], **flip)
    released = Sensitivity(4.0, RANGE, "released", release=HeadRelease(1.0, 1e-6, 2.0, 0.4, Relation.FLIP, 1, "prefs"))
    with pytest.raises(InvalidInput, match="one is a head that was released with"):
        disjoint_shards([released, WHOLE], **flip)


def test_a_certificate_must_be_one_of_this_many_shards() -> None:
    certificate = Certificate("ensemble", Relation.FLIP, 1, RANGE, 0.25, shards=3)
    assert EnsembleReward.certified([member([])] * 3, certificate, name="e").sensitivity.delta == pytest.approx(0.25)
    paid = {"epsilon": 1.0, "delta": 1e-6, "account": "a", "scale": 1.0}
    changes: list[dict[str, Any]] = [{"shards": 2}, {"kind": "head"}, {"shards": None}, {"released": paid}, {"features": {"kind": "any"}}]
    for other in (replace(certificate, **change) for change in changes):
        with pytest.raises(InvalidInput, match="certificate"):
            EnsembleReward.certified([member([])] * 3, other, name="e")


def test_what_is_no_ensemble_is_refused() -> None:
    other = Sensitivity.of_range(RewardRange(0.0, 1.0))
    with pytest.raises(InvalidInput, match="members"):
        EnsembleReward([member([])], WHOLE, name="e")
    with pytest.raises(InvalidInput, match="range"):
        EnsembleReward([member([]), member([], other)], WHOLE, name="e")
    for members, k, reason, field in (
        ([WHOLE], 1, "x", "members"), ([WHOLE, other], 1, "x", "range"),
        ([WHOLE] * 2, 0, "x", "records_per_person"), ([WHOLE] * 2, 1, " ", "reason"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match=field):
            disjoint_shards(members, sharding=ShardBy.PAIR, relation=Relation.FLIP, records_per_person=k, reason=reason)
