"""`score`: adds a column per reward model, raw (mapped, not clipped); null where a candidate cannot be scored.

Scores may be protected: shards are for this user alone, and no figure of them is shown. What is null is counted and shown, by the
assumption that stands beside every guarantee: whether a scorer fails does not depend on the protected data.

A shard says in its schema which of its columns a certified head made here; it is signed as such when it is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privalign.candidates.shards import Shards
from privalign.errors import BackendFailed, InvalidInput
from privalign.rewards.certified_head import CertifiedHeadReward
from privalign.rewards.protocol import Reward
from privalign.rewards.provenance import ScoredBy
from privalign.rewards.scores import UnusableScores, finite_scores
from privalign.stages.engine import Advance, MakeShard
from privalign.stages.settings import ScoreSettings
from privalign.types import Candidate, Request

if TYPE_CHECKING:
    import pyarrow as pa

ATTEMPTS = 3  # of the probe that tells a scorer that is down from a candidate that cannot be scored
FIRST_WAIT = 1.0  # seconds before the second probe; doubled before the third
PROXY = "proxy_reward"
_SCORED_BY = b"privalign.scored_by"


def manifest_settings(settings: ScoreSettings, source: Shards, rewards: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What the scores depend on."""
    return {"source": source.id, "rewards": {name: dict(rewards[name]) for name in settings.rewards}, "order": list(settings.rewards)}


@dataclass(frozen=True, slots=True)
class ScoreJob:
    """Scores the candidates of a shard, prompt by prompt."""

    settings: ScoreSettings
    source: Shards
    make_rewards: Mapping[str, Callable[[], Reward]]

    def check(self) -> None:
        """Refuses a column that is there already.

        Raises:
            InvalidInput: names it.
        """
        for name in self.settings.rewards:
            if name in self.source.table(0).column_names:
                raise InvalidInput("rewards", f"{self.source.path} has a column '{name}' already; give the reward model another name")

    def units(self, number: int) -> int:
        """How many prompts a shard holds."""
        return len(prompt_runs(self.source.table(number)))

    @contextlib.contextmanager
    def opened(self) -> Iterator[MakeShard]:
        """The reward models, built; scores shards by number."""
        with asyncio.Runner() as runner:
            rewards = {name: self.make_rewards[name]() for name in self.settings.rewards}

            def make(number: int, advance: Advance) -> pa.Table:
                return runner.run(self._scored(rewards, self.source.table(number), advance))

            yield make

    async def _scored(self, rewards: Mapping[str, Reward], table: pa.Table, advance: Advance) -> pa.Table:
        import pyarrow as pa

        scores: dict[str, list[float | None]] = {name: [] for name in rewards}
        texts = table.column("text").to_pylist()
        for prompt, rows in prompt_runs(table):
            request, candidates = Request.of_prompt(prompt), [Candidate(texts[row]) for row in rows]
            for name, reward in rewards.items():
                for start in range(0, len(candidates), self.settings.batch):
                    scores[name] += await score_each(reward, request, candidates[start : start + self.settings.batch])
            advance(1)
        heads = {name: reward.certificate for name, reward in rewards.items() if isinstance(reward, CertifiedHeadReward)}
        first = self.settings.rewards[0]
        if PROXY not in table.column_names and PROXY not in scores:
            scores = {PROXY: scores[first], **scores}
            heads |= {PROXY: heads[first]} if first in heads else {}
        for name, values in scores.items():
            table = table.append_column(name, pa.array(values, pa.float64()))
        scored_by = {name: dataclasses.asdict(ScoredBy.of(certificate)) for name, certificate in heads.items()}
        return table.replace_schema_metadata({_SCORED_BY: json.dumps(scored_by)})  # in place of what the source says of itself


def scored_by(shard: bytes) -> dict[str, ScoredBy]:
    """Which columns of a shard a certified head made, as the job that made the shard says in it: to be believed of no other bytes."""
    import io

    import pyarrow.parquet as pq

    metadata = pq.read_schema(io.BytesIO(shard)).metadata or {}
    return {name: ScoredBy(**by) for name, by in json.loads(metadata.get(_SCORED_BY, b"{}")).items()}


async def score_each(reward: Reward, request: Request, candidates: Sequence[Candidate]) -> list[float | None]:
    """One score a candidate, in order; None for one that cannot be scored though the scorer works.

    A batch that fails is scored by halves, so that one bad candidate costs about 2 log₂(batch) calls and no other score.

    Raises:
        BackendFailed: the scorer does not score a public text either.
    """
    try:
        return list(finite_scores(await reward.score(request, candidates), len(candidates)).tolist())
    except (BackendFailed, UnusableScores):
        await _probed(reward)
    if len(candidates) == 1:
        with contextlib.suppress(BackendFailed, UnusableScores):  # once more: what failed may have passed
            return list(finite_scores(await reward.score(request, candidates), 1).tolist())
        return [None]
    half = len(candidates) // 2
    return await score_each(reward, request, candidates[:half]) + await score_each(reward, request, candidates[half:])


async def _probed(reward: Reward) -> None:
    for attempt in range(ATTEMPTS):
        try:
            await reward.probe()
        except BackendFailed as failure:
            if attempt == ATTEMPTS - 1:
                raise BackendFailed(f"reward {reward.name}: {failure}") from None
            await asyncio.sleep(FIRST_WAIT * 2**attempt)
        else:
            return


def prompt_runs(table: pa.Table) -> list[tuple[str, range]]:
    """The prompts of a shard with their rows, which are next to each other."""
    ids, prompts = table.column("prompt_id").to_pylist(), table.column("prompt").to_pylist()
    if not ids:
        return []
    starts = [row for row in range(len(ids)) if row == 0 or ids[row] != ids[row - 1]]
    return [(prompts[start], range(start, end)) for start, end in zip(starts, [*starts[1:], len(ids)], strict=True)]
