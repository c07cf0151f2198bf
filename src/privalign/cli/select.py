"""`select`: one answer a prompt, chosen privately from a file of scored candidates."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from privalign.cli import options
from privalign.cli.ledgers import DEFAULT_LEDGER, LedgerOption, open_ledger, warn_unanchored
from privalign.cli.output import print_facts, print_json, printable, replacing, to_json
from privalign.errors import InvalidInput
from privalign.settings import MECHANISMS, Settings, parse

if TYPE_CHECKING:
    from privalign.aligner.file_scores import Scores
    from privalign.aligner.selection import Run, Selector, Track

_OWN_OPTIONS = ("file", "head", "draw", "seed", "reward", "out", "account", "ledger", "again", "json")


def select(
    file: Annotated[
        Path,
        typer.Argument(
            help="Candidates with scores: JSONL or a JSON array (plain or gzip), or Parquet.", metavar="FILE", show_default=False
        ),
    ],
    mechanism: Annotated[str, typer.Option("--mechanism", help=f"{', '.join(MECHANISMS)}.", metavar="M", show_default=False)],
    range: Annotated[
        str | None,
        typer.Option(
            "--range", help="Public range LO,HI that rewards are clipped to.  [required, or --head]", metavar="LO,HI", show_default=False
        ),
    ] = None,
    n: options.N = None,
    n2: options.N2 = None,
    sensitivity: options.SensitivityOption = None,
    certificate: Annotated[
        str | None,
        typer.Option(
            "--certificate",
            help="Certificate file that proves the sensitivity; a head's only for scores that `score` signed.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    head: Annotated[
        Path | None,
        typer.Option(
            "--head", help="Score the texts here with this head; scores in FILE are not used.", metavar="HEAD.json", show_default=False
        ),
    ] = None,
    scale: options.Scale = None,
    epsilon: options.Epsilon = None,
    beta: options.Beta = None,
    sigma_x: options.SigmaX = None,
    sigma_z: options.SigmaZ = None,
    tail: options.Tail = None,
    delta: options.Delta = None,
    draw: Annotated[
        str,
        typer.Option(
            "--draw", help="first: in file order; with, without: at random, with or without replacement.", metavar="first|without|with"
        ),
    ] = "first",
    seed: Annotated[int | None, typer.Option("--seed", help="Reproducible, hence not private.", show_default=False)] = None,
    reward: Annotated[
        str | None,
        typer.Option(
            "--reward", help="The key or column that holds the score. Default proxy_reward.", metavar="COLUMN", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the answers here, one line a prompt.", metavar="OUT.jsonl", show_default=False),
    ] = None,
    account: Annotated[
        str | None,
        typer.Option(
            "--account",
            help="The account that pays; exit 3 where it cannot.  [required with --ledger and --again]",
            metavar="A",
            show_default=False,
        ),
    ] = None,
    ledger: LedgerOption = DEFAULT_LEDGER,
    again: Annotated[
        int, typer.Option("--again", help="With --account: another number selects, and pays, anew instead of replaying.", min=0)
    ] = 0,
    json: options.Json = False,
) -> None:
    """Releases one answer for every prompt of a file of candidates, and says what that costs.

    The whole file is checked before anything is selected. Rewards and losing candidates never leave the process.
    """
    raw = {name: value for name, value in locals().items() if name not in _OWN_OPTIONS}
    from privalign.aligner.selection import Selector, select_from_file

    if account is not None and seed is not None:
        raise InvalidInput("--seed", "seeded noise is not private and may not charge an account; leave one of the two out")
    if account is None and (again or ledger != DEFAULT_LEDGER):
        raise InvalidInput("--account", "missing; without it nothing is charged, and --ledger and --again mean nothing")
    settings, scores = _with_head(raw, file, head, reward) if head is not None else _recorded(raw, file, reward)
    selector = Selector.of(settings, draw, seed)
    results: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        answers = None if out is None else stack.enter_context(replacing(out, file, private=True))
        track = stack.enter_context(_progress())
        run = partial(_run, selector, scores, file, account, ledger, again)
        write = results.append if answers is None else partial(_write, answers)
        outcome = select_from_file(selector, scores, run, write, track)
    if json:
        print_json(outcome.summary if out is not None else outcome.summary | {"results": results})
    else:
        for answer in results:
            typer.echo(f"{typer.style(printable(answer['prompt']), bold=True)}\n{printable(answer.get('text', 'refused'))}\n")
        print_facts(f"private selection with {mechanism}" if selector.notice is None else selector.notice, outcome.summary)
    if outcome.exhausted is not None:
        raise outcome.exhausted


def _recorded(raw: dict[str, Any], file: Path, column: str | None) -> tuple[Settings, Scores]:
    """Scores that stand in the file."""
    from privalign.aligner.file_scores import RecordedScores

    if raw["range"] is None:
        raise InvalidInput("--range", "missing; give it: the public range LO,HI that rewards are clipped to, or --head")
    certificate = raw["certificate"]
    return parse(raw), RecordedScores(file, column or "proxy_reward", None if certificate is None else Path(certificate))


def _with_head(raw: dict[str, Any], file: Path, path: Path, column: str | None) -> tuple[Settings, Scores]:
    """Scores that a head makes here: range and Δ are those of its certificate."""
    from privalign.aligner.file_scores import HeadScores
    from privalign.rewards.head import HeadReward

    for name, value in {"--certificate": raw["certificate"], "--sensitivity": raw["sensitivity"], "--reward": column}.items():
        if value is not None:
            raise InvalidInput(name, "belongs to scores that stand in FILE, and --head makes its own; leave one of the two out")
    head = HeadReward.load(path)
    sensitivity = head.sensitivity
    settings = parse(raw, sensitivity)
    if raw["range"] is not None and parse({"mechanism": "base", "range": raw["range"]}).sensitivity.range != sensitivity.range:
        low, high = sensitivity.range.low, sensitivity.range.high
        raise InvalidInput("--range", f"{raw['range']} is not the range of {path}; leave it out, or give {low:g},{high:g}")
    return settings, HeadScores(file, head)


@contextlib.contextmanager
def _run(selector: Selector, scores: Scores, file: Path, account: str | None, ledger: str, again: int) -> Iterator[Run]:
    """What answers: an account's run, or one that nobody pays for."""
    from privalign.aligner.charged import ChargedRun
    from privalign.aligner.selection import Uncharged

    if account is None:
        yield Uncharged(selector, scores)
        return
    opened = open_ledger(ledger)
    with ChargedRun(opened, account, selector, scores, file, again) as run:
        try:
            yield run
        finally:
            warn_unanchored(opened)


def _write(answers: IO[str], answer: dict[str, Any]) -> None:
    answers.write(to_json(answer) + "\n")


@contextlib.contextmanager
def _progress() -> Iterator[Track]:
    """A bar on stderr where that is a terminal; nothing of it stays."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        yield lambda pools, count, what: progress.track(pools, count, description=what)
