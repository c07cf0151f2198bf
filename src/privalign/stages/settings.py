"""What each stage is set to. All of it goes into the stage's manifest; how fast it runs (workers, engine) does not."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from privalign.errors import InvalidInput
from privalign.stages.tasks import ALPHABET, TASKS, USUAL

GRADE_KINDS = ("math", "letter", "reward", "judge")


class _Defaults:
    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """The fields that have a default, with it."""
        return {
            item.name: item.default
            for item in dataclasses.fields(cls)  # type: ignore[arg-type]
            if item.default is not dataclasses.MISSING
        }


@dataclass(frozen=True)
class VllmSettings:
    """vLLM on the GPUs of a Ray cluster.

    Args:
        model: a Hugging Face id, or a folder. engine: vLLM's own engine arguments. replicas: engines side by side.
        batch: rows that an engine is handed at a time. accelerator: as Ray calls it, "H100" say; None: any.
    """

    model: str
    engine: Mapping[str, Any] = field(default_factory=dict)
    replicas: int = 1
    batch: int = 64
    accelerator: str | None = None


@dataclass(frozen=True)
class CollectSettings(_Defaults):
    """Prompts -> candidates.

    Args:
        n: candidates a prompt. task: a benchmark by name. file: JSONL of prompts instead. Exactly one of the two.
        hub: a folder in the Hugging Face hub's layout, used instead of the hub. limit: only the first prompts.
        policy: name of the policy; vllm instead of it, for Ray. Exactly one of the two.
        temperature, top_p, max_tokens: sampling, the same for every candidate.
        seed: candidate i of prompt p is drawn with seed + p·n + i; None: fresh entropy, and a rerun gives others.
        shard: prompts a shard. None: so many that a shard holds about 1,024 candidates.
        chunk: candidates that the policy is asked for at a time. concurrency: prompts under way at a time.

    Raises:
        InvalidInput: a setting is missing or out of its range.
    """

    n: int
    task: str | None = None
    file: Path | None = None
    hub: Path | None = None
    limit: int | None = None
    policy: str | None = None
    vllm: VllmSettings | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 1024
    seed: int | None = None
    shard: int | None = None
    chunk: int = 256
    concurrency: int = 1

    def __post_init__(self) -> None:
        if (self.task is None) == (self.file is None):
            raise InvalidInput("task", f"give either a task ({', '.join(TASKS)}) or a file of prompts")
        if self.task is not None and self.task not in TASKS:
            raise InvalidInput("task", f"{self.task!r} is not one of {', '.join(TASKS)}; or give a file of prompts")
        if (self.policy is None) == (self.vllm is None):
            raise InvalidInput("policy", "give either the name of a [policies.*] table, or vllm")
        _at_least_one(self, "n", "limit", "max_tokens", "shard", "chunk", "concurrency")
        _check_sampling(self.temperature, self.seed)
        if not 0 < self.top_p <= 1:
            raise InvalidInput("top_p", f"{self.top_p} is not above 0 and at most 1")

    @property
    def prompts_per_shard(self) -> int:
        """How many prompts one shard holds; the last one may hold fewer."""
        return self.shard or max(1, 1024 // self.n)

    @property
    def sampling(self) -> dict[str, Any]:
        """The parameters of a chat request, without the seed."""
        return {"temperature": self.temperature, "top_p": self.top_p, "max_tokens": self.max_tokens}

    def seed_of(self, prompt_id: int) -> int | None:
        """The seed of the first candidate of a prompt; the next ones count up."""
        return None if self.seed is None else self.seed + prompt_id * self.n


@dataclass(frozen=True)
class ScoreSettings(_Defaults):
    """Candidates -> reward columns.

    Args:
        rewards: names of reward models, each a column of that name; the first is column `proxy_reward` too, unless there is one.
        batch: candidates of a prompt that the reward model is given at a time.

    Raises:
        InvalidInput: no rewards, or one named twice.
    """

    rewards: tuple[str, ...]
    batch: int = 64

    def __post_init__(self) -> None:
        if not self.rewards:
            raise InvalidInput("rewards", "names none; give at least one [rewards.*] table")
        if len(set(self.rewards)) < len(self.rewards):
            raise InvalidInput("rewards", "names one twice; give every column once")
        _at_least_one(self, "batch")


@dataclass(frozen=True)
class GradeSettings(_Defaults):
    """Candidates -> `is_correct`: 1, 0, or a gold score in [0, 1]; null where it cannot be told.

    Args:
        kind: `math` (math-verify), `letter` (multiple choice), `reward` (a gold reward's column), `judge` (Prometheus).
        choices: how many options every question offers, lettered from A (letter).
        timeout: seconds that one answer may take (math). workers: processes that verify (math).
        reward, range: the gold column, and the public range that maps to [0, 1] (reward).
        policy, criterion, temperature, max_tokens, seed, concurrency: the judge, what it looks at (None: helpfulness), its
            sampling, and how many judgements are under way at a time (judge).

    Raises:
        InvalidInput: a setting is missing or out of its range.
    """

    kind: str
    choices: int = USUAL
    timeout: float = 10.0
    workers: int = 1
    reward: str | None = None
    range: tuple[float, float] | None = None
    policy: str | None = None
    criterion: str | None = None
    temperature: float = 0.0
    max_tokens: int = 1024
    seed: int | None = None
    concurrency: int = 8

    def __post_init__(self) -> None:
        if self.kind not in GRADE_KINDS:
            raise InvalidInput("kind", f"{self.kind!r} is not one of {', '.join(GRADE_KINDS)}")
        for name, kind, what in (
            ("reward", "reward", "the column of the gold reward"),
            ("range", "reward", "the public range of the gold reward, which maps to [0, 1]"),
            ("policy", "judge", "the [policies.*] table of the judge"),
        ):
            if (getattr(self, name) is None) == (self.kind == kind):
                raise InvalidInput(name, f"missing; give {what}" if self.kind == kind else f"belongs to kind {kind}, not to {self.kind}")
        if self.range is not None and not (all(map(math.isfinite, self.range)) and self.range[0] < self.range[1]):
            raise InvalidInput("range", f"{list(self.range)} is not a pair of finite numbers, the lower one first")
        if not 2 <= self.choices <= len(ALPHABET):
            raise InvalidInput("choices", f"{self.choices} is not between 2 and {len(ALPHABET)}")
        if not 0 < self.timeout < math.inf:
            raise InvalidInput("timeout", f"{self.timeout} is not a finite number of seconds above 0")
        _at_least_one(self, "workers", "max_tokens", "concurrency")
        _check_sampling(self.temperature, self.seed)

    def manifest(self) -> dict[str, Any]:
        """The settings that this kind of grading depends on."""
        used = {
            "math": ("timeout",),
            "letter": ("choices",),
            "reward": ("reward", "range"),
            "judge": ("policy", "criterion", "temperature", "max_tokens", "seed"),
        }
        return {name: getattr(self, name) for name in ("kind", *used[self.kind])}


def _at_least_one(settings: object, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise InvalidInput(name, f"{value} is below 1")


def _check_sampling(temperature: float, seed: int | None) -> None:
    if not 0 <= temperature < math.inf:
        raise InvalidInput("temperature", f"{temperature} is not a finite number of at least 0")
    if seed is not None and seed < 0:
        raise InvalidInput("seed", f"{seed} is below 0")
