"""`simulate`: scored candidates with known true reward, coverage and reward error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from privalign.cli import options
from privalign.cli.output import bars, print_facts, print_json, replacing, to_json
from privalign.errors import InvalidInput

if TYPE_CHECKING:
    from privalign.simulation.simulate import Plan


def simulate(
    model: Annotated[str, typer.Option("--model", help="gaussian, heavy or saturating: how the proxy errs.", show_default=False)],
    prompts: Annotated[int, typer.Option("--prompts", help="Number of prompts.", show_default=False)],
    candidates: Annotated[int, typer.Option("--candidates", help="Candidates of each prompt.", show_default=False)],
    out: Annotated[
        Path, typer.Option("--out", help="File to write: Parquet if it ends in .parquet, else JSONL.", metavar="FILE", show_default=False)
    ],
    seed: Annotated[int, typer.Option("--seed", help="Seed of the candidates.")] = 0,
    error: Annotated[float, typer.Option("--error", help="Standard deviation σ_r of the proxy's error.")] = 0.1,
    spread: Annotated[float, typer.Option("--spread", help="Standard deviation τ of the true reward; 0: constant.")] = 0.1,
    coverage: Annotated[float, typer.Option("--coverage", help="Coverage C of the comparator, the best 1/C of the base policy.")] = 10.0,
    json: options.Json = False,
) -> None:
    """Scored candidates with a known true reward (is_correct), to check theorems on. What is known goes to FILE.meta.json.

    Rewards are simulated and public: not a private release.
    """
    from privalign.simulation.simulate import Model, Plan, Simulation
    from privalign.studies.study import NOTICE

    try:
        chosen = Model(model)
    except ValueError:
        raise InvalidInput("--model", f"{model!r} is not a model; give one of {', '.join(Model)}") from None
    if not out.name:
        raise InvalidInput("--out", f"{out} is a folder; give the name of a file")
    plan = Plan(Simulation(chosen, error, spread), prompts, candidates, seed)
    meta = out.with_name(out.name + ".meta.json")
    document: dict[str, Any] = {"notice": NOTICE, "prompts": prompts, "candidates": candidates, "seed": seed}
    document |= plan.simulation.constants(coverage) | {"files": [str(out), str(meta)]}
    with replacing(meta) as file:
        file.write(to_json(document) + "\n")
        _write(plan, out)  # within, so that both files change or neither does
    if json:
        print_json(document)
    else:
        print_facts("Simulated candidates", document)


def _write(plan: Plan, out: Path) -> None:
    """The data file, with a progress bar on stderr where that is a terminal."""
    from privalign.simulation.simulate import write_jsonl, write_parquet

    with replacing(out) as file, bars() as bar:

        def progress(done: int) -> None:
            bar("prompts", done, plan.prompts)

        if out.suffix == ".parquet":
            write_parquet(plan, cast(Any, file).buffer, progress)
        else:
            write_jsonl(plan, file, progress)
