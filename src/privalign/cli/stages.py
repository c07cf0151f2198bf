"""`collect`, `score` and `grade`: from prompts to graded candidates, stage by stage, resumable."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from privalign.cli import options
from privalign.cli.output import bars, print_facts, print_json, replacing
from privalign.errors import InvalidInput, setting

if TYPE_CHECKING:
    from privalign.stages.engine import Engine
    from privalign.stages.run import Described, StageReport
    from privalign.stages.settings import ScoreSettings
    from privalign.studies.recipe import BackEnds, PolicySource, Recipe, RewardSource

T = TypeVar("T")

RecipeOption = Annotated[
    Path | None,
    typer.Option("--recipe", help="All settings from this TOML file.  [required with --run]", metavar="FILE", show_default=False),
]
RunOption = Annotated[
    Path | None,
    typer.Option("--run", help="The run's folder, a folder per stage in it.  [required with --recipe]", metavar="DIR", show_default=False),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="Deployment file or recipe with the back-ends' tables.  [required with their names]",
        metavar="FILE",
        show_default=False,
    ),
]
SourceOption = Annotated[
    Path | None,
    typer.Option("--from", help="The folder that the stage before wrote.  [required without --recipe]", metavar="DIR", show_default=False),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out", help="The folder to write; one that was begun is resumed.  [required without --recipe]", metavar="DIR", show_default=False
    ),
]
ExportOption = Annotated[
    Path | None, typer.Option("--export", help="Also write JSONL, one record a prompt.", metavar="FILE.jsonl", show_default=False)
]
EngineOption = Annotated[
    str, typer.Option("--engine", help="local: in this process; ray: on Ray workers (RAY_ADDRESS, or started here).", metavar="local|ray")
]
RayWorkers = Annotated[int | None, typer.Option("--workers", help="Ray workers at most. Default: one a CPU.", show_default=False)]
RayGpus = Annotated[float, typer.Option("--gpus", help="GPUs of each Ray worker.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Reproducible sampling.", show_default=False)]


def collect(
    recipe: RecipeOption = None,
    run: RunOption = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            help="gsm8k, math500, mmlu-college-mathematics, mmlu-college-chemistry or alpaca-eval.  [required, or --file or --recipe]",
            metavar="TASK",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", help='Prompts instead of a task: JSONL of {"prompt", "gt_answer"}.', metavar="FILE", show_default=False),
    ] = None,
    hub: Annotated[
        Path | None,
        typer.Option("--hub", help="A folder in the layout of the Hugging Face hub, used instead.", metavar="DIR", show_default=False),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Only the first prompts.", show_default=False)] = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", help="A [policies.*] table of --config.  [required without --recipe]", metavar="NAME", show_default=False),
    ] = None,
    config: ConfigOption = None,
    n: Annotated[int | None, typer.Option("--n", help="Candidates a prompt.  [required without --recipe]", show_default=False)] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", help="Default 1.", show_default=False)] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", help="Default 1.", show_default=False)] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", help="Of one candidate. Default 1024.", show_default=False)] = None,
    seed: Seed = None,
    shard: Annotated[
        int | None, typer.Option("--shard", help="Prompts a shard. Default: about 1,024 candidates.", show_default=False)
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", help="Prompts under way at a time. Default 1.", show_default=False)
    ] = None,
    out: OutOption = None,
    engine: EngineOption = "local",
    workers: RayWorkers = None,
    gpus: RayGpus = 0.0,
    json: options.Json = False,
) -> None:
    """Draws n candidates for every prompt of a benchmark or a file, into a folder of Parquet shards."""
    given: dict[str, Any] = {
        "task": task,
        "file": file,
        "hub": hub,
        "limit": limit,
        "policy": policy,
        "n": n,
        "temperature": temperature,
        "top_p": top_p,
        "max_tokens": max_tokens,
        "seed": seed,
        "shard": shard,
        "concurrency": concurrency,
    }
    from privalign.stages.run import Described, run_collect
    from privalign.stages.settings import CollectSettings

    plan = _Plan.of(recipe, run, given | {"config": config, "out": out}, "collect")
    if plan.recipe is not None:
        settings = _present(plan.recipe.collect, "collect", plan.recipe)
    else:
        given["n"] = _required(n, "n", "give how many candidates a prompt gets")
        given["policy"] = _required(policy, "policy", "give the name of a [policies.*] table")
        settings = CollectSettings(**{name: value for name, value in given.items() if value is not None})
    if settings.vllm is not None:
        from privalign.stages.vllm_engine import VllmEngine

        if engine != "ray":
            raise InvalidInput("--engine", f"{engine} cannot run [collect] vllm; give ray")
        if workers is not None or gpus:
            raise InvalidInput("--workers" if gpus == 0 else "--gpus", "vllm is set in the recipe, by replicas and engine; leave it out")
        runner: Engine = VllmEngine(settings.vllm)
        described = Described({"vllm": vars(settings.vllm)}, _no_policy)
    else:
        runner = _engine(engine, workers, gpus)
        assert settings.policy is not None
        described = _described(plan.back_ends.policy(settings.policy, plan.field("collect", "policy")))
    with plan.naming(), bars() as progress:
        report = run_collect(settings, described, plan.folder("collect"), runner, partial(progress, "collecting"))
    _show(report, json, None)


def score(
    recipe: RecipeOption = None,
    run: RunOption = None,
    source: SourceOption = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(
            "--reward",
            help="A [rewards.*] table of --config; may be repeated.  [required without --recipe]",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    config: ConfigOption = None,
    out: OutOption = None,
    export: ExportOption = None,
    engine: EngineOption = "local",
    workers: RayWorkers = None,
    gpus: RayGpus = 0.0,
    json: options.Json = False,
) -> None:
    """Adds a column per reward model to collected candidates, in files for this user alone.

    What a certified head scored is signed (`….signed.json` beside each file): `select --certificate` believes no other scores.
    """
    from privalign.stages.run import run_score

    plan = _Plan.of(recipe, run, {"from": source, "reward": reward or None, "config": config, "out": out}, "score")
    if plan.recipe is not None:
        settings = _present(plan.recipe.score, "score", plan.recipe)
    else:
        settings = _of_rewards(tuple(_required(reward, "reward", "give the name of a [rewards.*] table")))
    described = {name: _described(plan.back_ends.reward(name, plan.field("score", "reward"))) for name in settings.rewards}
    runner = _engine(engine, workers, gpus)
    with plan.naming(), bars() as progress:
        report = run_score(settings, plan.source("collect"), described, plan.folder("score"), runner, partial(progress, "scoring"))
    _show(report, json, export)


def grade(
    recipe: RecipeOption = None,
    run: RunOption = None,
    source: SourceOption = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            help="math, letter, reward (a gold column) or judge (a model).  [required without --recipe]",
            metavar="math|letter|reward|judge",
            show_default=False,
        ),
    ] = None,
    choices: Annotated[
        int | None,
        typer.Option("--choices", help="Options of each question, lettered from A (--kind letter). Default 4.", show_default=False),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option("--reward", help="The gold reward's column.  [required by --kind reward]", metavar="COLUMN", show_default=False),
    ] = None,
    range: Annotated[
        str | None,
        typer.Option("--range", help="The gold reward's range.  [required by --kind reward]", metavar="LO,HI", show_default=False),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy", help="The judge: a [policies.*] table of --config.  [required by --kind judge]", metavar="NAME", show_default=False
        ),
    ] = None,
    config: ConfigOption = None,
    criterion: Annotated[
        str | None, typer.Option("--criterion", help="What the judge looks at. Default: helpfulness.", show_default=False)
    ] = None,
    seed: Seed = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Seconds that one answer may take to verify. Default 10.", show_default=False)
    ] = None,
    out: OutOption = None,
    export: ExportOption = None,
    engine: EngineOption = "local",
    workers: Annotated[
        int | None, typer.Option("--workers", help="Processes that verify (local), or Ray workers.", show_default=False)
    ] = None,
    gpus: RayGpus = 0.0,
    json: options.Json = False,
) -> None:
    """Adds is_correct: by math-verify, by letter, from a gold reward's column, or by a model as a judge."""
    import dataclasses

    from privalign.stages.run import run_grade
    from privalign.stages.settings import GradeSettings

    given: dict[str, Any] = {
        "kind": kind,
        "choices": choices,
        "reward": reward,
        "range": _pair(range),
        "policy": policy,
        "criterion": criterion,
        "seed": seed,
        "timeout": timeout,
    }
    plan = _Plan.of(recipe, run, given | {"from": source, "config": config, "out": out}, "grade")
    if plan.recipe is not None:
        settings = _present(plan.recipe.grade, "grade", plan.recipe)
    else:
        given["kind"] = _required(kind, "kind", "give math, letter, reward or judge")
        settings = GradeSettings(**{name: value for name, value in given.items() if value is not None})
    if workers is not None and engine == "local":
        settings, workers = dataclasses.replace(settings, workers=workers), None
    judge = None if settings.policy is None else _described(plan.back_ends.policy(settings.policy, plan.field("grade", "policy")))
    runner = _engine(engine, workers, gpus)
    with plan.naming(), bars() as progress:
        report = run_grade(settings, plan.source("score"), judge, plan.folder("grade"), runner, partial(progress, "grading"))
    _show(report, json, export)


def _of_rewards(names: tuple[str, ...]) -> ScoreSettings:
    from privalign.stages.settings import ScoreSettings

    try:
        return ScoreSettings(names)
    except InvalidInput as error:
        error.rename("--reward")
        raise


class _Plan:
    """Where settings, back-ends and folders come from: a recipe and its run, or options."""

    def __init__(self, recipe: Recipe | None, run: Path | None, given: dict[str, Any], stage: str) -> None:
        self.recipe = recipe
        self._stage = stage
        self._run = run
        self._given: Mapping[str, Any] = given

    @classmethod
    def of(cls, recipe: Path | None, run: Path | None, given: dict[str, Any], stage: str) -> _Plan:
        """Reads the recipe.

        Raises:
            InvalidInput: a recipe without a run's folder, or with options that it would overrule.
        """
        if (recipe is None) != (run is None):
            raise InvalidInput("--run" if run is None else "--recipe", "missing; --recipe FILE and --run DIR belong together")
        if recipe is None:
            return cls(None, None, given, stage)
        for name, value in given.items():
            if value is not None:
                raise InvalidInput(setting(name), f"belongs into the recipe; leave it out, or change [{stage}] of {recipe}")
        from privalign.studies.recipe import read_recipe

        return cls(read_recipe(recipe), run, given, stage)

    @property
    def back_ends(self) -> BackEnds:
        if self.recipe is not None:
            return self.recipe.back_ends
        from privalign.studies.recipe import read_back_ends

        return read_back_ends(_required(self._given["config"], "config", "give the deployment file with the back-end's table"))

    def field(self, stage: str, key: str) -> str:
        """How a setting is called where it was written."""
        return f"--{key}" if self.recipe is None else f"{self.recipe.file}: [{stage}] {key}"

    def folder(self, stage: str) -> Path:
        """Where the stage writes."""
        if self._run is not None:
            return self._run / stage
        out: Path = _required(self._given["out"], "out", "give the folder to write")
        return out

    @contextlib.contextmanager
    def naming(self) -> Iterator[None]:
        """Within, what is wrong with a setting of the recipe is told by file and table, and with its folders by the run's."""
        try:
            yield
        except InvalidInput as error:
            if self.recipe is not None and error.field in ("from", "out"):
                error.rename("--run")
            elif self.recipe is not None and error.field in self._given:
                error.rename(f"{self.recipe.file}: [{self._stage}] {error.field}")
            raise

    def source(self, stage: str) -> Path:
        """Where the stage before wrote; of a recipe that leaves `score` out, what was collected."""
        if self.recipe is None or self._run is None:
            source: Path = _required(self._given["from"], "from", f"give the folder that {stage} wrote")
            return source
        return self._run / (stage if getattr(self.recipe, stage) is not None else "collect")


def _present(settings: T | None, stage: str, recipe: Recipe) -> T:
    if settings is None:
        raise InvalidInput(f"{recipe.file}: [{stage}]", "missing; add the table")
    return settings


def _required(value: T | None, name: str, remedy: str) -> T:
    if value is None:
        raise InvalidInput(f"--{name}", f"missing; {remedy}")
    return value


def _pair(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise InvalidInput("--range", f"{text!r} is not a pair LO,HI") from None
    return low, high


def _described(source: PolicySource | RewardSource) -> Described:
    from privalign.stages.run import Described

    return Described(source.table, source)


def _no_policy() -> Any:
    raise AssertionError("vLLM draws the candidates, no policy is built")


def _engine(name: str, workers: int | None, gpus: float) -> Engine:
    if name == "local":
        if workers is not None or gpus:
            raise InvalidInput("--workers" if gpus == 0 else "--gpus", "belongs to --engine ray; leave it out, or give that")
        from privalign.stages.engine import LocalEngine

        return LocalEngine()
    if name == "ray":
        from privalign.stages.ray_engine import RayEngine

        return RayEngine(workers, gpus)
    raise InvalidInput("--engine", f"{name!r} is not one of local, ray")


def _show(report: StageReport, json: bool, export: Path | None) -> None:
    if export is not None:
        _export(report.path, export)
    if json:
        print_json(report.to_json())
    else:
        print_facts(f"{report.stage}: {report.path}", report.to_json())


def _export(folder: Path, out: Path) -> None:
    """The folder as JSONL, for this user alone since scores may be protected; signed where the folder is, before it takes its place."""
    from privalign.stages.export import write_jsonl

    with replacing(out, field="--export", private=True) as file:
        write_jsonl(folder, file, out)
