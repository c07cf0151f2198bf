"""What σ and β do (the paper's Figures 2 and 3), and ITP against PrivITP over σ (Figures 10 to 12).

Settings are chosen on one part of the prompts; every figure is of the other. A setting so chosen depends on the rewards: it may
be published only where they are public.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from privalign.candidates.scored import ScoredPrompts
from privalign.errors import InvalidInput, setting
from privalign.evaluation.held_out import Measured, Splitting, check_part
from privalign.mechanisms.itp import ITP
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.protocol import Mechanism
from privalign.options import Option, choice, missing, part, real, several, whole
from privalign.sensitivity import Sensitivity
from privalign.studies.kind import N_GRID_WORDS, SIGMA_WORDS, SIGMAS_WORDS, Progress, Source, StudyKind
from privalign.studies.panels import LIFT, PROXY, SIGMA, Axis, Panel
from privalign.studies.paper import privitp
from privalign.studies.study import Study

PAPER_BETAS = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5)
CHOSEN: Final = "selected σ and β come"


def sigma_ablation(
    blocks: Sequence[ScoredPrompts],
    sensitivity: Sensitivity,
    sigmas: Sequence[float],
    *,
    n: int = 16,
    beta: float = 0.05,
    settings: Splitting | None = None,
    progress: Progress = lambda *_: None,
) -> Study:
    """PrivBoN at each σ and PrivITP at σ_X = σ_Z = σ/2, one row each; `selected` is the best σ of its mechanism on tuning prompts.

    Args:
        sigmas: in reward units. beta: PrivITP's β.
    """
    grid = {sigma: (PrivBoN(n, sigma), privitp(n, beta, sigma)) for sigma in sigmas}
    title = f"Noise σ of PrivBoN and PrivITP, n = {n}"
    return _ablation("ablation-sigma", title, blocks, sensitivity, "sigma", grid, {"n": n, "beta": beta}, settings or Splitting(), progress)


def beta_ablation(
    blocks: Sequence[ScoredPrompts],
    sensitivity: Sensitivity,
    betas: Sequence[float] = PAPER_BETAS,
    *,
    n: int = 16,
    sigma: float,
    settings: Splitting | None = None,
    progress: Progress = lambda *_: None,
) -> Study:
    """ITP and PrivITP (σ_X = σ_Z = σ/2) at each β, one row each; `selected` is the best β of its mechanism on tuning prompts."""
    grid = {beta: (ITP(n, n, beta), privitp(n, beta, sigma)) for beta in betas}
    title = f"Regularisation β of ITP and PrivITP, n = {n}"
    return _ablation("ablation-beta", title, blocks, sensitivity, "beta", grid, {"n": n, "sigma": sigma}, settings or Splitting(), progress)


def noise_comparison(
    blocks: Sequence[ScoredPrompts],
    sensitivity: Sensitivity,
    sigmas: Sequence[float],
    sizes: Sequence[int],
    betas: Sequence[float] = (0.05,),
    settings: Splitting | None = None,
    progress: Progress = lambda *_: None,
) -> Study:
    """ITP and PrivITP at each σ against n; β is the one at which ITP does best on tuning prompts, its mean over all n.

    Args:
        sizes: candidates n, also the cap of phase 2. betas: of a single one nothing is chosen, and all prompts report.
    """
    settings = settings or Splitting()
    check_part(settings.held_out, choosing=len(betas) > 1)
    if len(betas) == 1:
        settings = replace(settings, held_out=0.0)
    started = time.perf_counter()
    skylines = {beta: [ITP(n, n, beta) for n in sizes] for beta in betas}
    tuned = Measured.of(blocks, [itp for itps in skylines.values() for itp in itps], sensitivity, settings, progress)
    best = tuned.best_family(skylines)
    noisy = {(sigma, n): privitp(n, best, sigma) for sigma in sigmas for n in sizes}
    measured = Measured.of(blocks, list(noisy.values()), sensitivity, settings, progress)
    rows = [tuned.row(itp) | {"beta": best, "sigma": None} for itp in skylines[best]]
    rows += [measured.row(mechanism) | {"beta": best, "sigma": sigma} for (sigma, _), mechanism in noisy.items()]
    stated = tuned.stated(sensitivity, settings, CHOSEN) | {"betas": list(betas), "beta_selected": best}
    return Study("noise", "ITP against PrivITP over σ", stated, rows, time.perf_counter() - started)


def _ablation(
    kind: str,
    title: str,
    blocks: Sequence[ScoredPrompts],
    sensitivity: Sensitivity,
    parameter: str,
    grid: Mapping[float, tuple[Mechanism, ...]],
    fixed: Mapping[str, Any],
    settings: Splitting,
    progress: Progress,
) -> Study:
    """One row per value of the parameter and mechanism."""
    started = time.perf_counter()
    measured = Measured.of(blocks, [mechanism for row in grid.values() for mechanism in row], sensitivity, settings, progress)
    selected = {measured.best(family) for family in zip(*grid.values(), strict=True)} if settings.held_out else set()
    rows = [
        measured.row(mechanism) | measured.reporting.pairs(mechanism, row) | {parameter: value, **fixed, "selected": mechanism in selected}
        for value, row in grid.items()
        for mechanism in row
    ]
    return Study(kind, title, measured.stated(sensitivity, settings, CHOSEN) | dict(fixed), rows, time.perf_counter() - started)


_PARAMETERS: Final = "sigma|beta|n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Splitting):
    """Which setting varies, and over what; each `parameter` takes its own."""

    parameter: Annotated[
        str,
        Option(
            choice("sigma", "beta", "n"), "sigma (Figure 2), beta (Figure 3) or n (ITP against PrivITP, Figures 10-12).", "sigma|beta|n"
        ),
    ] = "sigma"
    sigma: Annotated[float | None, Option(real(above=0), f"{SIGMA_WORDS}  [required by --parameter beta]")] = None
    sigmas: Annotated[
        tuple[float, ...] | None, Option(several(real(above=0)), f"{SIGMAS_WORDS}  [required by --parameter sigma and n]")
    ] = None
    beta: Annotated[float | None, Option(real(above=0), "Regularisation of itp and privitp. Default 0.05.")] = None
    betas: Annotated[tuple[float, ...] | None, Option(several(real(above=0)), "β to choose from, comma-separated.")] = None
    n: Annotated[int | None, Option(whole(), "Candidates (phase 1 of itp and privitp). Default 16.")] = None
    n_grid: Annotated[tuple[int, ...] | None, Option(several(whole()), f"{N_GRID_WORDS}  [required by --parameter n]")] = None


# what each needs, and what else it takes
_TAKES: Final = {
    "sigma": (("sigmas",), ("n", "beta")),
    "beta": (("sigma",), ("betas", "n")),
    "n": (("sigmas", "n_grid"), ("betas",)),
}


def _run(source: Source, options: Options, progress: Progress) -> Study:
    varied = options.parameter
    needed, others = _TAKES[varied]
    given = {name: value for name in _OWN if (value := getattr(options, name)) is not None}
    for name in needed:
        if name not in given:
            raise missing(name)
    for name in given:
        if name not in (*needed, *others):
            raise InvalidInput(setting(name), f"not an option of an ablation over {varied}; leave it out")
    settings, blocks, sensitivity = part(Splitting, options), source.blocks, source.sensitivity
    if varied == "sigma":
        return sigma_ablation(blocks, sensitivity, given.pop("sigmas"), **given, settings=settings, progress=progress)
    if varied == "beta":
        betas = given.pop("betas", PAPER_BETAS)
        return beta_ablation(blocks, sensitivity, betas, **given, settings=settings, progress=progress)
    sigmas, sizes = given.pop("sigmas"), given.pop("n_grid")
    return noise_comparison(blocks, sensitivity, sigmas, sizes, **given, settings=settings, progress=progress)


_OWN: Final = ("sigma", "sigmas", "beta", "betas", "n", "n_grid")
_SEEN: Final = ("lift_pp", "lift_se_pp", "proxy_mean")


def _panels(x: Axis) -> tuple[Panel, ...]:
    return replace(LIFT, x=x, ringed=("selected", "ring: chosen on the tuning prompts")), replace(PROXY, x=x)


STUDY: Final = StudyKind(
    "ablation",
    "Utility over σ, over β, or over n at several σ; settings selected on held-out prompts.",
    Options,
    _run,
    {
        "ablation-sigma": ("mechanism", "sigma", *_SEEN, "tuning_lift_pp", "selected", "reason"),
        "ablation-beta": ("mechanism", "beta", *_SEEN, "tuning_lift_pp", "selected", "reason"),
        "noise": ("mechanism", "n", "sigma", *_SEEN, "reason"),
    },
    {
        "ablation-sigma": _panels(SIGMA),
        "ablation-beta": _panels(Axis("beta", "regularisation β", log=10)),
        "noise": (replace(LIFT, title="ITP and PrivITP over σ"), PROXY),
    },
)
