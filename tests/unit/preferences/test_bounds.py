"""Certificates against refits on neighbouring data sets: random ones, and constructions that come close to the bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import expit

from privalign.preferences.bounds import ensemble_bound, score_bound
from privalign.preferences.bradley_terry import HeadSettings, fit, minimisers
from privalign.preferences.differences import differences_of
from privalign.preferences.features import clipped
from privalign.preferences.ngrams import HashedNgrams
from privalign.preferences.pairs import PreferencePair
from privalign.preferences.persons import ShardBy, first_records
from privalign.rewards.head import HeadReward
from privalign.sensitivity import Relation, RewardRange

Floats = NDArray[np.float64]
RANGE = RewardRange(-1.0, 2.0)
KEY = b"public"


@dataclass(frozen=True)
class Written:
    """A map whose features are written in the answer, as numbers: any construction can be spelled out."""

    dimension: int

    def rows(self, prompts: Sequence[str], answers: Sequence[str], norm: float) -> Any:
        return clipped(csr_array(np.array([[float(number) for number in answer.split()] for answer in answers])), norm)

    def describe(self) -> dict[str, object]:
        return {"kind": "written"}


def pair(vector: Sequence[float], prompt: str = "p", annotator: str | None = None) -> PreferencePair:
    """A record with φ(chosen) = v and φ(rejected) = −v, hence d = 2v."""
    return PreferencePair(prompt, " ".join(map(repr, vector)), " ".join(repr(-x) for x in vector), annotator)


def flipped(record: PreferencePair) -> PreferencePair:
    return replace(record, chosen=record.rejected, rejected=record.chosen)


def weights(setting: HeadSettings, pairs: list[PreferencePair]) -> Floats:
    differences, owners = differences_of(pairs, setting.features, setting.feature_norm, key=KEY)
    return minimisers(setting, differences, owners)


def neighbour(pairs: list[PreferencePair], relation: Relation, person: list[PreferencePair]) -> list[PreferencePair]:
    """Changes what the first len(person) records say."""
    k, rest = len(person), pairs[len(person) :]
    match relation:
        case Relation.ADD_REMOVE:
            return rest
        case Relation.REPLACE:
            return person + rest
        case Relation.FLIP:
            return [flipped(record) for record in pairs[:k]] + rest


VECTORS = st.lists(st.floats(-2, 2), min_size=3, max_size=3).filter(lambda vector: any(map(abs, vector)))
RECORDS = st.builds(pair, VECTORS, st.sampled_from("abcdef"))


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(
    st.lists(RECORDS, min_size=4, max_size=15),
    st.sampled_from(Relation),
    st.lists(RECORDS, min_size=1, max_size=3),
    st.floats(0.02, 50),
    st.sampled_from([0.1, 1.0, 3.0]),
    st.sampled_from([1e-6, 1e-2, 1.0]),
    st.sampled_from([1, 2, 5]),
)
def test_no_neighbour_moves_weights_or_scores_further_than_certified(
    pairs: list[PreferencePair],
    relation: Relation,
    person: list[PreferencePair],
    regularisation: float,
    norm: float,
    tolerance: float,
    shards: int,
) -> None:
    setting = HeadSettings(Written(3), regularisation, relation, RANGE, len(person), norm, tolerance, "clip", shards)
    here, there = weights(setting, pairs), weights(setting, neighbour(pairs, relation, person))
    moved = np.linalg.norm(here - there, axis=-1)
    assert moved.max() <= setting.weight_bound
    sensitivity = setting.certificate().sensitivity
    directions = (here - there).reshape(-1, 3)
    texts = [*directions, *np.eye(3)]
    texts = [norm * text / np.linalg.norm(text) for text in texts if np.linalg.norm(text) > 0]
    for text in texts:
        raw, raw_there = here.reshape(-1, 3) @ text, there.reshape(-1, 3) @ text
        clip = [np.clip(scores, RANGE.low, RANGE.high).mean() for scores in (raw, raw_there)]
        assert abs(clip[0] - clip[1]) <= sensitivity
        sigmoid = [3 * expit(scores).mean() for scores in (raw, raw_there)]
        assert abs(sigmoid[0] - sigmoid[1]) <= replace(setting, output="sigmoid").certificate().sensitivity


WORDS = st.lists(st.sampled_from(["aa", "bb", "cc", "dd"]), max_size=6).map(" ".join)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.builds(PreferencePair, st.sampled_from("xyz"), WORDS, WORDS), min_size=3, max_size=10),
    st.sampled_from(Relation),
    st.lists(st.builds(PreferencePair, st.sampled_from("xyz"), WORDS, WORDS), min_size=1, max_size=2),
    st.floats(0.02, 50),
    st.sampled_from(["clip", "sigmoid"]),
    st.sampled_from([1, 3]),
)
def test_float_scores_of_texts_stay_within_the_certificate(
    pairs: list[PreferencePair],
    relation: Relation,
    person: list[PreferencePair],
    regularisation: float,
    output: str,
    shards: int,
) -> None:
    setting = HeadSettings(HashedNgrams(bits=4), regularisation, relation, RANGE, len(person), output=output, shards=shards)
    scores = []
    for data in (pairs, neighbour(pairs, relation, person)):
        head = fit(setting, *differences_of(data, setting.features, 1.0, key=KEY))
        assert head.certificate == setting.certificate()
        scores.append(HeadReward(head.weights, head.certificate).score("x", ["aa bb", "cc", "dd dd aa", "", "zz"]))
        assert RANGE.low <= scores[-1].min() <= scores[-1].max() <= RANGE.high
    assert np.abs(scores[0] - scores[1]).max() <= setting.certificate().sensitivity


def pushed(direction: Sequence[float], reach: float, regularisation: float, norm: float) -> list[PreferencePair]:
    """Many pairs of small norm that push w to about −reach·direction/B: what a later record says hardly bends F there."""
    small = 0.05 * norm
    share = expit(-2 * small * reach / norm)
    count = math.ceil(regularisation * reach / norm / (2 * small * share))
    return [pair([-small * x for x in direction])] * count


@pytest.mark.slow
@pytest.mark.parametrize("norm", [1.0, 0.3])
@pytest.mark.parametrize(("relation", "least"), [(Relation.REPLACE, 0.93), (Relation.ADD_REMOVE, 0.97), (Relation.FLIP, 0.97)])
def test_adversarial_data_come_close_to_the_bound(relation: Relation, least: float, norm: float) -> None:
    # u is pushed to w·u ≈ −13/B; records lean on −u by a fifth and point along ±v: s ≈ 1 for both, and they nearly oppose.
    regularisation = 50 * norm**2
    setting = HeadSettings(Written(2), regularisation, relation, RANGE, 1, norm, 1e-6)
    across, along = norm * math.sqrt(1 - 0.2**2), 0.2 * norm
    first, second = pair([along, across]), pair([along, -across])
    crowd = pushed([1.0, 0.0], 13.0, regularisation, norm)
    data = [first] if relation is Relation.FLIP else [first, *crowd]
    other = neighbour(data, relation, [second])
    other = other or [pair([0.0, 0.0])]
    here, there = weights(setting, data), weights(setting, other)
    moved = float(np.linalg.norm(here - there))
    assert least <= moved / setting.weight_bound <= 1
    text = norm * (here - there) / moved
    clip = abs(float(here @ text - there @ text)) / replace(setting, range=RewardRange(-20, 20)).certificate().sensitivity
    assert least - 0.01 <= clip <= 1
    if relation is not Relation.ADD_REMOVE:  # there the two scores lie to both sides of 0, where a sigmoid is steepest
        change = abs(float(3 * expit(here @ text) - 3 * expit(there @ text)))
        assert 0.9 <= change / replace(setting, output="sigmoid").certificate().sensitivity <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "relation", [Relation.FLIP, *(pytest.param(each, marks=pytest.mark.soak) for each in Relation if each is not Relation.FLIP)]
)
def test_adversarial_persons_with_several_records_come_close_too(relation: Relation) -> None:
    setting = HeadSettings(Written(2), 400.0, relation, RANGE, 3, 1.0, 1e-6)
    first, second = pair([0.2, math.sqrt(0.96)]), pair([0.2, -math.sqrt(0.96)])
    data = [first] * 3 + ([] if relation is Relation.FLIP else pushed([1.0, 0.0], 13.0, 400.0, 1.0))
    other = neighbour(data, relation, [second] * 3) or [pair([0.0, 0.0])]
    moved = float(np.linalg.norm(weights(setting, data) - weights(setting, other)))
    assert 0.9 <= moved / setting.weight_bound <= 1


def test_an_ensemble_bound_is_linear_in_records_and_never_above_the_touched_share_of_the_range() -> None:
    def bound(relation: Relation, k: int, shards: int, by_person: bool = False, regularisation: float = 100.0) -> float:
        return ensemble_bound(relation, k, 1.0, regularisation, 1e-9, RANGE, "clip", shards=shards, by_person=by_person)

    one = score_bound(Relation.FLIP, 1, 1.0, 100.0, 1e-9, RANGE, "clip")
    assert bound(Relation.FLIP, 1, 10) == pytest.approx(one / 10, rel=1e-5)
    assert bound(Relation.FLIP, 3, 10) == pytest.approx(3 * one / 10, rel=1e-5)
    assert bound(Relation.REPLACE, 1, 10, regularisation=1e-3) == pytest.approx(2 * 3 / 10, rel=1e-5)
    assert bound(Relation.FLIP, 5, 10, by_person=True, regularisation=1e-3) == pytest.approx(3 / 10, rel=1e-5)
    assert bound(Relation.REPLACE, 99, 10, regularisation=1e-3) == pytest.approx(3, rel=1e-5)


PEOPLE = st.builds(pair, VECTORS, st.sampled_from("abc"), st.sampled_from(["ann", "bob", "cy"]))


@settings(deadline=None)
@given(st.lists(PEOPLE, min_size=1, max_size=12), st.lists(PEOPLE, max_size=6), st.integers(1, 3), st.sampled_from(Relation), st.data())
def test_clipping_makes_k_true_whatever_a_person_owns(
    pairs: list[PreferencePair], others: list[PreferencePair], k: int, relation: Relation, data: st.DataObject
) -> None:
    """Kept records of neighbours differ in at most k of hers, and in none of anybody else."""
    hers = [record for record in pairs if record.annotator == "ann"]
    rest = [record for record in pairs if record.annotator != "ann"]
    replaced = {
        Relation.ADD_REMOVE: [],
        Relation.REPLACE: [replace(record, annotator="ann") for record in others],
        Relation.FLIP: [flipped(record) if data.draw(st.booleans()) else record for record in hers],
    }[relation]
    here, there = kept(pairs, k), kept(data.draw(st.permutations(rest + replaced)), k)
    assert [record for record in here if record.annotator != "ann"] == [record for record in there if record.annotator != "ann"]
    left, came = ([record for record in side if record.annotator == "ann"] for side in (here, there))
    assert len(left) <= k >= len(came)
    if relation is Relation.FLIP:
        assert sorted(map(unordered, left)) == sorted(map(unordered, came))


@settings(deadline=None)
@given(st.lists(PEOPLE, min_size=1, max_size=12), PEOPLE, st.integers(1, 3))
def test_one_record_exchanged_exchanges_at_most_one_kept_record(pairs: list[PreferencePair], other: PreferencePair, k: int) -> None:
    here, there = kept(pairs, k), kept([replace(other, annotator=pairs[0].annotator), *pairs[1:]], k)
    lost = [record for record in here if here.count(record) > there.count(record)]
    assert len(set(lost)) <= 1


def kept(pairs: list[PreferencePair], k: int) -> list[PreferencePair]:
    _, owners = differences_of(pairs, Written(3), 1.0, key=KEY) if pairs else (None, None)
    if owners is None:
        return []
    keep = first_records(owners, k)
    return sorted((record for record, stays in zip(pairs, keep, strict=True) if stays), key=repr)


def unordered(record: PreferencePair) -> tuple[str, str, str]:
    return record.prompt, min(record.chosen, record.rejected), max(record.chosen, record.rejected)


def test_shards_by_person_hold_whole_persons_and_by_pair_ignore_the_label() -> None:
    from privalign.preferences.persons import shard_of

    pairs = [pair([x / 10, 0.0, 1.0], f"p{x}", f"person {x % 7}") for x in range(200)]
    _, owners = differences_of(pairs, Written(3), 1.0, key=KEY)
    by_person = shard_of(owners, 5, ShardBy.PERSON)
    assert all(len({int(by_person[i]) for i in range(person, 200, 7)}) == 1 for person in range(7))
    by_pair = shard_of(owners, 5, ShardBy.PAIR)
    assert np.bincount(by_pair, minlength=5).min() > 20
    _, turned = differences_of([flipped(record) for record in pairs], Written(3), 1.0, key=KEY)
    assert (shard_of(turned, 5, ShardBy.PAIR) == by_pair).all()
    _, other = differences_of(pairs, Written(3), 1.0, key=b"another")
    assert (shard_of(other, 5, ShardBy.PAIR) != by_pair).any()


def test_a_record_exchanged_for_one_signed_by_another_person_is_two_steps() -> None:
    """The promise is about the records of one person. With clipped records the exchange of one record for another person's moves what
    is kept of both: nearly twice as far as is certified for one, and never further than twice.
    """
    setting = HeadSettings(Written(2), 50.0, Relation.REPLACE, RANGE, 1, 1.0, 1e-6)
    crowd = [replace(record, annotator=f"crowd {number}") for number, record in enumerate(pushed([1.0, 0.0], 13.0, 50.0, 1.0))]
    up, down = [0.2, math.sqrt(0.96)], [0.2, -math.sqrt(0.96)]

    def kept(records: list[PreferencePair]) -> Floats:
        differences, owners = differences_of([*records, *crowd], setting.features, 1.0, key=KEY)
        return minimisers(setting, differences.keep(first_records(owners, 1)))

    def before(annotator: str, first: Sequence[float], second: Sequence[float]) -> list[PreferencePair]:
        """Two records of one person, of which the first one is kept."""
        for number in range(100):
            one, two = pair(first, f"p{number}", annotator), pair(second, "p", annotator)
            if first_records(differences_of([one, two], setting.features, 1.0, key=KEY)[1], 1)[0]:
                return [one, two]
        raise AssertionError("a keyed order of two records never turned round")

    ann, bob = before("ann", up, down), before("bob", down, up)
    here = kept([*ann, bob[1]])  # ann's first record, bob's only one: both point up
    other = kept([ann[1], *bob])  # her first record was exchanged for one that he signed: what is kept of both points down
    moved = float(np.linalg.norm(here - other))
    assert 1.8 < moved / setting.weight_bound <= 2
    halfway = kept([ann[1], bob[1]])  # one person at a time, each step is within the certificate
    for step in (here - halfway, halfway - other):
        assert np.linalg.norm(step) <= setting.weight_bound
