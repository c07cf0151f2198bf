"""The certificate of a Bradley–Terry head against refits on neighbouring data sets."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from privalign.errors import InvalidInput
from privalign.preferences import solver
from privalign.preferences.bradley_terry import Head, check_place, fit_head
from privalign.preferences.differences import Differences
from privalign.preferences.features import CharacterCrosses, Cross, Pick
from privalign.preferences.pairs import PreferencePair
from privalign.rewards.head import HeadReward
from privalign.secret import make_installation_key
from privalign.sensitivity import Relation, RewardRange

FEATURES = CharacterCrosses((Cross(0.8, (Pick("answer", 0, 0),)), Cross(0.6, (Pick("prompt", 0, 0), Pick("answer", 0, -1)))), cells=13)
RANGE = RewardRange(-2.0, 3.0)
TEXTS = st.text("abc", min_size=1, max_size=2)
PAIRS = st.builds(PreferencePair, st.sampled_from("xyz"), TEXTS, TEXTS)


def fit(
    pairs: list[PreferencePair], regularisation: float = 1.0, relation: Relation = Relation.REPLACE, k: int = 1, **settings: float
) -> Head:
    return fit_head(pairs, FEATURES, regularisation=regularisation, relation=relation, range=RANGE, records_per_person=k, **settings)


def neighbour(pairs: list[PreferencePair], relation: Relation, person: list[PreferencePair]) -> list[PreferencePair]:
    """Changes what the first len(person) records say."""
    k, rest = len(person), pairs[len(person) :]
    match relation:
        case Relation.ADD_REMOVE:
            return rest
        case Relation.REPLACE:
            return person + rest
        case Relation.FLIP:
            return [PreferencePair(pair.prompt, pair.rejected, pair.chosen) for pair in pairs[:k]] + rest


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.lists(PAIRS, min_size=4, max_size=12),
    st.sampled_from(Relation),
    st.lists(PAIRS, min_size=1, max_size=3),
    st.floats(0.05, 50),
    st.sampled_from([0.1, 1.0, 3.0]),
)
def test_no_neighbour_moves_weights_or_scores_further_than_certified(
    pairs: list[PreferencePair], relation: Relation, person: list[PreferencePair], regularisation: float, norm: float
) -> None:
    k = len(person)
    here = fit(pairs, regularisation, relation, k, feature_norm=norm)
    there = fit(neighbour(pairs, relation, person), regularisation, relation, k, feature_norm=norm)
    assert here.certificate == there.certificate
    assert here.certificate.movement is not None
    assert np.linalg.norm(here.weights - there.weights) <= here.certificate.movement
    answers = ["a", "b", "c", "ab", "ca", "zz", ""]
    for prompt in ("x", "y", "other"):
        one, other = (HeadReward(head.weights, head.certificate).score(prompt, answers) for head in (here, there))
        assert np.abs(one - other).max() <= here.certificate.sensitivity


def test_the_bound_is_close_to_what_a_replaced_record_can_do() -> None:
    # one record, far from saturation: its gradient is d/2 of norm √2·B/2; replaced by its opposite, it moves twice that
    here = fit([PreferencePair("x", "a", "b")], 1e6)
    there = fit([PreferencePair("x", "b", "a")], 1e6)
    moved = float(np.linalg.norm(here.weights - there.weights))
    assert here.certificate.movement == pytest.approx(4 / 1e6, rel=1e-3)
    assert moved == pytest.approx(math.sqrt(2) / 1e6, rel=1e-3)


@pytest.mark.parametrize(("relation", "moves"), [(Relation.ADD_REMOVE, 2), (Relation.REPLACE, 4), (Relation.FLIP, 2)])
def test_certified_numbers_are_the_formula_rounded_up(relation: Relation, moves: int) -> None:
    certificate = fit([PreferencePair("x", "a", "b")], 7.0, relation, 3, feature_norm=0.5, tolerance=1e-4).certificate
    exact = (moves * 3 * 0.5 + 2e-4) / 7
    assert certificate.movement is not None
    assert exact < certificate.movement < exact * (1 + 1e-11)
    assert 0.5 * exact < certificate.sensitivity < 0.5 * exact + 1e-7 * RANGE.width
    assert (certificate.relation, certificate.records_per_person, certificate.output) == (relation, 3, "clip")


def test_the_head_minimises_the_objective() -> None:
    chance = np.random.default_rng(0)
    letters = "abc"
    pairs = [PreferencePair("x", *(letters[i] for i in chance.integers(0, 3, 2))) for _ in range(200)]
    head = fit(pairs, 2.0, tolerance=1e-8)
    prompts = [pair.prompt for pair in pairs]
    d = (FEATURES.rows(prompts, [p.chosen for p in pairs], 1.0) - FEATURES.rows(prompts, [p.rejected for p in pairs], 1.0)).toarray()
    oracle = minimize(lambda w: np.logaddexp(0, -d @ w).sum() + w @ w, np.zeros(d.shape[1]), method="BFGS", options={"gtol": 1e-5})
    assert head.weights == pytest.approx(oracle.x, abs=1e-5)


def test_weights_stay_in_the_ball_that_bounds_their_rounding() -> None:
    pairs = [PreferencePair("x", "a", "b")] * 50
    narrow = fit_head(pairs, FEATURES, regularisation=1e-3, relation=Relation.REPLACE, range=RewardRange(0, 1e-7))
    assert np.linalg.norm(narrow.weights) <= 2.0**20 * 1e-7 * (1 + 1e-12)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("regularisation", {"regularisation": 0.0}),
        ("regularisation", {"regularisation": math.nan}),
        ("records_per_person", {"k": 0}),
        ("feature_norm", {"feature_norm": -1.0}),
        ("tolerance", {"tolerance": 0.0}),
    ],
)
def test_settings_out_of_range_are_refused(field: str, change: dict[str, float]) -> None:
    with pytest.raises(InvalidInput) as refusal:
        fit([PreferencePair("x", "a", "b")], **change)  # type: ignore[arg-type]
    assert refusal.value.field == field


def test_no_pair_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no preference pair"):
        fit([])


def test_a_solve_that_cannot_be_shown_to_reach_the_tolerance_is_refused() -> None:
    with pytest.raises(InvalidInput, match="does not reach"):
        fit([PreferencePair("x", "a", "b")] * 100, tolerance=1e-18)


def test_a_solve_that_takes_too_long_is_given_up_and_says_only_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [PreferencePair(prompt, "a" + one, "b" + other) for prompt in "xyz" for one in "abc" for other in ("c", "aa", "bb")]
    fit(pairs, 1e-3, tolerance=1e-5)
    monkeypatch.setattr(solver, "_PRODUCTS", 3)
    products: list[None] = []
    pull = Differences.pull
    monkeypatch.setattr(Differences, "pull", lambda self, shares: products.append(None) or pull(self, shares))
    with pytest.raises(InvalidInput) as error:
        fit(pairs, 1e-3, tolerance=1e-5)
    assert str(error.value) == "tolerance: the solve does not reach 1e-05; raise it, or the regularisation"
    assert len(products) < 100  # a gradient for every step that is tried is among them
    fit(pairs, 1e3)  # one that takes fewer


def test_nothing_computed_from_the_pairs_is_in_the_certificate() -> None:
    one = fit([PreferencePair("x", "a", "b")])
    other = fit([PreferencePair("y", "c", "a")] * 9)
    assert json.dumps(one.certificate.to_json()) == json.dumps(other.certificate.to_json())


def test_saved_files_are_private_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "key" / "secret"))
    make_installation_key()
    fit([PreferencePair("x", "a", "b")]).save(tmp_path / "head.json")
    saved = sorted(path.name for path in tmp_path.iterdir() if path.is_file())
    assert saved == ["head.json", "head.safetensors"]
    assert all((tmp_path / name).stat().st_mode & 0o777 == 0o600 for name in saved)


@pytest.mark.parametrize("taken", ["head.json", "head.safetensors"])
def test_a_target_that_is_no_file_stops_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str) -> None:
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "key" / "secret"))
    make_installation_key()
    (tmp_path / taken).mkdir()
    for attempt in (fit([PreferencePair("x", "a", "b")]).save, check_place):
        with pytest.raises(InvalidInput, match=f"out: .*{taken} is there and not a file"):
            attempt(tmp_path / "head.json")
        assert [path.name for path in tmp_path.iterdir() if path.name != "key"] == [taken]


def test_files_are_complete_before_the_first_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "key" / "secret"))
    make_installation_key()
    renamed: list[str] = []
    rename = Path.replace

    def watched(self: Path, target: Path) -> Path:
        fresh = [path for path in tmp_path.iterdir() if path.name.startswith(".privalign-")]
        assert len(fresh) == 2 - len(renamed)
        assert all(path.stat().st_size for path in fresh)
        renamed.append(target.name)
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", watched)
    fit([PreferencePair("x", "a", "b")]).save(tmp_path / "head.json")
    assert renamed == ["head.safetensors", "head.json"]


def test_no_room_for_the_weights_is_found_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        if os.fstat(descriptor).st_size > 1000:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    check_place(tmp_path / "head.json")
    with pytest.raises(InvalidInput, match="No space left"):
        check_place(tmp_path / "head.json", 1001)
    assert not list(tmp_path.iterdir())
