"""`collect`: prompts -> candidates. One row a candidate: prompt_id, prompt, gt_answer, text, finish_reason."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from privalign.errors import BackendFailed
from privalign.policies.protocol import Policy
from privalign.stages.engine import Advance, MakeShard, in_order, policy_opened
from privalign.stages.settings import CollectSettings
from privalign.stages.tasks import Prompt, load_file, load_task
from privalign.types import Candidate, Message, Request

if TYPE_CHECKING:
    import pyarrow as pa


def load_prompts(settings: CollectSettings) -> list[Prompt]:
    """The prompts of the task or of the file.

    Raises:
        InvalidFile, BackendFailed: as `load_task` and `load_file`.
    """
    if settings.task is not None:
        return load_task(settings.task, settings.hub, settings.limit)
    assert settings.file is not None
    return load_file(settings.file, settings.limit)


def manifest_settings(settings: CollectSettings, prompts: Sequence[Prompt], policy: Mapping[str, Any]) -> dict[str, Any]:
    """What the candidates depend on. Prompts count by their content, not by where they came from."""
    asked = json.dumps([[prompt.text, prompt.gt_answer] for prompt in prompts])
    return {
        "task": settings.task,
        "prompts_sha256": hashlib.sha256(asked.encode()).hexdigest(),
        "n": settings.n,
        **settings.sampling,
        "seed": settings.seed,
        "prompts_per_shard": settings.prompts_per_shard,
        "policy": dict(policy),
    }


@dataclass(frozen=True, slots=True)
class CollectJob:
    """Draws the candidates of a shard's prompts."""

    settings: CollectSettings
    prompts: tuple[Prompt, ...]
    make_policy: Callable[[], Policy]

    @property
    def shards(self) -> int:
        """How many shards the prompts make."""
        return -(-len(self.prompts) // self.settings.prompts_per_shard)

    def ids(self, number: int) -> range:
        """The prompts of a shard: prompt_id is the position in the task."""
        size = self.settings.prompts_per_shard
        return range(number * size, min(len(self.prompts), (number + 1) * size))

    def units(self, number: int) -> int:
        """How many prompts a shard holds."""
        return len(self.ids(number))

    @contextlib.contextmanager
    def opened(self) -> Iterator[MakeShard]:
        """The policy, built; draws shards by number."""
        with policy_opened(self.make_policy) as (runner, policy):

            def make(number: int, advance: Advance) -> pa.Table:
                return self.table(number, runner.run(self._draw(policy, number, advance)))

            yield make

    def table(self, number: int, drawn: Sequence[Sequence[Candidate]]) -> pa.Table:
        """The shard's rows: the candidates of its prompts, in order."""
        import pyarrow as pa

        rows = [
            (prompt_id, self.prompts[prompt_id].text, self.prompts[prompt_id].gt_answer, candidate.text, candidate.finish_reason)
            for prompt_id, candidates in zip(self.ids(number), drawn, strict=True)
            for candidate in candidates
        ]
        return pa.table([list(column) for column in zip(*rows, strict=True)], schema=candidates_schema())

    async def _draw(self, policy: Policy, number: int, advance: Advance) -> list[list[Candidate]]:
        async def candidates(prompt_id: int) -> list[Candidate]:
            drawn: list[Candidate] = []
            request = self.request(prompt_id)
            while len(drawn) < self.settings.n:
                count = min(self.settings.chunk, self.settings.n - len(drawn))
                batch = await policy.draw(request.after(len(drawn)), count)
                if len(batch) != count:
                    raise BackendFailed(f"policy {policy.name}: {len(batch)} candidates where {count} were asked for")
                drawn += batch
            advance(1)
            return drawn

        calls = [partial(candidates, prompt_id) for prompt_id in self.ids(number)]
        return await in_order(calls, self.settings.concurrency)

    def request(self, prompt_id: int) -> Request:
        """What the policy is asked for the first candidate of a prompt."""
        seed = self.settings.seed_of(prompt_id)
        parameters = {**self.settings.sampling, **({} if seed is None else {"seed": seed})}
        return Request((Message("user", self.prompts[prompt_id].text),), parameters)


def candidates_schema() -> pa.Schema:
    """The columns of a shard of candidates."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("prompt_id", pa.int64(), nullable=False),
            pa.field("prompt", pa.string(), nullable=False),
            pa.field("gt_answer", pa.string()),
            pa.field("text", pa.string(), nullable=False),
            pa.field("finish_reason", pa.string()),
        ]
    )
