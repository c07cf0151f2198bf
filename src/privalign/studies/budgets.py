"""Privacy budgets per query over σ (the paper's Table 6): what was published beside what holds.

The published columns are the paper's formulas, evaluated where the paper evaluates them; they are not bounds:

- `phase1_published` = Δ√(2 ln(1.25/δ))/σ_X is a theorem only up to ε₁ = 1; `phase1_true_delta` is the δ that it really has.
- `published` adds ε₂(E[t]) at the mean threshold: neither a worst case nor an ex-post cost, and δ is meant for the whole stream
  although each query spends its own (`stream_delta` states what the published δ becomes after `queries`).
- The fallback is charged as ε₂(n); it costs nκ, which is more where κ > b: if anywhere, at the lowest threshold λ̃ = −β,
  where `fallback_published` and `fallback_exact` are.

The corrected columns are what this package charges, rounded up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import ArrayLike

from privalign.acceptance import default_tail, threshold_grid
from privalign.acceptance import whole as at_least_one
from privalign.accounting import costs, rejection
from privalign.accounting.gaussian import gaussian_delta, probability, published_gaussian_epsilon
from privalign.accounting.gumbel import privbon_epsilon
from privalign.evaluation.draws import DRAWS
from privalign.evaluation.halting import Pools, halt_of, simulate
from privalign.events import FALLBACK, Composed
from privalign.intervals import shown
from privalign.mechanisms.privbon_gaussian import PrivBoNGaussian
from privalign.options import Option, part, real, several, whole
from privalign.sensitivity import Sensitivity
from privalign.studies.kind import SIGMAS_WORDS, Beta, Candidates, Progress, Seed, Simulated, Source, StudyKind
from privalign.studies.panels import SERIES, Axis, Panel, Wide
from privalign.studies.paper import privitp
from privalign.studies.study import Study

# in units of R: the paper prints 2Δ/σ from 7.80 to 0.78 at Δ = R; the two between are ours
PAPER_SIGMAS = (2 / 7.80, 2 / 4.0, 2 / 2.0, 2 / 0.78)


@dataclass(frozen=True, slots=True)
class BudgetSettings:
    """n (candidates, and cap of phase 2), β in reward units, δ per query, length of a stream, simulated queries behind E[t]."""

    n: Candidates = 16
    beta: Beta = 0.05
    delta: Annotated[float, Option(real(), "δ of a query. Default 0.01, as published.")] = 1e-2
    queries: Annotated[int, Option(whole(), "Length of the stream whose δ is stated.")] = 100
    simulated: Simulated = 20_000
    seed: Seed = 0

    def __post_init__(self) -> None:
        probability("delta", self.delta)
        at_least_one("queries", self.queries)
        at_least_one("simulated", self.simulated)


def budgets(
    pools: Sequence[ArrayLike],
    sensitivity: Sensitivity,
    sigmas: Sequence[float],
    settings: BudgetSettings | None = None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Study:
    """One row per σ (reward units; σ_X = σ_Z = σ/2).

    Args:
        pools: raw scores per prompt: E[t] and the mean threshold are theirs. sensitivity: Δ and the public range.

    Raises:
        InvalidInput: a setting is out of range.
    """
    settings = settings or BudgetSettings()
    started = time.perf_counter()
    data = Pools.of(pools, sensitivity.range, needed=2 * settings.n + 1)
    stated = {
        **asdict(settings),
        "tail": default_tail(settings.n),
        **sensitivity.stated(),
        "prompts": len(data),
        "dropped_prompts": len(pools) - len(data),
        "draw": "without",
        "draws": DRAWS["without"],
        "sigma_unit": "reward",
    }
    title = f"Budget of one query at δ = {shown(settings.delta)}, n = {settings.n}: published and corrected"
    rows = []
    for done, sigma in enumerate(sigmas):
        progress(done, len(sigmas))
        rows.append(_row(data, sensitivity, sigma, settings))
    return Study("budget", title, stated, rows, time.perf_counter() - started)


def _row(data: Pools, sensitivity: Sensitivity, sigma: float, settings: BudgetSettings) -> dict[str, Any]:
    n, delta = settings.n, settings.delta
    mechanism = privitp(n, settings.beta, sigma)
    rng = np.random.default_rng(settings.seed)
    positions, halts = simulate(mechanism, data, np.resize(rng.permutation(len(data)), settings.simulated), rng)
    grid, rounds = threshold_grid(settings.beta, sensitivity.width), mechanism.phase_2(sensitivity)
    mean_halting, mean_threshold = float(np.minimum(halts, n).mean()), float(grid[positions].mean())
    event = mechanism.event(sensitivity)
    assert isinstance(event, Composed)
    mu = sensitivity.delta / mechanism.sigma_x
    phase1 = published_gaussian_epsilon(mu, delta)
    # (t − 1)κ + b is linear in t, so that its value at a mean t lies between two whole ones
    first, last = (rejection.ex_post_epsilon(rounds, mean_threshold, halt) for halt in (1, n))
    published_phase2 = first + (mean_halting - 1) * (last - first) / max(n - 1, 1)
    realised = [
        rejection.ex_post_epsilon(rounds, float(grid[position]), halt_of(mechanism, halt))
        for position, halt in zip(positions.tolist(), halts.tolist(), strict=True)
    ]
    return {
        "sigma": sigma,
        "sigma_over_range": sigma / sensitivity.width,
        "privbon_published": 2 * sensitivity.delta / sigma,
        "privbon_exact": privbon_epsilon(sensitivity.charged, sensitivity.width, sigma, n),
        "privbon_gaussian_exact": costs.epsilon(PrivBoNGaussian(n, sigma).event(sensitivity), delta),
        "phase1_published": phase1,
        "phase1_published_valid": phase1 <= 1,
        "phase1_true_delta": gaussian_delta(phase1, mu),
        "phase1_exact": costs.epsilon(event.events[0], delta),
        "mean_halting": mean_halting,
        "fallback_percent": 100 * float((halts > n).mean()),
        "phase2_published": published_phase2,
        "phase2_realised_mean": float(np.mean(realised)),
        "phase2_exact": rejection.worst_case_epsilon(rounds),
        "fallback_published": rejection.ex_post_epsilon(rounds, float(grid[0]), n),
        "fallback_exact": rejection.ex_post_epsilon(rounds, float(grid[0]), FALLBACK),
        "privitp_published": phase1 + published_phase2,
        "privitp_exact": costs.epsilon(event, delta),
        "stream_delta": min(1.0, settings.queries * delta),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(BudgetSettings):
    """… and σ."""

    sigmas: Annotated[
        tuple[float, ...] | None,
        Option(several(real(above=0)), f"{SIGMAS_WORDS} Default: those of the paper, in multiples of the range."),
    ] = None


def _run(source: Source, options: Options, progress: Progress) -> Study:
    sigmas = options.sigmas or [ratio * source.sensitivity.width for ratio in PAPER_SIGMAS]
    return budgets(source.pools, source.sensitivity, sigmas, part(BudgetSettings, options), progress)


STUDY: Final = StudyKind(
    "budget",
    "ε of one query over σ: the published formulas beside what holds (Table 6).",
    Options,
    _run,
    {
        "budget": (
            "sigma_over_range",
            "privbon_published",
            "privbon_exact",
            "phase1_published",
            "phase1_true_delta",
            "phase1_exact",
            "privitp_published",
            "privitp_exact",
        )
    },
    {
        "budget": (
            Panel(
                "budget",
                "Budget of one query",
                Axis("sigma_over_range", "noise σ / R", log=10),
                Axis("epsilon", "ε of one query", log=10),
                note="published: the paper's formulas, which are not always bounds",
                wide=(
                    Wide("privbon_published", "privbon", "published"),
                    Wide("privbon_exact", "privbon", "charged"),
                    Wide("privbon_gaussian_exact", "privbon-gaussian"),
                    Wide("privitp_published", "privitp", "published"),
                    Wide("privitp_exact", "privitp", "charged"),
                ),
                by=("mechanism", SERIES),
            ),
        )
    },
)
