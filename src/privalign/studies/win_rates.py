"""Gold win rate against the base policy over n (the paper's Table 4): AlpacaEval with a stronger judge as the true reward."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from privalign.candidates.scored import ScoredPrompts
from privalign.evaluation.outcomes import Measuring
from privalign.mechanisms.bon import BoN
from privalign.mechanisms.itp import ITP
from privalign.mechanisms.privbon import PrivBoN
from privalign.options import part
from privalign.sensitivity import Sensitivity
from privalign.studies.kind import Beta, NGrid, Progress, Sigma, Source, StudyKind
from privalign.studies.panels import WIN_RATES
from privalign.studies.paper import privitp
from privalign.studies.study import Study

PAPER_SIZES = (64, 512, 2048, 4096)


@dataclass(frozen=True, slots=True)
class WinRateSettings(Measuring):
    """σ (σ_X = σ_Z = σ/2) and β in reward units."""

    sigma: Sigma
    beta: Beta = 0.05


def win_rates(
    blocks: Sequence[ScoredPrompts],
    sensitivity: Sensitivity,
    sizes: Sequence[int],
    settings: WinRateSettings,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Study:
    """One row per n and mechanism: the probability that the answer's gold score beats a fresh draw of the base policy's, ties half.

    Standard errors are over prompts, the same ones in every row. Rates that saturate near 1 say little: read them beside the lift.
    """
    started = time.perf_counter()
    sigma, beta = settings.sigma, settings.beta
    rules = [rule for n in sizes for rule in (BoN(n), PrivBoN(n, sigma), ITP(n, n, beta), privitp(n, beta, sigma))]
    outcomes = settings.measure(blocks, rules, sensitivity, progress)
    rows = outcomes.paired_rows()
    stated = {
        **settings.stated(sensitivity),
        "prompts": len(outcomes.base),
        "skipped": dict(outcomes.skipped),
        "against": "one draw of the base policy for the same prompt",
    }
    return Study("win-rate", "Gold win rate against the base policy", stated, rows, time.perf_counter() - started)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(WinRateSettings):
    """… and n."""

    n_grid: NGrid = PAPER_SIZES


def _run(source: Source, options: Options, progress: Progress) -> Study:
    return win_rates(source.blocks, source.sensitivity, options.n_grid, part(WinRateSettings, options), progress)


STUDY: Final = StudyKind(
    "win-rate",
    "Gold win rate against the base policy (Table 4).",
    Options,
    _run,
    {"win-rate": ("mechanism", "n", "gold_win_rate", "gold_win_rate_se", "lift_pp", "lift_se_pp", "epsilon", "reason")},
    {"win-rate": WIN_RATES},
)
