"""Mechanisms against each other over n (the paper's Figures 1 and 4 to 9, Tables 1 to 3), by either protocol."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from privalign.candidates.scored import Clamped, ScoredPrompts
from privalign.errors import InvalidInput
from privalign.evaluation import authors
from privalign.evaluation.draws import DRAWS
from privalign.evaluation.outcomes import measure
from privalign.mechanisms.protocol import Mechanism
from privalign.sensitivity import Sensitivity
from privalign.settings import MECHANISMS, NOISE_OPTIONS, option, parse
from privalign.studies.study import Study, versions

Read = Callable[[], Iterable[ScoredPrompts]]  # one pass over the candidates

# which mechanisms take which option
_TAKERS: dict[str, tuple[str, ...]] = {
    "scale": ("privbon", "privbon-gaussian"),
    "epsilon": tuple(NOISE_OPTIONS),
    "beta": ("itp", "itp-reuse", "privitp"),
    "sigma_x": ("privitp",),
    "sigma_z": ("privitp",),
    "tail": ("privitp",),
    "n2": ("itp", "privitp"),
    "delta": ("privitp",),
}
_OF_AUTHORS = ("scale", "beta", "sigma_x")


def build(names: Sequence[str], sizes: Sequence[int], sensitivity: Sensitivity, given: Mapping[str, Any]) -> tuple[Mechanism, ...]:
    """One mechanism for each name and n (`base` once); each takes the options that are its own.

    Raises:
        InvalidInput: no such mechanism, an option that none of them takes, or one that is missing or out of range.
    """
    for name in names:
        if name not in MECHANISMS:
            raise InvalidInput(option("mechanisms"), f"{name!r} is not one of {', '.join(MECHANISMS)}")
    for key in given:
        if not set(_TAKERS[key]) & set(names):
            raise InvalidInput(option(key), f"none of {', '.join(names)} takes it; leave it out, or add {' or '.join(_TAKERS[key])}")
    own = {name: {key: value for key, value in given.items() if name in _TAKERS[key]} for name in names}
    return tuple(
        parse({**own[name], "mechanism": name, "n": n}, sensitivity).build()
        for name in names
        for n in (sizes[:1] if name == "base" else sizes)
    )


def faithful(
    read: Read,
    sensitivity: Sensitivity,
    names: Sequence[str],
    sizes: Sequence[int],
    given: Mapping[str, Any],
    *,
    draw: str = "without",
    replicates: int = 50,
    seed: int = 0,
    workers: int = 1,
    progress: Callable[[int], None] = lambda _: None,
) -> Study:
    """Algorithms 1 and 2 as they are; rows as `Outcomes.paired_rows`.

    Args:
        given: noise and other options of the mechanisms, keys as on the command line with `_`.
    """
    started = time.perf_counter()
    delta, clamped = given.get("delta", 1e-6), Clamped(sensitivity.range)
    outcomes = measure(
        clamped.counted(read()),
        build(names, sizes, sensitivity, given),
        sensitivity.range,
        sensitivity,
        delta=delta,
        draw=draw,
        replicates=replicates,
        seed=seed,
        workers=workers,
        progress=progress,
    )
    stated = {
        "protocol": "faithful",
        "mechanisms": list(names),
        "n_grid": list(sizes),
        **given,
        "delta": delta,
        "draw": draw,
        "draws": DRAWS[draw],
        "replicates": replicates,
        "seed": seed,
        **sensitivity.stated(),
        "prompts": len(outcomes.base),
        "base_gold": float(outcomes.base.mean()),
        "skipped": dict(outcomes.skipped),
        **clamped.stated(),
    }
    prompts = len(outcomes.base)
    title = f"Selection rules on {prompts} prompt{'' if prompts == 1 else 's'}"
    return Study("comparison", title, stated | {"versions": versions()}, outcomes.paired_rows(), time.perf_counter() - started)


def published(
    read: Read,
    names: Sequence[str],
    sizes: Sequence[int],
    given: Mapping[str, Any],
    *,
    replicates: int = 50,
    seed: int = 0,
    workers: int = 1,
    progress: Callable[[int], None] = lambda _: None,
) -> Study:
    """The authors' protocol: z-scores, one pool for both phases; not a private mechanism.

    Args:
        given: `scale` (σ of PrivBoN), `beta`, and `sigma_x` for both phases of PrivITP, in z-scores.
    """
    started = time.perf_counter()
    for key in given:
        if key not in _OF_AUTHORS:
            raise InvalidInput(option(key), f"protocol authors has no such setting; leave it out ({option('sigma_x')} sets both phases)")
    scale = given.get("scale", authors.SIGMA)
    settings = {"scale": scale, "beta": given.get("beta", authors.BETA), "sigma_phase": given.get("sigma_x", scale / 2)}
    rows, facts = authors.compare(
        read, sizes, mechanisms=names, **settings, replicates=replicates, seed=seed, workers=workers, progress=progress
    )
    stated = {
        "protocol": "authors",
        "mechanisms": list(names),
        "n_grid": list(sizes),
        **settings,
        "noise_draws": authors.NOISE_DRAWS,
        "replicates": replicates,
        "seed": seed,
        "private": authors.NOT_PRIVATE,
        **facts,
        "versions": versions(),
    }
    return Study("comparison", "Selection rules by the published protocol", stated, rows, time.perf_counter() - started)
