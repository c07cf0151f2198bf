"""A Bradley–Terry reward head on frozen public features, with a certificate of how far one person can move a score.

    F(w) = Σ log(1 + e^{−w·d}) + (Λ/2)‖w‖²        d = φ(prompt, chosen) − φ(prompt, rejected), ‖φ‖ ≤ B

An intercept would cancel in d. What the certificate states follows from `HeadSettings` alone and never from the preferences; the
bounds are those of `bounds`, the solve that they assume is that of `solver`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privalign.errors import InvalidInput, MissingDependency
from privalign.files import move, prepared
from privalign.preferences.bounds import MOVES, ensemble_bound, largest_norm, score_bound, weight_bound, weight_norm
from privalign.preferences.differences import Differences, Owners, differences_of
from privalign.preferences.features import FeatureMap
from privalign.preferences.pairs import PreferencePair
from privalign.preferences.persons import ShardBy, shard_of
from privalign.preferences.solver import minimise
from privalign.secret import installation_key
from privalign.sensitivity import Certificate, Relation, RewardRange

Floats = NDArray[np.float64]
OUTPUTS = ("clip", "sigmoid")
NORMS = (2.0**-500, 2.0**500)  # that weights may be projected to: their squares are floats


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """Everything that a certificate follows from. All of it, the features included, must come from public knowledge.

    Args:
        regularisation: Λ > 0. Δ falls as 1/Λ; the scores do too once Λ exceeds the number of records a cell sees.
        relation, records_per_person: what the certificate holds for. No person may own more than that many records.
        range: the public range of the scores. output: how w·φ gets there, "clip" or "sigmoid" (low + R/(1 + e^{−w·φ})).
        feature_norm: B > 0. tolerance: τ > 0 with ‖∇F‖ ≤ τ enforced.
        shards: K heads on disjoint shards, whose outputs are averaged; 1: one head. shard_by: what decides the shard.
        dataset: names the protected data; accounts of another data set are refused. None: not stated.

    Formal guarantee: for neighbouring data sets the float scores of any one text by heads that `fit` returns differ by at
    most `certificate().sensitivity`, rounded up.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    features: FeatureMap
    regularisation: float
    relation: Relation
    range: RewardRange
    records_per_person: int = 1
    feature_norm: float = 1.0
    tolerance: float = 1e-3
    output: str = "clip"
    shards: int = 1
    shard_by: ShardBy = ShardBy.PAIR
    dataset: str | None = None

    def __post_init__(self) -> None:
        for field in ("regularisation", "feature_norm", "tolerance"):
            if not 0 < getattr(self, field) < math.inf:
                raise InvalidInput(field, f"{getattr(self, field)} is not a finite number above 0")
        if self.records_per_person < 1:
            raise InvalidInput("records_per_person", f"{self.records_per_person} is below 1")
        if self.output not in OUTPUTS:
            raise InvalidInput("output", f"{self.output!r} is not one of {', '.join(OUTPUTS)}")
        if self.shards < 1:
            raise InvalidInput("shards", f"{self.shards} is below 1")
        if not NORMS[0] < largest_norm(self.feature_norm, self.range, self.output) < NORMS[1]:
            raise InvalidInput("feature_norm", f"{self.feature_norm:g} is too far from the width of the range; scale one of them")

    @property
    def weight_bound(self) -> float:
        """‖w − w′‖ ≤ (c·k·B + 2τ)/Λ of one head, before any projection."""
        return weight_bound(self.relation, self.records_per_person, self.feature_norm, self.regularisation, self.tolerance)

    def certificate(self) -> Certificate:
        """The certificate of the heads that `fit` returns, not signed yet."""
        bound = (self.relation, self.records_per_person, self.feature_norm, self.regularisation, self.tolerance, self.range, self.output)
        slope = "" if self.output == "clip" else "R/4·"
        reason = f"Λ-strong convexity: ‖w − w′‖ ≤ ({MOVES[self.relation]}·k·B + 2τ)/Λ, |Δ score| ≤ {slope}B·‖w − w′‖ + rounding"
        if self.shards == 1:
            sensitivity = score_bound(*bound)
        else:
            sensitivity = ensemble_bound(*bound, shards=self.shards, by_person=self.shard_by is ShardBy.PERSON)
            reason += f"; mean of {self.shards} heads on disjoint shards by a keyed hash of the {self.shard_by.value}"
        return Certificate(
            kind="head" if self.shards == 1 else "ensemble",
            relation=self.relation,
            records_per_person=self.records_per_person,
            range=self.range,
            sensitivity=min(sensitivity, self.range.width),
            dataset=self.dataset,
            output=self.output,
            loss="logistic",
            feature_norm=self.feature_norm,
            regularisation=self.regularisation,
            tolerance=self.tolerance,
            movement=self.weight_bound,
            weight_norm=weight_norm(self.feature_norm, self.range, self.output),
            features=self.features.describe(),
            shards=None if self.shards == 1 else self.shards,
            reason=reason,
            versions=dict(_versions()),
        )


@dataclass(frozen=True, slots=True)
class Head:
    """Weights, shape (dimension,), or (K, dimension) of an ensemble: protected. The certificate: public, not signed yet."""

    weights: Floats
    certificate: Certificate

    @property
    def content(self) -> bytes:
        """The weights file. The same weights give the same bytes.

        Raises:
            MissingDependency: safetensors is not installed.
        """
        return _safetensors()({"weights": self.weights})

    def save(self, path: Path) -> Certificate:
        """Writes the certificate, signed by the installation's key, to `path` (.json) and the weights beside it (.safetensors).

        Both files get mode 0600 and appear whole or not at all.

        Raises:
            InvalidInput: they cannot be written. MissingDependency: safetensors is not installed.
        """
        weights = self.content
        signed = self.certificate.signed(installation_key(), weights)
        certificate = (json.dumps(signed.to_json(), indent=2) + "\n").encode()
        with _written({path.with_suffix(".safetensors"): weights, path: certificate}) as fresh:
            move(fresh)  # in this order: a certificate never lacks its weights
        return signed


def check_place(path: Path, size: int = 0) -> None:
    """Refuses what `Head.save` could not write to, before a long fit or a payment. Nothing stays.

    Args:
        size: of the weights, in bytes: there must be room for them.

    Raises:
        InvalidInput: a file cannot be written. MissingDependency: safetensors is not installed.
    """
    _safetensors()
    with _written({path.with_suffix(".safetensors"): bytes(size), path: b""}):
        pass


def fit_head(
    pairs: Sequence[PreferencePair],
    features: FeatureMap,
    *,
    regularisation: float,
    relation: Relation,
    range: RewardRange,
    records_per_person: int = 1,
    feature_norm: float = 1.0,
    tolerance: float = 1e-3,
    output: str = "clip",
    dataset: str | None = None,
) -> Head:
    """Fits one head to pairs in memory; the arguments are those of `HeadSettings`.

    Raises:
        InvalidInput: a setting is out of its range, there is no pair, or the solve cannot reach the tolerance.
    """
    settings = HeadSettings(features, regularisation, relation, range, records_per_person, feature_norm, tolerance, output, dataset=dataset)
    if not pairs:
        raise InvalidInput("pairs", "there is no preference pair to learn from")
    differences, _ = differences_of(pairs, features, feature_norm, key=b"")  # nobody asks for owners
    return fit(settings, differences)


def fit(
    settings: HeadSettings,
    differences: Differences,
    owners: Owners | None = None,
    progress: Callable[[float], None] | None = None,
) -> Head:
    """Fits one head, or one on each shard.

    Args:
        differences: of `settings.features` and `settings.feature_norm`, at most `records_per_person` records a person.
        owners: needed for shards. progress: called with the share that is done. Not to be shown to others.

    Raises:
        InvalidInput: the solve cannot reach the tolerance.
    """
    return Head(project(minimisers(settings, differences, owners, progress), settings), settings.certificate())


def minimisers(
    settings: HeadSettings,
    differences: Differences,
    owners: Owners | None = None,
    progress: Callable[[float], None] | None = None,
) -> Floats:
    """The weights before projection, shape (dimension,) or (K, dimension); an empty shard's are 0.

    Formal guarantee: ‖w − w′‖ ≤ `settings.weight_bound` for one head and neighbouring data sets.
    """
    norm, regularisation, tolerance = settings.feature_norm, settings.regularisation, settings.tolerance
    if settings.shards == 1:
        return minimise(differences, regularisation, norm, tolerance, progress)
    if owners is None:
        raise InvalidInput("owners", "missing; shards need to know whose the records are")
    shard = shard_of(owners, settings.shards, settings.shard_by)
    heads = []
    for number in range(settings.shards):
        heads.append(minimise(differences.keep(shard == number), regularisation, norm, tolerance))
        if progress is not None:
            progress((number + 1) / settings.shards)
    return np.stack(heads)


def project(weights: Floats, settings: HeadSettings) -> Floats:
    """Each head into the ball that bounds the rounding of scores. A projection brings no two weights further apart."""
    largest = largest_norm(settings.feature_norm, settings.range, settings.output)
    lengths = np.linalg.norm(weights, axis=-1, keepdims=True)
    projected: Floats = weights * (largest / np.maximum(lengths, largest))
    return projected


@functools.cache
def _versions() -> tuple[tuple[str, str], ...]:
    """What is installed of the packages that a fit uses. To read it takes far longer than all bounds of a certificate."""
    found = []
    for package in ("privalign", "numpy", "scipy", "scikit-learn"):
        with contextlib.suppress(PackageNotFoundError):
            found.append((package, version(package)))
    return tuple(found)


def _safetensors() -> Callable[[dict[str, Floats]], bytes]:
    try:
        from safetensors.numpy import save
    except ImportError:
        raise MissingDependency("safetensors is not installed; get it with: pip install 'privalign[heads]'") from None
    return save


@contextlib.contextmanager
def _written(contents: dict[Path, bytes]) -> Iterator[dict[Path, Path]]:
    """The contents on disk under new names, which can take the places of `contents`; what was not renamed is removed."""
    try:
        with prepared(contents) as fresh:
            for path in contents:
                if path.exists() and not path.is_file():
                    raise InvalidInput("out", f"{path} is there and not a file; give another name")
            yield fresh
    except OSError as error:
        raise InvalidInput("out", f"{next(iter(contents)).parent} cannot be written to ({error.strerror}); give another place") from None
