"""Mechanisms against each other over n (the paper's Figures 1 and 4 to 9, Tables 1 to 3), by either protocol."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from privalign.candidates.scored import Clamped, ScoredPrompts
from privalign.errors import InvalidInput, setting
from privalign.evaluation import authors
from privalign.evaluation.draws import DRAWS
from privalign.evaluation.outcomes import measure
from privalign.mechanisms.protocol import Mechanism
from privalign.options import Option, real, several, text, whole
from privalign.sensitivity import Sensitivity
from privalign.settings import MECHANISMS, NOISE_OPTIONS, parse
from privalign.studies.kind import Progress, Protocol, Source, StudyKind
from privalign.studies.panels import LIFT, OVER_PROMPTS, PROXY, WIN_RATES, Axis, N, Panel, Row, finite
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
            raise InvalidInput(setting("mechanisms"), f"{name!r} is not one of {', '.join(MECHANISMS)}")
    for key in given:
        if not set(_TAKERS[key]) & set(names):
            raise InvalidInput(setting(key), f"none of {', '.join(names)} takes it; leave it out, or add {' or '.join(_TAKERS[key])}")
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
            raise InvalidInput(setting(key), f"protocol authors has no such setting; leave it out ({setting('sigma_x')} sets both phases)")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Which mechanisms, over which n, with which settings; None: not given."""

    mechanisms: Annotated[tuple[str, ...], Option(several(text()), f"A list out of {', '.join(MECHANISMS)}.", "M,M,…")]
    n_grid: Annotated[tuple[int, ...], Option(several(whole()), "Numbers of candidates, rising.", "N,N,…")]
    protocol: Protocol = "faithful"
    n2: Annotated[int | None, Option(whole(), "Most phase-2 candidates. Default n.")] = None
    scale: Annotated[float | None, Option(real(above=0), "Noise scale of privbon and privbon-gaussian.")] = None
    beta: Annotated[float | None, Option(real(above=0), "Regularisation of itp and privitp. Default 0.05.")] = None
    sigma_x: Annotated[float | None, Option(real(above=0), "Noise of privitp's phase 1.")] = None
    sigma_z: Annotated[float | None, Option(real(above=0), "Noise of privitp's phase 2.")] = None
    tail: Annotated[float | None, Option(real(above=0), "L of privitp. Default √(2 ln(n2/0.01)).")] = None
    epsilon: Annotated[float | None, Option(real(), "Calibrate the noise to this ε per query, instead of giving it.")] = None
    delta: Annotated[float | None, Option(real(), "δ of phase 1, per query. Default 1e-6.")] = None
    replicates: Annotated[int | None, Option(whole(), "Random draws a prompt where there is no closed form. Default 50.")] = None
    draw: Annotated[str | None, Option(text(), "Draws without replacement (default), or with.", "without|with")] = None
    seed: Annotated[int | None, Option(whole(0), "The same seed gives the same rows.")] = None
    workers: Annotated[int | None, Option(whole(), "Threads. Rows do not depend on it.")] = None


def _run(source: Source, options: Options, progress: Progress) -> Study:
    total = sum(block.prompts for block in source.blocks)
    run = {name: value for name in ("draw", "replicates", "seed", "workers") if (value := getattr(options, name)) is not None}
    given = {name: value for name in _TAKERS if (value := getattr(options, name)) is not None}
    names, sizes = options.mechanisms, options.n_grid
    if options.protocol == "faithful":
        return faithful(lambda: source.blocks, source.sensitivity, names, sizes, given, **run, progress=lambda done: progress(done, total))
    if "draw" in run:
        raise InvalidInput(setting("draw"), "protocol authors draws without replacement; leave it out")
    return published(lambda: source.blocks, names, sizes, given, **run, progress=lambda done: progress(done, total))


def _gap(row: Row) -> float | None:
    proxy, true = finite(row.get("proxy_mean")), finite(row.get("true_mean"))
    return None if proxy is None or true is None else proxy - true


def _same_units(settings: Mapping[str, Any]) -> bool:
    """Whether rewards may be taken from gold, which is of [0, 1]: no z-scores, no other range."""
    return settings.get("protocol") != "authors" and settings.get("range", [0, 1]) == [0, 1]


STUDY: Final = StudyKind(
    "comparison",
    "Mechanisms against each other over n (Figures 1 and 4 to 9, Tables 1 to 3).",
    Options,
    _run,
    {},  # `evaluate` shows them
    {
        "comparison": (
            LIFT,
            PROXY,
            Panel(
                "gap",
                "Hacking gap",
                N,
                Axis("gap", "mean proxy − mean true reward"),
                "gap_se",
                OVER_PROMPTS,
                read=_gap,
                only=_same_units,
            ),
            WIN_RATES[0],
        )
    },
)
