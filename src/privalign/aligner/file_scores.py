"""Where the scores of `select` come from: a column of the file, or a certified head that scores its texts here."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from privalign.candidates.pools import Pool, RecordedTexts, read_pools, read_texts
from privalign.errors import InvalidFile, InvalidInput
from privalign.rewards.certified_head import CertifiedHeadReward
from privalign.rewards.head import HeadReward
from privalign.rewards.protocol import Reward
from privalign.rewards.provenance import check_vouched
from privalign.rewards.recorded import RecordedReward
from privalign.sensitivity import Sensitivity


class Scores(Protocol):
    """Texts of prompts, and their scores when they are asked for. `identity` is what a stored answer depends on, public."""

    @property
    def identity(self) -> Mapping[str, str]: ...

    def check(self) -> None:
        """Refuses scores that the certificate, where one was given, says nothing about."""

    def pools(self, at_least: int) -> Generator[RecordedTexts, None, None]:
        """The prompts of the file, each with at least so many candidates."""

    def of(self, pool: RecordedTexts, positions: Sequence[int]) -> Sequence[float]:
        """Scores of the candidates at these positions."""

    def reward(self, pool: RecordedTexts, positions: Sequence[int], sensitivity: Sensitivity) -> Reward:
        """The same as a reward, which scores when it is asked."""


@dataclass(frozen=True, slots=True)
class RecordedScores:
    """A column of the file; a head's certificate vouches for it only where its signature says that the head made it."""

    file: Path
    column: str
    certificate: Path | None

    @property
    def identity(self) -> Mapping[str, str]:
        return {"reward": self.column}

    def check(self) -> None:
        if self.certificate is None:
            return
        try:
            check_vouched(self.certificate, self.file, self.column)
        except InvalidFile:
            raise
        except InvalidInput as error:
            raise InvalidInput("certificate", error.message) from None

    def pools(self, at_least: int) -> Generator[RecordedTexts, None, None]:
        yield from read_pools(self.file, self.column, at_least)

    def of(self, pool: RecordedTexts, positions: Sequence[int]) -> Sequence[float]:
        assert isinstance(pool, Pool)
        return [pool.rewards[position] for position in positions]

    def reward(self, pool: RecordedTexts, positions: Sequence[int], sensitivity: Sensitivity) -> Reward:
        return RecordedReward("recorded", self.of(pool, positions), sensitivity)


@dataclass(frozen=True, slots=True)
class HeadScores:
    """A head that scores the texts here; whatever scores the file has are not looked at."""

    file: Path
    head: HeadReward

    @property
    def identity(self) -> Mapping[str, str]:
        assert self.head.certificate.mac is not None
        return {"head": self.head.certificate.mac}

    def check(self) -> None:
        """Certificate and weights were checked against each other as they were loaded."""

    def pools(self, at_least: int) -> Generator[RecordedTexts, None, None]:
        yield from read_texts(self.file, at_least)

    def of(self, pool: RecordedTexts, positions: Sequence[int]) -> Sequence[float]:
        scores: list[float] = self.head.score(pool.prompt, [pool.texts[position] for position in positions]).tolist()
        return scores

    def reward(self, pool: RecordedTexts, positions: Sequence[int], sensitivity: Sensitivity) -> Reward:
        return CertifiedHeadReward(self.head, name="head")
