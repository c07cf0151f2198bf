"""The public range of an unbounded reward model, from its scores of public candidates, and its place in a deployment file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from privalign.candidates.pools import read_pools
from privalign.deployment.deployment import load
from privalign.deployment.storing import StoredRange, with_range
from privalign.errors import InvalidFile, InvalidInput
from privalign.files import replacement
from privalign.rewards.provenance import signature_file, signed_columns
from privalign.sensitivity import RewardRange


def public_range(file: Path, coverage: float, reward: str) -> tuple[float, float, StoredRange, int]:
    """Exact quantiles of a public reward model's scores: the ends, what brings them to 0,1, and of how many candidates.

    Args:
        coverage: the share of scores between the ends, in (0, 1]. reward: the key or column that holds the score.

    Raises:
        InvalidInput: the scores are those of a protected head, or all the same. InvalidFile: the file cannot be read.
    """
    _refuse_protected(file, reward)
    scores = np.concatenate([pool.rewards for pool in read_pools(file, reward, 1)])
    low, high = (float(end) for end in np.quantile(scores, [(1 - coverage) / 2, (1 + coverage) / 2]))
    RewardRange(low, high)  # refuses an empty one
    return low, high, mapped(low, high), len(scores)


def _refuse_protected(file: Path, reward: str) -> None:
    """Refuses scores that are signed as those of a head which is protected, whatever is said of them."""
    if not file.exists() or not signature_file(file).exists():
        return
    by = signed_columns(file).get(reward)
    if by is not None and not by.released:
        raise InvalidInput(
            "public", f"{reward} of {file} is signed as scored by a head that is protected; give --head and --account instead"
        )


def mapped(low: float, high: float) -> StoredRange:
    """What brings scores in a range to 0,1."""
    scale = 1 / RewardRange(low, high).width
    return StoredRange((0.0, 1.0), scale, -low * scale, "public")


def store_range(config: Path, name: str, stored: StoredRange, *, replace: bool = False) -> None:
    """Puts the range into `[rewards.NAME]` of a deployment file, which is read as one before it takes the old one's place.

    Args:
        replace: whether other values that stand there may go.

    Raises:
        InvalidFile: it cannot be read or edited. InvalidInput: it would be no deployment file any more, or cannot be written.
    """
    try:
        text = config.read_bytes().decode("utf-8")  # as it is, line ends too
        mark = "\ufeff" * text.startswith("\ufeff")  # some editors write one before the text
        edited = mark + with_range(text.removeprefix(mark), name, stored, replace=replace)
    except OSError as error:
        raise InvalidFile(str(config), None, f"cannot be read ({error.strerror}); write one with `privalign init`") from None
    except InvalidInput as error:
        raise InvalidFile(str(config), None, str(error)) from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, a number of thousands of digits, brackets in brackets in …
        raise InvalidFile(str(config), None, f"not TOML: {error}") from None
    if edited != text:
        _exchange(config, edited)


def _exchange(config: Path, text: str) -> None:
    target = Path(os.path.realpath(config))  # a link keeps pointing to the file that it names
    try:
        with replacement(target, encoding="utf-8", newline="\n") as file:
            os.fchmod(file.fileno(), target.stat().st_mode & 0o777)
            file.write(text)
            file.flush()
            _check(Path(file.name), config)
    except OSError as error:
        remedy = "give a file in a folder that exists and has room"
        raise InvalidInput("config", f"{config} cannot be written ({error.strerror}); {remedy}") from None


def _check(written: Path, config: Path) -> None:
    try:
        load(written)
    except InvalidInput as error:
        reason = str(error).replace(str(written), str(config))
        raise InvalidInput("config", f"{config} is left as it was: {reason}") from None
