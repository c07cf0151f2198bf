"""The rows d = φ(prompt, chosen) − φ(prompt, rejected) of a preference file, kept in blocks; and whose records they are."""

from __future__ import annotations

import hashlib
import hmac
import json
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from multiprocessing import get_context
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from privalign.errors import InvalidInput
from privalign.preferences.features import FeatureMap
from privalign.preferences.pairs import PreferencePair

Floats = NDArray[np.float64]
BLOCK: Final = 4096  # pairs: bounds what a worker holds, and the length of a sum within a block


@dataclass(frozen=True, slots=True)
class Owners:
    """Keyed digests of whose record a row is and what it is about, as two 64-bit words each, shape (records, 2).

    `contents` digests the prompt and the unordered pair of answers, so that turning a label round changes neither; `turned`
    says whether the chosen answer is the one that sorts last.
    """

    persons: NDArray[np.uint64]
    contents: NDArray[np.uint64]
    turned: NDArray[np.bool_]

    @classmethod
    def of(cls, pairs: list[PreferencePair], key: bytes) -> Owners:
        """Records without an annotator share one digest of nobody; whoever asks about persons uses `with_annotators` first."""
        persons = [_digest(key, "person", pair.annotator or "") for pair in pairs]
        contents = [content_digest(pair, key) for pair in pairs]
        turned = np.array([pair.chosen > pair.rejected for pair in pairs], dtype=np.bool_)
        return cls(_words(persons), _words(contents), turned)

    def keep(self, mask: NDArray[np.bool_]) -> Owners:
        """Those of the rows that the mask marks."""
        return Owners(self.persons[mask], self.contents[mask], self.turned[mask])


def content_digest(pair: PreferencePair, key: bytes) -> bytes:
    """A keyed digest of the prompt and the unordered pair of answers, 16 bytes: the same whoever was asked and said what."""
    return _digest(key, "content", pair.prompt, *sorted((pair.chosen, pair.rejected)))


@dataclass(frozen=True, slots=True)
class Differences:
    """A matrix of differences, shape (records, dimension), as blocks of CSR rows."""

    blocks: tuple[Any, ...]
    dimension: int

    @property
    def records(self) -> int:
        """How many rows there are. Protected under add-remove: for sums only, never shown."""
        return sum(block.shape[0] for block in self.blocks)

    @property
    def most_stored(self) -> int:
        """The most stored values in a row."""
        return max((int(np.diff(block.indptr).max(initial=0)) for block in self.blocks), default=0)

    @property
    def longest_sum(self) -> int:
        """The most terms that one addition chain of `pull` runs through."""
        return max((block.shape[0] for block in self.blocks), default=0) + len(self.blocks)

    def margins(self, weights: Floats) -> Floats:
        """w·d of every row."""
        return np.concatenate([block @ weights for block in self.blocks]) if self.blocks else np.empty(0)

    def pull(self, shares: Floats) -> Floats:
        """Σ sᵢdᵢ, shape (dimension,)."""
        total = np.zeros(self.dimension)
        start = 0
        for block in self.blocks:
            total += block.T @ shares[start : start + block.shape[0]]
            start += block.shape[0]
        return total

    def keep(self, mask: NDArray[np.bool_]) -> Differences:
        """The rows that the mask marks."""
        blocks, start = [], 0
        for block in self.blocks:
            chosen = mask[start : start + block.shape[0]]
            start += block.shape[0]
            blocks.append(block if chosen.all() else block[chosen])
        return Differences(tuple(block for block in blocks if block.shape[0]), self.dimension)


def differences_of(
    pairs: Iterable[PreferencePair],
    features: FeatureMap,
    norm: float,
    *,
    key: bytes,
    workers: int = 1,
) -> tuple[Differences, Owners]:
    """Reads pairs as a stream and keeps only their differences, and whose they are.

    Args:
        norm: B, a row of φ is scaled down to it. key: of the digests. workers: processes that compute features; 1 uses this one.

    At least one pair. Raises:
        InvalidInput: a feature is not finite.
    """
    work = partial(_block, features, norm, key)
    blocks, owners = zip(*_mapped(work, _chunks(pairs), workers), strict=True)
    columns = zip(*((owner.persons, owner.contents, owner.turned) for owner in owners), strict=True)
    persons, contents, turned = (np.concatenate(column) for column in columns)
    return Differences(blocks, features.dimension), Owners(persons, contents, turned)


def with_annotators(pairs: Iterable[PreferencePair], required: bool) -> tuple[Iterator[PreferencePair], bool]:
    """The same pairs, and whether they name their annotators: as the first one does, and always where it is required.

    Raises:
        InvalidInput: while iterating, a record does otherwise than it should: records of one person could not be told.
    """
    rest = iter(pairs)
    first = next(rest, None)
    named = required or (first is not None and first.annotator is not None)

    def checked() -> Iterator[PreferencePair]:
        for number, pair in enumerate(rest if first is None else chain([first], rest), 1):
            if named and pair.annotator is None:
                remedy = "name the person of every record" if required else "name all of them or none"
                raise InvalidInput("annotator", f"missing in record {number}; {remedy}")
            if not named and pair.annotator is not None:
                raise InvalidInput("annotator", f"missing before record {number}, which names one; name all of them or none")
            yield pair

    return checked(), named


def _chunks(pairs: Iterable[PreferencePair]) -> Iterator[list[PreferencePair]]:
    rest = iter(pairs)
    while chunk := list(islice(rest, BLOCK)):
        yield chunk


def _block(features: FeatureMap, norm: float, key: bytes, pairs: list[PreferencePair]) -> tuple[Any, Owners]:
    prompts = [pair.prompt for pair in pairs]
    rows = features.rows(prompts * 2, [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs], norm)
    difference = rows[: len(pairs)] - rows[len(pairs) :]
    difference.eliminate_zeros()
    return difference, Owners.of(pairs, key)


def _mapped(
    work: Callable[[list[PreferencePair]], tuple[Any, Owners]], chunks: Iterator[list[PreferencePair]], workers: int
) -> Iterator[tuple[Any, Owners]]:
    """`work` on every chunk, in order; a few chunks ahead in other processes where there are several workers."""
    if workers == 1:
        yield from map(work, chunks)
        return
    ignore = (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; this one alone answers it
    with ProcessPoolExecutor(workers, get_context("forkserver"), signal.signal, ignore) as pool:
        try:
            waiting: deque[Future[tuple[Any, Owners]]] = deque()
            for chunk in chunks:
                waiting.append(pool.submit(work, chunk))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _digest(key: bytes, *parts: str) -> bytes:
    return hmac.digest(key, json.dumps(parts).encode(), hashlib.sha256)[:16]


def _words(digests: list[bytes]) -> NDArray[np.uint64]:
    return np.frombuffer(b"".join(digests), dtype=">u8").astype(np.uint64).reshape(-1, 2)
