"""`reward range`: the public range of an unbounded reward model, from a public model's scores, or paid for by the account of a head."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from privalign.cli import options
from privalign.cli.ledgers import DEFAULT_LEDGER, LedgerOption, open_ledger, warn_unanchored
from privalign.cli.output import check_output, print_facts, print_json, working
from privalign.errors import InvalidInput


def choose_range(
    file: Annotated[
        Path, typer.Argument(help="Public candidates, scored for --public: JSONL or Parquet.", metavar="FILE", show_default=False)
    ],
    coverage: Annotated[float, typer.Option("--coverage", help="Share of the scores that the range holds.")] = 0.98,
    public: Annotated[
        bool, typer.Option("--public", help="The reward model learned nothing protected, so its scores are public.  [required, or --head]")
    ] = False,
    reward: Annotated[
        str | None,
        typer.Option(
            "--reward", help="The key or column that holds the score. Default proxy_reward.", metavar="COLUMN", show_default=False
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="Store map and range in this deployment file.", metavar="FILE", show_default=False)
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="… in its table [rewards.NAME].  [required with --config]", metavar="NAME", show_default=False),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="… in place of other values that stand there.")] = False,
    head: Annotated[
        Path | None,
        typer.Option(
            "--head",
            help="Protected: raw scores of this head, released with noise.  [required with --account]",
            metavar="HEAD.json",
            show_default=False,
        ),
    ] = None,
    account: Annotated[
        str | None,
        typer.Option("--account", help="… paid once by this account.  [required with --head]", metavar="A", show_default=False),
    ] = None,
    ledger: LedgerOption = DEFAULT_LEDGER,
    epsilon: Annotated[
        float | None,
        typer.Option("--epsilon", help="… with noise for this ε of both ends.  [required with --head, or --scale]", show_default=False),
    ] = None,
    delta: Annotated[float, typer.Option("--delta", help="… and this δ.")] = 1e-6,
    scale: Annotated[float | None, typer.Option("--scale", help="… or with this noise on each end.", show_default=False)] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="… written here once; another place is another release.  [required with --head]", show_default=False),
    ] = None,
    json: options.Json = False,
) -> None:
    """The range of an unbounded reward model that holds a share of its scores of public candidates, and the map that brings it to 0,1.

    Keep the result: a range that is chosen again and again says more each time.
    """
    if not 0 < coverage <= 1:
        raise InvalidInput("--coverage", f"{coverage:g} is not above 0 and at most 1")
    paying = {"--account": account, "--epsilon": epsilon, "--scale": scale, "--out": out}
    storing = {"--reward": reward, "--config": config, "--name": name, "--replace": replace or None}
    if public == (head is not None):
        raise InvalidInput(*_neither_nor_both(public, account))
    for option, value in (paying if head is None else storing).items():
        if value is not None:
            raise InvalidInput(option, f"belongs to {'--head' if head is None else '--public'}; leave one of the two out")
    if head is None:
        facts, title = _public(file, coverage, reward or "proxy_reward", config, name, replace), f"public range from {file}"
    else:
        facts = _private(file, head, coverage, _Payer.of(account, ledger, epsilon, delta, scale, out))
        title = f"range of {head}, released with noise"
    if json:
        print_json(facts)
        return
    print_facts(title, facts)
    typer.echo(_next_step(facts))


def _neither_nor_both(public: bool, account: str | None) -> tuple[str, str]:
    """What is wrong where neither --public nor --head was given, or both."""
    if public:
        return "--public", "says that the reward model learned nothing protected, and --head that it did; leave one of the two out"
    if account is not None:
        return "--head", "missing; only the certificate of a head bounds how far raw scores move, and so how much noise is enough"
    return (
        "--public",
        "missing; exact ends of protected scores are a release without noise: give it where the reward model learned nothing protected, "
        "--head and --account to pay for ends with noise, or type a range that is known without scores",
    )


def _next_step(facts: dict[str, Any]) -> str:
    from privalign.deployment.public_range import mapped

    low, high = facts["range"]
    if "account" in facts:
        return f"\nfor a head whose raw scores are cut to it: privalign reward fit PREFS --output clip --range={low!r},{high!r} …"
    lines = [f"{key} = {value}" for key, value in mapped(low, high).written().items()]
    if "config" in facts:
        return f"\nstored in {facts['config']}, [rewards.{facts['reward']}]:\n" + "\n".join(lines)
    plain = [f"range = [{low!r}, {high!r}]", 'range_from = "public"', "# or, mapped to 0,1:"]
    return "\nfor [rewards.NAME] of the deployment file:\n" + "\n".join([*plain, *lines])


def _public(file: Path, coverage: float, reward: str, config: Path | None, name: str | None, replace: bool) -> dict[str, Any]:
    """Exact quantiles of a public reward model, and where they were stored."""
    from privalign.deployment.public_range import public_range, store_range

    if (config is None) != (name is None) or (replace and config is None):
        raise InvalidInput("--config", "it and --name belong together, and --replace to both")
    low, high, mapped, candidates = public_range(file, coverage, reward)
    facts: dict[str, Any] = {"range": [low, high], "scale": mapped.scale, "offset": mapped.offset, "coverage": coverage}
    facts |= {"candidates": candidates, "range_from": mapped.range_from}
    if config is not None and name is not None:
        store_range(config, name, mapped, replace=replace)
        facts |= {"config": str(config), "reward": name}
    return facts


@dataclass(frozen=True, slots=True)
class _Payer:
    """Who pays how much for noisy ends, and where they go."""

    account: str
    ledger: str
    epsilon: float | None
    delta: float
    scale: float | None
    out: Path

    @classmethod
    def of(cls, account: str | None, ledger: str, epsilon: float | None, delta: float, scale: float | None, out: Path | None) -> _Payer:
        if account is None:
            raise InvalidInput("--account", "missing; give the account of the preferences, which pays for the ends")
        if out is None:
            raise InvalidInput("--out", "missing; give the file that the ends are written to, once")
        if (epsilon is None) == (scale is None):
            raise InvalidInput("--epsilon", "give either it, for both ends together, or --scale, the noise on each")
        return cls(account, ledger, epsilon, delta, scale, out)


def _private(file: Path, path: Path, coverage: float, payer: _Payer) -> dict[str, Any]:
    """The ends that the account paid for, now or before."""
    from privalign.aligner.paid_range import PaidRange, RangeTerms
    from privalign.rewards.head import HeadReward

    check_output(payer.out, file)
    head = HeadReward.load(path)
    with _named():
        terms = RangeTerms.of(head, coverage, epsilon=payer.epsilon, scale=payer.scale, delta=payer.delta)
    ledger = open_ledger(payer.ledger)
    ledger.account(payer.account)  # there is one
    warn_unanchored(ledger)
    paid = PaidRange(ledger, payer.account, terms, file, payer.out)
    with working("scoring"):
        return paid.make()


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """ε and δ of a release are options of another name here."""
    try:
        yield
    except InvalidInput as error:
        error.rename(error.field.removeprefix("release_"))
        raise
