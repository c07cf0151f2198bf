"""Hashed n-grams of an answer: no vocabulary is learned, so that nothing of φ depends on the preferences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from privalign.errors import InvalidInput, MissingDependency
from privalign.preferences.features import clipped

_WEIGHTINGS: Final = ("binary", "counts", "log")


@dataclass(frozen=True)
class HashedNgrams:
    """φ(prompt, answer): a cell of ±weight for every n-gram of words of the answer, and one for the answer's length.

    Words are runs of two or more letters and digits, in lower case, as scikit-learn's HashingVectorizer reads them; cells and
    signs are its hash. What prompts contribute by themselves cancels in the difference of two answers and is left out.

    Args:
        bits: there are 2^bits cells. longest: n-grams of up to so many words.
        weighting: of an n-gram that occurs c times: "binary" 1, "counts" c, "log" log(1 + c).
        length: weight of log(1 + characters), in a cell of its own; 0: none.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    bits: int = 18
    longest: int = 1
    weighting: str = "binary"
    length: float = 1.0

    def __post_init__(self) -> None:
        if not (type(self.bits) is int and 1 <= self.bits <= 28):
            raise InvalidInput("features", f"bits {self.bits!r} is not a whole number from 1 to 28")
        if not (type(self.longest) is int and 1 <= self.longest <= 8):
            raise InvalidInput("features", f"longest {self.longest!r} is not a whole number from 1 to 8")
        if self.weighting not in _WEIGHTINGS:
            raise InvalidInput("features", f"weighting {self.weighting!r} is not one of {', '.join(_WEIGHTINGS)}")
        if not 0 <= self.length < math.inf:
            raise InvalidInput("features", f"length {self.length!r} is not a finite number of 0 or more")

    @property
    def dimension(self) -> int:
        """2^bits cells, and the length's."""
        return (1 << self.bits) + 1

    @cached_property
    def _vectorizer(self) -> Any:
        try:
            from sklearn.feature_extraction.text import HashingVectorizer
        except ImportError:
            raise MissingDependency("scikit-learn is not installed; get it with: pip install 'privalign[heads]'") from None
        return HashingVectorizer(
            n_features=1 << self.bits, ngram_range=(1, self.longest), binary=self.weighting == "binary", norm=None, alternate_sign=True
        )

    def rows(self, prompts: Sequence[str], answers: Sequence[str], norm: float) -> Any:
        """See `FeatureMap`."""
        places = {answer: place for place, answer in enumerate(dict.fromkeys(answers))}  # pairs of a prompt share their answers
        distinct = self._rows(list(places), norm)
        return distinct if len(places) == len(answers) else distinct[[places[answer] for answer in answers]]

    def _rows(self, answers: Sequence[str], norm: float) -> Any:
        from scipy.sparse import csr_array

        words = self._vectorizer.transform(answers)
        values = np.sign(words.data) * np.log1p(np.abs(words.data)) if self.weighting == "log" else words.data
        lengths = self.length * np.log1p([len(answer) for answer in answers])
        ends = words.indptr[1:]  # the length goes to the end of its row: columns stay sorted
        rows = csr_array(
            (
                np.insert(values, ends, lengths),
                np.insert(words.indices, ends, 1 << self.bits).astype(np.int32),
                words.indptr + np.arange(len(words.indptr), dtype=words.indptr.dtype),
            ),
            shape=(len(answers), self.dimension),
        )
        return clipped(rows, norm)

    def describe(self) -> dict[str, object]:
        """See `FeatureMap`."""
        return {
            "kind": "hashed-ngrams",
            "bits": self.bits,
            "longest": self.longest,
            "weighting": self.weighting,
            "length": self.length,
        }

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> HashedNgrams:
        """The map of a description; settings that are left out take their defaults.

        Raises:
            InvalidInput: an unknown setting, or one out of its range.
        """
        settings = {name: value for name, value in description.items() if name != "kind"}
        unknown = sorted(set(settings) - {"bits", "longest", "weighting", "length"})
        if unknown:
            raise InvalidInput("features", f"hashed-ngrams has no setting {unknown[0]!r}; it has bits, longest, weighting and length")
        if isinstance(settings.get("length", 1.0), bool) or not isinstance(settings.get("length", 1.0), int | float):
            raise InvalidInput("features", "length is not a number")
        return cls(**settings)
