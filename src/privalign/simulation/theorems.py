"""What the theory predicts beside what simulated candidates do: `python -m privalign.simulation.theorems [--out DIR]`.

Four studies, on the laws of `simulate`: hacking gap, win rate, rise and fall, regret. Every prompt is one pool of independent
candidates from a seed. Which of the pool is chosen is averaged in closed form: softmax probabilities for PrivBoN; for ITP and
PrivITP the rounds of phase 2, since their candidates are fresh: given the threshold, a candidate accepted within n rounds has
law p(r̂)/E[p(r̂)] against the base policy, and all n are rejected with probability (1 − E[p(r̂)])ⁿ. So standard errors are
those of phase 1 over pools; E under the base policy is a sum over 512 cells of r̂.

Predictions are those of `accounting.theory`. Rewards are simulated: nothing here is a private release.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, softmax

from privalign.acceptance import default_tail, log_accept, threshold_grid
from privalign.accounting import theory
from privalign.evaluation.expectations import threshold_law
from privalign.files import PUBLIC, put
from privalign.mechanisms.normaliser import public_normaliser
from privalign.simulation.simulate import MIDDLE, Model, Simulation
from privalign.studies.study import NOTICE, Study

Floats = NDArray[np.float64]
Row = dict[str, Any]

SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
POOLS: Final = 2000
LAWS_AND_SCALES: Final = (  # of rise and fall, with a scale of PrivBoN; Gaussian errors are the control: they do not mislead
    (Simulation(Model.GAUSSIAN), 0.1),
    (Simulation(Model.HEAVY), 0.1),
    (Simulation(Model.SATURATING, 0.05), 0.15),
)
UNLIMITED: Final = 10**300  # as a number of candidates: finite-sample terms and conditions vanish
_CELLS: Final = 512


@dataclass(frozen=True, slots=True)
class Population:
    """The joint law of r̂, clipped to [0, 1], and r* under the base policy, in cells of r̂; arrays of shape (cells,).

    mass: probability; proxy: the cell's middle, or the end for what was clipped; truth: mean of r*. Empty cells are left out.
    """

    mass: Floats
    proxy: Floats
    truth: Floats

    @classmethod
    def of(cls, simulation: Simulation) -> Population:
        """The law of a simulation, by quadrature."""
        edges = np.linspace(0.0, 1.0, _CELLS + 1)
        mass, truth = simulation.cells(edges)
        proxy = np.concatenate([[0.0], (edges[1:] + edges[:-1]) / 2, [1.0]])
        full = mass > 0
        return cls(mass[full], proxy[full], truth[full] / mass[full])

    def tilted(self, scale: float) -> tuple[float, float]:
        """Means of (r*, r̂) under π₀·exp(r̂/σ), PrivBoN's limit for many candidates."""
        law = softmax(self.proxy / scale + np.log(self.mass))
        return float(law @ self.truth), float(law @ self.proxy)

    def after_rounds(self, accept: Floats, rounds: int) -> tuple[Floats, Floats]:
        """Means of (r*, r̂) of what n rounds and the fallback return.

        Args:
            accept: p(r̂) at each cell's proxy, shape (thresholds, cells). Result: shape (thresholds,) each.
        """
        weights = accept * self.mass
        total = weights.sum(axis=1)
        none = (1 - total) ** rounds
        chosen = (1 - none) / np.where(total > 0, total, 1.0)
        return (chosen * (weights @ self.truth) + none * (self.mass @ self.truth)), (
            chosen * (weights @ self.proxy) + none * (self.mass @ self.proxy)
        )


Chooser = Callable[[Floats, Floats], tuple[Floats, Floats]]
"""Pools of r* and r̂, shape (pools, n) each, to the expected r* and r̂ of the answer, shape (pools,) each."""


def bon(truth: Floats, proxy: Floats) -> tuple[Floats, Floats]:
    """The first of the largest of n proxies."""
    best = proxy.argmax(axis=1)[:, None]
    return np.take_along_axis(truth, best, axis=1)[:, 0], np.take_along_axis(proxy, best, axis=1)[:, 0]


def privbon(scale: float) -> Chooser:
    """softmax(r̂/σ) over n candidates."""

    def choose(truth: Floats, proxy: Floats) -> tuple[Floats, Floats]:
        law = softmax(proxy / scale, axis=1)
        return (law * truth).sum(axis=1), (law * proxy).sum(axis=1)

    return choose


def itp(population: Population, beta: float) -> Chooser:
    """λ from the pool, then n rounds on fresh candidates with the ceiling R = 1."""

    def choose(_: Floats, proxy: Floats) -> tuple[Floats, Floats]:
        threshold = np.array([public_normaliser(pool, beta) for pool in proxy])[:, None]
        accept = np.maximum(population.proxy - threshold, 0.0) / (1.0 - threshold)
        return population.after_rounds(accept, proxy.shape[1])

    return choose


def privitp(population: Population, beta: float, sigma_x: float, sigma_z: float) -> Chooser:
    """λ̃ from the pool, averaged over its 1,024 points, then n rounds on fresh candidates; L as by default; R = 1."""

    def choose(_: Floats, proxy: Floats) -> tuple[Floats, Floats]:
        n = proxy.shape[1]
        accept = np.exp(log_accept(population.proxy, threshold_grid(beta, 1.0)[:, None], 1.0, sigma_z, default_tail(n)))
        truth_after, proxy_after = population.after_rounds(accept, n)
        laws = np.array([threshold_law(public_normaliser(pool, beta), sigma_x, beta, 1.0) for pool in proxy])
        return laws @ truth_after, laws @ proxy_after

    return choose


def hacking_gap(
    pools: int = POOLS,
    sizes: Sequence[int] = SIZES[1:],
    scales: Sequence[float] = (0.1, 0.2),
    spreads: Sequence[float] = (0.0, 0.1),
    seed: int = 0,
) -> Study:
    """E[r̂ − r*] of the answer, Gaussian rewards without clipping, σ_r = 0.1.

    `asymptotic` is the theory's σ_r²/σ of PrivBoN and the growth of BoN. `finite` is exact at every n: for BoN
    σ_r²/√(σ_r² + τ²) times the mean largest of n normals; for PrivBoN (σ_r²/σ)(1 − E[Σ wᵢ²]), by Stein's identity
    E[eᵢ wᵢ] = σ_r² E[∂wᵢ/∂eᵢ] = (σ_r²/σ) E[wᵢ(1 − wᵢ)], with Σ wᵢ² from the same pools: the gap is below its limit at every n.
    """

    def rows() -> Iterator[Row]:
        for spread in spreads:
            simulation = Simulation(Model.GAUSSIAN, 0.1, spread)
            truth, proxy = simulation.draw(np.random.default_rng([seed, 1]), (pools, max(sizes)))
            for n in sizes:
                chosen_truth, chosen_proxy = bon(truth[:, :n], proxy[:, :n])
                finite = simulation.error**2 / math.hypot(simulation.error, spread) * largest_normal(n)
                asymptotic = theory.bon_hacking_gap(simulation.error, n, spread)
                yield _gap_row("bon", simulation, None, n, chosen_proxy - chosen_truth, np.full(pools, finite), asymptotic)
                for scale in scales:
                    law = softmax(proxy[:, :n] / scale, axis=1)
                    gaps = (law * (proxy[:, :n] - truth[:, :n])).sum(axis=1)
                    limit = theory.privbon_hacking_gap(simulation.error, scale)
                    yield _gap_row("privbon", simulation, scale, n, gaps, limit * (1 - (law**2).sum(axis=1)), limit)

    return _study("hacking-gap", "Proxy minus true reward of the answer", rows, {"pools": pools, "seed": seed, "model": "gaussian"})


def _gap_row(mechanism: str, simulation: Simulation, scale: float | None, n: int, gaps: Floats, finite: Floats, asymptotic: float) -> Row:
    return {
        "mechanism": mechanism,
        "error": simulation.error,
        "spread": simulation.spread,
        "scale": scale,
        "n": n,
        "gap": float(gaps.mean()),
        "gap_se": _standard_error(gaps),
        "finite": float(finite.mean()),
        "z": float((gaps - finite).mean()) / _standard_error(gaps - finite),
        "asymptotic": asymptotic,
    }


def win_rate(
    pools: int = POOLS,
    sizes: Sequence[int] = SIZES[1:],
    scales: Sequence[float] = (0.1, 0.2),
    spreads: Sequence[float] = (0.0, 0.1),
    seed: int = 0,
) -> Study:
    """How often the answer's proxy beats that of one more base draw: Φ((r̂ − ½)/√(σ_r² + τ²)), averaged over answers.

    `predicted`: n/(n + 1) for BoN; for PrivBoN the limit Φ(√(σ_r² + τ²)/(σ√2)), and `published` the paper's Φ(σ_r/(σ√2)),
    which is right for constant r* only.
    """

    def rows() -> Iterator[Row]:
        for spread in spreads:
            simulation = Simulation(Model.GAUSSIAN, 0.1, spread)
            _, proxy = simulation.draw(np.random.default_rng([seed, 2]), (pools, max(sizes)))
            deviation = math.hypot(simulation.error, spread)
            beaten = ndtr((proxy - MIDDLE) / deviation)
            for n in sizes:
                yield _win_row("bon", simulation, None, n, beaten[:, :n].max(axis=1), theory.bon_win_rate(n), theory.bon_win_rate(n))
                for scale in scales:
                    wins = (softmax(proxy[:, :n] / scale, axis=1) * beaten[:, :n]).sum(axis=1)
                    predicted = theory.privbon_win_rate(simulation.error, scale, spread)
                    yield _win_row("privbon", simulation, scale, n, wins, predicted, theory.privbon_win_rate(simulation.error, scale))

    return _study("win-rate", "Proxy win rate against one base draw", rows, {"pools": pools, "seed": seed, "model": "gaussian"})


def _win_row(mechanism: str, simulation: Simulation, scale: float | None, n: int, wins: Floats, predicted: float, published: float) -> Row:
    return {
        "mechanism": mechanism,
        "error": simulation.error,
        "spread": simulation.spread,
        "scale": scale,
        "n": n,
        "win_rate": float(wins.mean()),
        "win_rate_se": _standard_error(wins),
        "predicted": predicted,
        "published": published,
    }


def largest_normal(n: int) -> float:
    """E[the largest of n standard normals] = ∫ x n φ(x) Φ(x)ⁿ⁻¹ dx, trapezoidal rule, to 1e-12."""
    x, step = np.linspace(-12.0, 12.0, 4801, retstep=True)
    return float((x * np.exp(math.log(n) - x * x / 2 + (n - 1) * log_ndtr(x))).sum() * step / math.sqrt(2 * math.pi))


def rise_and_fall(pools: int = POOLS, sizes: Sequence[int] = SIZES, seed: int = 0) -> Study:
    """True reward over n, proxies clipped to [0, 1]; PrivBoN at σ* for C = 10 and at a larger scale; β = σ_X = σ_Z = 0.05.

    `fall`: how far the mean is below the best one at a smaller n, paired over pools; `lead`: how far above BoN's, paired.
    Only differences of many standard errors mean something: `fall` is a maximum over sizes.
    """

    def rows() -> Iterator[Row]:
        for simulation, scale in LAWS_AND_SCALES:
            population = Population.of(simulation)
            truth, proxy = simulation.draw(np.random.default_rng([seed, 3]), (pools, max(sizes)))
            proxy = np.clip(proxy, 0.0, 1.0)
            at_best = theory.best_privbon_scale(simulation.rmse, 10.0)
            choosers: list[tuple[str, float | None, Chooser]] = [
                ("bon", None, bon),
                ("privbon", at_best, privbon(at_best)),
                ("privbon", scale, privbon(scale)),
                ("itp", None, itp(population, 0.05)),
                ("privitp", None, privitp(population, 0.05, 0.05, 0.05)),
            ]
            unaided: list[Floats] = []
            for mechanism, noise, choose in choosers:
                best = np.full(pools, -np.inf)
                for place, n in enumerate(sizes):
                    chosen_truth, chosen_proxy = choose(truth[:, :n], proxy[:, :n])
                    if mechanism == "bon":
                        unaided.append(chosen_truth)
                    best = max(best, chosen_truth, key=lambda one: float(one.mean()))
                    lead = chosen_truth - unaided[place]
                    yield {
                        "model": simulation.model.value,
                        "mechanism": mechanism,
                        "scale": noise,
                        "n": n,
                        "true_mean": float(chosen_truth.mean()),
                        "true_se": _standard_error(chosen_truth),
                        "proxy_mean": float(chosen_proxy.mean()),
                        "fall": float((best - chosen_truth).mean()),
                        "fall_se": _standard_error(best - chosen_truth),
                        "lead": float(lead.mean()),
                        "lead_se": _standard_error(lead),
                    }

    settings = {"pools": pools, "seed": seed, "range": [0.0, 1.0], "beta": 0.05, "sigma_x": 0.05, "sigma_z": 0.05}
    return _study("rise-and-fall", "True reward over the number of candidates", rows, settings)


def crossovers(study: Study) -> dict[tuple[str, str, float | None], int | None]:
    """n* of each (model, mechanism, scale) of a rise-and-fall study: from this size on it is ahead of BoN's true reward.

    None: at the largest size it is not ahead by 5 standard errors.
    """
    series: dict[tuple[str, str, float | None], list[Mapping[str, Any]]] = {}
    for row in study.rows:
        if row["mechanism"] != "bon":
            series.setdefault((row["model"], row["mechanism"], row["scale"]), []).append(row)
    found: dict[tuple[str, str, float | None], int | None] = {}
    for key, rows in series.items():
        behind = [row["n"] for row in rows if row["lead"] <= 0]
        ahead = rows[-1]["lead"] > 5 * rows[-1]["lead_se"]
        found[key] = min(row["n"] for row in rows if row["n"] > max(behind, default=0)) if ahead else None
    return found


def regret(pools: int = 400, seed: int = 0) -> Study:
    """E_π*[r*] − E[r* of the answer] beside its bound, R = 1, π* the best 1/C of the base policy.

    `n` and `regret_se` null: the limit of PrivBoN for many candidates, by quadrature. `ratio`: regret over bound; the
    constant in ≲ must be at least that. `unmet`: conditions of the theorem that do not hold, empty where all do.
    """

    def rows() -> Iterator[Row]:
        for model in Model:
            for error in (0.02, 0.1):
                simulation = Simulation(model, error)
                population = Population.of(simulation)
                truth, proxy = simulation.draw(np.random.default_rng([seed, 4]), (pools, 4096))
                proxy = np.clip(proxy, 0.0, 1.0)
                for coverage in (2.0, 10.0):
                    yield from _privbon_regrets(simulation, coverage, population, truth, proxy)
                    yield from _privitp_regrets(simulation, coverage, population, truth, proxy)

    return _study("regret", "Regret beside its bound", rows, {"pools": pools, "seed": seed, "range": [0.0, 1.0]})


def _privbon_regrets(simulation: Simulation, coverage: float, population: Population, truth: Floats, proxy: Floats) -> Iterator[Row]:
    for scale in (theory.best_privbon_scale(simulation.rmse, coverage), 0.5):
        for n in (64, 4096, None):
            if n is None:
                chosen = np.full(truth.shape[0], population.tilted(scale)[0])
            else:
                chosen, _ = privbon(scale)(truth[:, :n], proxy[:, :n])
            bound = theory.privbon_regret(2 / scale, 1.0, simulation.rmse, coverage, 1.0, UNLIMITED if n is None else n)
            gaussian = simulation.model is Model.GAUSSIAN
            unmet = bound.warnings if gaussian else (*bound.warnings, "errors are not Gaussian, as Theorem 3.3 wants them")
            settings = {"mechanism": "privbon", "scale": scale, "beta": None, "sigma_x": None, "sigma_z": None, "n": n}
            yield _regret_row(simulation, coverage, settings, chosen, bound.value, unmet)


def _privitp_regrets(simulation: Simulation, coverage: float, population: Population, truth: Floats, proxy: Floats) -> Iterator[Row]:
    for noise in (0.002, 0.05):
        beta = theory.best_beta(simulation.rmse, coverage, 1.0, noise, noise)
        for n in (64, 4096):
            chosen, _ = privitp(population, beta, noise, noise)(truth[:, :n], proxy[:, :n])
            bound = theory.privitp_regret(beta, noise, noise, simulation.rmse, coverage, 1.0, n)
            settings = {"mechanism": "privitp", "scale": None, "beta": beta, "sigma_x": noise, "sigma_z": noise, "n": n}
            yield _regret_row(simulation, coverage, settings, chosen, bound.value, bound.warnings)


def _regret_row(
    simulation: Simulation, coverage: float, settings: Mapping[str, Any], chosen: Floats, bound: float, unmet: Sequence[str]
) -> Row:
    regrets = simulation.comparator_mean(coverage) - chosen
    return {
        "model": simulation.model.value,
        "rmse": simulation.rmse,
        "coverage": coverage,
        **settings,
        "regret": float(regrets.mean()),
        "regret_se": None if settings["n"] is None else _standard_error(regrets),
        "bound": bound,
        "ratio": float(regrets.mean()) / bound,
        "skyline": theory.skyline(simulation.rmse, coverage),
        "unmet": "; ".join(unmet),
    }


def fitted_constants(study: Study) -> dict[str, float]:
    """The smallest constant with regret ≤ constant · bound in every row of a regret study whose conditions hold."""
    fitted: dict[str, float] = {}
    for row in study.rows:
        if not row["unmet"]:
            fitted[row["mechanism"]] = max(fitted.get(row["mechanism"], 0.0), row["ratio"])
    return fitted


def _study(kind: str, title: str, rows: Callable[[], Iterator[Row]], settings: Mapping[str, Any]) -> Study:
    start = time.perf_counter()
    found = list(rows())
    return Study(kind, title, settings, found, time.perf_counter() - start)


def _standard_error(values: Floats) -> float:
    return float(values.std(ddof=1)) / math.sqrt(values.size)


def markdown(study: Study) -> str:
    """A study as a Markdown table, four significant digits, with what follows from it."""
    names = list(study.rows[0])
    lines = [f"## {study.title}", "", "| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(_cell(row[name]) for name in names) + " |" for row in study.rows]
    if study.kind == "rise-and-fall":
        lines += [
            "",
            *(f"- {model}, {_named(mechanism, scale)}: n* = {_cell(n)}" for (model, mechanism, scale), n in crossovers(study).items()),
        ]
    if study.kind == "regret":
        lines += ["", *(f"- {name}: fitted constant {_cell(value)}" for name, value in fitted_constants(study).items())]
    return "\n".join(lines) + "\n"


def _named(mechanism: str, scale: float | None) -> str:
    return mechanism if scale is None else f"{mechanism} at σ = {_cell(scale)}"


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Prints the four studies as Markdown, and writes their documents as DIR/KIND.json."""
    parser = argparse.ArgumentParser(prog="python -m privalign.simulation.theorems", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the studies' documents, drawn by `privalign report`")
    folder: Path | None = parser.parse_args().out
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(f"Simulated rewards: {NOTICE}.\n")
    for study in (hacking_gap(), win_rate(), rise_and_fall(), regret()):
        sys.stdout.write(f"\n{markdown(study)}")
        sys.stdout.flush()
        if folder is not None:
            put({folder / f"{study.kind}.json": (json.dumps(study.to_json(), ensure_ascii=False) + "\n").encode()}, mode=PUBLIC)


if __name__ == "__main__":
    main()
