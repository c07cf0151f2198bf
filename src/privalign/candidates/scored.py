"""Scored and graded candidates as flat arrays, streamed from files in blocks of whole prompts.

Formats, told apart by content: JSONL, a JSON array (either in gzip), one Parquet file, or a folder of Parquet shards, read in
the order of their names. Of Parquet only `prompt_id`, `is_correct` and the reward column are read. A candidate without a
finite reward or without a finite gold score is left out and counted; it never counts as zero.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privalign.candidates.records import Place, records
from privalign.candidates.shards import MANIFEST
from privalign.errors import InvalidFile, MissingDependency
from privalign.sensitivity import RewardRange

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

BLOCK: Final = 1 << 19  # candidates in a block, about: 8 MiB of rewards and gold
MUCH: Final = 0.05  # of the rewards, from which on a range that cuts them is warned of
_ROWS: Final = 1 << 16  # of one Parquet batch
_SHAPE: Final = '{"prompt": …, "responses": [{"text": …, "is_correct": …, REWARD: …}, …]}'
_NOTHING: Final = "no records in it; give JSONL, a JSON array or Parquet of scored and graded candidates"


@dataclass(frozen=True, slots=True)
class ScoredPrompts:
    """A block of prompts; candidates of prompt p are `offsets[p]:offsets[p + 1]`, in the order of the file.

    Args:
        offsets: shape (P + 1,), not falling, from 0 to C. A prompt may have no candidate left.
        rewards: shape (C,), finite, in the reward model's own units.
        gold: shape (C,), finite: 0 or 1, or a gold score in [0, 1].
        skipped: how many candidates were left out for want of a reward or a gold score.
    """

    offsets: Counts
    rewards: Floats
    gold: Floats
    skipped: int = 0

    @property
    def prompts(self) -> int:
        """P."""
        return len(self.offsets) - 1

    @property
    def counts(self) -> Counts:
        """How many candidates each prompt has; shape (P,)."""
        return np.diff(self.offsets)

    def take(self, indices: ArrayLike) -> ScoredPrompts:
        """The prompts with these numbers, in this order, or where a mask of shape (P,) is true."""
        chosen = np.asarray(indices)
        chosen = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen.astype(np.int64)
        counts = self.counts[chosen]
        offsets = _offsets(counts)
        rows = np.repeat(self.offsets[:-1][chosen] - offsets[:-1], counts) + np.arange(offsets[-1])
        return ScoredPrompts(offsets, self.rewards[rows], self.gold[rows], self.skipped)


def join(blocks: Iterable[ScoredPrompts]) -> ScoredPrompts:
    """All prompts of several blocks as one."""
    parts = list(blocks)
    empty: list[Any] = [np.empty(0)]
    return ScoredPrompts(
        _offsets(np.concatenate([np.empty(0, np.int64), *(part.counts for part in parts)])),
        np.concatenate(empty + [part.rewards for part in parts]),
        np.concatenate(empty + [part.gold for part in parts]),
        sum(part.skipped for part in parts),
    )


class Clamped:
    """How many rewards of the blocks that pass lie outside a range, and count as its ends."""

    def __init__(self, reward_range: RewardRange) -> None:
        self._range = reward_range
        self._below = self._above = self._all = 0
        self._lowest, self._highest = math.inf, -math.inf

    def counted(self, blocks: Iterable[ScoredPrompts]) -> Iterator[ScoredPrompts]:
        """The blocks as they are."""
        for block in blocks:
            self._below += int((block.rewards < self._range.low).sum())
            self._above += int((block.rewards > self._range.high).sum())
            self._all += block.rewards.size
            self._lowest = min(self._lowest, float(block.rewards.min(initial=math.inf)))
            self._highest = max(self._highest, float(block.rewards.max(initial=-math.inf)))
            yield block

    def stated(self) -> dict[str, Any]:
        """For a study's settings: the counts, and a `warning` where a twentieth of the rewards or more cannot be told apart."""
        counts = {"clamped": {"below": self._below, "above": self._above, "of": self._all}}
        cut = self._below + self._above
        if cut < MUCH * max(1, self._all):
            return counts
        what = f"{cut} of {self._all} rewards lie outside {self._range.low:g} … {self._range.high:g} and count as its ends"
        where = f"{self._below} below, {self._above} above; they reach from {self._lowest:.4g} to {self._highest:.4g}"
        return counts | {"warning": f"range: {what} ({where}); give a public range that holds most of them"}


def read_pooled(paths: Sequence[Path], reward: str = "proxy_reward") -> Iterator[ScoredPrompts]:
    """The prompts of several files or folders, one after the other, as `read_scored`."""
    for path in paths:
        yield from read_scored(path, reward)


def provenance(paths: Sequence[Path], reward: str) -> dict[str, Any]:
    """What a study is a study of, for its document: files by name and SHA-256 (of a folder's shards, in order), and the reward column.

    Raises:
        InvalidFile: one cannot be read.
    """
    names = [f"{path.absolute().parent.name}/{path.name}" if path.is_dir() else path.name for path in paths]
    files = [{"name": name, "sha256": _sha256(path)} for name, path in zip(names, paths, strict=True)]
    return {"file": ", ".join(names), "files": files, "reward": reward}


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except IsADirectoryError:
        shards = "".join(f"{_sha256(shard)}  {shard.name}\n" for shard in sorted(path.glob("*.parquet")))
        return hashlib.sha256(shards.encode()).hexdigest()
    except OSError as error:
        raise Place(path).flaw(f"cannot be read ({error.strerror}); give a file of scored candidates") from None


def read_scored(path: Path, reward: str = "proxy_reward", *, block: int = BLOCK) -> Iterator[ScoredPrompts]:
    """Streams a file, or a folder of Parquet shards; memory holds about one block (and the prompt ids met, for Parquet).

    Args:
        reward: the key, or Parquet column, that holds the score.
        block: how many candidates to gather before a block is handed on; prompts are never split.

    Raises:
        InvalidFile: unreadable, malformed, without records, of a stage that is not finished, ungraded, a gold score outside
            [0, 1], a prompt_id that is null or comes back.
        MissingDependency: Parquet without pyarrow installed.
    """
    shards = _shards(path)
    runs = _json_prompts(path, reward) if shards is None else _parquet_runs(shards, reward)
    gathered = _Gathered()
    for fresh, rewards, gold in runs:
        if fresh and gathered.rows >= block:
            yield gathered.block()
            gathered = _Gathered()
        gathered.add(fresh, rewards, gold)
    if not gathered.counts:  # a block is handed on only when a prompt follows
        raise Place(path).flaw(_NOTHING)
    yield gathered.block()


Run = tuple[bool, Floats, Floats]  # whether a new prompt begins; rewards and gold of some of its rows, NaN where missing


class _Gathered:
    """The prompts of one block as they come in."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.rows = 0
        self._rewards: list[Floats] = []
        self._gold: list[Floats] = []

    def add(self, fresh: bool, rewards: Floats, gold: Floats) -> None:
        if fresh:
            self.counts.append(0)
        usable = np.isfinite(rewards) & np.isfinite(gold)
        self.rows += len(rewards)
        self.counts[-1] += int(usable.sum())
        self._rewards.append(rewards[usable])
        self._gold.append(gold[usable])

    def block(self) -> ScoredPrompts:
        rewards = np.concatenate(self._rewards)
        return ScoredPrompts(_offsets(np.array(self.counts, np.int64)), rewards, np.concatenate(self._gold), self.rows - len(rewards))


def _offsets(counts: Counts) -> Counts:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _shards(path: Path) -> list[Path] | None:
    """The Parquet files at `path`; None where it is a file of another kind."""
    if path.is_dir():
        shards = sorted(path.glob("*.parquet"))
        if not shards:
            raise Place(path).flaw("a folder without *.parquet files; give the folder that `score` and `grade` wrote")
        if len(shards) < _planned(path):
            raise Place(path).flaw(f"holds {len(shards)} of {_planned(path)} shards; run the stage that writes it again, it resumes")
        return shards
    try:
        with path.open("rb") as file:
            return [path] if file.read(4) == b"PAR1" else None
    except OSError as error:
        raise Place(path).flaw(f"cannot be read ({error.strerror}); give a file of scored candidates") from None


def _planned(folder: Path) -> int:
    """How many shards the stage that writes the folder sets out to make; 0 where no stage does."""
    try:
        return int(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["shards"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return 0


def _json_prompts(path: Path, reward: str) -> Iterator[Run]:
    shape = _SHAPE.replace("REWARD", f'"{reward}"')
    for place, record in records(path, reward):
        responses = record.get("responses") if isinstance(record, dict) else None
        if not isinstance(responses, list):
            raise place.flaw(f"not a record with a list of responses; give {shape}")
        columns: tuple[list[float], list[float]] = ([], [])
        for number, response in enumerate(responses, start=1):
            for key, column in zip((reward, "is_correct"), columns, strict=True):
                if not isinstance(response, dict) or key not in response:
                    raise place.flaw(f"'{key}' of response {number} is missing; give {shape}")
                column.append(_number(place, key, response[key]))
        yield True, np.array(columns[0]), _graded(place, np.array(columns[1]))


def _number(place: Place, key: str, value: Any) -> float:
    """A float, NaN where there is none."""
    if value is None:
        return math.nan
    if not isinstance(value, bool | int | float):
        raise place.flaw(f"a {key} is neither a number nor null; score or grade this prompt again")
    try:
        return float(value)
    except OverflowError:  # a whole number with hundreds of digits
        return math.inf


def _graded(place: Place, gold: Floats) -> Floats:
    """The gold scores, where none of them lies outside [0, 1]."""
    if (np.isfinite(gold) & (np.abs(gold - 0.5) > 0.5)).any():
        raise place.flaw("an is_correct lies outside [0, 1]; give 0 or 1, or a gold score that is brought to [0, 1]")
    return gold


def _parquet_runs(shards: list[Path], reward: str) -> Iterator[Run]:
    try:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingDependency("Parquet files need pyarrow; get it with: pip install 'privalign[parquet]'") from None

    columns = ["prompt_id", "is_correct", reward]
    met: set[Any] = set()
    last = object()
    for shard in shards:
        place = Place(shard)
        try:
            with pq.ParquetFile(shard, buffer_size=1 << 20, pre_buffer=False) as table:
                _check_columns(place, table.schema_arrow, columns)
                for batch in table.iter_batches(_ROWS, columns=columns, use_threads=False):
                    if not batch.num_rows:
                        continue
                    grades, scores = (
                        pc.cast(batch.column(name), pa.float64(), safe=False).to_numpy(zero_copy_only=False) for name in columns[1:]
                    )
                    ids = batch.column("prompt_id")
                    if ids.null_count:
                        raise place.flaw("a prompt_id is null; number the prompts")
                    _graded(place, grades)
                    runs = pc.run_end_encode(ids.dictionary_decode() if pa.types.is_dictionary(ids.type) else ids)
                    start = 0
                    for prompt_id, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
                        fresh = prompt_id != last
                        if fresh:
                            if prompt_id in met:
                                raise place.flaw("a prompt_id comes back after another one; sort the rows by prompt_id")
                            met.add(prompt_id)
                            last = prompt_id
                        yield fresh, scores[start:end], grades[start:end]
                        start = end
        except InvalidFile:
            raise
        except (pa.ArrowException, OSError, ValueError):  # what pyarrow says may quote a value
            raise place.flaw("damaged Parquet; write the file again") from None


def _check_columns(place: Place, schema: Any, columns: list[str]) -> None:
    """Refuses a schema without the prompt_id and the columns of numbers."""
    from pyarrow import types

    for column in columns:
        if column not in schema.names:
            raise place.flaw(f"column '{column}' is missing; give one row per candidate with {', '.join(columns)}")
        kind = schema.types[schema.names.index(column)]
        numbers = any(is_kind(kind) for is_kind in (types.is_floating, types.is_integer, types.is_boolean, types.is_decimal, types.is_null))
        if column != columns[0] and not numbers:
            raise place.flaw(f"column '{column}' is of type {kind}, which is no number; score or grade the candidates again")
        if column == columns[0] and types.is_nested(kind):
            raise place.flaw(f"column '{column}' is of type {kind}; give one number or text for each prompt")
