"""`study`: the paper's experiments beyond the comparison, each as a table for people or one JSON document."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privalign.cli import options
from privalign.cli.described import parameters, signature_of
from privalign.cli.output import (
    bars,
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
from privalign.cli.spelling import Group
from privalign.errors import InvalidFile, InvalidInput, PrivalignError
from privalign.options import described

if TYPE_CHECKING:
    from privalign.studies.kind import StudyKind
    from privalign.studies.study import Study


class _Studies(Group):
    """`study` and its commands, one a kind of study; what evaluates is imported when one of them is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        self._fill()
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        self._fill()
        return super().get_command(ctx, cmd_name)

    def _fill(self) -> None:
        if len(self.commands) == 1:
            self.commands = {**_commands(), **self.commands}


app = typer.Typer(
    help="The paper's studies on scored candidates: composition, matched privacy, ablations, win rates, overhead, budgets.",
    no_args_is_help=False,
    rich_markup_mode=None,
    cls=_Studies,
)


@app.callback()
def studies() -> None:
    """A group, whatever number of commands it has so far."""


Files = Annotated[
    list[Path],
    typer.Argument(
        help="Scored and graded candidates: JSONL, JSON, Parquet or a folder of shards; several pool.", metavar="FILE…", show_default=False
    ),
]
Reward = Annotated[str, typer.Option("--reward", help="The key or column that holds the score.", metavar="COLUMN")]
Out = Annotated[Path | None, typer.Option("--out", help="Write the document here.", metavar="STUDY.json", show_default=False)]


def _candidates(files: Files, range: options.RequiredRange) -> None:
    """What every study is of."""


def _z_scored(files: Files, range: options.FaithfulRange = None) -> None:
    """… where the published protocol, which z-scores, may be asked for."""


def _document(
    sensitivity: options.SensitivityOption = None,
    certificate: options.Certificate = None,
    reward: Reward = "proxy_reward",
    out: Out = None,
    json: options.Json = False,
) -> None:
    """Δ, and what comes out."""


def _commands() -> Mapping[str, Any]:
    """A command for each kind of study that has none of its own."""
    from privalign.cli.declared import declare
    from privalign.studies.registry import KINDS

    built = typer.Typer(rich_markup_mode=None)
    for kind in KINDS.values():
        if kind.name != "comparison":  # that is `evaluate`
            built.command(kind.name)(_command(kind))
    declare(built, ("study",))
    group: Any = typer.main.get_group(built)
    return dict(group.commands)


def _command(kind: StudyKind) -> Callable[..., None]:
    """What runs one kind of study: its own options, and those that all have."""
    candidates = _z_scored if "protocol" in described(kind.options) else _candidates
    parts = [*signature_of(candidates), *parameters(kind.options), *signature_of(_document)]

    def command(**given: Any) -> None:
        _run(kind.name, **given)

    command.__doc__ = kind.help
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parts}
    vars(command)["__signature__"] = inspect.Signature(parts)
    return command


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
    left_out = [str(path) for path in stale(sorted(folder.glob("*.json")))]
    _show_all(made, paths, resumed, left_out, json)


def _show_all(made: Mapping[str, Study], paths: Mapping[str, Path], resumed: int, left_out: Sequence[str], json: bool) -> None:
    from privalign.studies.study import NOTICE

    written = [
        {"name": name, "study": made[name].kind, "rows": len(made[name].rows), "seconds": made[name].seconds, "path": str(path)}
        for name, path in paths.items()
    ]
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
        _print(kind, study, out)


def _write(study: Study, path: Path, sources: Sequence[Path] = ()) -> None:
    for source in sources:
        check_output(path, source)
    with replacing(path) as file:
        file.write(to_json(study.to_json()) + "\n")


def _print(kind: str, study: Study, out: Path | None) -> None:
    from rich.table import Table

    from privalign import statements
    from privalign.report.wording import cell, heading
    from privalign.studies.registry import KINDS

    columns = [name for name in KINDS[kind].columns[study.kind] if any(row.get(name) is not None for row in study.rows)]
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
        terminal.print(statements.basis(study.settings))
    if out is not None:
        terminal.print(f"written: {out}")
