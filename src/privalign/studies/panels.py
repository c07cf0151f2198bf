"""What a study's figures show: panels, their axes and their error bars. `report` draws them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Row = Mapping[str, Any]
Reading = Callable[[Row], float | None]

SERIES: Final = "series"  # the key that `Wide` writes; its values need no heading
LARGEST: Final = 1e200  # that is drawn: margins and logarithms of what is stay finite


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis.

    Args:
        key: where its numbers are. label: what it is called.
        log: the base, where it is logarithmic. zero: whether 0 has a place on it all the same, for counts: linear up to 1.
        most: the largest number that has a place on it.
    """

    key: str
    label: str
    log: int | None = None
    zero: bool = False
    most: float = LARGEST


@dataclass(frozen=True, slots=True)
class Wide:
    """A column of its own for one line, where a table has no column that names lines: `mechanism` lends it its look."""

    key: str
    mechanism: str
    series: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes.

    Args:
        name: its part of the file's name. title: what it shows. note: what is said below it.
        error: key of the half-length of the error bars. error_note: what they are.
        by: the keys that name a line, its look first.
        wide: the columns that are lines, for tables without such keys.
        read: the height of a row's point; default: the number at the y axis's key.
        expected: key of what theory says the height should be, and its name in the legend.
        ringed: key that is true where a point gets a ring, and what that means.
        apart: keys whose values get a figure each.
        levels: whether rows without x are levels of comparison, drawn across the panel. The base policy is one wherever it has a
            single row: it does not depend on x.
        joined: whether the points of a line are joined; if not, nothing but `by` tells them apart.
        guide: "zero": y = 0 is drawn (the base policy of a lift); "diagonal": y = x is.
        only: whether it is drawn, by the study's settings.
    """

    name: str
    title: str
    x: Axis
    y: Axis
    error: str | None = None
    error_note: str = ""
    by: tuple[str, ...] = ("mechanism",)
    wide: tuple[Wide, ...] = ()
    read: Reading | None = None
    expected: tuple[str, str] | None = None
    ringed: tuple[str, str] | None = None
    apart: tuple[str, ...] = ()
    levels: bool = False
    joined: bool = True
    guide: Literal["zero", "diagonal"] | None = None
    note: str = ""
    only: Callable[[Mapping[str, Any]], bool] = lambda _: True


def finite(value: Any) -> float | None:
    """The number, or None for anything that cannot be drawn."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None


OVER_PROMPTS: Final = "error bars: ± 1 standard error over prompts"
N: Final = Axis("n", "candidates n", log=2)


LIFT: Final = Panel(
    "lift",
    "True reward: lift over the base policy",
    N,
    Axis("lift_pp", "lift (percentage points)"),
    "lift_se_pp",
    OVER_PROMPTS,
    guide="zero",
)
PROXY: Final = Panel("proxy", "Proxy reward", N, Axis("proxy_mean", "mean proxy reward"), "proxy_se", OVER_PROMPTS)

WIN_RATES: Final = (
    Panel(
        "gold-win-rate",
        "Win rate over the base policy, true reward",
        N,
        Axis("gold_win_rate", "win rate"),
        "gold_win_rate_se",
        OVER_PROMPTS,
    ),
    Panel(
        "win-rate",
        "Win rate over the base policy, proxy reward",
        N,
        Axis("win_rate", "win rate"),
        "win_rate_se",
        "error bars: ± 1 standard error",
        expected=("predicted", "theory"),
    ),
)
SIGMA: Final = Axis("sigma", "noise σ", log=10)
