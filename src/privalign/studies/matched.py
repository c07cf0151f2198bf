"""Utility at equal privacy: mechanisms compared at the same (ε, δ) per query, and at the same budget of a stream.

At equal σ, as published, PrivITP costs several times the ε of PrivBoN. Here each private mechanism gets the least noise that the
budget pays for, or a multiple of it; that multiple and PrivITP's β, cap of phase 2 and split of the noise are chosen on held-out
prompts. BoN, ITP and the base policy stand beside them without any guarantee.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Final

from privalign.acceptance import default_tail, positive
from privalign.candidates.scored import ScoredPrompts
from privalign.errors import InvalidInput, setting
from privalign.evaluation.held_out import Measured, Splitting, check_part
from privalign.evaluation.matching import Budget, Matched, estimated_scale, match, priced
from privalign.evaluation.outcomes import PAIRED
from privalign.intervals import shown
from privalign.mechanisms.base import Base
from privalign.mechanisms.bon import BoN
from privalign.mechanisms.itp import ITP
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privbon_gaussian import PrivBoNGaussian
from privalign.mechanisms.privitp import PrivITP
from privalign.mechanisms.protocol import Mechanism
from privalign.options import Option, real, several, whole
from privalign.sensitivity import Sensitivity
from privalign.studies.kind import Betas, Candidates, Progress, Source, StudyKind
from privalign.studies.panels import LIFT, OVER_PROMPTS, Axis, Panel
from privalign.studies.study import Study

_At = Callable[[float], Mechanism]  # a mechanism at a noise scale

_SHOWN = (
    "true_mean",
    "true_se",
    "lift_pp",
    "lift_se_pp",
    "mc_se_pp",
    "proxy_mean",
    "proxy_se",
    "gold_win_rate",
    "gold_win_rate_se",
    "fallback_rate",
    "fallback_rate_se",
    "halting_mean",
    "halting_se",
    "tuning_lift_pp",
    "reason",
)


@dataclass(frozen=True, slots=True)
class MatchedSettings(Splitting):
    """What is compared.

    Args:
        n: candidates. caps: caps of phase 2 to choose from for PrivITP, n where there are none; ITP's is n.
        epsilons: targets, per query and for streams.
        streams: lengths T. total_delta: δ of a stream.
        betas: β to choose from, in reward units. splits: σ_X/σ_Z to choose from.
        multiples: of the least noise that the budget pays for, ≥ 1, to choose from: noise regularises too, and more of it than
            privacy asks for helps where the reward is hacked.
        delta, held_out and others: as in `Splitting`.
    """

    n: Candidates = 16
    caps: Annotated[tuple[int, ...], Option(several(whole()), "Caps of PrivITP's phase 2 to choose from. Default n.", "N,N,…")] = ()
    epsilons: Annotated[
        tuple[float, ...], Option(several(real()), "ε, per query and per stream, comma-separated. Default 0.5,1,2,4,8.")
    ] = (0.5, 1.0, 2.0, 4.0, 8.0)
    streams: Annotated[tuple[int, ...], Option(several(whole(), none=True), "Lengths of streams, comma-separated. Default 100.")] = (100,)
    total_delta: Annotated[float, Option(real(), "δ of a whole stream.")] = 1e-5
    betas: Betas = (0.05,)
    splits: Annotated[tuple[float, ...], Option(several(real(above=0)), "σ_X/σ_Z to choose from, comma-separated. Default 0.5,1,2.")] = (
        0.5,
        1.0,
        2.0,
    )
    multiples: Annotated[tuple[float, ...], Option(several(real()), "Multiples of the least noise to choose from. Default 1.", "K,K,…")] = (
        1.0,
    )

    def __post_init__(self) -> None:
        check_part(self.held_out)
        for split in self.splits:
            positive(setting("splits"), split)
        for multiple in self.multiples:
            if not 1 <= multiple < math.inf:
                raise InvalidInput(
                    setting("multiples"), f"{multiple:g} is below 1 or not finite: less noise than the least breaks the budget"
                )

    def budgets(self) -> list[Budget]:
        """Per query first, then each length of a stream; ε rising."""
        single = [Budget(epsilon, self.delta) for epsilon in self.epsilons]
        return single + [Budget(epsilon, self.total_delta, queries) for queries in self.streams for epsilon in self.epsilons]


def matched(
    blocks: Sequence[ScoredPrompts],
    sensitivity: Sensitivity,
    settings: MatchedSettings | None = None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Study:
    """One row per budget and private mechanism, and one per reference.

    `epsilon_charged` is the price of all `queries` together, at most `epsilon_target`. PrivBoN spends no δ where a query is priced alone.
    `recovered_percent` is the lift over the base policy in per cent of ITP's. All figures are of the prompts that nothing was
    chosen on.

    Raises:
        InvalidInput: a setting is out of range, or a budget that no noise meets.
    """
    settings = settings or MatchedSettings()
    started = time.perf_counter()
    n, budgets = settings.n, settings.budgets()
    references: list[Mechanism] = [Base(), BoN(n)]
    skylines: list[Mechanism] = [ITP(n, n, beta) for beta in settings.betas]

    measured = partial(Measured.of, blocks, sensitivity=sensitivity, settings=settings, progress=progress)
    variants: list[tuple[Budget, dict[Mechanism, tuple[_At, float]]]] = []
    for done, budget in enumerate(budgets):
        progress(done, len(budgets))
        for family in _families(settings):
            scales = [(at, estimated_scale(at, sensitivity, budget)) for at in family]
            variants.append((budget, {at(k * scale): (at, k) for at, scale in scales for k in settings.multiples}))
    tried = measured([*skylines, *(mechanism for _, family in variants for mechanism in family)])
    skyline = tried.best(skylines)
    private: list[tuple[Budget, Matched]] = []
    for done, (budget, variant) in enumerate(variants):
        progress(done, len(variants))
        at, multiple = variant[tried.best(variant)]
        least = match(at, sensitivity, budget)
        private.append((budget, least if multiple == 1 else priced(at, multiple * least.scale, sensitivity, budget)))
    final = measured([*references, skyline, *(found.mechanism for _, found in private)])
    rows = [_row(final, mechanism, skyline) for mechanism in (*references, skyline)]
    privbons = {budget: found.mechanism for budget, found in private if isinstance(found.mechanism, PrivBoN)}
    rows += [
        _row(final, found.mechanism, skyline, budget, found.epsilon) | final.reporting.pairs(found.mechanism, [privbons[budget], skyline])
        for budget, found in private
    ]
    stated = final.stated(sensitivity, settings, "β, σ_X/σ_Z, cap and multiple come")
    title = f"Utility at equal privacy, n = {n} (Δ = {shown(sensitivity.delta, 4)} of a range of {sensitivity.width:.4g})"
    return Study("matched", title, stated, rows, time.perf_counter() - started)


def _families(settings: MatchedSettings) -> list[list[_At]]:
    """For each private mechanism its variants, as functions of a noise scale."""
    n = settings.n

    def privitp(cap: int, beta: float, split: float, scale: float) -> Mechanism:
        root = math.sqrt(split)
        return PrivITP(n, cap, beta, scale * root, scale / root, default_tail(cap))

    return [
        [partial(PrivBoN, n)],
        [partial(PrivBoNGaussian, n)],
        [partial(privitp, cap, beta, split) for cap in settings.caps or (n,) for beta in settings.betas for split in settings.splits],
    ]


def _row(
    measured: Measured, mechanism: Mechanism, skyline: Mechanism, budget: Budget | None = None, price: float | None = None
) -> dict[str, Any]:
    row = measured.row(mechanism)
    return {
        "mechanism": mechanism.name,
        "n": getattr(mechanism, "n", 1),
        "basis": "none" if budget is None else "query" if budget.queries == 1 else "stream",
        "queries": None if budget is None else budget.queries,
        "epsilon_target": None if budget is None else budget.epsilon,
        "epsilon_charged": price,
        "delta": None if budget is None else budget.delta,
        **{name: getattr(mechanism, name, None) for name in ("n2", "scale", "sigma_x", "sigma_z", "beta")},
        **{name: row[name] for name in _SHOWN},
        **dict.fromkeys(PAIRED),
        **measured.reporting.recovered(mechanism, skyline),
    }


def _run(source: Source, options: MatchedSettings, progress: Progress) -> Study:
    return matched(source.blocks, source.sensitivity, options, progress)


_TARGET: Final = Axis("epsilon_target", "ε allowed", log=10)

STUDY: Final = StudyKind(
    "matched",
    "Utility at equal (ε, δ), per query and per stream; PrivITP's settings chosen on held-out prompts.",
    MatchedSettings,
    _run,
    {"matched": ("mechanism", "queries", "epsilon_target", "delta", "lift_pp", "lift_se_pp", "recovered_percent", "reason")},
    {
        "matched": (
            replace(LIFT, x=_TARGET, title="Lift at equal privacy", apart=("queries",), levels=True),
            Panel(
                "recovered",
                "Share of the ITP skyline at equal privacy",
                _TARGET,
                Axis("recovered_percent", "lift in % of ITP's"),
                "recovered_se_percent",
                OVER_PROMPTS,
                apart=("queries",),
                levels=True,
            ),
        )
    },
)
