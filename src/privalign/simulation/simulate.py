"""Scored candidates whose true reward, coverage and reward error are known, so that theorems can be checked.

With z, ξ ~ N(0, 1) and t ~ Student's t with 3 degrees of freedom, all independent, every candidate is drawn afresh:

    gaussian     r* = clip(½ + τz, 0, 1)                       r̂ = r* + σ_r ξ
    heavy        r* = clip(½ + τz, 0, 1)                       r̂ = r* + σ_r t/√3
    saturating   r* = clip(r̂ − a relu(z − 1), 0, 1)            r̂ = ½ + τz            a = σ_r/√E[relu(z − 1)²]

In the last one the proxy is right up to one deviation above the middle; from there it goes on rising while the true reward
gains only τ − a a deviation: it saturates, and turns where a > τ. The first two have an error of mean 0 and standard
deviation σ_r that does not depend on r*. The proxy is not clipped: that is the work of the mechanisms, with a public range.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtr
from scipy.stats import norm

from privalign.acceptance import positive, whole
from privalign.errors import InvalidInput, MissingDependency

Floats = NDArray[np.float64]

MIDDLE: Final = 0.5  # of r*
KNEE: Final = 1.0  # of the saturating proxy, in deviations of r̂
DEGREES: Final = 3  # of Student's t: finite variance, infinite third moment
T_DEVIATION: Final = math.sqrt(DEGREES / (DEGREES - 2))
MOST_IN_A_LINE: Final = 1_000_000  # candidates of one JSONL record: about 100 MB, well below what readers take
MOST: Final = 1_000_000_000  # candidates of one file: dozens of gigabytes
_BATCH: Final = 1 << 18  # candidates of one Parquet row group


class Model(StrEnum):
    """How the proxy reward errs."""

    GAUSSIAN = "gaussian"
    HEAVY = "heavy"
    SATURATING = "saturating"


@dataclass(frozen=True, slots=True)
class Simulation:
    """A law of (true reward, proxy reward) under the base policy, the same for every prompt.

    Args:
        model: the error model. error: σ_r > 0. spread: τ ≥ 0, above 0 for `saturating`. Both in reward units.
    """

    model: Model
    error: float = 0.1
    spread: float = 0.1

    def __post_init__(self) -> None:
        positive("--error", self.error)
        if not (math.isfinite(self.spread) and self.spread >= 0):
            raise InvalidInput("--spread", f"{self.spread} is not a finite number ≥ 0")
        if self.model is Model.SATURATING and self.spread == 0:
            raise InvalidInput("--spread", "0 leaves nothing to saturate; give a number above 0")

    def draw(self, chance: np.random.Generator, shape: int | tuple[int, ...]) -> tuple[Floats, Floats]:
        """Independent candidates of the base policy: r* in [0, 1] and r̂, both of the shape."""
        z = chance.standard_normal(shape)
        truth = self._truth(z)
        match self.model:
            case Model.GAUSSIAN:
                proxy = truth + self.error * chance.standard_normal(shape)
            case Model.HEAVY:
                proxy = truth + self.error / T_DEVIATION * chance.standard_t(DEGREES, shape)
            case Model.SATURATING:
                proxy = MIDDLE + self.spread * z
        return truth, proxy

    def cells(self, edges: Floats) -> tuple[Floats, Floats]:
        """P[r̂ in the cell] and E[r*; r̂ in the cell] for the cells (−∞, e₁], (e₁, e₂], …, (e_k, ∞), shape (k + 1,) each.

        By quadrature over z in steps of 0.01, for σ_r well above 0.01 τ.
        """
        z, weights = _normal()
        if self.model is Model.SATURATING:
            cell = np.searchsorted(edges, MIDDLE + self.spread * z)
            mass: Floats = np.bincount(cell, weights, minlength=edges.size + 1).astype(np.float64)
            truth: Floats = np.bincount(cell, weights * self._truth(z), minlength=edges.size + 1).astype(np.float64)
            return mass, truth
        z, weights = z[::100], weights[::100] / weights[::100].sum()  # smoother in z than r* alone: a coarser rule will do
        error = (edges - self._truth(z)[:, None]) / self.error
        below = ndtr(error) if self.model is Model.GAUSSIAN else stdtr(DEGREES, error * T_DEVIATION)
        within = np.diff(below, axis=1, prepend=0.0, append=1.0)
        return weights @ within, (weights * self._truth(z)) @ within

    @property
    def rmse(self) -> float:
        """ε_RM = √E[(r̂ − r*)²] under the base policy: σ_r, up to the clipping of r* under `saturating`."""
        if self.model is not Model.SATURATING:
            return self.error
        z, weights = _normal()
        return math.sqrt(weights @ (MIDDLE + self.spread * z - self._truth(z)) ** 2)

    @property
    def base_mean(self) -> float:
        """E[r*] under the base policy."""
        z, weights = _normal()
        return float(weights @ self._truth(z))

    @property
    def clipped(self) -> float:
        """How often r* is clipped: the closed forms for Gaussian rewards hold up to this much."""
        z, weights = _normal()
        truth = self._truth(z)
        return float(weights[(truth == 0) | (truth == 1)].sum())

    def comparator_mean(self, coverage: float) -> float:
        """E[r*] under the comparator π*: the base policy given that r* is among its highest 1/C.

        π*/π₀ is C there and 0 elsewhere, so its coverage E_π*[π*/π₀] is C exactly, and no policy with π* ≤ C·π₀ is better.
        """
        if not (math.isfinite(coverage) and coverage >= 1):
            raise InvalidInput("--coverage", f"{coverage} is not a finite number ≥ 1")
        z, weights = _normal()
        truth = self._truth(z)
        order = np.argsort(-truth)
        reached = np.minimum(np.cumsum(weights[order]) * coverage, 1.0)
        return float(np.diff(reached, prepend=0.0) @ truth[order])

    @property
    def range(self) -> tuple[float, float]:
        """A range that holds r* and all but the rarest proxies: six standard deviations around the middle."""
        reach = 6 * (self.spread if self.model is Model.SATURATING else math.hypot(self.error, self.spread))
        return min(0.0, MIDDLE - reach), max(1.0, MIDDLE + reach)

    def constants(self, coverage: float) -> dict[str, Any]:
        """What is known about the law, for the document beside the data."""
        return {
            "model": self.model.value,
            "error": self.error,
            "spread": self.spread,
            "rmse": self.rmse,
            "coverage": coverage,
            "comparator_mean": self.comparator_mean(coverage),
            "base_mean": self.base_mean,
            "clipped": self.clipped,
            "range": list(self.range),
        }

    def _truth(self, z: Floats) -> Floats:
        truth: Floats = MIDDLE + self.spread * z
        if self.model is Model.SATURATING:
            beyond = (1 + KNEE**2) * norm.sf(KNEE) - KNEE * norm.pdf(KNEE)  # E[relu(z − k)²]
            truth -= self.error / math.sqrt(beyond) * np.maximum(z - KNEE, 0.0)
        return np.clip(truth, 0.0, 1.0, out=truth)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write: so many prompts with so many candidates each. Prompt i depends on the seed and i alone."""

    simulation: Simulation
    prompts: int
    candidates: int
    seed: int

    def __post_init__(self) -> None:
        whole("--prompts", self.prompts)
        whole("--candidates", self.candidates)
        if self.prompts * self.candidates > MOST:
            raise InvalidInput("--prompts", f"{self.prompts} of {self.candidates} candidates are too many; a file holds at most {MOST:,}")
        if self.seed < 0:
            raise InvalidInput("--seed", f"{self.seed} is negative; give a whole number ≥ 0")

    def rewards(self) -> Iterator[tuple[int, Floats, Floats]]:
        """Number, r* and r̂ of each prompt from 1 on, arrays of shape (candidates,)."""
        for number in range(1, self.prompts + 1):
            yield number, *self.simulation.draw(np.random.default_rng([self.seed, number]), self.candidates)


def write_jsonl(plan: Plan, file: IO[str], progress: Callable[[int], None]) -> None:
    """Scored candidates as JSONL, one prompt a line. `progress` is told how many prompts are done.

    Raises:
        InvalidInput: more candidates than a line may hold.
    """
    if plan.candidates > MOST_IN_A_LINE:
        remedy = f"JSONL holds at most {MOST_IN_A_LINE:,} a prompt; give --out a name that ends in .parquet"
        raise InvalidInput("--candidates", f"{plan.candidates}: {remedy}")
    for number, truth, proxy in plan.rewards():
        responses = [
            {"text": f"{number}.{index}", "is_correct": true, "proxy_reward": scored}
            for index, (true, scored) in enumerate(zip(truth.tolist(), proxy.tolist(), strict=True), start=1)
        ]
        file.write(json.dumps({"prompt": f"simulated prompt {number}", "gt_answer": "", "responses": responses}) + "\n")
        progress(number)


def write_parquet(plan: Plan, file: IO[bytes], progress: Callable[[int], None]) -> None:
    """Scored candidates as Parquet, one row each, row groups of 2¹⁸ rows: memory holds one of them, or one prompt.

    Raises:
        MissingDependency: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingDependency("Parquet files need pyarrow; get it with: pip install 'privalign[parquet]'") from None

    columns = {"prompt_id": pa.int64(), "prompt": pa.string(), "gt_answer": pa.string(), "text": pa.string()}
    schema = pa.schema(columns | {"is_correct": pa.float64(), "proxy_reward": pa.float64()})

    def table(numbers: list[int], truth: list[Floats], proxy: list[Floats]) -> Any:
        prompt = pa.array(np.repeat(np.array(numbers), plan.candidates))
        shown, index = pc.cast(prompt, pa.string()), np.tile(np.arange(1, plan.candidates + 1), len(numbers))
        arrays = [
            prompt,
            pc.binary_join_element_wise("simulated prompt ", shown, ""),
            pa.array([""]).take(pa.array(np.zeros(len(prompt), dtype=np.int64))),
            pc.binary_join_element_wise(shown, pc.cast(pa.array(index), pa.string()), "."),
            pa.array(np.concatenate(truth)),
            pa.array(np.concatenate(proxy)),
        ]
        return pa.Table.from_arrays(arrays, schema=schema)

    at_once = max(1, _BATCH // plan.candidates)
    with pq.ParquetWriter(file, schema) as writer:
        waiting: list[tuple[int, Floats, Floats]] = []
        for prompt in plan.rewards():
            waiting.append(prompt)
            if len(waiting) == at_once or prompt[0] == plan.prompts:
                numbers, truth, proxy = (list(column) for column in zip(*waiting, strict=True))
                writer.write_table(table(numbers, truth, proxy), row_group_size=_BATCH)
                waiting.clear()
                progress(prompt[0])


def _normal() -> tuple[Floats, Floats]:
    """Points and weights of the trapezoidal rule for N(0, 1); with functions that have kinks its error is below 1e-8."""
    z, step = np.linspace(-10.0, 10.0, 200_001, retstep=True)
    weights = np.exp(-z * z / 2) * (step / math.sqrt(2 * math.pi))
    return z, weights / weights.sum()
