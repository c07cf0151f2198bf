"""`study`: the paper's experiments beyond the comparison, each as a table for people or one JSON document."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privalign.cli import options
from privalign.cli.output import (
    bars,
    basis,
    check_output,
    console,
    longest_word,
    print_facts,
    print_json,
    replacing,
    to_json,
    warn_of,
    working,
)
from privalign.errors import InvalidFile, InvalidInput, PrivalignError
from privalign.settings import spelled

if TYPE_CHECKING:
    from privalign.studies.study import Study

app = typer.Typer(
    help="The paper's studies on scored candidates: composition, matched privacy, ablations, win rates, overhead, budgets.",
    no_args_is_help=False,
    rich_markup_mode=None,
)

_SIGMA = "Noise σ in reward units; σ_X = σ_Z = σ/2."
_SIGMAS = "Noise σ in reward units, comma-separated; σ_X = σ_Z = σ/2."
_N_GRID = "Candidates n, comma-separated."

Files = Annotated[
    list[Path],
    typer.Argument(
        help="Scored and graded candidates: JSONL, JSON, Parquet or a folder of shards; several pool.", metavar="FILE…", show_default=False
    ),
]
Reward = Annotated[str, typer.Option("--reward", help="The key or column that holds the score.", metavar="COLUMN")]
Out = Annotated[Path | None, typer.Option("--out", help="Write the document here.", metavar="STUDY.json", show_default=False)]
RequiredSigmas = Annotated[str, typer.Option("--sigmas", help=_SIGMAS, show_default=False)]
RequiredSigma = Annotated[float, typer.Option("--sigma", help=_SIGMA, show_default=False)]
Betas = Annotated[str | None, typer.Option("--betas", help="β to choose from, comma-separated.", show_default=False)]
NGrid = Annotated[str | None, typer.Option("--n-grid", help=_N_GRID, show_default=False)]
TotalDelta = Annotated[float | None, typer.Option("--total-delta", help="δ of a whole stream.", show_default=False)]
HeldOut = Annotated[
    float | None, typer.Option("--held-out", help="Part of the prompts to choose settings on. Default 0.5.", show_default=False)
]
Replicates = Annotated[int | None, typer.Option("--replicates", help="As `evaluate`. Default 50.", show_default=False)]
Draws = Annotated[str | None, typer.Option("--draw", help="As `evaluate`. Default without.", metavar="without|with", show_default=False)]
Seed = Annotated[int | None, typer.Option("--seed", help="Default 0.", show_default=False)]
Workers = Annotated[int | None, typer.Option("--workers", help="Processes. Default 1.", show_default=False)]
Simulated = Annotated[int | None, typer.Option("--simulated", help="Queries simulated for E[t].", show_default=False)]

# the columns that people see; the document has all
_COLUMNS = {
    "composition": ("sigma", "rule", "answered_mean", "answered_sd", "mean_halting", "order", "capped"),
    "matched": ("mechanism", "queries", "epsilon_target", "delta", "lift_pp", "lift_se_pp", "recovered_percent", "reason"),
    "ablation-sigma": ("mechanism", "sigma", "lift_pp", "lift_se_pp", "proxy_mean", "tuning_lift_pp", "selected", "reason"),
    "ablation-beta": ("mechanism", "beta", "lift_pp", "lift_se_pp", "proxy_mean", "tuning_lift_pp", "selected", "reason"),
    "noise": ("mechanism", "n", "sigma", "lift_pp", "lift_se_pp", "proxy_mean", "reason"),
    "win-rate": ("mechanism", "n", "gold_win_rate", "gold_win_rate_se", "lift_pp", "lift_se_pp", "epsilon", "reason"),
    "overhead": (
        "n",
        "privitp_candidates",
        "mean_halting",
        "fallback_percent",
        "generated_ratio",
        "privbon_seconds",
        "privitp_seconds",
        "reason",
    ),
    "budget": (
        "sigma_over_range",
        "privbon_published",
        "privbon_exact",
        "phase1_published",
        "phase1_true_delta",
        "phase1_exact",
        "privitp_published",
        "privitp_exact",
    ),
}


def _candidates(files: Files, range: options.RequiredRange) -> None:
    """What every study is of."""


def _sensitivity(sensitivity: options.SensitivityOption = None, certificate: options.Certificate = None) -> None:
    """Δ, of those that price what they select."""


def _measured(replicates: Replicates = None, draw: Draws = None, seed: Seed = None, workers: Workers = None) -> None:
    """How utility is measured."""


def _document(reward: Reward = "proxy_reward", out: Out = None, json: options.Json = False) -> None:
    """What comes out."""


def _study(*blocks: Callable[..., None]) -> Callable[[Callable[..., None]], None]:
    """Adds the command of a study: the function's own options, and those of the blocks, which many studies share."""

    def add(own: Callable[..., None]) -> None:
        kind = own.__name__.replace("_", "-")
        parts: tuple[Callable[..., None], ...] = (_candidates, own, *blocks, _document)
        parameters = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for part in parts
            for parameter in inspect.signature(part, eval_str=True).parameters.values()
        ]

        def command(**given: Any) -> None:
            _run(kind, **given)

        command.__doc__ = own.__doc__
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        vars(command)["__signature__"] = inspect.Signature(parameters)
        app.command(kind)(command)

    return add


@_study(_sensitivity)
def composition(
    sigmas: RequiredSigmas,
    n: options.N = None,
    beta: options.Beta = None,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="ε of the stream. Default 50.", show_default=False)] = None,
    total_delta: TotalDelta = None,
    seeds: Annotated[int | None, typer.Option("--seeds", help="Streams per σ. Default 10.", show_default=False)] = None,
    most: Annotated[int | None, typer.Option("--most", help="Queries at which a stream ends. Default 10,000.", show_default=False)] = None,
    order: Annotated[float | None, typer.Option("--order", help="Rényi order. Default: the best for each σ.", show_default=False)] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            "--protocol", help="authors: the published accounting, σ in z-scores.", metavar="faithful|authors", show_default=False
        ),
    ] = None,
) -> None:
    """How many queries a budget answers under each composition rule (Figure 1 bottom right, Figure 13)."""


@_study(_sensitivity, _measured)
def matched(
    n: options.N = None,
    caps: Annotated[
        str | None, typer.Option("--caps", help="Caps of PrivITP's phase 2 to choose from. Default n.", metavar="N,N,…", show_default=False)
    ] = None,
    epsilons: Annotated[
        str | None,
        typer.Option("--epsilons", help="ε, per query and per stream, comma-separated. Default 0.5,1,2,4,8.", show_default=False),
    ] = None,
    delta: options.Delta = None,
    streams: Annotated[
        str | None, typer.Option("--streams", help="Lengths of streams, comma-separated. Default 100.", show_default=False)
    ] = None,
    total_delta: TotalDelta = None,
    betas: Betas = None,
    splits: Annotated[
        str | None, typer.Option("--splits", help="σ_X/σ_Z to choose from, comma-separated. Default 0.5,1,2.", show_default=False)
    ] = None,
    multiples: Annotated[
        str | None,
        typer.Option("--multiples", help="Multiples of the least noise to choose from. Default 1.", metavar="K,K,…", show_default=False),
    ] = None,
    held_out: HeldOut = None,
) -> None:
    """Utility at equal (ε, δ), per query and per stream; PrivITP's settings chosen on held-out prompts."""


@_study(_sensitivity, _measured)
def ablation(
    parameter: Annotated[
        str,
        typer.Option(
            "--parameter", help="sigma (Figure 2), beta (Figure 3) or n (ITP against PrivITP, Figures 10-12).", metavar="sigma|beta|n"
        ),
    ] = "sigma",
    sigma: Annotated[float | None, typer.Option("--sigma", help=f"{_SIGMA}  [required by --parameter beta]", show_default=False)] = None,
    sigmas: Annotated[
        str | None, typer.Option("--sigmas", help=f"{_SIGMAS}  [required by --parameter sigma and n]", show_default=False)
    ] = None,
    beta: options.Beta = None,
    betas: Betas = None,
    n: options.N = None,
    n_grid: Annotated[str | None, typer.Option("--n-grid", help=f"{_N_GRID}  [required by --parameter n]", show_default=False)] = None,
    delta: options.Delta = None,
    held_out: HeldOut = None,
) -> None:
    """Utility over σ, over β, or over n at several σ; settings selected on held-out prompts."""


@_study(_sensitivity, _measured)
def win_rate(sigma: RequiredSigma, beta: options.Beta = None, n_grid: NGrid = None, delta: options.Delta = None) -> None:
    """Gold win rate against the base policy (Table 4)."""


@_study(_sensitivity)
def overhead(
    sigma: RequiredSigma,
    beta: options.Beta = None,
    n_grid: NGrid = None,
    simulated: Simulated = None,
    timed: Annotated[int | None, typer.Option("--timed", help="Selections timed. Default 50.", show_default=False)] = None,
    seed: Seed = None,
) -> None:
    """Candidates and selection time of PrivITP beside PrivBoN (Table 5)."""


@_study(_sensitivity)
def budget(
    sigmas: Annotated[
        str | None, typer.Option("--sigmas", help=f"{_SIGMAS} Default: those of the paper, in multiples of the range.", show_default=False)
    ] = None,
    n: options.N = None,
    beta: options.Beta = None,
    delta: Annotated[float | None, typer.Option("--delta", help="δ of a query. Default 0.01, as published.", show_default=False)] = None,
    queries: Annotated[int | None, typer.Option("--queries", help="Length of the stream whose δ is stated.", show_default=False)] = None,
    simulated: Simulated = None,
    seed: Seed = None,
) -> None:
    """ε of one query over σ: the published formulas beside what holds (Table 6)."""


@app.command(name="all")
def every(
    recipe: Annotated[Path, typer.Option("--recipe", help="The recipe with the studies.", metavar="FILE", show_default=False)],
    runs: Annotated[
        list[Path],
        typer.Option(
            "--run",
            help="A run's folder: its graded candidates are read. Several pool their prompts.",
            metavar="DIR",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder for studies/ and studies.json. Default: the run's folder.  [required with several runs]",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Every study of a recipe, each to DIR/studies/NAME.json; those that are there already, of the same candidates, are kept.

    DIR/studies.json lists them: `report` leaves out those of tables that the recipe no longer has. A study that fails stops no other one.
    """
    from privalign.studies.runs import LIST, STUDIES, listing, stale
    from privalign.studies.study import NOTICE

    tables = _tables(recipe)
    candidates = _graded(recipe, runs)
    run = _folder(runs, out)
    folder = run / STUDIES
    requests = {str(table["name"]): _digest(table, candidates) for table in tables}
    paths = {name: folder / f"{name}.json" for name in requests}
    made = {name: study for name, path in paths.items() if (study := _made(path, requests[name])) is not None}
    resumed = len(made)

    def put_down() -> None:
        """What the run consists of; not before a study is made, so that a recipe that is refused changes nothing."""
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(run / LIST) as file:
            file.write(to_json(listing(requests, NOTICE)) + "\n")

    failures: list[PrivalignError] = []
    with bars() as progress:
        for table in [table for table in tables if str(table["name"]) not in made]:
            name = str(table["name"])
            try:
                made[name] = _anew(recipe, table, candidates, requests[name], progress)
            except PrivalignError as error:
                failures.append(error)
                continue
            put_down()
            _write(made[name], paths[name])
    _raise(failures)
    put_down()
    written = [
        {"name": name, "study": made[name].kind, "rows": len(made[name].rows), "seconds": made[name].seconds, "path": str(path)}
        for name, path in paths.items()
    ]
    left_out = [str(path) for path in stale(sorted(folder.glob("*.json")))]
    if json:
        print_json({"notice": NOTICE, "studies": written, "resumed": resumed, "left_out": left_out})
    else:
        kept = {"kept": resumed} if resumed else {}
        print_facts(NOTICE, {**{name: str(path) for name, path in paths.items()}, **kept})
        if left_out:
            typer.echo(f"left out, no longer of the run's recipe: {', '.join(left_out)}")


def _raise(failures: Sequence[PrivalignError]) -> None:
    """The last of the failures, the others on stderr, in one line each."""
    for failure in failures[:-1]:
        typer.echo(f"privalign: {' '.join(str(failure).split())}", err=True)
    if failures:
        raise failures[-1]


def _tables(recipe: Path) -> list[Mapping[str, Any]]:
    """The tables of a recipe's studies, certificates relative to it; refused where one is of no kind, or two would share a file."""
    from privalign.studies.recipe import read_recipe
    from privalign.studies.registry import kind_of

    tables: list[Mapping[str, Any]] = [
        {**table, "certificate": str(recipe.parent / table["certificate"])} if isinstance(table.get("certificate"), str) else table
        for table in read_recipe(recipe).studies
    ]
    if not tables:
        raise InvalidInput(f"{recipe}: [evaluate]", "no study in it; add a table [evaluate.NAME]")
    met: dict[str, str] = {}
    for table in tables:
        name = str(table["name"])
        if met.setdefault(name.casefold(), name) != name:
            raise InvalidFile(
                str(recipe), None, f"[evaluate.{name}] and [evaluate.{met[name.casefold()]}] share a file on some disks; rename one"
            )
        try:
            kind_of(table)
        except InvalidInput as error:
            raise InvalidFile(str(recipe), None, str(error)) from None
    return tables


def _graded(recipe: Path, runs: Sequence[Path]) -> list[Path]:
    """The graded candidates of the runs."""
    for run in runs:
        if not (run / "grade").is_dir():
            raise InvalidInput("--run", f"{run} holds no graded candidates; run `privalign grade --recipe {recipe} --run {run}` first")
    return [run / "grade" for run in runs]


def _folder(runs: Sequence[Path], out: Path | None) -> Path:
    """Where studies go."""
    if out is None and len(runs) > 1:
        raise InvalidInput("--out", "missing; several runs pool their prompts, give a folder for the studies of all of them")
    return runs[0] if out is None else out


def _anew(
    recipe: Path, table: Mapping[str, Any], candidates: Sequence[Path], request: str, progress: Callable[[str, int, int], None]
) -> Study:
    """The study of a recipe's table; what is wrong with the table is told by file, table and key."""
    from dataclasses import replace

    from privalign.studies.registry import run_table
    from privalign.studies.runs import REQUEST

    try:
        with spelled(str):
            study = run_table(table, candidates, progress)
    except InvalidInput as error:
        raise InvalidFile(str(recipe), None, str(error)) from None
    warn_of(study.settings, f"[evaluate.{table['name']}] ")
    return replace(study, settings={**study.settings, REQUEST: request})


def _digest(table: Mapping[str, Any], candidates: Sequence[Path]) -> str:
    """What a study of a recipe is a study of: its table, its certificate, its candidates, by which version."""
    import hashlib

    from privalign import __version__

    shards = [
        (file.name, file.stat().st_size, file.stat().st_mtime_ns) for folder in candidates for file in sorted(folder.glob("*.parquet"))
    ]
    certificate = Path(str(table.get("certificate", "")))
    content = hashlib.sha256(certificate.read_bytes()).hexdigest() if certificate.is_file() else None
    return hashlib.sha256(to_json({"of": [dict(table), shards, content, __version__]}).encode()).hexdigest()


def _made(path: Path, request: str) -> Study | None:
    """The study of this request where it was made before."""
    from privalign.studies.runs import REQUEST
    from privalign.studies.study import read_study

    if not path.is_file():
        return None
    try:
        study = read_study(path)
    except InvalidFile:
        return None
    return study if study.settings.get(REQUEST) == request else None


def _run(kind: str, files: Sequence[Path], out: Path | None, json: bool, **given: Any) -> None:
    from privalign.studies.registry import read_source, run_study

    with working("reading"):
        source = read_source(files, given)
    with bars() as progress:
        study = run_study(kind, given, source, lambda done, total: progress(kind, done, total))
    warn_of(study.settings)
    if out is not None:
        _write(study, out, files)
    if json:
        print_json(study.to_json())
    else:
        _print(study, out)


def _write(study: Study, path: Path, sources: Sequence[Path] = ()) -> None:
    for source in sources:
        check_output(path, source)
    with replacing(path) as file:
        file.write(to_json(study.to_json()) + "\n")


def _print(study: Study, out: Path | None) -> None:
    from rich.table import Table

    from privalign.report.wording import cell, heading

    columns = [name for name in _COLUMNS[study.kind] if any(row.get(name) is not None for row in study.rows)]
    table = Table(box=None, pad_edge=False)
    for name in columns:
        is_name, cells = name in ("mechanism", "rule"), [cell(name, row.get(name)) for row in study.rows]
        least = longest_word(heading(name), *cells)
        table.add_column(heading(name), justify="left" if is_name else "right", no_wrap=is_name, min_width=least)
    for row in study.rows:
        table.add_row(*(cell(name, row.get(name)) for name in columns))
    terminal = console()
    terminal.print(study.notice, style="bold")
    terminal.print(study.title)
    terminal.print(table, crop=False)
    if any("epsilon" in name or name.endswith("_exact") for name in columns):
        terminal.print(basis(study.settings))
    if out is not None:
        terminal.print(f"written: {out}")
