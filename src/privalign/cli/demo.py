"""`demo`: the main job on the embedded model, end to end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privalign.cli import options
from privalign.cli.output import bars, print_json

if TYPE_CHECKING:
    from privalign.demo.demo import DemoReport, Row


def demo(
    prompts: Annotated[
        int | None, typer.Option("--prompts", help="How many problems to answer, 2 to 1792. Default 100.", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the figure and the JSON report.", metavar="DIR")] = Path("privalign-demo"),
    seed: Annotated[int, typer.Option("--seed", help="Seed of the candidates.")] = 0,
    json: options.Json = False,
) -> None:
    """Private selection on a real language model with a reward learned from preferences; every row with its ε.

    Rewards are treated as public here, to show what a private release is worth: not a private release.
    """
    from privalign.demo.demo import PROMPTS, prepare_folder, run_demo, write_report

    prepare_folder(out)

    with bars() as progress:
        report = run_demo(PROMPTS if prompts is None else prompts, progress, seed)
        files = [str(path) for path in write_report(report, out)]
    if json:
        print_json(report.to_json() | {"files": files})
    else:
        _print_report(report, files)


def _print_report(report: DemoReport, files: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    from privalign.demo.demo import NOTICE
    from privalign.intervals import shown

    console = Console()
    sensitivity = report.certificate.to_sensitivity()
    console.print(f"[bold]{NOTICE}[/bold]", highlight=False)
    console.print(
        f"{report.prompts} sums answered by a 135-million-parameter model; reward learned from {report.pairs:,} preference pairs, "
        f"Δ = {shown(sensitivity.delta)} of a range of {sensitivity.width:g} ({report.certificate.relation.value}, "
        f"{report.certificate.records_per_person} record a person)",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("mechanism")
    for name in ("right answers", "more than base", "ε a query", "ε of the run", "candidates"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.rows:
        table.add_row(*_cells(row))
    console.print(table)
    console.print(f"± 95 % over prompts; ε rounded up; {report.seconds:.0f} s; written: {', '.join(files)}", highlight=False)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.mechanism,
        f"{row.accuracy:.3f} ± {_half(row.ci95)}",
        f"{row.lift:+.3f} ± {_half(row.lift_ci95)}" if row.lift_ci95[1] > row.lift_ci95[0] else "",
        _price(row.epsilon_query),
        _price(row.epsilon_run),
        f"{row.candidates:.1f}",
    )


def _half(interval: tuple[float, float]) -> str:
    return f"{(interval[1] - interval[0]) / 2:.3f}"


def _price(epsilon: float | None) -> str:
    """ε with four digits, rounded up: what is printed is a bound too."""
    if epsilon is None:
        return "none"
    if epsilon == 0:
        return "0"
    from privalign.intervals import shown

    return shown(epsilon, 4)
