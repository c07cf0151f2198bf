"""Recorded candidates with their texts, and their scores where they have them, read prompt by prompt.

No message says what a reward is, or which response it belongs to.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from privalign.candidates.records import Place, records

_SHAPE = '{"prompt": …, "responses": [{"text": …, REWARD: …}, …]}'
_UNSCORED = '{"prompt": …, "responses": [{"text": …}, …]}'


@dataclass(frozen=True, slots=True)
class RecordedTexts:
    """The candidates of one prompt, in the order of the file, of length N ≥ 1."""

    prompt: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pool(RecordedTexts):
    """… with their scores, of the same length: finite, in the reward model's own units, and not public."""

    rewards: tuple[float, ...] = field(repr=False)


def read_pools(path: Path, reward: str = "proxy_reward", at_least: int = 1) -> Generator[Pool, None, None]:
    """Reads a file of scored candidates prompt by prompt; memory holds one prompt (and the ids met, for Parquet).

    The file stays open until the last prompt, or `close`.

    Args:
        path: a regular file, so that it can be read more than once.
        reward: the key, or Parquet column, that holds the score.
        at_least: how many candidates each prompt must have.

    Raises:
        InvalidFile: unreadable, malformed, without records, a score that is not a finite number, too few candidates.
        MissingDependency: a Parquet file without pyarrow installed.
    """
    shape = _SHAPE.replace("REWARD", f'"{reward}"')
    for place, record in _some(path, reward):
        texts = _texts(place, record, shape, at_least)
        yield Pool(texts.prompt, texts.texts, _rewards(place, record["responses"], shape, reward))


def read_texts(path: Path, at_least: int = 1) -> Generator[RecordedTexts, None, None]:
    """Reads a file of candidates prompt by prompt, whether or not they are scored; as `read_pools` otherwise."""
    for place, record in _some(path, None):
        yield _texts(place, record, _UNSCORED, at_least)


def _some(path: Path, reward: str | None) -> Iterator[tuple[Place, Any]]:
    """The records, at least one."""
    empty = True
    for place, record in records(path, reward):
        empty = False
        yield place, record
    if empty:
        raise Place(path).flaw("no records in it; give JSONL, a JSON array or Parquet of scored candidates")


def _texts(place: Place, record: Any, shape: str, at_least: int) -> RecordedTexts:
    if not isinstance(record, dict):
        raise place.flaw(f"not a record; give {shape}")
    for key in ("prompt", "responses"):
        if key not in record:
            raise place.flaw(f"'{key}' is missing; give {shape}")
    prompt = _unicode(place, record["prompt"], "prompt")
    responses = record["responses"]
    if not isinstance(responses, list):
        raise place.flaw(f"'responses' is not a list; give {shape}")
    if len(responses) < at_least:
        raise place.flaw(f"{len(responses)} responses where {at_least} are needed; add responses, lower n, or draw with replacement")
    texts = _column(place, responses, "text", shape)
    return RecordedTexts(prompt, tuple(_unicode(place, text, f"text of response {number}") for number, text in enumerate(texts, start=1)))


def _rewards(place: Place, responses: list[Any], shape: str, reward: str) -> tuple[float, ...]:
    return tuple(_finite(place, value, reward) for value in _column(place, responses, reward, shape))


def _column(place: Place, responses: list[Any], key: str, shape: str) -> Iterator[Any]:
    for number, response in enumerate(responses, start=1):
        if not isinstance(response, dict):
            raise place.flaw(f"response {number} is not an object; give {shape}")
        if key not in response:
            raise place.flaw(f"'{key}' of response {number} is missing; give {shape}")
        yield response[key]


def _unicode(place: Place, value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise place.flaw(f"the {name} is not a string; give text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise place.flaw(f"the {name} holds half a surrogate pair, which is not Unicode; repair the escape") from None
    return value


def _finite(place: Place, value: Any, name: str) -> float:
    remedy = "score this prompt again, or remove it"
    if value is None:
        raise place.flaw(f"a {name} is null; {remedy}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise place.flaw(f"a {name} is not a number; {remedy}")
    try:
        number = float(value)
    except OverflowError:  # a whole number with hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise place.flaw(f"a {name} is not finite; {remedy}")
    return number
