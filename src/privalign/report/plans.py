"""Which figures each kind of study gets. A kind that is not here gets its table alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from privalign.report.lines import SERIES, Axis, Panel, Row, Wide, finite

_OVER_PROMPTS: Final = "error bars: ± 1 standard error over prompts"
_N: Final = Axis("n", "candidates n", log=2)


def _same_units(settings: Mapping[str, Any]) -> bool:
    """Whether rewards may be taken from gold, which is of [0, 1]: no z-scores, no other range."""
    return settings.get("protocol") != "authors" and settings.get("range", [0, 1]) == [0, 1]


def _gap(row: Row) -> float | None:
    proxy, true = finite(row.get("proxy_mean")), finite(row.get("true_mean"))
    return None if proxy is None or true is None else proxy - true


LIFT: Final = Panel(
    "lift",
    "True reward: lift over the base policy",
    _N,
    Axis("lift_pp", "lift (percentage points)"),
    "lift_se_pp",
    _OVER_PROMPTS,
    guide="zero",
)
PROXY: Final = Panel("proxy", "Proxy reward", _N, Axis("proxy_mean", "mean proxy reward"), "proxy_se", _OVER_PROMPTS)

_WIN_RATES: Final = (
    Panel(
        "gold-win-rate",
        "Win rate over the base policy, true reward",
        _N,
        Axis("gold_win_rate", "win rate"),
        "gold_win_rate_se",
        _OVER_PROMPTS,
    ),
    Panel(
        "win-rate",
        "Win rate over the base policy, proxy reward",
        _N,
        Axis("win_rate", "win rate"),
        "win_rate_se",
        "error bars: ± 1 standard error",
        expected=("predicted", "theory"),
    ),
)
_SIGMA: Final = Axis("sigma", "noise σ", log=10)
_CAPPED: Final = ("capped", "ring: a stream was cut off with budget left")

_TARGET: Final = Axis("epsilon_target", "ε allowed", log=10)
_SELECTED: Final = ("selected", "ring: chosen on the tuning prompts")


def _ablation(x: Axis) -> tuple[Panel, ...]:
    return replace(LIFT, x=x, ringed=_SELECTED), replace(PROXY, x=x)


PLANS: Final[Mapping[str, tuple[Panel, ...]]] = {
    "comparison": (
        LIFT,
        PROXY,
        Panel(
            "gap",
            "Hacking gap",
            _N,
            Axis("gap", "mean proxy − mean true reward"),
            "gap_se",
            _OVER_PROMPTS,
            read=_gap,
            only=_same_units,
        ),
        _WIN_RATES[0],
    ),
    "win-rate": _WIN_RATES,
    "win-rate-limits": _WIN_RATES,
    "composition": (
        Panel(
            "answered",
            "Queries answered before the budget ends",
            _SIGMA,
            Axis("answered_mean", "queries answered", log=10, zero=True),
            "answered_sd",
            "error bars: ± 1 standard deviation over seeds",
            by=("rule",),
            ringed=_CAPPED,
        ),
        Panel("halting", "Mean halting time of phase 2", _SIGMA, Axis("mean_halting", "candidates looked at"), by=("rule",)),
    ),
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
    ),
    "overhead": (
        Panel(
            "candidates",
            "Candidates generated for one answer",
            _N,
            Axis("candidates", "candidates", log=2),
            error_note="error bars: ± 1 standard error over queries",
            wide=(Wide("privbon_candidates", "privbon"), Wide("privitp_candidates", "privitp", error="privitp_candidates_se")),
        ),
        Panel(
            "seconds",
            "Time of one selection, without generation",
            _N,
            Axis("seconds", "seconds", log=10),
            wide=(Wide("privbon_seconds", "privbon"), Wide("privitp_seconds", "privitp")),
        ),
    ),
    "hacking-gap": (
        Panel(
            "gap",
            "Hacking gap: proxy minus true reward",
            _N,
            Axis("gap", "gap"),
            "gap_se",
            "error bars: ± 1 standard error over pools",
            expected=("asymptotic", "theory, n → ∞"),
        ),
    ),
    "matched": (
        replace(LIFT, x=_TARGET, title="Lift at equal privacy", apart=("queries",), levels=True),
        Panel(
            "recovered",
            "Share of the ITP skyline at equal privacy",
            _TARGET,
            Axis("recovered_percent", "lift in % of ITP's"),
            "recovered_se_percent",
            _OVER_PROMPTS,
            apart=("queries",),
            levels=True,
        ),
    ),
    "ablation-sigma": _ablation(_SIGMA),
    "ablation-beta": _ablation(Axis("beta", "regularisation β", log=10)),
    "noise": (replace(LIFT, title="ITP and PrivITP over σ"), PROXY),
    "rise-and-fall": (
        Panel(
            "true",
            "True reward",
            _N,
            Axis("true_mean", "mean true reward"),
            "true_se",
            "error bars: ± 1 standard error over pools",
            apart=("model",),
        ),
        replace(PROXY, apart=("model",)),
    ),
    "regret": (
        Panel(
            "regret",
            "Regret beside its bound",
            Axis("bound", "bound", log=10, most=10.0),
            Axis("regret", "regret", log=10),
            "regret_se",
            "error bars: ± 1 standard error over pools",
            ringed=("unmet", "ring: a condition of the theorem is not met"),
            apart=("model",),
            joined=False,
            guide="diagonal",
            note="rewards are of [0, 1]: a larger bound says nothing",
        ),
    ),
}
