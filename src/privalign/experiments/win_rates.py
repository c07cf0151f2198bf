"""Gold win rate against the base policy over n (the paper's Table 4): AlpacaEval with a stronger judge as the true reward."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from privalign.acceptance import default_tail
from privalign.experiments.outcomes import error_of_mean, measure
from privalign.experiments.scored import ScoredPrompts
from privalign.experiments.study import Study
from privalign.mechanisms.bon import BoN
from privalign.mechanisms.itp import ITP
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privitp import PrivITP
from privalign.mechanisms.protocol import Mechanism
from privalign.sensitivity import Sensitivity

PAPER_SIZES = (64, 512, 2048, 4096)


@dataclass(frozen=True, slots=True)
class WinRateSettings:
    """σ (σ_X = σ_Z = σ/2) and β in reward units; the others as in `measure`. δ is that of one query."""

    sigma: float
    beta: float = 0.05
    delta: float = 1e-6
    replicates: int = 50
    draw: str = "with"
    seed: int = 0
    workers: int = field(default=1, compare=False)


def win_rates(
    blocks: Sequence[ScoredPrompts],
    sensitivity: Sensitivity,
    sizes: Sequence[int],
    settings: WinRateSettings,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Study:
    """One row per n and mechanism: the probability that the answer's gold score beats a fresh draw of the base policy's, ties half.

    `gold_win_rate_se` is over prompts. Rates that saturate near 1 say little: read them beside the lift in the same row.
    """
    started = time.perf_counter()
    rows: list[dict[str, Any]] = []
    skipped: Mapping[str, int] = {}
    for done, n in enumerate(sizes):
        progress(done, len(sizes))
        half, sigma, beta = settings.sigma / 2, settings.sigma, settings.beta
        mechanisms: list[Mechanism] = [BoN(n), PrivBoN(n, sigma), ITP(n, n, beta), PrivITP(n, n, beta, half, half, default_tail(n))]
        outcomes = measure(
            blocks,
            mechanisms,
            sensitivity.range,
            sensitivity,
            delta=settings.delta,
            draw=settings.draw,
            replicates=settings.replicates,
            seed=settings.seed,
            workers=settings.workers,
        )
        for row, rates in zip(outcomes.rows(), outcomes.gold_win_rate, strict=True):
            rows.append(row | {"gold_win_rate_se": error_of_mean(rates)})
        skipped = outcomes.skipped
    stated = {
        **asdict(settings),
        **sensitivity.stated(),
        "skipped": skipped,
        "against": "one draw of the base policy for the same prompt",
    }
    return Study("win-rate", "Gold win rate against the base policy", stated, rows, time.perf_counter() - started)
