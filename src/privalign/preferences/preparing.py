"""From files of preferences to what a fit needs: the records that stay, whose they are, and a Λ that was chosen in public."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from privalign.errors import InvalidInput
from privalign.preferences.bradley_terry import HeadSettings
from privalign.preferences.differences import Differences, Owners, content_digest, differences_of, with_annotators
from privalign.preferences.ngrams import HashedNgrams
from privalign.preferences.pairs import iterate_pairs
from privalign.preferences.persons import ShardBy, check_records, first_records
from privalign.secret import installation_key

Progress = Callable[[float], None]


def refuse_shared_pairs(private: Path, public: Path, progress: Progress) -> None:
    """Refuses public preferences that share a pair with the private ones, however the files are packed or labelled.

    Raises:
        InvalidInput: they do.
    """
    key = installation_key()
    known = {content_digest(pair, key) for pair in iterate_pairs(public)}
    if any(content_digest(pair, key) in known for pair in iterate_pairs(private, progress)):
        raise InvalidInput("public", f"{public} holds pairs of the private preferences, which would void the certificate; leave them out")


def read_differences(
    prefs: Path, settings: HeadSettings, *, most: int, clip: bool, workers: int, progress: Progress
) -> tuple[Differences, Owners, int]:
    """The differences of the records that stay, whose they are, and how many were read: the latter two are protected.

    Args:
        most: records of one person. clip: the others are left out, instead of refused where annotators are named. workers: processes
            that compute features.

    Raises:
        InvalidFile: a record cannot be read. InvalidInput: one names no annotator where that is needed, or too many are of one person.
    """
    required = clip or most > 1 or (settings.shards > 1 and settings.shard_by is ShardBy.PERSON)
    pairs, named = with_annotators(iterate_pairs(prefs, progress), required)
    cheap = isinstance(settings.features, HashedNgrams)  # a model would be loaded in every process
    differences, owners = differences_of(
        pairs, settings.features, settings.feature_norm, key=installation_key(), workers=workers if cheap else 1
    )
    read = differences.records
    if clip:
        kept = first_records(owners, most)
        return differences.keep(kept), owners.keep(kept), read
    if named:
        check_records(owners, most)
    return differences, owners, read
