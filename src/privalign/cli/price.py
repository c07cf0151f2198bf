"""`epsilon` and `calibrate`: the calculators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from privalign.cli import options
from privalign.cli.output import print_facts, print_json, to_json, working
from privalign.cli.spelling import spell_as_options
from privalign.errors import InvalidFile, InvalidInput
from privalign.settings import Settings, parse, read_lines


def epsilon(
    mechanism: options.Mechanism,
    n: options.N = None,
    n2: options.N2 = None,
    range: options.Range = None,
    sensitivity: options.SensitivityOption = None,
    certificate: options.Certificate = None,
    scale: options.Scale = None,
    epsilon: options.Epsilon = None,
    beta: options.Beta = None,
    sigma_x: options.SigmaX = None,
    sigma_z: options.SigmaZ = None,
    tail: options.Tail = None,
    delta: options.Delta = None,
    threshold: Annotated[
        float | None, typer.Option(help="Realised λ̃ of privitp, in units shifted to [0, R].  [required with --halt]", show_default=False)
    ] = None,
    halt: Annotated[
        str | None, typer.Option(help="Realised halting time, or 'fallback'.", metavar="T|fallback", show_default=False)
    ] = None,
    orders: Annotated[str | None, typer.Option(help="Rényi orders, comma-separated.", show_default=False)] = None,
    queries: Annotated[
        int | None, typer.Option(help="Compose this many identical queries.  [required with --total-delta]", show_default=False)
    ] = None,
    total_delta: Annotated[float | None, typer.Option(help="δ of the whole stream.  [required with --queries]", show_default=False)] = None,
    from_file: options.From = None,
    json: options.Json = False,
) -> None:
    """What one query, or many, cost: exact ε, Rényi, zCDP, composition. Every bound is rounded up."""
    raw = {name: value for name, value in locals().items() if name not in ("from_file", "json")}
    from privalign.calculators import priced

    _run(raw, from_file, json, priced, f"ε of {mechanism}")


def calibrate(
    mechanism: options.Mechanism,
    epsilon: Annotated[
        float | None,
        typer.Option("--epsilon", help="ε that one query may cost.  [required, here or in every line of --from]", show_default=False),
    ] = None,
    n: options.N = None,
    n2: options.N2 = None,
    range: options.Range = None,
    sensitivity: options.SensitivityOption = None,
    certificate: options.Certificate = None,
    beta: options.Beta = None,
    tail: options.Tail = None,
    delta: options.Delta = None,
    from_file: options.From = None,
    json: options.Json = False,
) -> None:
    """The least noise at which one query costs at most ε, worst case. Never above the target."""
    raw = {name: value for name, value in locals().items() if name not in ("from_file", "json")}
    from privalign.calculators import calibrated

    _run(raw, from_file, json, calibrated, f"noise of {mechanism}")


def _run(raw: Mapping[str, Any], file: Path | None, as_json: bool, document: Callable[[Settings], dict[str, Any]], title: str) -> None:
    """One set of options, or every line of a file; nothing is printed unless all of them are good."""
    if file is None:
        with working("pricing"):
            facts = document(parse(raw))
        if as_json:
            print_json(facts)
        else:
            print_facts(title, facts)
        return
    lines = []
    with working("pricing"):
        for number, line in read_lines(file, raw):
            try:
                lines.append(to_json(document(parse(line))))
            except InvalidInput as error:
                spell_as_options(error, line.keys() | raw.keys())
                raise InvalidFile(str(file), number, str(error)) from None
    typer.echo("\n".join(lines))
