"""`evaluate`: what selection rules are worth on scored and graded candidates, by one of two protocols."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from privalign.cli import options
from privalign.cli.output import bars, check_output, print_json, print_table, replacing, to_json, warn_of
from privalign.errors import InvalidInput
from privalign.settings import MECHANISMS, parse

if TYPE_CHECKING:
    from privalign.studies.study import Study

PROTOCOLS = ("faithful", "authors")
_SHOWN = {  # heading, and the keys behind it
    "mechanism": ("mechanism",),
    "n": ("n",),
    "gold": ("true_mean",),
    "lift, points": ("lift_pp", "lift_se_pp"),
    "reward": ("proxy_mean", "proxy_se"),
    "win rate": ("win_rate", "win_rate_se"),
    "rounds": ("halting_mean",),
    "ε": ("epsilon",),
}


def evaluate(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Scored, graded candidates: JSONL or a JSON array (plain or gzip), Parquet, or a folder of Parquet shards; several pool.",
            metavar="FILE…",
            show_default=False,
        ),
    ],
    mechanisms: Annotated[str, typer.Option("--mechanisms", help=f"A list out of {', '.join(MECHANISMS)}.", metavar="M,M,…")],
    n_grid: Annotated[str, typer.Option("--n-grid", help="Numbers of candidates, rising.", metavar="N,N,…")],
    range: options.FaithfulRange = None,
    protocol: Annotated[
        str, typer.Option("--protocol", help="authors: z-scores, one pool, not private mechanisms.", metavar="faithful|authors")
    ] = "faithful",
    draw: Annotated[
        str | None,
        typer.Option(
            "--draw",
            help="Draws without replacement (default): a pool is a sample of the policy. With: the pool is the policy.",
            metavar="without|with",
        ),
    ] = None,
    replicates: Annotated[int, typer.Option("--replicates", help="Random draws a prompt where there is no closed form.")] = 50,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Threads. Default: one a processor. Rows do not depend on it.", show_default=False)
    ] = None,
    n2: options.N2 = None,
    sensitivity: options.SensitivityOption = None,
    certificate: options.Certificate = None,
    scale: options.Scale = None,
    epsilon: options.Epsilon = None,
    beta: options.Beta = None,
    sigma_x: options.SigmaX = None,
    sigma_z: options.SigmaZ = None,
    tail: options.Tail = None,
    delta: options.Delta = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same rows.")] = 0,
    reward: Annotated[str, typer.Option("--reward", help="The key or column that holds the score.", metavar="COLUMN")] = "proxy_reward",
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the study here, for `report`.", metavar="FILE", show_default=False)
    ] = None,
    json: options.Json = False,
) -> None:
    """Expected gold, reward, win rates and price of each mechanism at each n, over the prompts of a file.

    Rewards are treated as public here, and what is printed is computed from them: not a private release.
    """
    from privalign.candidates.scored import provenance
    from privalign.studies.study import titled

    chosen = ("n2", "range", "sensitivity", "certificate", "scale", "epsilon", "beta", "sigma_x", "sigma_z", "tail", "delta")
    given = {name: value for name, value in locals().items() if name in chosen and value is not None}
    names, sizes = _names(mechanisms), _sizes(n_grid)
    run: dict[str, Any] = {
        "replicates": replicates,
        "seed": seed,
        "workers": len(os.sched_getaffinity(0)) if workers is None else workers,
    }
    with contextlib.ExitStack() as stack:
        target = None if out is None else stack.enter_context(_replacing(out, files))
        progress = stack.enter_context(bars())
        run["progress"] = lambda done: progress("prompts", done, None)
        if protocol == "faithful":
            study = _faithful(files, reward, names, sizes, given, run | {"draw": draw or "without"})
        elif protocol == "authors":
            if draw is not None:
                raise InvalidInput("--draw", "protocol authors draws without replacement; leave it out")
            study = _authors(files, reward, names, sizes, given, run)
        else:
            raise InvalidInput("--protocol", f"{protocol!r} is not one of {', '.join(PROTOCOLS)}")
        origin = provenance(files, reward)
        study = replace(study, title=titled(study, origin), settings={**origin, **study.settings})
        if target is not None:
            target.write(to_json(study.to_json()) + "\n")
    warn_of(study.settings)
    if json:
        print_json(study.to_json())
    else:
        _print(study)


@contextlib.contextmanager
def _replacing(out: Path, files: Sequence[Path]) -> Iterator[IO[str]]:
    """As `replacing`, and none of the files that are read."""
    for file in files:
        check_output(out, file)
    with replacing(out) as target:
        yield target


def _faithful(
    files: Sequence[Path], reward: str, names: Sequence[str], sizes: Sequence[int], given: dict[str, Any], run: dict[str, Any]
) -> Study:
    from privalign.candidates.scored import read_pooled
    from privalign.studies import comparison

    if "range" not in given:
        raise InvalidInput("--range", "missing; give the public range LO,HI that rewards are clipped to")
    stated: dict[str, Any] = {name: given.pop(name) for name in ("range", "sensitivity", "certificate") if name in given}
    sensitivity = parse({"mechanism": "base", **stated}).sensitivity
    return comparison.faithful(lambda: read_pooled(files, reward), sensitivity, names, sizes, given, **run)


def _authors(
    files: Sequence[Path], reward: str, names: Sequence[str], sizes: Sequence[int], given: dict[str, Any], run: dict[str, Any]
) -> Study:
    from privalign.candidates.scored import read_pooled
    from privalign.studies import comparison

    given.pop("range", None)  # the protocol z-scores
    return comparison.published(lambda: read_pooled(files, reward), names, sizes, given, **run)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if name not in MECHANISMS:
            raise InvalidInput("--mechanisms", f"{name!r} is not one of {', '.join(MECHANISMS)}")
    if len(set(names)) < len(names):
        raise InvalidInput("--mechanisms", f"{text} names one twice; name each once")
    return names


def _sizes(text: str) -> tuple[int, ...]:
    remedy = "give whole numbers of at least 1, each larger than the one before, such as 1,2,4,8"
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidInput("--n-grid", f"{text!r} is not a list of whole numbers; {remedy}") from None
    if sizes[0] < 1 or any(after <= before for before, after in itertools.pairwise(sizes)):
        raise InvalidInput("--n-grid", f"{text} does not rise from at least 1; {remedy}")
    return sizes


def _print(study: Study) -> None:
    typer.secho(study.notice, bold=True)
    if "private" in study.settings:
        typer.secho(study.settings["private"], bold=True)
    if study.settings.get("draw") == "with":
        typer.secho(study.settings["draws"], bold=True)
    print_table(tuple(_SHOWN), ([_cells(row, keys) for keys in _SHOWN.values()] for row in study.rows))
    for reason in dict.fromkeys(row["reason"] for row in study.rows if row["reason"]):
        lacking = ", ".join(f"{row['mechanism']} {row['n']}" for row in study.rows if row["reason"] == reason)
        typer.echo(f"none for {lacking}: {reason}")
    from privalign import statements

    prompts, candidates = (study.settings["skipped"][name] for name in ("prompts", "candidates"))
    counted = f"left out: {prompts} prompts with too few candidates, {candidates} candidates without a reward or a grade"
    typer.echo("; ".join(filter(None, (study.title, counted, statements.basis(study.settings), f"{study.seconds:.1f} s"))))


def _cells(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    """A number with its error, where it has one: without spaces, so that a row has room in 80 columns."""
    return "±".join(_cell(key, row[key]) for key in keys if row[key] is not None or key == keys[0])


def _cell(name: str, value: Any) -> str:
    from privalign.intervals import shown

    if value is None:
        return "none"
    if not isinstance(value, float):
        return str(value)
    if name == "epsilon":
        return shown(value, 4)
    decimals = 2 if name.endswith("_pp") else 3
    return f"{round(value, decimals) + 0.0:.{decimals}f}"  # no -0.00
