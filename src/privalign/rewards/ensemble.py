"""The mean of reward models that were trained on disjoint shards: one person moves it by a fraction of one model's Δ.

Mathematics: section 7 of the explanation page on sensitivity.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from privalign.errors import InvalidInput
from privalign.preferences.persons import ShardBy
from privalign.rewards.batches import together
from privalign.rewards.protocol import Reward, scores_in_process
from privalign.rewards.scores import AffineMap, FailClosedReward, finite_scores
from privalign.rewards.sums import means
from privalign.sensitivity import Certificate, Relation, Sensitivity
from privalign.types import Candidate, Request


class EnsembleReward(FailClosedReward):
    """The mean of the members' scores, each clipped to the range that all members share.

    All members must answer: one that fails fails the whole scoring, and the scorer counts as untouched only if every
    member does.

    Args:
        members: two or more. name: a public name for the ensemble.
        sensitivity: Δ of the mean, as `disjoint_shards` computes it.

    Formal guarantee: the one that `sensitivity` states for the exact mean, enlarged by the rounding of the mean.

    Raises:
        InvalidInput: fewer than two members, or the members' ranges are not all the one of `sensitivity`.
    """

    def __init__(self, members: Sequence[Reward], sensitivity: Sensitivity, *, name: str) -> None:
        if len(members) < 2:
            raise InvalidInput("members", f"{len(members)} given; an ensemble has at least 2")
        for member in members:
            if member.sensitivity.range != sensitivity.range:
                raise InvalidInput("range", f"member {member.name} has another range than the ensemble; give all members the same")
        super().__init__(f"{name} mean of {len(members)}", _rounded(sensitivity), AffineMap())
        self._members = tuple(members)

    @classmethod
    def certified(cls, members: Sequence[Reward], certificate: Certificate, *, name: str) -> EnsembleReward:
        """An ensemble whose Δ its certificate states.

        Raises:
            InvalidInput: the certificate is not one of an ensemble of as many shards as there are members, or it is about the
                weights of heads that were fitted here.
        """
        if certificate.released or certificate.features is not None:
            raise InvalidInput("certificate", 'is about the weights of a head and about no other model; give it to a reward of kind "head"')
        if certificate.kind != "ensemble" or certificate.shards != len(members):
            raise InvalidInput(
                "certificate", f"of kind '{certificate.kind}' for {certificate.shards} shards does not fit an ensemble of {len(members)}"
            )
        return cls(members, certificate.to_sensitivity(), name=name)

    @property
    def in_process(self) -> bool:
        """Whether all members score here; beside a server the ones that do are done long before it."""
        return all(map(scores_in_process, self._members))

    async def aclose(self) -> None:
        """Closes the members."""
        for member in self._members:
            await member.aclose()

    async def _raw(self, request: Request, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        pieces = [partial(self._clipped, member, request, candidates) for member in self._members]
        range = self.sensitivity.range
        return means(np.stack(await together(pieces, len(pieces))), max(-range.low, range.high))

    async def _clipped(self, member: Reward, request: Request, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        range = self.sensitivity.range
        scores = finite_scores(await member.score(request, candidates), len(candidates))
        clipped: NDArray[np.float64] = np.clip(scores, range.low, range.high)
        return clipped


def disjoint_shards(
    members: Sequence[Sensitivity], *, sharding: ShardBy, relation: Relation, records_per_person: int, reason: str
) -> Sensitivity:
    """Δ of the mean of models trained on disjoint shards: c · min(R, Δ_member)/K, at most R, rounded up.

    c counts the shards that one person's records can touch: 1 by person and min(k, K) by pair; with `replace` twice that, at
    most K, since the person may be exchanged for anybody, whose shard is another. Δ_member is the largest of the members'.

    Args:
        members: the sensitivities of the K members, with one range. Below R each must hold for `relation` and for at least
            `records_per_person` records; with `replace` it must come from a certificate, whose bound covers records that only
            leave or only arrive as well.
        reason: who vouches that the shards are disjoint, that the hash is public, and that no tuning or seed crossed shards. The
            result is marked as declared, with it.

    Raises:
        InvalidInput: an argument is out of its range, or a member's Δ does not cover what is asked.
    """
    if not reason.strip():
        raise InvalidInput("reason", "is empty; say why the shards are disjoint and nothing was tuned across them")
    if records_per_person < 1:
        raise InvalidInput("records_per_person", f"{records_per_person} is below 1")
    if len(members) < 2:
        raise InvalidInput("members", f"{len(members)} given; an ensemble has at least 2")
    range = members[0].range
    data = {member.dataset for member in members if member.dataset is not None}
    if len(data) > 1:
        raise InvalidInput(
            "members", f"they are about several data sets ({', '.join(sorted(data))}), and an account protects one; choose one"
        )
    for member in members:
        if member.range != range:
            raise InvalidInput("range", "the members' ranges differ; give all members the same")
        if member.release is not None:
            raise InvalidInput("members", f"one is a head that was {member.release.words}; serve it by itself, under that account")
        _check_covered(member, relation, records_per_person)
    count = len(members)
    touched = (1 if sharding is ShardBy.PERSON else records_per_person) * (2 if relation is Relation.REPLACE else 1)
    value = min(touched, count) * max(member.delta for member in members) / count
    return Sensitivity(
        math.nextafter(math.nextafter(value, math.inf), math.inf),  # the product and the quotient each round once
        range,
        "declared",
        relation,
        records_per_person,
        f"{count} disjoint shards by {sharding.value}: {reason}",
        next(iter(data), None),
    )


def _check_covered(member: Sensitivity, relation: Relation, records_per_person: int) -> None:
    if member.delta >= member.width:
        return  # R covers every relation and any number of records
    records = member.records_per_person or 0
    if member.relation is not relation or records < records_per_person:
        raise InvalidInput(
            "members", f"a member's Δ is not one for relation {relation.value} and {records_per_person} records; take its range instead"
        )
    if relation is Relation.REPLACE and member.source != "certificate":
        raise InvalidInput("members", "a declared Δ may not cover records that only leave a shard; take the range, or a certificate")


def _rounded(sensitivity: Sensitivity) -> Sensitivity:
    """Δ of the mean as computed, which `sums.means` rounds by less than 2.2·2⁻⁵³·M, M = max(|low|, |high|): two data sets, two means,
    M·2⁻⁵⁰ with the rounding of this very sum.
    """
    if sensitivity.delta >= sensitivity.width:
        return sensitivity
    largest = max(abs(sensitivity.range.low), abs(sensitivity.range.high))
    return dataclasses.replace(sensitivity, value=math.nextafter(sensitivity.value + math.ldexp(largest, -50), math.inf))
