"""The registry of studies: from options, typed on the command line or read from a recipe's `[evaluate.NAME]` tables, to documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from privalign.candidates.scored import Clamped, provenance, read_pooled
from privalign.errors import InvalidInput, setting
from privalign.options import read
from privalign.settings import parse
from privalign.studies import ablations, budgets, comparison, composition, matched, overhead, win_rates
from privalign.studies.kind import Progress, Source, StudyKind
from privalign.studies.study import Study, titled, versions

_FILES: Final = (comparison, composition, matched, ablations, win_rates, overhead, budgets)
KINDS: Final[Mapping[str, StudyKind]] = {file.STUDY.name: file.STUDY for file in _FILES}
_OF_SOURCE: Final = ("range", "sensitivity", "certificate", "reward")


def read_source(paths: Sequence[Path], options: Mapping[str, Any]) -> Source:
    """Reads whole files or folders, whose prompts are pooled; Δ is from the options `range`, `sensitivity` and `certificate`.

    Raises:
        InvalidInput: `range` is missing, or one of them is wrong. InvalidFile: the file is.
    """
    reward = str(options.get("reward", "proxy_reward"))
    if options.get("range") is None and options.get("protocol") != "authors":
        raise InvalidInput(setting("range"), "missing; give the public range LO,HI that rewards are clipped to")
    stated = {name: options.get(name) for name in ("range", "sensitivity", "certificate")}
    sensitivity = parse({"mechanism": "base", **stated}).sensitivity  # protocol authors z-scores, whatever it is
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
    own = {name: value for name, value in options.items() if name not in _OF_SOURCE}
    settings: Any = read(KINDS[kind].options, own, f"study {kind}")
    clamped = Clamped(source.sensitivity.range)
    skipped = sum(block.skipped for block in clamped.counted(source.blocks))
    study = KINDS[kind].run(source, settings, progress)
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
