"""Studies by name: from options, typed on the command line or read from a recipe's `[evaluate.NAME]` tables, to documents.

One option has one name and one type in every study; defaults are those of the study's own settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privalign.candidates.scored import Clamped, ScoredPrompts, provenance, read_pooled
from privalign.errors import InvalidInput
from privalign.evaluation.held_out import Splitting
from privalign.sensitivity import Sensitivity
from privalign.settings import named, option, parse
from privalign.studies import comparison
from privalign.studies.ablations import PAPER_BETAS, beta_ablation, noise_comparison, sigma_ablation
from privalign.studies.budgets import PAPER_SIGMAS, BudgetSettings, budgets
from privalign.studies.composition import CompositionSettings, authors_composition, composition
from privalign.studies.matched import MatchedSettings, matched
from privalign.studies.overhead import OverheadSettings, overhead
from privalign.studies.study import Study, titled, versions
from privalign.studies.win_rates import PAPER_SIZES, WinRateSettings, win_rates

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Source:
    """What a study is about: scored and graded prompts, the public range of their rewards with its Δ, and where they come from."""

    blocks: Sequence[ScoredPrompts]
    sensitivity: Sensitivity
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pools(self) -> list[NDArray[np.float64]]:
        """The rewards of each prompt that has any."""
        return [
            block.rewards[start:end]
            for block in self.blocks
            for start, end in zip(block.offsets[:-1], block.offsets[1:], strict=True)
            if end > start
        ]


def read_source(paths: Sequence[Path], options: Mapping[str, Any]) -> Source:
    """Reads whole files or folders, whose prompts are pooled; Δ is from the options `range`, `sensitivity` and `certificate`.

    Raises:
        InvalidInput: `range` is missing, or one of them is wrong. InvalidFile: the file is.
    """
    if options.get("range") is None:
        raise InvalidInput(option("range"), "missing; give the public range LO,HI that rewards are clipped to")
    stated = {name: options.get(name) for name in ("range", "sensitivity", "certificate")}
    sensitivity = parse({"mechanism": "base", **stated}).sensitivity
    reward = str(options.get("reward", "proxy_reward"))
    return Source(list(read_pooled(paths, reward)), sensitivity, provenance(paths, reward))


def run_study(kind: str, options: Mapping[str, Any], source: Source, progress: Progress = lambda *_: None) -> Study:
    """One study.

    Args:
        kind: a key of `KINDS`. options: values as TOML has them, or as text (lists comma-separated); None means not given.

    Raises:
        InvalidInput: no such study, or an option that is unknown, missing, of the wrong type or out of range.
    """
    if kind not in KINDS:
        raise InvalidInput("kind", f"{kind!r} is not one of {', '.join(KINDS)}")
    names, run = KINDS[kind]
    given = {name: value for name, value in options.items() if value is not None and name not in _OF_SOURCE}
    for name in given:
        if name not in names:
            raise InvalidInput(option(name), f"not an option of study {kind}, which takes {', '.join(option(known) for known in names)}")
    values = {name: _READERS[name](name, value) for name, value in given.items()}
    clamped = Clamped(source.sensitivity.range)
    skipped = sum(block.skipped for block in clamped.counted(source.blocks))
    with named(names):
        study = run(source, values, progress)
    stated: dict[str, Any] = {"skipped_candidates": skipped, "versions": versions()}
    if study.settings.get("protocol") != "authors":  # which z-scores
        stated |= clamped.stated()
    return replace(study, title=titled(study, source.provenance), settings={**source.provenance, **study.settings, **stated})


def kind_of(table: Mapping[str, Any]) -> str:
    """The kind of study that a recipe's table asks for: `kind`, or its name.

    Raises:
        InvalidInput: there is no such kind.
    """
    kind = str(table.get("kind", table["name"]))
    if kind not in KINDS:
        raise InvalidInput(f"[evaluate.{table['name']}] kind", f"{kind!r} is not one of {', '.join(KINDS)}")
    return kind


def run_table(table: Mapping[str, Any], paths: Sequence[Path], progress: Callable[[str, int, int], None]) -> Study:
    """The study of a recipe's table on the prompts of all paths.

    Args:
        table: of `Recipe.studies`: `name`, `kind` (default: the name), options. paths: the scored and graded candidates.

    Raises:
        InvalidInput: as `run_study`, the table named.
    """
    name, options = str(table["name"]), {key: value for key, value in table.items() if key not in ("name", "kind")}
    kind = kind_of(table)
    try:
        return run_study(kind, options, read_source(paths, options), partial(progress, name))
    except InvalidInput as error:
        raise InvalidInput(f"[evaluate.{name}] {error.field}", error.message) from None


def _comparison(source: Source, given: dict[str, Any], progress: Progress) -> Study:
    names, sizes, protocol = _needed(given, "mechanisms"), _needed(given, "n_grid"), _protocol(given)
    total = sum(block.prompts for block in source.blocks)
    run: dict[str, Any] = {name: given.pop(name) for name in ("draw", "replicates", "seed", "workers") if name in given}
    run["progress"] = lambda done: progress(done, total)
    if protocol == "faithful":
        return comparison.faithful(lambda: source.blocks, source.sensitivity, names, sizes, given, **run)
    if "draw" in run:
        raise InvalidInput(option("draw"), "protocol authors draws without replacement; leave it out")
    return comparison.published(lambda: source.blocks, names, sizes, given, **run)


def _composition(source: Source, given: dict[str, Any], progress: Progress) -> Study:
    protocol = _protocol(given)
    sigmas = _needed(given, "sigmas")
    if protocol == "authors":
        for name in ("total_delta", "most", "order"):
            if name in given:
                raise InvalidInput(option(name), "protocol authors has no such setting; leave it out")
    delta = given.pop("total_delta", None)
    settings = CompositionSettings(**given, **({} if delta is None else {"delta": delta}))
    if protocol == "authors":
        return authors_composition(source.pools, sigmas, settings, progress)
    return composition(source.pools, source.sensitivity, sigmas, settings, progress)


def _matched(source: Source, given: dict[str, Any], progress: Progress) -> Study:
    return matched(source.blocks, source.sensitivity, MatchedSettings(**given), progress)


def _ablation(source: Source, given: dict[str, Any], progress: Progress) -> Study:
    parameter, own = _needed(given, "parameter"), ("sigma", "sigmas", "beta", "betas", "n", "n_grid")
    settings = Splitting(**{name: given.pop(name) for name in list(given) if name not in own})
    blocks, sensitivity = source.blocks, source.sensitivity
    if parameter == "sigma":
        sigmas, left = _needed(given, "sigmas"), _only(given, "n", "beta", parameter=parameter)
        return sigma_ablation(blocks, sensitivity, sigmas, **left, settings=settings, progress=progress)
    if parameter == "beta":
        sigma, betas = _needed(given, "sigma"), given.pop("betas", PAPER_BETAS)
        left = _only(given, "n", parameter=parameter)
        return beta_ablation(blocks, sensitivity, betas, sigma=sigma, **left, settings=settings, progress=progress)
    if parameter == "n":
        sigmas, sizes = _needed(given, "sigmas"), _needed(given, "n_grid")
        left = _only(given, "betas", parameter=parameter)
        return noise_comparison(blocks, sensitivity, sigmas, sizes, **left, settings=settings, progress=progress)
    raise InvalidInput(option("parameter"), f"{parameter!r} is not one of sigma, beta, n")


def _win_rate(source: Source, given: dict[str, Any], progress: Progress) -> Study:
    sizes = given.pop("n_grid", PAPER_SIZES)
    return win_rates(source.blocks, source.sensitivity, sizes, WinRateSettings(_needed(given, "sigma"), **given), progress)


def _overhead(source: Source, given: dict[str, Any], progress: Progress) -> Study:
    sizes = given.pop("n_grid", (256,))
    return overhead(source.pools, source.sensitivity, sizes, OverheadSettings(_needed(given, "sigma"), **given), progress)


def _budget(source: Source, given: dict[str, Any], progress: Progress) -> Study:
    sigmas = given.pop("sigmas", None) or [ratio * source.sensitivity.width for ratio in PAPER_SIGMAS]
    return budgets(source.pools, source.sensitivity, sigmas, BudgetSettings(**given), progress)


_MECHANISM = ("n2", "scale", "beta", "sigma_x", "sigma_z", "tail", "epsilon")
_MEASURED = ("delta", "replicates", "draw", "seed", "workers")

# the options of each study, and what runs it
KINDS: dict[str, tuple[tuple[str, ...], Callable[[Source, dict[str, Any], Progress], Study]]] = {
    "comparison": (("mechanisms", "n_grid", "protocol", *_MECHANISM, *_MEASURED), _comparison),
    "composition": (("sigmas", "n", "beta", "epsilon", "total_delta", "seeds", "most", "order", "protocol"), _composition),
    "matched": (("n", "caps", "epsilons", "streams", "total_delta", "betas", "splits", "multiples", "held_out", *_MEASURED), _matched),
    "ablation": (("parameter", "sigma", "sigmas", "beta", "betas", "n", "n_grid", "held_out", *_MEASURED), _ablation),
    "win-rate": (("sigma", "beta", "n_grid", *_MEASURED), _win_rate),
    "overhead": (("sigma", "beta", "n_grid", "simulated", "timed", "seed"), _overhead),
    "budget": (("sigmas", "n", "beta", "delta", "queries", "simulated", "seed"), _budget),
}
_OF_SOURCE = ("range", "sensitivity", "certificate", "reward")


def _protocol(given: dict[str, Any]) -> str:
    protocol: str = given.pop("protocol", "faithful")
    if protocol not in ("faithful", "authors"):
        raise InvalidInput(option("protocol"), f"{protocol!r} is neither faithful nor authors")
    return protocol


def _needed(given: dict[str, Any], name: str) -> Any:
    if name not in given:
        raise InvalidInput(option(name), "missing, and it has no default; give it")
    return given.pop(name)


def _only(given: dict[str, Any], *names: str, parameter: str) -> dict[str, Any]:
    """All that is left, where it is among the names."""
    for name in given:
        if name not in names:
            raise InvalidInput(option(name), f"not an option of an ablation over {parameter}; leave it out")
    return given


def _number(name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InvalidInput(option(name), f"{value!r} is not a finite number")
    return number


def _above_0(name: str, value: Any) -> float:
    number = _number(name, value)
    if number <= 0:
        raise InvalidInput(option(name), f"{number} is not a finite number above 0")
    return number


def _whole(name: str, value: Any) -> int:
    number = _number(name, value)
    if number != int(number) or number < (0 if name == "seed" else 1):
        raise InvalidInput(option(name), f"{value!r} is not a whole number of at least {0 if name == 'seed' else 1}")
    return int(number)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInput(option(name), f"{value!r} is not a word")
    return value


def _several(read: Callable[[str, Any], Any]) -> Callable[[str, Any], tuple[Any, ...]]:
    def values(name: str, value: Any) -> tuple[Any, ...]:
        parts = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        parts = parts if isinstance(parts, list | tuple) else [parts]
        if not parts and name != "streams":
            raise InvalidInput(option(name), "empty; give at least one value")
        return tuple(dict.fromkeys(read(name, part) for part in parts))

    return values


_READERS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("n", "n2", "seeds", "most", "replicates", "seed", "workers", "simulated", "timed", "queries"), _whole),
    **dict.fromkeys(("sigma", "scale", "sigma_x", "sigma_z", "tail", "beta"), _above_0),
    **dict.fromkeys(("epsilon", "delta", "total_delta", "order", "held_out"), _number),
    **dict.fromkeys(("sigmas", "betas", "splits"), _several(_above_0)),
    **dict.fromkeys(("epsilons", "multiples"), _several(_number)),
    **dict.fromkeys(("n_grid", "streams", "caps"), _several(_whole)),
    "mechanisms": _several(_text),
    **dict.fromkeys(("protocol", "parameter", "draw"), _text),
}
