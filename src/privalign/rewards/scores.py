"""Raw scores become usable or fail: finite numbers, as many as asked for, through a public affine map."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privalign.errors import BackendFailed, InvalidInput, InvalidRewards
from privalign.mechanisms.protocol import as_float, read_scores
from privalign.rewards.protocol import ScorerUntouched
from privalign.sensitivity import Sensitivity
from privalign.types import Candidate, Request

SCORER_FAILED = "the scorer failed; nothing is said about why, since it may depend on the protected data"

PROBE_REQUEST = Request.of_prompt("What is the capital of France?")
PROBE_ANSWER = Candidate("The capital of France is Paris.")


class UnusableScores(ValueError):
    """An answer of a scorer that is not one finite number per candidate. Never leaves this room and holds no value."""


@dataclass(frozen=True, slots=True)
class AffineMap:
    """scale · score + offset, applied to a reward model's own score before it is clipped to the public range.

    Both are public settings. The range, and a certified or declared Δ, are in units of the mapped score.
    """

    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.scale) or self.scale == 0:
            raise InvalidInput("scale", f"{self.scale} is not a finite number other than 0")
        if not math.isfinite(self.offset):
            raise InvalidInput("offset", f"{self.offset} is not a finite number")

    def apply(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """The mapped scores, same shape."""
        return scores * self.scale + self.offset

    def __str__(self) -> str:
        return "" if self == AffineMap() else f" ×{self.scale!r} +{self.offset!r}"


class FailClosedReward(ABC):
    """What all back-ends share: exactly one finite score a candidate, or a failure that says nothing.

    Args:
        name: a public identity of the model and its settings, without secrets.
        sensitivity: Δ of the mapped, clipped scores. mapping: applied to the model's own scores.

    A subclass answers `_raw`. Whatever it raises becomes one generic line without a cause, except `ScorerUntouched`.
    Cancellation passes through as it is: the caller counts it as touched.
    """

    def __init__(self, name: str, sensitivity: Sensitivity, mapping: AffineMap) -> None:
        self._name = f"{name}{mapping}"
        self._sensitivity = sensitivity
        self._mapping = mapping

    @property
    def name(self) -> str:
        """A public name that says which model, with which settings."""
        return self._name

    @property
    def sensitivity(self) -> Sensitivity:
        """Δ, its range, relation and source."""
        return self._sensitivity

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    async def score(self, request: Request, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """One mapped score a candidate, in order, not yet clipped, shape (len(candidates),).

        Raises:
            ScorerUntouched: nothing was computed. BackendFailed: anything else.
        """
        if not candidates:
            return np.empty(0)
        outcome = await self._outcome(request, candidates)
        if isinstance(outcome, BackendFailed):
            raise outcome  # outside the handler that caught the first error: no context, so no traceback leads to a score
        return outcome

    async def probe(self) -> None:
        """Scores a public text, to see whether the back-end works again.

        Raises:
            BackendFailed: it does not.
        """
        await self.score(PROBE_REQUEST, [PROBE_ANSWER])

    async def aclose(self) -> None:  # noqa: B027  # a default, not a gap
        """Nothing is open between two scorings."""

    async def _outcome(self, request: Request, candidates: Sequence[Candidate]) -> NDArray[np.float64] | BackendFailed:
        try:
            raw = finite_scores(await self._raw(request, candidates), len(candidates))
            with np.errstate(over="ignore"):  # refused in the next line
                return finite_scores(self._mapping.apply(raw), len(candidates))
        except ScorerUntouched as refusal:
            return ScorerUntouched(str(refusal), refusal.status, refusal.retry_after, refusal.cause)
        except Exception:
            return BackendFailed(SCORER_FAILED)

    @abstractmethod
    async def _raw(self, request: Request, candidates: Sequence[Candidate]) -> ArrayLike:
        """The model's own scores, in order."""


def finite_scores(values: ArrayLike, count: int) -> NDArray[np.float64]:
    """`count` finite numbers as float64. Booleans, text, None, vectors, NaN and infinities are refused, never replaced.

    Raises:
        UnusableScores: they are not.
    """
    try:
        return read_scores(values, count)
    except (InvalidRewards, TypeError, ValueError, OverflowError):  # ragged lists, numbers beyond any float
        raise UnusableScores from None


def number(value: object) -> float:
    """A JSON number as a finite float; a whole one is cut to ±2^53, where no range goes further and floats begin to round.

    Raises:
        UnusableScores: not a number (true and false are none), NaN, infinite, or beyond a float.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnusableScores
    try:
        score = as_float(value)
    except OverflowError:
        raise UnusableScores from None
    if not math.isfinite(score):
        raise UnusableScores
    return score


def entry(vector: object, label: int | None) -> float:
    """The score in a list of class scores: the only one, or the one at index `label`.

    Raises:
        UnusableScores: not a list; several scores and no label; no such label.
    """
    if not isinstance(vector, list):
        raise UnusableScores
    if label is None:
        if len(vector) != 1:
            raise UnusableScores
        return number(vector[0])
    if not 0 <= label < len(vector):
        raise UnusableScores
    return number(vector[label])


def objects(answer: object, count: int) -> list[Mapping[str, Any]]:
    """A JSON list of exactly `count` objects.

    Raises:
        UnusableScores: it is not.
    """
    if not isinstance(answer, list) or len(answer) != count or not all(isinstance(item, dict) for item in answer):
        raise UnusableScores
    return answer


def by_index(items: Sequence[Mapping[str, Any]], scores: Sequence[float]) -> list[float]:
    """`scores` put in the order that the items' `index` states.

    Raises:
        UnusableScores: the indices are not 0 … n−1, each once.
    """
    indices = [item.get("index") for item in items]
    if any(type(index) is not int for index in indices) or sorted(indices) != list(range(len(items))):  # type: ignore[type-var]
        raise UnusableScores
    ordered = dict(zip(indices, scores, strict=True))
    return [ordered[index] for index in range(len(items))]
