"""Public, frozen feature maps φ(prompt, answer): fixed before any preference is seen, nothing in them is learned.

A map describes itself as a JSON object, which goes into the certificate and rebuilds the map. This file holds what all maps
share, and the smallest of them; hashed n-grams and the embeddings of a language model have files of their own.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from privalign.errors import InvalidInput

_WORDS = re.compile(r"\w+|[^\w\s]")
_NORM_SLACK: Final = 2.0**-30  # relative error granted to a float norm of up to 2²² values
_UNKNOWN = "the certificate describes a feature map that this version does not know"


class FeatureMap(Protocol):
    """φ: a public function of a prompt and an answer. Maps are values: equal maps have equal descriptions."""

    @property
    def dimension(self) -> int:
        """The length of φ."""

    def rows(self, prompts: Sequence[str], answers: Sequence[str], norm: float) -> Any:
        """φ(prompt, answer), scaled down to ‖φ‖ ≤ norm where it is longer: a SciPy CSR array, one row an answer.

        The same texts give the same floats, alone or among others, as far as the back-end can promise that.

        Raises:
            InvalidInput: a feature is not a finite number.
        """

    def describe(self) -> dict[str, object]:
        """The JSON object of the certificate; `feature_map` is its inverse."""


def feature_map(description: object) -> FeatureMap:
    """The map that describes itself so, as a JSON object with its `kind` and settings.

    Raises:
        InvalidInput: it is not the description of a known map. MissingDependency: its back-end is not installed.
    """
    from privalign.preferences.embeddings import LlamaCppEmbeddings, TransformersEmbeddings
    from privalign.preferences.ngrams import HashedNgrams

    maps: dict[str, type[CharacterCrosses] | type[HashedNgrams] | type[LlamaCppEmbeddings] | type[TransformersEmbeddings]] = {
        "character-crosses": CharacterCrosses,
        "hashed-ngrams": HashedNgrams,
        "transformers": TransformersEmbeddings,
        "llamacpp": LlamaCppEmbeddings,
    }
    kind = description.get("kind") if isinstance(description, Mapping) else None
    if not isinstance(description, Mapping) or not isinstance(kind, str):
        raise InvalidInput("features", _UNKNOWN)
    if kind not in maps:
        raise InvalidInput("features", f"{kind!r} is no kind that this version knows; known are {', '.join(maps)}")
    return maps[kind].from_description(description)


def clipped(rows: Any, norm: float) -> Any:
    """Every row of a CSR array with ‖row‖ ≤ norm, exactly: scaled down where it may be longer.

    Raises:
        InvalidInput: a value is not finite, or so large that its square is not.
    """
    from scipy.sparse import csr_array

    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(csr_array((rows.data**2, rows.indices, rows.indptr), shape=rows.shape) @ np.ones(rows.shape[1]))
    if not np.isfinite(lengths).all():
        raise InvalidInput("features", "a feature is not a finite number; nothing can be certified with such a map")
    scales = np.minimum(1.0, norm / np.maximum(lengths * (1 + _NORM_SLACK), norm))
    return csr_array((rows.data * np.repeat(scales, np.diff(rows.indptr)), rows.indices, rows.indptr), shape=rows.shape)


@dataclass(frozen=True, slots=True)
class Pick:
    """One character of a text, by position: `place` in the `word`-th word of the "prompt" or the "answer".

    Both count from 0, or backwards from −1, as Python indices do; a character that is not there is the empty string.
    Words are runs of letters, digits and underscores; every other sign but white space is a word of its own. `place`
    None picks the length of the word instead.
    """

    source: str
    word: int
    place: int | None


@dataclass(frozen=True, slots=True)
class Cross:
    """What several picks show together: one cell, of value `weight`, for every combination of characters met."""

    weight: float
    picks: tuple[Pick, ...]


@dataclass(frozen=True, slots=True)
class CharacterCrosses:
    """φ with one active cell a cross, at a public hash of the characters picked: ‖φ‖² is the sum of squared weights.

    It compares characters by position and nothing else: no number is read, nothing is computed from the texts.

    Args:
        crosses: at least one; weights > 0.
        cells: how many cells each cross has. Two combinations that share a cell only blur the score.
    """

    crosses: tuple[Cross, ...]
    cells: int = 1 << 14

    def __post_init__(self) -> None:
        if not self.crosses or not all(0 < cross.weight < math.inf for cross in self.crosses):
            raise InvalidInput("features", "needs at least one cross, each with a finite weight above 0")
        if self.cells < 1:
            raise InvalidInput("features", f"cells {self.cells} is below 1")

    @property
    def active(self) -> int:
        """How many cells one text fills."""
        return len(self.crosses)

    @property
    def dimension(self) -> int:
        """The length of φ."""
        return len(self.crosses) * self.cells

    def rows(self, prompts: Sequence[str], answers: Sequence[str], norm: float) -> Any:
        """φ(prompt, answer) scaled down to ‖φ‖ ≤ norm where it is longer.

        Returns:
            A SciPy CSR array of shape (len(prompts), dimension), `active` stored values a row.
        """
        from scipy.sparse import csr_array  # imported late: slow, and not needed to describe a map

        columns = [self._columns(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]
        values = np.tile([cross.weight for cross in self.crosses], len(columns))
        starts = np.arange(0, len(values) + 1, self.active)
        rows = csr_array((values, np.array(columns, dtype=np.int64).reshape(-1), starts), shape=(len(columns), self.dimension))
        return clipped(rows, norm)

    def _columns(self, prompt: str, answer: str) -> list[int]:
        words = {"prompt": _WORDS.findall(prompt), "answer": _WORDS.findall(answer)}
        return [
            number * self.cells + zlib.crc32("\x1f".join(_pick(words, pick) for pick in cross.picks).encode()) % self.cells
            for number, cross in enumerate(self.crosses)
        ]

    def describe(self) -> dict[str, object]:
        """The JSON object of the certificate; `from_description` is its inverse."""
        crosses = [
            {"weight": cross.weight, "picks": [[pick.source, pick.word, pick.place] for pick in cross.picks]} for cross in self.crosses
        ]
        return {"kind": "character-crosses", "cells": self.cells, "crosses": crosses}

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> CharacterCrosses:
        """Rebuilds the map that described itself so.

        Raises:
            InvalidInput: it is not the description of such a map.
        """
        try:
            if description["kind"] != "character-crosses":
                raise ValueError
            crosses = tuple(
                Cross(float(cross["weight"]), tuple(Pick(str(source), int(word), place) for source, word, place in cross["picks"]))
                for cross in description["crosses"]
            )
            return cls(crosses, int(description["cells"]))
        except (KeyError, TypeError, ValueError):
            raise InvalidInput("features", _UNKNOWN) from None


def _pick(words: Mapping[str, list[str]], pick: Pick) -> str:
    """The character or the length that `pick` stands for."""
    among = words[pick.source]
    word = among[pick.word] if -len(among) <= pick.word < len(among) else ""
    if pick.place is None:
        return str(len(word))
    return word[pick.place] if -len(word) <= pick.place < len(word) else ""
