"""Names of columns and numbers as people read them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from privalign import statements
from privalign.evaluation.draws import DRAWS
from privalign.intervals import shown
from privalign.report.style import name

NONE: Final = "–"

_HEADINGS: Final[Mapping[str, str]] = {
    "true_mean": "true reward",
    "true_se": "true reward, SE",
    "lift_pp": "lift (points)",
    "lift_se_pp": "lift, SE (points)",
    "mc_se_pp": "Monte-Carlo SE (points)",
    "proxy_mean": "proxy reward",
    "win_rate": "win rate (proxy)",
    "gold_win_rate": "win rate (gold)",
    "fallback_rate": "fallback rate",
    "halting_mean": "mean halting time",
    "over_privbon_pp": "over PrivBoN (points)",
    "recovered_percent": "of ITP's lift (%)",
    "epsilon": "ε, worst case",
    "epsilon_mean": "ε, mean",
    "epsilon_target": "ε allowed",
    "sigma": "σ",
    "scale": "σ",
    "spread": "τ",
    "error": "σ_r",
    "sigma_x": "σ_X",
    "sigma_z": "σ_Z",
    "beta": "β",
    "delta": "δ",
    "sensitivity": "Δ",
}
_UNITS: Final[Mapping[str, str]] = {"pp": "points", "pct": "%", "percent": "%", "seconds": "s"}
_SYMBOLS: Final[Mapping[str, str]] = {
    **{"epsilon": "ε", "sigma": "σ", "beta": "β", "delta": "δ", "lambda": "λ", "rho": "ρ"},
    **{"se": "SE", "sd": "SD"},
}
_BOUNDS: Final = frozenset({"epsilon", "delta", "rho", "zcdp", "phase1", "phase2", "exact", "published"})


def heading(key: str) -> str:
    """A column's name with its unit."""
    if key in _HEADINGS:
        return _HEADINGS[key]
    words = re.sub(r"phase(\d)", r"phase_\1", key).split("_")
    unit = _UNITS.get(words[-1]) if len(words) > 1 else None
    text = " ".join(_SYMBOLS.get(word) or name(word) for word in (words[:-1] if unit else words))
    return f"{text} ({unit})" if unit else text


def is_bound(key: str) -> bool:
    """Whether the column holds privacy losses, or may: they are rounded up."""
    return not _BOUNDS.isdisjoint(key.split("_")) and not key.endswith(("_se", "_sd"))


def terms(settings: Mapping[str, Any]) -> str:
    """What the numbers of a study rest on, in words: protocol, draws, units, prompts, Δ and δ; empty where its settings say none."""
    protocol, scale = settings.get("protocol"), settings.get("range")
    found = [f"protocol {protocol}"] if isinstance(protocol, str) else []
    draw = settings.get("draw")
    if isinstance(draw, str) and draw in DRAWS:
        found.append(DRAWS[draw])
    if protocol == "authors":
        found.append("rewards and σ as z-scores")
    elif isinstance(scale, list | tuple) and len(scale) == 2 and all(map(_is_number, scale)):
        found.append(f"rewards clipped to {number(scale[0])} … {number(scale[1])}, σ and β in their units")
    prompts = settings.get("prompts_reporting", settings.get("prompts"))
    if _is_number(prompts):
        found.append(f"{number(prompts)} prompts" + (" that nothing was chosen on" if "prompts_reporting" in settings else ""))
    if _is_number(settings.get("sensitivity")):
        found.append(f"Δ = {number(settings['sensitivity'], 'delta')} ({settings.get('sensitivity_source')})")
        if _is_number(settings.get("delta")) and "total_delta" not in settings:  # else each row says its own
            found.append(f"δ = {number(settings['delta'], 'delta')}")
    release = settings.get("release")
    if isinstance(release, Mapping) and isinstance(release.get("guarantee"), str):
        found.append(statements.free_queries(release["guarantee"]))
    return "; ".join(found)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(value: float, key: str = "") -> str:
    """A number with four significant digits; a privacy loss rounded up."""
    if not math.isfinite(value):
        return "∞" if value == math.inf else "−∞" if value == -math.inf else NONE
    if is_bound(key):
        return _minus(shown(value, 4))
    if isinstance(value, int):
        return _minus(str(value))
    if value == 0 or 1e-4 <= abs(value) < 1e5:
        digits = f"{value:.4g}"
        return _minus(digits if "e" not in digits else f"{value:.0f}")
    mantissa, exponent = f"{value:.3e}".split("e")
    return _minus(f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}")


def _minus(digits: str) -> str:
    return digits.replace("-", "−", 1) if digits.startswith("-") else digits


def with_error(value: float, error: float, decimals: int | None = None) -> str:
    """`value ± error`, both to the error's second significant digit, or to so many decimals."""
    if not (math.isfinite(value) and math.isfinite(error)) or (error <= 0 and decimals is None):
        return f"{number(value)} ± {number(error)}"
    decimals = decimals_of([error]) if decimals is None else decimals
    return _minus(f"{round(value, decimals) + 0.0:.{decimals}f} ± {error:.{decimals}f}")  # no −0.00


def decimals_of(errors: Iterable[float]) -> int | None:
    """To how many decimals a column is told: the second significant digit of its middle error; None where no error is above 0."""
    told = sorted(error for error in errors if 0 < error < math.inf)
    return min(6, max(0, 1 - math.floor(math.log10(told[(len(told) - 1) // 2])))) if told else None


def cell(key: str, value: Any) -> str:
    """A value of a column for people."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value, key)
    if isinstance(value, str):
        return name(value) if key == "mechanism" else value
    return json.dumps(value, ensure_ascii=False)
