"""How far one person's data can move a score: Δ, the neighbouring relation it holds for, and where it comes from.

A score is clipped to a public range [low, high]; its
sensitivity is Δ = sup |r_D(x, y) − r_D′(x, y)| over prompts, answers and neighbouring data sets D ~ D′.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from privalign.canonical import canonical
from privalign.errors import InvalidFile, InvalidInput


class Relation(StrEnum):
    """What makes two preference data sets neighbours: they differ in the records of one person, and in nobody else's.

    A person is a name. A record of one person that becomes another's changes the records of two, which is two steps.
    """

    ADD_REMOVE = "add-remove"  # one person's records are there or not
    REPLACE = "replace"  # one person's records are exchanged for other records of that person
    FLIP = "flip"  # one person's labels are turned round; their prompts and answers are public

    def change(self, records: int) -> str:
        """How neighbours differ that have up to so many records of one person, in words: what every promise is about."""
        many = f"up to {records} records of one person"
        words = {
            Relation.ADD_REMOVE: ("adding or removing one person's record", f"adding or removing {many}"),
            Relation.REPLACE: (
                "exchanging one person's record for another of the same person",
                f"exchanging {many} for others of the same person",
            ),
            Relation.FLIP: (
                "turning round the label of one person's record (prompt and answers are public)",
                f"turning round the labels of {many} (prompts and answers are public)",
            ),
        }[self]
        return words[records > 1]


PERSON: Final = (  # goes with every `Relation.change`
    "A person is a name, and the records of all other persons stay as they are; exchanging a record for one of another person "
    "changes the records of two, which is two such steps."
)
FARTHEST: Final = 2.0**53  # from zero: the floats beyond are more than 1 apart


@dataclass(frozen=True, slots=True)
class RewardRange:
    """The public interval that scores are clipped to, in the reward model's own units; within ±2^53.

    Within it whole numbers are floats, and a score beyond it is clipped: no scorer's integers come further apart than they were.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise InvalidInput("range", f"{self.low},{self.high} is not finite; give two finite numbers LO,HI")
        if not self.low < self.high:
            raise InvalidInput("range", f"{self.low:g},{self.high:g} is empty; LO must be below HI")
        if max(-self.low, self.high) > FARTHEST:
            raise InvalidInput(
                "range", f"{self.low:g},{self.high:g} leaves ±2^53, where floats round whole numbers; scale scores and range down"
            )

    @property
    def width(self) -> float:
        """R = high − low, rounded up to the next float when the subtraction is not exact."""
        width = self.high - self.low
        exact = width + self.low == self.high and self.high - width == self.low
        return width if exact else math.nextafter(width, math.inf)


@dataclass(frozen=True, slots=True)
class HeadRelease:
    """The terms under which the weights of a head were released with differential privacy. They go wherever the head serves.

    Whoever scores with it promises (ε, δ) against these neighbours in this data set, and nothing else: only the account that paid, whose
    sum the release is part of, may serve it.

    Args:
        epsilon, delta: of the release. scale: the noise of each weight. movement: the bound on ‖w − w′‖ that it covers.
        relation, records_per_person: the neighbours. account: who paid. dataset: the protected data; None: not stated.
    """

    epsilon: float
    delta: float
    scale: float
    movement: float
    relation: Relation
    records_per_person: int
    account: str
    dataset: str | None = None

    def __post_init__(self) -> None:
        numbers = (self.epsilon, self.delta, self.scale, self.movement)
        if not all(type(number) in (int, float) and 0 < number < math.inf for number in numbers) or self.delta >= 1:
            raise InvalidInput("released", "epsilon, delta, scale or movement is out of its range")
        if not (isinstance(self.account, str) and self.account):
            raise InvalidInput("released", "no account is named that paid for it")

    @property
    def words(self) -> str:
        """Its guarantee, as what follows "the head itself was": the one sentence wherever a guarantee of such a head is stated."""
        data = "" if self.dataset is None else f" in data set {self.dataset}"
        return (
            f"released with ({self.epsilon!r}, {self.delta!r})-differential privacy against {self.relation.change(self.records_per_person)}"
            f"{data}, paid once by account {self.account}"
        )

    def stated(self) -> dict[str, Any]:
        """The same, as JSON has it."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "relation": self.relation.value,
            "records_per_person": self.records_per_person,
            "account": self.account,
            "dataset": self.dataset,
            "guarantee": self.words,
        }


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Δ of a reward model whose scores are clipped to `range`.

    Args:
        value: the bound on the score change as it was certified, declared or taken from the range; finite, > 0.
        range: the public clip range.
        source: "range" (assumption-free: Δ = R), "certificate", "declared", or "released" (with `release`).
        relation: the neighbouring relation that `value` holds for; None fits every relation (Δ = R).
        records_per_person: how many records of one person `value` covers; None covers any number (Δ = R).
        reason: why a declared value should be believed.
        dataset: the protected data that the certificate names; None: not stated.
        release: the terms of a head that was itself released with differential privacy.

    `delta` is min(value, R): a clipped score cannot move further than its range.
    """

    value: float
    range: RewardRange
    source: str = "declared"
    relation: Relation | None = None
    records_per_person: int | None = None
    reason: str | None = None
    dataset: str | None = None
    release: HeadRelease | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value > 0):
            raise InvalidInput("sensitivity", f"{self.value} is not a finite number above 0; give Δ or 'range'")
        if (self.source == "released") != (self.release is not None):
            raise InvalidInput("sensitivity", "scores are free by the terms of a released head, and by nothing else; give these")

    @classmethod
    def of_range(cls, range: RewardRange) -> Sensitivity:
        """Δ = R: true for every reward model, every relation and any number of records per person."""
        return cls(range.width, range, source="range")

    @property
    def width(self) -> float:
        """R, the width of the public range."""
        return self.range.width

    @property
    def delta(self) -> float:
        """Δ = min(value, R)."""
        return min(self.value, self.width)

    @property
    def public(self) -> bool:
        """Whether the scores come from a head that was released with differential privacy: what uses them costs nothing more."""
        return self.release is not None

    @property
    def charged(self) -> float:
        """Δ of the scores as mechanisms see them: clipped, shifted by `low` and rounded to a float.

        The shift rounds each score by at most R·2⁻⁵³, hence Δ + R·2⁻⁵² (never more than R). Exact when low = 0.
        """
        if self.range.low == 0 or self.delta >= self.width:
            return self.delta
        return min(self.width, math.nextafter(self.delta + math.ldexp(self.width, -52), math.inf))

    def stated(self) -> dict[str, Any]:
        """Δ and what it rests on, as JSON has it: stated wherever ε is."""
        return {
            "sensitivity": self.delta,
            "sensitivity_source": self.source,
            "relation": None if self.relation is None else self.relation.value,
            "records_per_person": self.records_per_person,
            "range": [self.range.low, self.range.high],
            **({} if self.dataset is None else {"dataset": self.dataset}),
            **self.released,
        }

    @property
    def released(self) -> dict[str, Any]:
        """The terms of a released head as a part of JSON objects; empty of others."""
        return {} if self.release is None else {"release": self.release.stated()}


@dataclass(frozen=True, slots=True)
class Certificate:
    """A bound on Δ with the facts that prove it, as JSON beside the weights that it is about.

    Every field is public: settings, and what follows from settings. Nothing computed from the protected data is in
    it. `mac` is an HMAC-SHA256 under the installation's key over all other fields and the weights, so that neither can
    be exchanged; a plain digest of the weights would be a function of the protected data.

    Fields: `kind` "head", "ensemble" or "declared"; `dataset` names the protected data, None: not stated; `range` [low, high];
    `sensitivity` Δ in score units; `output` "clip" or "sigmoid" (how raw scores reach the range); `loss` that the head minimises;
    `feature_norm` B with ‖φ‖ ≤ B; `clip` C that differences of φ are projected to, None: they are not; `regularisation` Λ;
    `tolerance` τ with ‖∇F‖ ≤ τ enforced; `movement` S, a bound on ‖w − w′‖ over neighbours, of each head; `weight_norm` W with
    ‖w‖ ≤ W enforced; `features` describes the public feature map; `shards` K of an ensemble; `reason` of a declared value, or the
    derivation of a proved one; `released` with which (ε, δ) the weights themselves were released, paid by which account;
    `versions` of the software that made the features.

    Version 1 has no `dataset`, `loss`, `clip` and `weight_norm`, and calls `movement` `weight_bound`; its loss is logistic. What it
    says holds as it did, and is written as it was read. The format: docs/certificates.md.
    """

    kind: str
    relation: Relation
    records_per_person: int
    range: RewardRange
    sensitivity: float
    dataset: str | None = None
    output: str = "clip"
    loss: str | None = None
    feature_norm: float | None = None
    clip: float | None = None
    regularisation: float | None = None
    tolerance: float | None = None
    movement: float | None = None
    weight_norm: float | None = None
    features: Mapping[str, object] | None = None
    shards: int | None = None
    reason: str | None = None
    released: Mapping[str, object] | None = None
    versions: Mapping[str, str] | None = None
    version: int = 2
    mac: str | None = None

    def to_sensitivity(self) -> Sensitivity:
        """The Δ that it certifies, for its relation and records per person."""
        release = self._release()
        source = "released" if release else "declared" if self.kind == "declared" else "certificate"
        return Sensitivity(self.sensitivity, self.range, source, self.relation, self.records_per_person, self.reason, self.dataset, release)

    def _release(self) -> HeadRelease | None:
        """The terms of the release.

        Raises:
            InvalidInput: some are missing, unknown or out of their range.
        """
        if self.released is None:
            return None
        if set(self.released) != {"epsilon", "delta", "account", "scale"} or self.movement is None:
            raise InvalidInput("released", "not epsilon, delta, account and scale of a head whose movement is known")
        terms: dict[str, Any] = {**self.released}
        return HeadRelease(
            **terms, movement=self.movement, relation=self.relation, records_per_person=self.records_per_person, dataset=self.dataset
        )

    def to_json(self) -> dict[str, object]:
        """The JSON object of the file format of its version; absent fields are left out."""
        values = {name: getattr(self, field) for name, field in _FIELDS[self.version].items()}
        values |= {"relation": self.relation.value, "range": [self.range.low, self.range.high]}
        return {name: value for name, value in values.items() if value is not None}

    def signed(self, key: bytes, weights: bytes = b"") -> Certificate:
        """The same certificate, bound to `weights` (the bytes of the weights file; empty where there is none)."""
        return dataclasses.replace(self, mac=self._mac(key, weights))

    def is_signed_by(self, key: bytes, weights: bytes = b"") -> bool:
        """Whether `mac` is the one that `key` gives for these fields and these weights."""
        try:
            return self.mac is not None and hmac.compare_digest(self.mac, self._mac(key, weights))
        except ValueError:  # a number that is not finite, which nothing signs
            return False

    def _mac(self, key: bytes, weights: bytes) -> str:
        fields = {name: value for name, value in self.to_json().items() if name != "mac"}
        body = canonical(fields).encode()
        return hmac.new(key, hashlib.sha256(body).digest() + hashlib.sha256(weights).digest(), hashlib.sha256).hexdigest()

    @classmethod
    def from_json(cls, document: object, path: str) -> Certificate:
        """Reads the JSON object of a certificate file; `path` is only for messages.

        Raises:
            InvalidFile: another version, a loss that this version cannot price, or a field that is missing, unknown or out of its
            range.
        """
        if not isinstance(document, dict):
            raise InvalidFile(path, None, "not a certificate; make one with `privalign reward fit`")
        if "version" not in document:
            raise InvalidFile(path, None, "certificate field 'version' is missing; make it again with `privalign reward fit`")
        version = document["version"]
        if type(version) is not int or version not in _FIELDS:
            raise InvalidFile(path, None, "a certificate of another version of privalign; read it with that one, or fit the head again")
        fields = _FIELDS[version]
        unknown = sorted(set(document) - set(fields))
        if unknown:
            raise InvalidFile(path, None, f"unknown certificate field '{unknown[0]}'; it was made by another version")
        if document.get("loss", LOSSES[0]) not in LOSSES:
            raise InvalidFile(path, None, "the loss of this head has no price in this version of privalign; use the one that fitted it")
        missing = [name for name in ("kind", "relation", "records_per_person", "range", "sensitivity") if name not in document]
        if missing:
            raise InvalidFile(path, None, f"certificate field '{missing[0]}' is missing; make it again with `privalign reward fit`")
        try:
            low, high = document["range"]
            certificate = cls(
                **{
                    **{fields[name]: value for name, value in document.items()},
                    "relation": Relation(document["relation"]),
                    "range": RewardRange(float(low), float(high)),
                    "sensitivity": float(document["sensitivity"]),
                }
            )
            certificate._check()
        except (TypeError, ValueError):
            raise InvalidFile(path, None, "a certificate field is out of its range; make it again with `privalign reward fit`") from None
        return certificate

    def _check(self) -> None:
        """Raises a ValueError where a field is out of its range."""
        numbers = (self.feature_norm, self.clip, self.regularisation, self.tolerance, self.movement, self.weight_norm)
        proper = (
            self.kind in ("head", "ensemble", "declared"),
            type(self.records_per_person) is int and self.records_per_person >= 1,
            self.output in ("clip", "sigmoid"),
            all(number is None or (type(number) in (int, float) and 0 < number < math.inf) for number in numbers),
            self.dataset is None or (isinstance(self.dataset, str) and self.dataset != ""),
            self.shards is None or (type(self.shards) is int and self.shards >= 2),
            all(isinstance(text, str | None) for text in (self.loss, self.reason, self.mac)),
            all(isinstance(facts, dict | None) for facts in (self.features, self.released, self.versions)),
        )
        if not all(proper):
            raise ValueError
        self.to_sensitivity()


LOSSES: Final = ("logistic",)  # whose certificates this version can price
_SINCE_2: Final = ("dataset", "loss", "clip", "weight_norm")
_FIELDS: Final = {  # of each version: name in the file -> field
    1: {
        "weight_bound" if field.name == "movement" else field.name: field.name
        for field in dataclasses.fields(Certificate)
        if field.name not in _SINCE_2
    },
    2: {field.name: field.name for field in dataclasses.fields(Certificate)},
}


def load_certificate(path: Path, key: bytes) -> Certificate:
    """Reads and checks a certificate and the weights beside it (same name, ending `.safetensors`), if there are any.

    Raises:
        InvalidFile: unreadable, malformed, or not signed by this installation's key for these weights.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        weights_file = path.with_suffix(".safetensors")
        weights = weights_file.read_bytes() if weights_file.exists() else b""
    except OSError as error:
        raise InvalidFile(
            str(path), None, f"cannot be read ({error.strerror}); give a certificate, as `privalign reward fit` writes it"
        ) from None
    except ValueError:
        raise InvalidFile(str(path), None, "not JSON; give a certificate, as `privalign reward fit` writes it") from None
    certificate = Certificate.from_json(document, str(path))
    if not certificate.is_signed_by(key, weights):
        raise InvalidFile(
            str(path),
            None,
            "its signature does not fit: it or its weights were changed, or another installation made it (PRIVALIGN_SECRET_FILE)",
        )
    return certificate
