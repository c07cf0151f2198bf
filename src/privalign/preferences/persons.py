"""Records per person and disjoint shards, by rules that look at nothing but a record's own owner and content.

Clipping keeps a person's first k records in the order of a keyed digest of (prompt, unordered pair). The order of two records
depends on these two alone. So, whatever k′ of a person's records a data set holds,

- the person's whole data there or not (add-remove): at most k kept records come or go;
- the person's whole data exchanged (replace): at most k leave and k arrive, in other words k replacements;
- one record exchanged: the kept set changes in at most one record, since the first k of an ordered set without one element
  and with another one differ in at most one from the first k before;
- labels turned round (flip): the digests, hence the kept records, stay the same (equal digests are ordered by label, and the
  first labels of a sorted list change in at most as many places as the list): at most k kept labels turn.

Nobody else's records are kept or dropped on her account. The bounds hold with k for persons of any number of records.

A record of one person exchanged for one that another signs changes what is kept of both: it is two steps, and moves up to 2k records.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from privalign.errors import InvalidInput
from privalign.preferences.differences import Owners


class ShardBy(StrEnum):
    """What decides which shard a record belongs to, through a keyed hash."""

    PERSON = "person"  # the annotator: all records of a person share a shard
    PAIR = "pair"  # the prompt with the unordered pair of answers: a label turned round stays in its shard


def first_records(owners: Owners, most: int) -> NDArray[np.bool_]:
    """Which records stay when every person keeps at most `most`, shape (records,)."""
    keep = np.zeros(len(owners.turned), dtype=np.bool_)
    order = np.lexsort((owners.turned, owners.contents[:, 1], owners.contents[:, 0], owners.persons[:, 1], owners.persons[:, 0]))
    persons = owners.persons[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (persons[1:] != persons[:-1]).any(axis=1)
    places = np.arange(len(order))
    rank = places - np.maximum.accumulate(np.where(new, places, 0))
    keep[order[rank < most]] = True
    return keep


def check_records(owners: Owners, most: int) -> None:
    """Refuses data in which a person has more records than the certificate would cover.

    Raises:
        InvalidInput: it is so; neither who nor how many is said.
    """
    if not first_records(owners, most).all():
        raise InvalidInput(
            "records_per_person", f"somebody has more than {most} records; give a larger number, or drop surplus records (--clip-records)"
        )


def shard_of(owners: Owners, shards: int, by: ShardBy) -> NDArray[np.int64]:
    """The shard of every record, 0 … shards − 1: the keyed digest modulo their number."""
    digests = owners.persons if by is ShardBy.PERSON else owners.contents
    return (digests[:, 0] % np.uint64(shards)).astype(np.int64)
