"""Where a reward's Δ comes from when it is not the range: a certificate file, or the operator's word."""

from __future__ import annotations

from pathlib import Path

from privalign.errors import InvalidInput
from privalign.rewards.provenance import has_weights
from privalign.secret import existing_key
from privalign.sensitivity import Relation, RewardRange, Sensitivity, load_certificate


def certified_sensitivity(path: Path, range: RewardRange) -> Sensitivity:
    """Δ that a certificate file of this installation states for scores clipped to `range`, where no weights are checked.

    Raises:
        InvalidFile: unreadable, or not signed by this installation. InvalidInput: it is for another range, or for weights of its
            own: it would say nothing about another model.
    """
    certificate = load_certificate(path, existing_key())
    if has_weights(certificate):
        raise InvalidInput(
            "certificate", f'{path} is about the weights of a head and about no other model; give it to a reward of kind "head"'
        )
    if certificate.range != range:
        stated = certificate.range
        raise InvalidInput(
            "range", f"{range.low:g},{range.high:g} is not the one of {path}: {stated.low:g},{stated.high:g}; give the certificate's"
        )
    return certificate.to_sensitivity()


def declared_sensitivity(value: float, range: RewardRange, *, reason: str, relation: Relation, records_per_person: int) -> Sensitivity:
    """Δ on the operator's word, for the relation and the records per person of the account. Marked as declared everywhere.

    Raises:
        InvalidInput: no reason, or a value out of its range.
    """
    if not reason.strip():
        raise InvalidInput("reason", "is empty; say why the declared sensitivity holds")
    if records_per_person < 1:
        raise InvalidInput("records_per_person", f"{records_per_person} is below 1")
    return Sensitivity(value, range, "declared", relation, records_per_person, reason)
