"""What the figures of the theorems show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from privalign.studies.panels import PROXY, WIN_RATES, Axis, N, Panel

_OVER_POOLS: Final = "error bars: ± 1 standard error over pools"

PANELS: Final[Mapping[str, tuple[Panel, ...]]] = {
    "win-rate-limits": WIN_RATES,
    "hacking-gap": (
        Panel(
            "gap",
            "Hacking gap: proxy minus true reward",
            N,
            Axis("gap", "gap"),
            "gap_se",
            _OVER_POOLS,
            expected=("asymptotic", "theory, n → ∞"),
        ),
    ),
    "rise-and-fall": (
        Panel("true", "True reward", N, Axis("true_mean", "mean true reward"), "true_se", _OVER_POOLS, apart=("model",)),
        replace(PROXY, apart=("model",)),
    ),
    "regret": (
        Panel(
            "regret",
            "Regret beside its bound",
            Axis("bound", "bound", log=10, most=10.0),
            Axis("regret", "regret", log=10),
            "regret_se",
            _OVER_POOLS,
            ringed=("unmet", "ring: a condition of the theorem is not met"),
            apart=("model",),
            joined=False,
            guide="diagonal",
            note="rewards are of [0, 1]: a larger bound says nothing",
        ),
    ),
}
