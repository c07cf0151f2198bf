"""A stage from its settings to its folder: what the command line and recipes call."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privalign.candidates.shards import Shards, working_on
from privalign.errors import InvalidInput, setting
from privalign.rewards.provenance import sign_scores
from privalign.stages import collect, grade, score
from privalign.stages.engine import Engine, Job
from privalign.stages.settings import CollectSettings, GradeSettings, ScoreSettings

NOTICE = "not a private release: what the folder holds is exact, scores included; it is for its user alone"
Progress = Callable[[int, int], None]  # prompts done, prompts in all


@dataclass(frozen=True, slots=True)
class Described:
    """A back-end as a stage takes it: its table as written, for the manifest, and what builds it (picklable, for Ray)."""

    table: Mapping[str, Any]
    make: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class StageReport:
    """What a stage did. `resumed`: shards that were there already; `nulls`: by column, where something could not be told."""

    stage: str
    path: Path
    prompts: int
    candidates: int
    shards: int
    resumed: int
    nulls: Mapping[str, int]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The document of the run."""
        return {
            "stage": self.stage,
            "prompts": self.prompts,
            "candidates": self.candidates,
            "shards": self.shards,
            "resumed": self.resumed,
            "nulls": dict(self.nulls),
            "seconds": self.seconds,
            "path": str(self.path),
            "notice": NOTICE,
        }


def run_collect(
    settings: CollectSettings, policy: Described, out: Path, engine: Engine, progress: Progress = lambda *_: None
) -> StageReport:
    """Prompts -> candidates, in the folder `out`.

    Raises:
        InvalidInput: a setting differs from those that `out` was started with. BackendFailed: the policy, or the data sets' hub.
    """
    prompts = collect.load_prompts(settings)
    job = collect.CollectJob(settings, tuple(prompts), policy.make)
    return _run(
        job, out, "collect", collect.manifest_settings(settings, prompts, policy.table), (len(prompts), job.shards), engine, progress, ()
    )


def run_score(
    settings: ScoreSettings,
    source: Path,
    rewards: Mapping[str, Described],
    out: Path,
    engine: Engine,
    progress: Progress = lambda *_: None,
) -> StageReport:
    """Adds reward columns to the candidates in `source`; writes to `out`.

    Raises:
        InvalidInput: as `run_collect`, or a column is there already. BackendFailed: a scorer.
    """
    shards = _source(source, out)
    job = score.ScoreJob(settings, shards, {name: rewards[name].make for name in settings.rewards})
    job.check()
    described = score.manifest_settings(settings, shards, {name: reward.table for name, reward in rewards.items()})
    return _run(job, out, "score", described, (shards.prompts, shards.shards), engine, progress, settings.rewards, _sign)


def run_grade(
    settings: GradeSettings,
    source: Path,
    judge: Described | None,
    out: Path,
    engine: Engine,
    progress: Progress = lambda *_: None,
) -> StageReport:
    """Adds `is_correct` to the candidates in `source`; writes to `out`.

    Raises:
        InvalidInput: as `run_collect`, or `source` lacks what this kind needs. BackendFailed: the judge.
    """
    shards = _source(source, out)
    job = grade.GradeJob(settings, shards, None if judge is None else judge.make)
    job.check()
    described = grade.manifest_settings(settings, shards, None if judge is None else judge.table)
    return _run(job, out, "grade", described, (shards.prompts, shards.shards), engine, progress, (grade.COLUMN,))


def _sign(file: Path, content: bytes) -> None:
    """Signs a shard as scored by the heads that made it; before it is written, so that no crash leaves it without."""
    columns = score.scored_by(content)
    if columns:
        sign_scores(file, hashlib.sha256(content).digest(), columns)


def _source(source: Path, out: Path) -> Shards:
    if source.resolve() == out.resolve():
        raise InvalidInput(setting("out"), f"{out} is the folder to read; give another one")
    return Shards.read(source)


def _run(
    job: Job,
    out: Path,
    stage: str,
    settings: Mapping[str, Any],
    size: tuple[int, int],
    engine: Engine,
    progress: Progress,
    nullable: tuple[str, ...],
    sign: Callable[[Path, bytes], None] = lambda *_: None,
) -> StageReport:
    started = time.monotonic()
    prompts, shards = size
    with working_on(out, stage, settings, prompts=prompts, shards=shards, session={"engine": engine.name}) as folder:
        missing = folder.missing()
        done = prompts - sum(map(job.units, missing)) if len(missing) < shards else 0
        progress(done, prompts)

        def advance(count: int) -> None:
            nonlocal done
            done += count
            progress(done, prompts)

        for number, content in engine.run(job, missing, advance):
            sign(folder.file(number), content)
            folder.write(number, content)
        candidates, nulls = folder.counts(*nullable)
    return StageReport(stage, out, prompts, candidates, shards, shards - len(missing), nulls, round(time.monotonic() - started, 3))
