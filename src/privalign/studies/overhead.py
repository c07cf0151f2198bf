"""What PrivITP costs beside PrivBoN: candidates per query, n + E[t] against n, and the time of selection itself (Table 5).

Candidates are what language models are billed for; their mean is simulated. Seconds are those of the real mechanisms with secure
randomness, one query at a time, over rewards that are in memory: no generation and no scoring in them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import ArrayLike

from privalign.acceptance import whole as at_least_one
from privalign.evaluation.draws import DRAWS
from privalign.evaluation.halting import Pools, Whole, simulate
from privalign.evaluation.outcomes import ENOUGH, lacks
from privalign.mechanisms.driver import select_from_pool
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.protocol import Mechanism
from privalign.options import Option, part, whole
from privalign.randomness import SecureRandomness
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.studies import paper
from privalign.studies.kind import Beta, NGrid, Progress, Seed, Sigma, Simulated, Source, StudyKind
from privalign.studies.panels import Axis, N, Panel, Wide
from privalign.studies.study import Study


@dataclass(frozen=True, slots=True)
class OverheadSettings:
    """β in reward units; σ_X = σ_Z = σ/2. `simulated` queries behind E[t], `timed` ones behind each time."""

    sigma: Sigma
    beta: Beta = 0.05
    simulated: Simulated = 5_000
    timed: Annotated[int, Option(whole(), "Selections timed. Default 50.")] = 50
    seed: Seed = 0

    def __post_init__(self) -> None:
        at_least_one("simulated", self.simulated)
        at_least_one("timed", self.timed)


def overhead(
    pools: Sequence[ArrayLike],
    sensitivity: Sensitivity,
    sizes: Sequence[int],
    settings: OverheadSettings,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Study:
    """One row per n. `generated_ratio` is (n + E[t] + P[fallback])/n: the fallback is one more candidate, and is not scored.

    A row is null, with the reason, where fewer than half of the prompts have the 2n + 1 candidates of a query; all others are of the
    same prompts.

    Args:
        pools: raw scores per prompt. sizes: candidates n (also the cap of phase 2).
        sensitivity: the public range, and a Δ that changes nothing here.

    Raises:
        InvalidInput: a setting is out of range.
    """
    started = time.perf_counter()
    able = {n: sum(np.size(pool) > 2 * n for pool in pools) for n in sizes}
    fitting = [n for n, count in able.items() if count >= ENOUGH * len(pools)] or [min(sizes)]
    data = Pools.of(pools, sensitivity.range, needed=2 * max(fitting) + 1)
    measured = {}
    for done, n in enumerate(fitting):
        progress(done, len(fitting))
        measured[n] = _row(data, n, settings)
    blank = dict.fromkeys(measured[fitting[0]])
    rows = [measured.get(n, blank | {"n": n, "reason": lacks(2 * n + 1, able[n], len(pools))}) for n in sizes]
    stated = {
        **asdict(settings),
        **sensitivity.stated(),
        "prompts": len(data),
        "dropped_prompts": len(pools) - len(data),
        "draw": "without",
        "draws": DRAWS["without"],
        "seconds_are": "median wall time of one selection, secure randomness, rewards in memory",
    }
    return Study("overhead", "Overhead of PrivITP over PrivBoN", stated, rows, time.perf_counter() - started)


def _row(data: Pools, n: int, settings: OverheadSettings) -> dict[str, Any]:
    privitp = paper.privitp(n, settings.beta, settings.sigma)
    rng = np.random.default_rng(settings.seed)
    order = np.resize(rng.permutation(len(data)), settings.simulated)
    block = max(1, 2_000_000 // n)  # bounds memory, whatever n is
    halts = np.concatenate([simulate(privitp, data, order[i : i + block], rng)[1] for i in range(0, len(order), block)])
    looked_at = np.minimum(halts, n)
    generated = float(n + halts.mean())  # the fallback is counted as n₂ + 1: it is drawn too
    timed = order[: settings.timed]
    privbon_seconds = _median_seconds(PrivBoN(n, settings.sigma), data, timed, rng)
    privitp_seconds = _median_seconds(privitp, data, timed, rng)
    return {
        "n": n,
        "privbon_candidates": n,
        "privitp_candidates": generated,
        "privitp_candidates_se": float(halts.std() / np.sqrt(len(halts))),
        "mean_halting": float(looked_at.mean()),
        "fallback_percent": 100 * float((halts > n).mean()),
        "generated_ratio": generated / n,
        "privbon_seconds": privbon_seconds,
        "privitp_seconds": privitp_seconds,
        "reason": None,
    }


def _median_seconds(mechanism: Mechanism, data: Pools, prompts: Whole, rng: np.random.Generator) -> float:
    """Of one selection, the first one left out: it fills caches."""
    sensitivity, noise, seconds = Sensitivity.of_range(RewardRange(0.0, data.width)), SecureRandomness(), []
    for pool in data.draw(np.concatenate([prompts[:1], prompts]), mechanism.pool_size, rng):
        started = time.perf_counter()
        select_from_pool(mechanism, sensitivity, noise, pool)
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds[1:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(OverheadSettings):
    """… and n."""

    n_grid: NGrid = (256,)


def _run(source: Source, options: Options, progress: Progress) -> Study:
    return overhead(source.pools, source.sensitivity, options.n_grid, part(OverheadSettings, options), progress)


STUDY: Final = StudyKind(
    "overhead",
    "Candidates and selection time of PrivITP beside PrivBoN (Table 5).",
    Options,
    _run,
    {
        "overhead": (
            "n",
            "privitp_candidates",
            "mean_halting",
            "fallback_percent",
            "generated_ratio",
            "privbon_seconds",
            "privitp_seconds",
            "reason",
        )
    },
    {
        "overhead": (
            Panel(
                "candidates",
                "Candidates generated for one answer",
                N,
                Axis("candidates", "candidates", log=2),
                error_note="error bars: ± 1 standard error over queries",
                wide=(Wide("privbon_candidates", "privbon"), Wide("privitp_candidates", "privitp", error="privitp_candidates_se")),
            ),
            Panel(
                "seconds",
                "Time of one selection, without generation",
                N,
                Axis("seconds", "seconds", log=10),
                wide=(Wide("privbon_seconds", "privbon"), Wide("privitp_seconds", "privitp")),
            ),
        )
    },
)
