"""How many queries a budget answers under each composition rule (the paper's Figure 1, bottom right, and Figure 13).

Two protocols. `composition`: PrivITP as it is, charged as accounts charge it: each query reserves its worst case by the rule's
own `charge`, and settles at the realised λ̃ and t as far as the rule allows. `authors_composition`: the published script's
accounting, for comparison. Rows have one shape for both, one row per σ and rule.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import ArrayLike

from privalign.acceptance import threshold_grid
from privalign.acceptance import whole as at_least_one
from privalign.accounting.rules import Debit, Renyi, Rule, make_rule
from privalign.errors import InvalidInput, setting
from privalign.evaluation.draws import DRAWS
from privalign.evaluation.halting import Pools, halt_of, simulate
from privalign.events import Composed
from privalign.intervals import shown
from privalign.mechanisms.privitp import PrivITP
from privalign.options import Option, real, whole
from privalign.sensitivity import Sensitivity
from privalign.studies.authors_composition import authors_stream, z_scored
from privalign.studies.kind import Progress, Protocol, Sigmas, Source, StudyKind
from privalign.studies.panels import SIGMA, Axis, Panel
from privalign.studies.paper import privitp
from privalign.studies.study import Study

RULES = ("basic", "fsrc", "two-counter", "renyi")
_BLOCK = 512  # queries simulated at a time


@dataclass(frozen=True, slots=True)
class CompositionSettings:
    """What is the same for all rows.

    Args:
        n: candidates of phase 1 and cap of phase 2. beta: β, in reward units. epsilon, delta: (ε_total, δ_total).
        seeds: streams per σ, seeds 0, 1, …. most: a stream ends after this many queries, whatever is left.
        order: Rényi order; None: for each σ the default order that answers most queries in the worst case.
    """

    n: int = 16
    beta: float = 0.05
    epsilon: float = 50.0
    delta: float = 1e-2
    seeds: int = 10
    most: int = 10_000
    order: float | None = None

    def __post_init__(self) -> None:
        at_least_one("seeds", self.seeds)
        at_least_one("most", self.most)


def composition(
    pools: Sequence[ArrayLike],
    sensitivity: Sensitivity,
    sigmas: Sequence[float],
    settings: CompositionSettings | None = None,
    progress: Progress = lambda *_: None,
) -> Study:
    """Queries answered before the budget ends, per σ (in reward units; σ_X = σ_Z = σ/2) and rule.

    A seed's stream asks the prompts in one random order, over and over: every query draws fresh candidates and is charged in
    full. All rules see the same streams. `capped` rows answered `most` queries in some stream and would answer more.

    Args:
        pools: one array of raw scores per prompt. sensitivity: Δ and the public range.

    Raises:
        InvalidInput: a setting is out of range, or (ε, δ) is too small for a rule.
    """
    settings = settings or CompositionSettings()
    started = time.perf_counter()
    data = Pools.of(pools, sensitivity.range, needed=2 * settings.n + 1)
    rows: list[dict[str, Any]] = []
    for done, sigma in enumerate(sigmas):
        mechanism = privitp(settings.n, settings.beta, sigma)
        worst = mechanism.event(sensitivity)
        for number, name in enumerate(RULES):
            progress(done * len(RULES) + number, len(sigmas) * len(RULES))
            order = settings.order if name == "renyi" else None
            rule = make_rule(name, settings.epsilon, settings.delta, order=order, event=worst)
            streams = [endless(mechanism, data, seed) for seed in range(settings.seeds)]
            runs = answered_halts(rule, mechanism, sensitivity, streams, settings.most)
            halts = np.array([halt for run in runs for halt in run])
            rows.append(
                _row(sigma, name, [len(run) for run in runs])
                | {
                    "sigma_over_range": sigma / sensitivity.width,
                    "order": rule.order if isinstance(rule, Renyi) else None,
                    "mean_halting": float(np.minimum(halts, settings.n).mean()) if len(halts) else None,
                    "fallback_percent": 100 * float((halts > settings.n).mean()) if len(halts) else None,
                    "capped": any(len(run) == settings.most for run in runs),
                }
            )
    stated = {
        "protocol": "faithful",
        **asdict(settings),
        **sensitivity.stated(),
        "prompts": len(data),
        "dropped_prompts": len(pools) - len(data),
        "draw": "without",
        "draws": DRAWS["without"],
        "sigma_unit": "reward",
        "stream": "the prompts in a random order per seed, repeated cyclically",
    }
    known = f"Δ = {shown(sensitivity.delta, 4)} of a range of {sensitivity.width:.4g}"
    title = f"Queries answered by ε = {shown(settings.epsilon)}, δ = {shown(settings.delta)} ({known})"
    return Study("composition", title, stated, rows, time.perf_counter() - started)


def authors_composition(
    pools: Sequence[ArrayLike], sigmas: Sequence[float], settings: CompositionSettings | None = None, progress: Progress = lambda *_: None
) -> Study:
    """The same figure by the authors' accounting (rules "fsrc" and "basic"): not a private mechanism, and not a bound.

    Args:
        sigmas: σ in z-scored units, as published. Prompts with fewer than n rewards are left out; none is used twice.
    """
    settings = settings or CompositionSettings()
    started = time.perf_counter()
    data, deviation = z_scored([np.asarray(pool, dtype=np.float64) for pool in pools], settings.n)
    rows = []
    for done, sigma in enumerate(sigmas):
        progress(done, len(sigmas))
        runs = [
            authors_stream(data, sigma, n=settings.n, beta=settings.beta, epsilon=settings.epsilon, seed=seed)
            for seed in range(settings.seeds)
        ]
        means = [run.mean_halting for run in runs if run.answered]
        for name, counts in (("basic", [run.basic for run in runs]), ("fsrc", [run.answered for run in runs])):
            rows.append(
                _row(sigma, name, counts)
                | {
                    "sigma_over_range": None,  # it has no public range
                    "order": None,
                    "mean_halting": float(np.mean(means)) if means else None,
                    "fallback_percent": None,  # counted as an acceptance at t = n
                    "capped": any(run.answered == len(data) for run in runs),
                }
            )
    stated = {
        "protocol": "authors",
        "n": settings.n,
        "beta": settings.beta,
        "epsilon": settings.epsilon,
        "delta": None,
        "seeds": settings.seeds,
        "prompts": len(data),
        "dropped_prompts": len(pools) - len(data),
        "sigma_unit": "z-score",
        "reward_sd": deviation,
        "stream": "a random permutation of the prompts per seed, none used twice",
        "private": "not a private mechanism: range and Δ are read from the rewards, no δ is stated, a fallback is charged as an acceptance",
    }
    return Study(
        "composition",
        f"Queries answered by ε = {shown(settings.epsilon)} of the published accounting: not a private mechanism",
        stated,
        rows,
        time.perf_counter() - started,
    )


def answered_halts(
    rule: Rule, mechanism: PrivITP, sensitivity: Sensitivity, streams: Sequence[Iterable[tuple[int, int]]], most: int
) -> list[list[int]]:
    """The halting times of the queries that a fresh account answers, per stream; at most `most` of them.

    Args:
        streams: (position of λ̃ in the grid, halting time or n₂ + 1 for the fallback) of one query after the other.
    """
    grid = threshold_grid(mechanism.beta, sensitivity.width)
    worst, rounds = mechanism.event(sensitivity), mechanism.phase_2(sensitivity)
    assert isinstance(worst, Composed)
    phase_1 = worst.events[0]
    reserve = rule.charge(worst)

    @cache  # both are of few values
    def settled(position: int, halt: int) -> Debit:
        realised = rounds.at(float(grid[position]), halt_of(mechanism, halt))
        return rule.charge(Composed((phase_1, realised))).at_most(reserve)

    answered = []
    for stream in streams:
        debited, halts = Debit(), []
        for position, halt in islice(stream, most):
            if not (debited + reserve).fits(rule.limit):
                break
            debited += settled(position, halt)
            halts.append(halt)
        answered.append(halts)
    return answered


def endless(mechanism: PrivITP, pools: Pools, seed: int) -> Iterator[tuple[int, int]]:
    """The realised (λ̃, t) of a seed's stream: the prompts in one random order, over and over."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(pools))
    while True:
        for start in range(0, len(order), _BLOCK):
            positions, halts = simulate(mechanism, pools, order[start : start + _BLOCK], rng)
            yield from zip(positions.tolist(), halts.tolist(), strict=True)


def _row(sigma: float, rule: str, counts: Sequence[int]) -> dict[str, Any]:
    return {
        "sigma": sigma,
        "rule": rule,
        "answered_mean": float(np.mean(counts)),
        "answered_sd": float(np.std(counts)),
        "answered_min": min(counts),
        "answered_max": max(counts),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """σ, whose accounting, and the settings of it; None: not given."""

    sigmas: Sigmas
    n: Annotated[int | None, Option(whole(), "Candidates (phase 1 of itp and privitp). Default 16.")] = None
    beta: Annotated[float | None, Option(real(above=0), "Regularisation of itp and privitp. Default 0.05.")] = None
    epsilon: Annotated[float | None, Option(real(), "ε of the stream. Default 50.")] = None
    total_delta: Annotated[float | None, Option(real(), "δ of a whole stream.")] = None
    seeds: Annotated[int | None, Option(whole(), "Streams per σ. Default 10.")] = None
    most: Annotated[int | None, Option(whole(), "Queries at which a stream ends. Default 10,000.")] = None
    order: Annotated[float | None, Option(real(), "Rényi order. Default: the best for each σ.")] = None
    protocol: Protocol = "faithful"


_SETTINGS: Final = {
    "n": "n",
    "beta": "beta",
    "epsilon": "epsilon",
    "total_delta": "delta",
    "seeds": "seeds",
    "most": "most",
    "order": "order",
}


def _run(source: Source, options: Options, progress: Progress) -> Study:
    given: dict[str, Any] = {name: value for name in _SETTINGS if (value := getattr(options, name)) is not None}
    if options.protocol == "authors":
        for name in ("total_delta", "most", "order"):
            if name in given:
                raise InvalidInput(setting(name), "protocol authors has no such setting; leave it out")
    settings = CompositionSettings(**{_SETTINGS[name]: value for name, value in given.items()})
    if options.protocol == "authors":
        return authors_composition(source.pools, options.sigmas, settings, progress)
    return composition(source.pools, source.sensitivity, options.sigmas, settings, progress)


STUDY: Final = StudyKind(
    "composition",
    "How many queries a budget answers under each composition rule (Figure 1 bottom right, Figure 13).",
    Options,
    _run,
    {"composition": ("sigma", "rule", "answered_mean", "answered_sd", "mean_halting", "order", "capped")},
    {
        "composition": (
            Panel(
                "answered",
                "Queries answered before the budget ends",
                SIGMA,
                Axis("answered_mean", "queries answered", log=10, zero=True),
                "answered_sd",
                "error bars: ± 1 standard deviation over seeds",
                by=("rule",),
                ringed=("capped", "ring: a stream was cut off with budget left"),
            ),
            Panel("halting", "Mean halting time of phase 2", SIGMA, Axis("mean_halting", "candidates looked at"), by=("rule",)),
        )
    },
)
