"""What each mechanism is worth on recorded candidates: Algorithms 1 and 2 exactly, with fresh draws for every phase.

Expectations are in closed form wherever one exists; the rest averages few random replicates. With replacement only λ is random,
and only for ITP and PrivITP. Rewards are treated as public: nothing here is a private release. Formulas: docs/evaluate.md.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from privalign.acceptance import acceptance_ratios, kappas, threshold_grid
from privalign.accounting import costs
from privalign.errors import InvalidInput
from privalign.events import Composed
from privalign.experiments import kernels
from privalign.experiments.expectations import threshold_law
from privalign.experiments.scored import ScoredPrompts
from privalign.mechanisms.base import Base
from privalign.mechanisms.bon import BoN
from privalign.mechanisms.itp import ITP
from privalign.mechanisms.itp_reuse import ITPReuse
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privbon_gaussian import PrivBoNGaussian
from privalign.mechanisms.privitp import PrivITP
from privalign.mechanisms.protocol import Mechanism, event_of
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.settings import option

Floats = NDArray[np.float64]
_T = TypeVar("_T")

DRAWS: Final = ("with", "without")
LARGEST_SEED: Final = 2**62
_INTERPOLATION_ERROR: Final = 1e-13
_POINTS_ERROR: Final = 1e-11
_LEAST_SCALE: Final = 1e-6  # relative to half the range; below, far more nodes are needed than are ever used
_MOST_CENTRES: Final = 512  # beyond, averaging λ̃ directly over the points near λ is faster
_CHUNK: Final = 64  # most prompts of one task
_TWO_PHASES: Final = (ITP, ITPReuse, PrivITP)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Expected outcomes of M mechanisms on P prompts; arrays are (M, P) unless said otherwise.

    Args:
        true: expected gold of the released answer. true_variance: Monte-Carlo variance of `true`, 0 where it is exact.
        proxy: expected reward of the released answer, in the reward model's own units.
        win_rate, gold_win_rate: P[its reward, its gold, exceeds that of an independent base draw] + half of P[they are equal].
        fallback: P[all rounds rejected], 0 where there are no rounds. halting: expected rounds looked at, NaN likewise.
        epsilon: (M,) worst case of a query; epsilon_mean: the expected realised cost. NaN where not private.
        base: (P,) mean gold of the pool, what the base policy earns.
        skipped: how many candidates had no usable reward or gold, and how many prompts too few candidates.
    """

    mechanisms: tuple[Mechanism, ...]
    true: Floats
    true_variance: Floats
    proxy: Floats
    win_rate: Floats
    gold_win_rate: Floats
    fallback: Floats
    halting: Floats
    epsilon_mean: Floats
    epsilon: Floats
    base: Floats
    skipped: Mapping[str, int]

    def take(self, prompts: ArrayLike) -> Outcomes:
        """The same for some prompts: their numbers, or a mask of shape (P,)."""
        chosen = np.asarray(prompts)
        per_prompt = ("true", "true_variance", "proxy", "win_rate", "gold_win_rate", "fallback", "halting", "epsilon_mean")
        return replace(self, base=self.base[chosen], **{name: getattr(self, name)[:, chosen] for name in per_prompt})

    def rows(self) -> list[dict[str, Any]]:
        """One record a mechanism, in their order: means over prompts; `se` is the standard error of a mean over prompts.

        `lift_pp` is against the base policy on the same prompts and its error that of the paired difference, in percentage
        points; `mc_se_pp` is the part of it that more replicates would remove. None where there is no such number.
        """
        prompts = self.base.size
        rows = []
        for m, mechanism in enumerate(self.mechanisms):
            lift = 100 * (self.true[m] - self.base)
            row = {
                "true_mean": self.true[m].mean(),
                "true_se": error_of_mean(self.true[m]),
                "lift_pp": lift.mean(),
                "lift_se_pp": error_of_mean(lift),
                "mc_se_pp": 100 * math.sqrt(self.true_variance[m].sum()) / prompts,
                "proxy_mean": self.proxy[m].mean(),
                "win_rate": self.win_rate[m].mean(),
                "gold_win_rate": self.gold_win_rate[m].mean(),
                "fallback_rate": self.fallback[m].mean(),
                "halting_mean": self.halting[m].mean(),
                "epsilon": self.epsilon[m],
                "epsilon_mean": self.epsilon_mean[m].mean() if isinstance(mechanism, PrivITP) else self.epsilon[m],  # not rounded
            }
            numbers = {name: float(value) if math.isfinite(value) else None for name, value in row.items()}
            rows.append({"mechanism": mechanism.name, "n": getattr(mechanism, "n", 1), **numbers})
        return rows


def measure(
    blocks: Iterable[ScoredPrompts],
    mechanisms: Sequence[Mechanism],
    reward_range: RewardRange,
    sensitivity: Sensitivity,
    *,
    delta: float = 1e-6,
    draw: str = "with",
    replicates: int = 50,
    seed: int = 0,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Outcomes:
    """Expected outcomes on every prompt that has enough candidates, in the order of the blocks.

    Prompts are treated alike by all mechanisms: those with fewer usable candidates than the largest batch of any mechanism
    (`draw` "with"), or than the largest number that one query may draw ("without"), are left out and counted. Cost: linear in
    prompts and in the sum of n. The same seed gives the same outcomes for any number of workers.

    Args:
        sensitivity: prices the mechanisms; its range must be `reward_range`, which rewards are clipped to.
        delta: δ of a PrivITP query.
        draw: candidates are drawn from a prompt's pool "with" or "without" replacement.
        replicates: random draws a prompt where there is no closed form.
        workers: threads.
        progress: is told how many prompts are done.

    Raises:
        InvalidInput: a setting is out of range, or no prompt has enough candidates.
    """
    if sensitivity.range != reward_range:
        raise InvalidInput(option("range"), "not the range that the sensitivity was stated for; give the same one to both")
    plan = _Plan.of(mechanisms, sensitivity, delta, draw, replicates, seed)
    results, bases, skipped, most, done = [], [], {"candidates": 0, "prompts": 0}, 0, 0

    def tasks() -> Iterator[tuple[ScoredPrompts, int]]:
        nonlocal most
        first = 0
        for block in blocks:
            enough = block.counts >= plan.least
            most = max(most, int(block.counts.max(initial=0)))
            skipped["candidates"] += block.skipped
            skipped["prompts"] += int((~enough).sum())
            kept = block if enough.all() else block.take(enough)
            for start in range(0, kept.prompts, _CHUNK):
                part = kept.take(np.arange(start, min(start + _CHUNK, kept.prompts)))
                yield part, first
                first += part.prompts

    for result, base in in_order(plan.run, tasks(), workers):
        results.append(result)
        bases.append(base)
        done += base.size
        if progress is not None:
            progress(done)
    if not results:
        raise InvalidInput(
            option("n_grid"),
            f"no prompt has the {plan.least} usable candidates that the largest needs (the most is {most}); give smaller sizes",
        )
    return plan.outcomes(np.concatenate(results, axis=1), np.concatenate(bases), skipped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """What the settings of all studies that measure have in common: δ of one query, and the arguments of `measure`."""

    delta: float = 1e-6
    replicates: int = 50
    draw: str = "with"
    seed: int = 0
    workers: int = field(default=1, compare=False)

    def measure(
        self,
        blocks: Sequence[ScoredPrompts],
        mechanisms: Sequence[Mechanism],
        sensitivity: Sensitivity,
        progress: Callable[[int, int], None] = lambda *_: None,
    ) -> Outcomes:
        """As `measure`; `progress` is told prompts done and prompts in all."""
        total = sum(block.prompts for block in blocks)
        return measure(
            blocks,
            mechanisms,
            sensitivity.range,
            sensitivity,
            delta=self.delta,
            draw=self.draw,
            replicates=self.replicates,
            seed=self.seed,
            workers=self.workers,
            progress=lambda done: progress(done, total),
        )

    def stated(self, sensitivity: Sensitivity) -> dict[str, Any]:
        """These settings, Δ and the protocol, for a study's document."""
        return {"protocol": "faithful", **asdict(self), **sensitivity.stated()}


def in_order(run: Callable[[ScoredPrompts, int], _T], tasks: Iterable[tuple[ScoredPrompts, int]], workers: int) -> Iterator[_T]:
    """The results of all tasks in their order, a few of them at a time in threads (kernels hold no lock)."""
    if workers < 1:
        raise InvalidInput(option("workers"), f"{workers} is not a whole number of at least 1")
    if workers == 1:
        yield from (run(*task) for task in tasks)
        return
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[_T]] = deque()
        for task in tasks:
            waiting.append(pool.submit(run, *task))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@dataclass(frozen=True, slots=True)
class _Plan:
    """Everything that is the same for all prompts. `epsilon` (M,); `least`: candidates that a prompt must have."""

    mechanisms: tuple[Mechanism, ...]
    sensitivity: Sensitivity
    delta: float
    with_replacement: bool
    replicates: int
    seed: int
    epsilon: Floats
    least: int

    @classmethod
    def of(cls, mechanisms: Sequence[Mechanism], sensitivity: Sensitivity, delta: float, draw: str, replicates: int, seed: int) -> _Plan:
        if not mechanisms:
            raise InvalidInput(option("mechanisms"), "none given; name at least one")
        if draw not in DRAWS:
            raise InvalidInput(option("draw"), f"{draw!r} is not one of {', '.join(DRAWS)}")
        if replicates < 2:
            raise InvalidInput(option("replicates"), f"{replicates} is too few to tell their error; give at least 2")
        if not 0 <= seed <= LARGEST_SEED:
            raise InvalidInput(option("seed"), f"{seed} is not a whole number from 0 to 2^62")
        for mechanism in mechanisms:
            if not isinstance(mechanism, (Base, BoN, PrivBoN, PrivBoNGaussian, *_TWO_PHASES)):
                raise InvalidInput(option("mechanisms"), f"{mechanism.name} has no kernel; leave it out")
        prices = [costs.epsilon(event_of(mechanism, sensitivity), delta) for mechanism in mechanisms]
        with_replacement = draw == "with"
        return cls(
            tuple(mechanisms),
            sensitivity,
            delta,
            with_replacement,
            replicates,
            seed,
            np.array([price if math.isfinite(price) else math.nan for price in prices]),
            max(_batch(mechanism) if with_replacement else mechanism.pool_size for mechanism in mechanisms),
        )

    def run(self, block: ScoredPrompts, first: int) -> tuple[Floats, Floats]:
        """The kernels' results (M, P, 8) on a block whose first prompt has number `first`, and its base (P,)."""
        low, high, width = self.sensitivity.range.low, self.sensitivity.range.high, self.sensitivity.width
        pools = _Pools(block.offsets, *kernels.prepare(block.offsets, block.rewards, block.gold, low, high, width), first)
        out = np.empty((len(self.mechanisms), block.prompts, 8))
        for kind, members in self._groups().items():
            numbers = [number for number, _ in members]
            alike = [mechanism for _, mechanism in members]
            out[numbers] = self._group(kind, alike, pools)
        return out, pools.means[:, kernels.GOLD].copy()

    def outcomes(self, results: Floats, base: Floats, skipped: Mapping[str, int]) -> Outcomes:
        columns = {name: results[:, :, column] for name, column in _COLUMNS.items()}
        one_phase = [not isinstance(mechanism, _TWO_PHASES) for mechanism in self.mechanisms]
        columns["halting"][one_phase] = math.nan
        spent = results[:, :, kernels.COST]
        for m, mechanism in enumerate(self.mechanisms):
            if isinstance(mechanism, PrivITP) and not self.sensitivity.public:
                spent[m] += _phase_1(mechanism, self.sensitivity, self.delta)
            else:
                spent[m] = self.epsilon[m]
        return Outcomes(self.mechanisms, **columns, epsilon_mean=spent, epsilon=self.epsilon, base=base, skipped=skipped)

    def _groups(self) -> dict[tuple[Any, ...], list[tuple[int, Mechanism]]]:
        """Mechanisms that one call of a kernel can do together, each with its number; ascending n within a group."""
        groups: dict[tuple[Any, ...], list[tuple[int, Mechanism]]] = {}
        for number, mechanism in enumerate(self.mechanisms):
            match mechanism:
                case PrivBoN(_, scale) | PrivBoNGaussian(_, scale):
                    kind: tuple[Any, ...] = (type(mechanism), scale)
                case PrivITP(_, _, beta, sigma_x, sigma_z, _):
                    kind = (PrivITP, beta, sigma_x, sigma_z)
                case ITP(_, _, beta):
                    kind = (ITP, beta)
                case _:
                    kind = (type(mechanism),)
            groups.setdefault(kind, []).append((number, mechanism))
        return {kind: sorted(members, key=lambda member: getattr(member[1], "n", 1)) for kind, members in groups.items()}

    def _group(self, kind: tuple[Any, ...], alike: Sequence[Any], pools: _Pools) -> Floats:
        """One group's results, shape (J, P, 8)."""
        ns, where = np.unique([getattr(mechanism, "n", 1) for mechanism in alike], return_inverse=True)
        draws = (self.replicates, self.seed, pools.numbers)
        if kind[0] is Base:
            return _padded(np.broadcast_to(pools.means, (len(alike), *pools.means.shape)))
        if kind[0] is BoN:
            return _padded(kernels.best_of(pools.offsets, pools.payoffs, ns, self.with_replacement))[where]
        if kind[0] in (PrivBoN, PrivBoNGaussian):
            gumbel = kind[0] is PrivBoN
            if self.with_replacement:
                return _padded(kernels.noisy_best_with(pools.offsets, pools.q, pools.payoffs, kind[1], ns, gumbel))[where]
            kernel = kernels.softmax_without if gumbel else kernels.gaussian_without
            return kernel(pools.offsets, pools.q, pools.payoffs, kind[1], ns, *draws)[where]
        if kind[0] is ITPReuse:
            parts = [
                kernels.reuse(pools.offsets, pools.q, pools.payoffs, each.n, each.beta, self.with_replacement, *draws) for each in alike
            ]
            return np.concatenate(parts)
        if not self.with_replacement:
            return np.concatenate([self._rounds_without(each, pools) for each in alike])
        thresholds = pools.thresholds(ns, kind[1], self.replicates, self.seed)[where]
        caps, width = np.array([each.n2 for each in alike]), self.sensitivity.width
        if kind[0] is ITP:
            return kernels.itp_with(pools.offsets, pools.q, pools.payoffs, pools.means, thresholds, caps, width)
        _, beta, sigma_x, sigma_z = kind
        ceilings = tuple(width + sigma_z * each.tail for each in alike)
        points, centres, centre_weights, smoothing = _smoothing(beta, sigma_x, sigma_z, width, int(caps.max()))
        to_sums = _to_sums((*points.tolist(), *ceilings), sigma_z, width, points.size)
        prices = np.stack([_prices(each, self.sensitivity, int(caps.max())) for each in alike])
        return kernels.privitp_with(
            pools.offsets, pools.q, pools.payoffs, pools.means, thresholds, caps, np.array(ceilings), sigma_x, sigma_z, width,
            points, to_sums, centres, centre_weights, smoothing, prices,
        )  # fmt: skip

    def _rounds_without(self, mechanism: ITP | PrivITP, pools: _Pools) -> Floats:
        """ITP or PrivITP on draws without replacement; PrivITP with one λ̃ a replicate, its noise stratified over replicates."""
        noise, sigma_z, ceiling, prices = np.empty((0, 0)), 1.0, 1.0, np.empty((0, 2))
        width = self.sensitivity.width
        if isinstance(mechanism, PrivITP):
            generators = [np.random.default_rng((self.seed, int(number))) for number in pools.numbers]
            strata = np.array([rng.permutation(self.replicates) + rng.random(self.replicates) for rng in generators])
            noise = mechanism.sigma_x * ndtri(np.maximum(strata, 1e-300) / self.replicates)
            sigma_z, ceiling = mechanism.sigma_z, width + mechanism.sigma_z * mechanism.tail
            prices = _prices(mechanism, self.sensitivity)
        return kernels.rounds_without(
            pools.offsets, pools.q, pools.payoffs, pools.means, mechanism.n, mechanism.n2, mechanism.beta, width, sigma_z, ceiling,
            noise, threshold_grid(mechanism.beta, width), prices, self.replicates, self.seed, pools.numbers,
        )  # fmt: skip


_COLUMNS: Final = {
    "true": kernels.GOLD,
    "true_variance": kernels.VARIANCE,
    "proxy": kernels.PROXY,
    "win_rate": kernels.WIN,
    "gold_win_rate": kernels.GOLD_WIN,
    "fallback": kernels.FALLBACK,
    "halting": kernels.HALTING,
}


class _Pools:
    """One block as the kernels read it, with the thresholds that several mechanisms share."""

    def __init__(self, offsets: NDArray[np.int64], q: Floats, payoffs: Floats, means: Floats, first: int) -> None:
        self.offsets, self.q, self.payoffs, self.means = offsets, q, payoffs, means
        self.numbers = np.arange(first, first + len(offsets) - 1)
        self._thresholds: dict[tuple[Any, ...], Floats] = {}

    def thresholds(self, ns: NDArray[np.int64], beta: float, replicates: int, seed: int) -> Floats:
        """λ of nested draws with replacement; (J, P, replicates)."""
        key = (beta, *ns.tolist())
        if key not in self._thresholds:
            self._thresholds[key] = kernels.thresholds_with(self.offsets, self.q, ns, beta, replicates, seed, self.numbers)
        return self._thresholds[key]


def _batch(mechanism: Mechanism) -> int:
    """The largest number of candidates that one phase draws."""
    return max(getattr(mechanism, "n", 1), getattr(mechanism, "n2", 1))


def _padded(payoffs: Floats) -> Floats:
    """(J, P, 4) results without rounds or variance as (J, P, 8)."""
    return np.concatenate([payoffs, np.zeros_like(payoffs)], axis=2)


def error_of_mean(values: Floats) -> float:
    """The sample standard deviation over √P; NaN for a single prompt."""
    return float(values.std(ddof=1) / math.sqrt(values.size)) if values.size > 1 else math.nan


@lru_cache(maxsize=4096)
def _phase_1(mechanism: PrivITP, sensitivity: Sensitivity, delta: float) -> float:
    """ε₁ of the release of λ̃ at δ."""
    event = mechanism.event(sensitivity)
    assert isinstance(event, Composed)
    return costs.epsilon(event.events[0], delta)


@lru_cache(maxsize=4096)
def _prices(mechanism: PrivITP, sensitivity: Sensitivity, cap: int = 0) -> Floats:
    """κ and b at the 1,024 thresholds, or at the points of `_smoothing` for this cap; (M, 2). 0 where rewards are public."""
    width = sensitivity.width
    points = threshold_grid(mechanism.beta, width)
    if cap:
        points = _smoothing(mechanism.beta, mechanism.sigma_x, mechanism.sigma_z, width, cap)[0]
    if sensitivity.public:
        return np.zeros((points.size, 2))
    args = (points, width, mechanism.sigma_z, mechanism.tail, sensitivity.charged)
    return np.stack([kappas(*args), acceptance_ratios(*args)], axis=1)


@lru_cache(maxsize=256)
def _smoothing(beta: float, sigma_x: float, sigma_z: float, width: float, cap: int) -> tuple[Floats, Floats, Floats, Floats]:
    """What `kernels.privitp_with` needs to average over λ̃: points, centres, centre_weights, smoothing."""
    grid = threshold_grid(beta, width)
    centre_count, point_count = nodes_needed(width, sigma_x), points_needed(width, sigma_z, cap)
    if centre_count > _MOST_CENTRES:
        return grid, np.empty(0), np.empty(0), np.empty((0, 0))
    centres, centre_weights = chebyshev(centre_count, grid[0], grid[-1])
    smoothing = np.array([threshold_law(centre, sigma_x, beta, width) for centre in centres])
    if point_count >= grid.size:
        return grid, centres, centre_weights, smoothing
    points, point_weights = chebyshev(point_count, grid[0], grid[-1])
    return points, centres, centre_weights, smoothing @ interpolation_matrix(points, point_weights, grid)


@lru_cache(maxsize=256)
def _to_sums(places: tuple[float, ...], sigma_z: float, width: float, most: int) -> Floats:
    """Chebyshev moments (K,) of a pool on [0, R] → mean G((q − x)/σ_Z) at these x: the series' coefficients, (X, K).

    Differences of two places are, times σ_Z/W, acceptance probabilities: functions of q of size 1 smoothed by N(0, σ_Z²), so that
    `nodes_needed` says how many moments give them to 1e-13. Empty where that is `most` or more: summing directly is cheaper.
    """
    count = nodes_needed(width, sigma_z)
    if count >= most:
        return np.empty((0, 0))
    nodes, _ = chebyshev(count, 0.0, width)
    z = (nodes - np.array(places)[:, None]) / sigma_z
    ramps = np.maximum(z * ndtr(z) + np.exp(-z * z / 2) / math.sqrt(2 * math.pi), 0.0)
    coefficients = np.polynomial.chebyshev.chebvander(2 * nodes / width - 1, count - 1) * (2 / count)
    coefficients[:, 0] /= 2
    return np.ascontiguousarray(ramps @ coefficients)


def points_needed(width: float, sigma_z: float, cap: int) -> int:
    """How many Chebyshev nodes in λ̃ reproduce the expectations of PrivITP given λ̃ to 1e-11, for every pool.

    As `nodes_needed`, with the size of Σ_{t<n₂} (1 − a)^t off the real axis. At λ̃ + ibσ_Z the rejection probability is a mean of
    Φ(x + is), |s| ≤ b, and |Φ(x + is)| ≤ Φ(x) + φ(x) b e^{b²/2}: at most a little above 1 for b < ½, and less its n₂-th power.
    """
    heights = np.geomspace(1e-3, 3.0, 400)
    x = np.linspace(0.0, 40.0, 20_001)[:, None]
    excess = np.exp(-x * x / 2) / math.sqrt(2 * math.pi) * heights * np.exp(heights**2 / 2) - ndtr(-x)
    log_size = math.log(cap) + cap * np.log1p(np.maximum(excess.max(axis=0), 0.0))
    height = heights * max(2 * sigma_z / width, _LEAST_SCALE)
    rho = height + np.sqrt(height**2 + 1)
    return 1 + int(np.ceil((np.log(4 / (rho - 1)) + log_size - math.log(_POINTS_ERROR)) / np.log(rho)).min())


def nodes_needed(width: float, scale: float) -> int:
    """How many Chebyshev nodes on an interval reproduce any function of size 1 smoothed by N(0, scale²) to 1e-13.

    Off the real axis such a function grows like e^{y²/2s²}; interpolation in K + 1 nodes errs by at most 4 M ρ^{−K}/(ρ − 1) with M
    its maximum on the ellipse of parameter ρ (Trefethen 2013, Theorem 8.2); the best ρ counts. s = 2 scale/width.
    """
    rho = 1 + np.geomspace(1e-6, 1e2, 4000)
    height = (rho - 1 / rho) / 2
    log_size = height**2 / 2 / max(2 * scale / width, _LEAST_SCALE) ** 2
    return 1 + int(np.ceil((np.log(4 / (rho - 1)) + log_size - math.log(_INTERPOLATION_ERROR)) / np.log(rho)).min())


def chebyshev(count: int, low: float, high: float) -> tuple[Floats, Floats]:
    """Chebyshev nodes of the first kind on [low, high] and their barycentric weights."""
    angles = (np.arange(count) + 0.5) * np.pi / count
    return (low + high) / 2 - (high - low) / 2 * np.cos(angles), np.sin(angles) * (-1.0) ** np.arange(count)


def interpolation_matrix(nodes: Floats, weights: Floats, points: Floats) -> Floats:
    """Values at nodes → values at points; shape (points, nodes), by the barycentric formula."""
    distance = points[:, None] - nodes
    hit = distance == 0
    terms = weights / np.where(hit, 1.0, distance)
    matrix: Floats = np.where(hit.any(axis=1)[:, None], hit, terms / terms.sum(axis=1, keepdims=True))
    return np.ascontiguousarray(matrix)
