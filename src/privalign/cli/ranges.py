"""`reward range`: the public range of an unbounded reward model, from its scores of public candidates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privalign.cli import options
from privalign.cli.output import print_facts, print_json, replacing
from privalign.errors import InvalidFile, InvalidInput

if TYPE_CHECKING:
    from privalign.config.storing import StoredRange


def public_range(
    file: Annotated[Path, typer.Argument(help="Scored public candidates: JSONL or Parquet.", metavar="FILE", show_default=False)],
    coverage: Annotated[float, typer.Option("--coverage", help="Share of the scores that the range holds.")] = 0.98,
    reward: Annotated[str, typer.Option("--reward", help="The key or column that holds the score.", metavar="COLUMN")] = "proxy_reward",
    config: Annotated[
        Path | None, typer.Option("--config", help="Store map and range in this deployment file.", metavar="FILE", show_default=False)
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="… in its table [rewards.NAME].  [required with --config]", metavar="NAME", show_default=False),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="… in place of other values that stand there.")] = False,
    json: options.Json = False,
) -> None:
    """The clip range of an unbounded reward model from its scores of public candidates, and the map that brings it to 0,1.

    Keep the result: a range from protected scores, or one that is chosen again and again, would void every guarantee.
    """
    import numpy as np

    from privalign.config.storing import StoredRange
    from privalign.policies.recorded import read_pools
    from privalign.sensitivity import RewardRange

    if not 0 < coverage <= 1:
        raise InvalidInput("--coverage", f"{coverage:g} is not above 0 and at most 1")
    if (config is None) != (name is None) or (replace and config is None):
        raise InvalidInput("--config", "it and --name belong together, and --replace to both")
    scores = np.concatenate([pool.rewards for pool in read_pools(file, reward, 1)])
    low, high = (float(end) for end in np.quantile(scores, [(1 - coverage) / 2, (1 + coverage) / 2]))
    chosen = RewardRange(low, high)
    scale = 1 / chosen.width
    mapped = StoredRange((0.0, 1.0), scale, -low * scale)
    facts = {"range": [low, high], "scale": scale, "offset": mapped.offset, "coverage": coverage, "candidates": len(scores)}
    if config is not None and name is not None:
        _store(config, name, mapped, replace)
        facts |= {"config": str(config), "reward": name}
    if json:
        print_json(facts)
        return
    print_facts(f"public range from {file}", facts)
    lines = [f"{key} = {value}" for key, value in mapped.written().items()]
    if config is None:
        lines = [f"range = [{low!r}, {high!r}]", "# or, mapped to 0,1:", *lines]
        typer.echo("\nfor [rewards.NAME] of the deployment file:\n" + "\n".join(lines))
    else:
        typer.echo(f"\nstored in {config}, [rewards.{name}]:\n" + "\n".join(lines))


def _store(config: Path, name: str, mapped: StoredRange, replace: bool) -> None:
    """Puts the range into a deployment file, which is read as one before it takes the old one's place."""
    import os

    from privalign.config import load
    from privalign.config.storing import with_range

    try:
        text = config.read_bytes().decode("utf-8")  # as it is, line ends too
        edited = with_range(text, name, mapped, replace=replace)
    except OSError as error:
        raise InvalidFile(str(config), None, f"cannot be read ({error.strerror}); write one with `privalign init`") from None
    except InvalidInput as error:
        raise InvalidFile(str(config), None, str(error)) from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, a number of thousands of digits, brackets in brackets in …
        raise InvalidFile(str(config), None, f"not TOML: {error}") from None
    if edited == text:
        return
    with replacing(config, field="--config") as file:
        os.fchmod(file.fileno(), config.stat().st_mode & 0o777)
        file.write(edited)
        file.flush()
        try:
            load(Path(file.name))
        except InvalidInput as error:
            reason = str(error).replace(file.name, str(config))
            raise InvalidInput("--config", f"{config} is left as it was: {reason}") from None
