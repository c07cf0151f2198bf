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
from functools import cached_property, lru_cache
from typing import Annotated, Any, Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from privalign.acceptance import acceptance_ratios, kappas, threshold_grid
from privalign.accounting import costs
from privalign.candidates.scored import ScoredPrompts
from privalign.errors import InvalidInput, setting
from privalign.evaluation import kernels
from privalign.evaluation.draws import DRAWS
from privalign.evaluation.expectations import threshold_law
from privalign.events import Composed
from privalign.mechanisms.base import Base
from privalign.mechanisms.bon import BoN
from privalign.mechanisms.itp import ITP
from privalign.mechanisms.itp_reuse import ITPReuse
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privbon_gaussian import PrivBoNGaussian
from privalign.mechanisms.privitp import PrivITP
from privalign.mechanisms.protocol import Mechanism, event_of
from privalign.options import Option, real, text, whole
from privalign.sensitivity import RewardRange, Sensitivity

Floats = NDArray[np.float64]
_T = TypeVar("_T")

PAIRED: Final = ("over_privbon_pp", "over_privbon_se_pp", "recovered_percent", "recovered_se_percent")
LARGEST_SEED: Final = 2**62
_INTERPOLATION_ERROR: Final = 1e-13
_POINTS_ERROR: Final = 1e-11
_LEAST_SCALE: Final = 1e-6  # relative to half the range; below, far more nodes are needed than are ever used
_MOST_CENTRES: Final = 512  # beyond, averaging λ̃ directly over the points near λ is faster
_CHUNK: Final = 64  # most prompts of one task
_DRAWN: Final = 1 << 22  # draws of one task, about: 16 MiB
ENOUGH: Final = 0.5  # of the prompts: a mechanism that fewer can serve is not measured, so that the others keep their prompts
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
        reasons: (M,) why a mechanism was not measured, in which case its outcomes are NaN; None where it was.
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
    reasons: tuple[str | None, ...]

    def take(self, prompts: ArrayLike) -> Outcomes:
        """The same for some prompts: their numbers, or a mask of shape (P,)."""
        chosen = np.asarray(prompts)
        per_prompt = ("true", "true_variance", "proxy", "win_rate", "gold_win_rate", "fallback", "halting", "epsilon_mean")
        return replace(self, base=self.base[chosen], **{name: getattr(self, name)[:, chosen] for name in per_prompt})

    def rows(self) -> list[dict[str, Any]]:
        """One record a mechanism, in their order: means over prompts; `se` is the standard error of a mean over prompts.

        An error counts all that differs between prompts, Monte-Carlo noise included. `lift_pp` is against the base policy on the same
        prompts and its error that of the paired difference, in percentage points; `mc_se_pp` is the part of it that more replicates
        would remove. None where there is no such number; `reason` says why a mechanism was not measured.
        """
        return [self._row(m) for m in range(len(self.mechanisms))]

    def _row(self, m: int) -> dict[str, Any]:
        mechanism, lift = self.mechanisms[m], 100 * (self.true[m] - self.base)
        row = {
            "true_mean": self.true[m].mean(),
            "true_se": error_of_mean(self.true[m]),
            "lift_pp": lift.mean(),
            "lift_se_pp": error_of_mean(lift),
            "mc_se_pp": 100 * math.sqrt(self.true_variance[m].sum()) / self.base.size,
            "proxy_mean": self.proxy[m].mean(),
            "proxy_se": error_of_mean(self.proxy[m]),
            "gap_se": error_of_mean(self.proxy[m] - self.true[m]),
            "win_rate": self.win_rate[m].mean(),
            "win_rate_se": error_of_mean(self.win_rate[m]),
            "gold_win_rate": self.gold_win_rate[m].mean(),
            "gold_win_rate_se": error_of_mean(self.gold_win_rate[m]),
            "fallback_rate": self.fallback[m].mean(),
            "fallback_rate_se": error_of_mean(self.fallback[m]),
            "halting_mean": self.halting[m].mean(),
            "halting_se": error_of_mean(self.halting[m]),
            "epsilon": self.epsilon[m],
            "epsilon_mean": self.epsilon_mean[m].mean() if isinstance(mechanism, PrivITP) else self.epsilon[m],  # not rounded
        }
        return {"mechanism": mechanism.name, "n": getattr(mechanism, "n", 1), **numbers(row), "reason": self.reasons[m]}

    def over(self, mechanism: Mechanism, other: Mechanism) -> dict[str, float | None]:
        """How much more gold it earns than another one on the same prompts, in points, with the error of the paired difference."""
        return over(self._of(mechanism), self._of(other), error_of_mean)

    def recovered(self, mechanism: Mechanism, skyline: Mechanism) -> dict[str, float | None]:
        """Lift as a percentage of the skyline's, with a standard error over prompts (delta method on pairs).

        None where the skyline does not lift the reward: there is nothing to recover. No error for a single prompt.
        """
        return recovered(self._of(mechanism) - self.base, self._of(skyline) - self.base, error_of_mean)

    def paired_rows(self) -> list[dict[str, Any]]:
        """`rows`, each with `pairs` among the mechanisms of the same n."""
        return [
            row | self.pairs(mechanism, [other for other in self.mechanisms if getattr(other, "n", 0) == getattr(mechanism, "n", None)])
            for row, mechanism in zip(self.rows(), self.mechanisms, strict=True)
        ]

    def pairs(self, mechanism: Mechanism, others: Sequence[Mechanism]) -> dict[str, float | None]:
        """A mechanism beside PrivBoN (`over`) and ITP (`recovered`) among others, where there is just one of them and it is another."""
        found: dict[str, float | None] = dict.fromkeys(PAIRED)
        for kind, compare in ((PrivBoN, self.over), (ITP, self.recovered)):
            alike = [other for other in others if isinstance(other, kind)]
            if len(alike) == 1 and not isinstance(mechanism, kind):
                found |= compare(mechanism, alike[0])
        return found

    def _of(self, mechanism: Mechanism) -> Floats:
        true: Floats = self.true[self.mechanisms.index(mechanism)]
        return true


def lacks(needed: int, able: int, prompts: int) -> str:
    """Why a mechanism was not measured."""
    return f"needs {needed} candidates a prompt; {able} of {prompts} prompts have them"


def over(one: Floats, other: Floats, error: Callable[[Floats], float]) -> dict[str, float | None]:
    """The mean difference of gold on the same prompts, in percentage points, with its error."""
    difference = 100 * (one - other)
    return numbers({"over_privbon_pp": difference.mean(), "over_privbon_se_pp": error(difference)})


def recovered(lifts: Floats, most: Floats, error: Callable[[Floats], float]) -> dict[str, float | None]:
    """See `Outcomes.recovered`: lifts on the same prompts, and the error of a mean."""
    if not most.mean() > 0:
        return dict.fromkeys(("recovered_percent", "recovered_se_percent"))
    ratio = lifts.mean() / most.mean()
    return numbers({"recovered_percent": 100 * ratio, "recovered_se_percent": 100 * error(lifts - ratio * most) / most.mean()})


def numbers(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Plain numbers, None for what is not finite."""
    return {name: float(value) if math.isfinite(value) else None for name, value in row.items()}


def measure(
    blocks: Iterable[ScoredPrompts],
    mechanisms: Sequence[Mechanism],
    reward_range: RewardRange,
    sensitivity: Sensitivity,
    *,
    delta: float = 1e-6,
    draw: str = "without",
    replicates: int = 50,
    seed: int = 0,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Outcomes:
    """Expected outcomes on every prompt that has enough candidates, in the order of the blocks.

    A mechanism needs as many usable candidates of a prompt as one query may draw (`draw` "without"), or as its largest batch ("with").
    One that fewer than half of the prompts can serve is not measured (`Outcomes.reasons`). All others are measured on the
    same prompts: those that lack what the largest of them needs are left out and counted. Cost: linear in prompts and in the sum
    of n. The same seed gives the same outcomes for any number of workers.

    Args:
        sensitivity: prices the mechanisms; its range must be `reward_range`, which rewards are clipped to.
        delta: δ of a PrivITP query.
        draw: candidates are drawn from a prompt's pool "without" replacement: the pool is a sample of the policy, and outcomes are
            unbiased for it; or "with": the pool is the policy (`DRAWS`).
        replicates: random draws a prompt where there is no closed form.
        workers: threads.
        progress: is told how many prompts are done.

    Raises:
        InvalidInput: a setting is out of range, or no prompt has enough candidates for any mechanism.
    """
    if sensitivity.range != reward_range:
        raise InvalidInput(setting("range"), "not the range that the sensitivity was stated for; give the same one to both")
    plan = _Plan.of(mechanisms, sensitivity, delta, draw, replicates, seed)
    results, bases, counts, done = [], [], [], 0
    skipped = 0

    def tasks() -> Iterator[tuple[ScoredPrompts, int]]:
        nonlocal skipped
        first = 0
        for block in blocks:
            counts.append(block.counts)
            skipped += block.skipped
            enough = block.counts >= plan.needs.min()
            kept = block if enough.all() else block.take(enough)
            for start in range(0, kept.prompts, plan.chunk):
                part = kept.take(np.arange(start, min(start + plan.chunk, kept.prompts)))
                yield part, first
                first += part.prompts

    for result, base in in_order(plan.run, tasks(), workers):
        results.append(result)
        bases.append(base)
        done += base.size
        if progress is not None:
            progress(done)
    return plan.outcomes(results, bases, np.concatenate([np.empty(0, np.int64), *counts]), skipped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """What the settings of all studies that measure have in common: δ of one query, and the arguments of `measure`."""

    delta: Annotated[float, Option(real(), "δ of phase 1, per query. Default 1e-6.")] = 1e-6
    replicates: Annotated[int, Option(whole(), "As `evaluate`. Default 50.")] = 50
    draw: Annotated[str, Option(text(), "As `evaluate`. Default without.", "without|with")] = "without"
    seed: Annotated[int, Option(whole(0), "Default 0.")] = 0
    workers: Annotated[int, Option(whole(), "Processes. Default 1.")] = field(default=1, compare=False)

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
        return {"protocol": "faithful", **asdict(self), "draws": DRAWS[self.draw], **sensitivity.stated()}


def in_order(run: Callable[[ScoredPrompts, int], _T], tasks: Iterable[tuple[ScoredPrompts, int]], workers: int) -> Iterator[_T]:
    """The results of all tasks in their order, a few of them at a time in threads (kernels hold no lock)."""
    if workers < 1:
        raise InvalidInput(setting("workers"), f"{workers} is not a whole number of at least 1")
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
    """Everything that is the same for all prompts. `epsilon` (M,); `needs` (M,): candidates that a prompt must have."""

    mechanisms: tuple[Mechanism, ...]
    sensitivity: Sensitivity
    delta: float
    with_replacement: bool
    replicates: int
    seed: int
    epsilon: Floats
    needs: NDArray[np.int64]

    @classmethod
    def of(cls, mechanisms: Sequence[Mechanism], sensitivity: Sensitivity, delta: float, draw: str, replicates: int, seed: int) -> _Plan:
        if not mechanisms:
            raise InvalidInput(setting("mechanisms"), "none given; name at least one")
        if draw not in DRAWS:
            raise InvalidInput(setting("draw"), f"{draw!r} is not one of {', '.join(DRAWS)}")
        if replicates < 2:
            raise InvalidInput(setting("replicates"), f"{replicates} is too few to tell their error; give at least 2")
        if not 0 <= seed <= LARGEST_SEED:
            raise InvalidInput(setting("seed"), f"{seed} is not a whole number from 0 to 2^62")
        for mechanism in mechanisms:
            if not isinstance(mechanism, (Base, BoN, PrivBoN, PrivBoNGaussian, *_TWO_PHASES)):
                raise InvalidInput(setting("mechanisms"), f"{mechanism.name} has no kernel; leave it out")
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
            np.array([_batch(mechanism) if with_replacement else mechanism.pool_size for mechanism in mechanisms]),
        )

    @property
    def drawn(self) -> int:
        """How many candidates are drawn in a replicate: batches for λ with replacement, all that a query may need without."""
        sizes = [mechanism.n for mechanism in self.mechanisms if isinstance(mechanism, _TWO_PHASES)]
        return max(sizes, default=0) if self.with_replacement else int(self.needs.max())

    @property
    def chunk(self) -> int:
        """How many prompts to do at a time: memory holds their draws."""
        return max(1, min(_CHUNK, _DRAWN // max(1, self.replicates * self.drawn)))

    def run(self, block: ScoredPrompts, first: int) -> tuple[Floats, Floats]:
        """The kernels' results (M, P, 8) on a block whose first prompt has number `first`, and its base (P,)."""
        pools = _Pools(block, first, self)
        out = np.empty((len(self.mechanisms), block.prompts, 8))
        for kind, members in self._groups().items():
            alike = [mechanism for _, mechanism in members]
            out[[number for number, _ in members]] = self._group(kind, alike, pools)
        out[self.needs[:, None] > block.counts] = math.nan
        return out, pools.means[:, kernels.GOLD].copy()

    def outcomes(self, results: Sequence[Floats], bases: Sequence[Floats], counts: NDArray[np.int64], skipped: int) -> Outcomes:
        """From the results of all tasks, in which a prompt has NaN for a mechanism that needs more candidates than it has.

        Args:
            counts: usable candidates of every prompt, those included that have too few for any mechanism.
        """
        having = (counts[:, None] >= self.needs).sum(axis=0)
        measured = having >= ENOUGH * max(1, (counts > 0).sum())
        if not measured.any():  # then what most prompts can serve
            measured = (self.needs == self.needs.min()) & (having > 0)
        if not measured.any():
            lacking = f"no prompt has the {self.needs.min()} usable candidates that one query needs (the most is {counts.max(initial=0)})"
            raise InvalidInput(setting("n_grid"), f"{lacking}; give smaller sizes")
        least = self.needs[measured].max()
        kept = counts[counts >= self.needs.min()] >= least
        merged, base = np.concatenate(results, axis=1)[:, kept], np.concatenate(bases)[kept]
        merged[~measured] = math.nan
        columns = {name: merged[:, :, column] for name, column in _COLUMNS.items()}
        one_phase = [not isinstance(mechanism, _TWO_PHASES) for mechanism in self.mechanisms]
        columns["halting"][one_phase] = math.nan
        left_out = {"candidates": skipped, "prompts": int(counts.size - base.size)}
        reasons = tuple(
            None if fits else lacks(int(need), int(able), counts.size)
            for fits, need, able in zip(measured, self.needs, having, strict=True)
        )
        spent = self._spent(merged)
        return Outcomes(self.mechanisms, **columns, epsilon_mean=spent, epsilon=self.epsilon, base=base, skipped=left_out, reasons=reasons)

    def _spent(self, results: Floats) -> Floats:
        """The expected realised cost on each prompt; (M, P)."""
        spent = results[:, :, kernels.COST]
        for m, mechanism in enumerate(self.mechanisms):
            if isinstance(mechanism, PrivITP) and not self.sensitivity.public:
                spent[m] += _phase_1(mechanism, self.sensitivity, self.delta)
            else:
                spent[m] = self.epsilon[m]
        return spent

    def _groups(self) -> dict[tuple[Any, ...], list[tuple[int, Mechanism]]]:
        """Mechanisms that one call of a kernel can do together, each with its number; ascending n within a group."""
        groups: dict[tuple[Any, ...], list[tuple[int, Mechanism]]] = {}
        for number, mechanism in enumerate(self.mechanisms):
            match mechanism:
                case PrivBoN(_, scale) | PrivBoNGaussian(_, scale):
                    kind: tuple[Any, ...] = (type(mechanism), scale)
                case PrivITP(_, _, beta, sigma_x, sigma_z, _):
                    kind = (PrivITP, beta, sigma_x, sigma_z)
                case ITP(_, _, beta) | ITPReuse(_, beta):
                    kind = (type(mechanism), beta)
                case _:
                    kind = (type(mechanism),)
            groups.setdefault(kind, []).append((number, mechanism))
        return {kind: sorted(members, key=lambda member: getattr(member[1], "n", 1)) for kind, members in groups.items()}

    def _group(self, kind: tuple[Any, ...], alike: Sequence[Any], pools: _Pools) -> Floats:
        """One group's results, shape (J, P, 8)."""
        ns, where = np.unique([getattr(mechanism, "n", 1) for mechanism in alike], return_inverse=True)
        if kind[0] is Base:
            return _padded(np.broadcast_to(pools.means, (len(alike), *pools.means.shape)))
        if kind[0] is BoN:
            return _padded(kernels.best_of(pools.offsets, pools.payoffs, ns, self.with_replacement))[where]
        if kind[0] in (PrivBoN, PrivBoNGaussian):
            return self._noisy_best(kind[0] is PrivBoN, kind[1], ns, pools)[where]
        lambdas = pools.thresholds(ns, kind[1])[where]
        if kind[0] is ITPReuse:
            return kernels.reuse(pools.offsets, pools.q, pools.payoffs, lambdas, ns[where], pools.draws)
        return self._rounds_with(kind, alike, lambdas, pools) if self.with_replacement else self._rounds_without(alike, lambdas, pools)

    def _noisy_best(self, gumbel: bool, scale: float, ns: NDArray[np.int64], pools: _Pools) -> Floats:
        """PrivBoN or PrivBoN-Gaussian."""
        if self.with_replacement:
            return _padded(kernels.noisy_best_with(pools.offsets, pools.q, pools.payoffs, scale, ns, gumbel))
        if gumbel:
            return kernels.softmax_without(pools.offsets, pools.q, pools.payoffs, scale, ns, pools.draws)
        return kernels.gaussian_without(pools.offsets, pools.q, pools.payoffs, scale, ns, pools.draws, self.seed, pools.numbers)

    def _rounds_with(self, kind: tuple[Any, ...], alike: Sequence[Any], lambdas: Floats, pools: _Pools) -> Floats:
        """ITP or PrivITP on draws with replacement."""
        caps, width = np.array([each.n2 for each in alike]), self.sensitivity.width
        if kind[0] is ITP:
            return kernels.itp_with(pools.offsets, pools.q, pools.payoffs, pools.means, lambdas, caps, width)
        _, beta, sigma_x, sigma_z = kind
        ceilings = tuple(width + sigma_z * each.tail for each in alike)
        points, centres, centre_weights, smoothing = _smoothing(beta, sigma_x, sigma_z, width, int(caps.max()))
        to_sums = _to_sums((*points.tolist(), *ceilings), sigma_z, width, points.size)
        prices = np.stack([_prices(each, self.sensitivity, int(caps.max())) for each in alike])
        return kernels.privitp_with(
            pools.offsets, pools.q, pools.payoffs, pools.means, lambdas, caps, np.array(ceilings), sigma_x, sigma_z, width,
            points, to_sums, centres, centre_weights, smoothing, prices,
        )  # fmt: skip

    def _rounds_without(self, alike: Sequence[ITP | PrivITP], lambdas: Floats, pools: _Pools) -> Floats:
        """ITP or PrivITP on draws without replacement; PrivITP with one λ̃ a replicate, its noise stratified over replicates."""
        first, width = alike[0], self.sensitivity.width
        noise, sigma_z, ceilings, prices = np.empty((0, 0)), 1.0, np.empty(0), np.empty((0, 0, 2))
        if isinstance(first, PrivITP):
            generators = [np.random.default_rng((self.seed, int(number))) for number in pools.numbers]
            strata = np.array([rng.permutation(self.replicates) + rng.random(self.replicates) for rng in generators])
            noise = first.sigma_x * ndtri(np.maximum(strata, 1e-300) / self.replicates)
            sigma_z, ceilings = first.sigma_z, np.array([width + first.sigma_z * each.tail for each in alike if isinstance(each, PrivITP)])
            prices = np.stack([_prices(each, self.sensitivity) for each in alike if isinstance(each, PrivITP)])
        ns, caps = (np.array([getattr(each, name) for each in alike]) for name in ("n", "n2"))
        return kernels.rounds_without(
            pools.offsets, pools.q, pools.payoffs, pools.means, lambdas, ns, caps, ceilings, width, sigma_z,
            noise, threshold_grid(first.beta, width), prices, pools.draws,
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
    """One block as the kernels read it, with the draws and thresholds that several mechanisms share."""

    def __init__(self, block: ScoredPrompts, first: int, plan: _Plan) -> None:
        scale, width = plan.sensitivity.range, plan.sensitivity.width
        self.offsets = block.offsets
        self.q, self.payoffs, self.means = kernels.prepare(block.offsets, block.rewards, block.gold, scale.low, scale.high, width)
        self.numbers = np.arange(first, first + block.prompts)
        self._plan = plan
        self._thresholds: dict[tuple[Any, ...], Floats] = {}

    @cached_property
    def draws(self) -> NDArray[np.int32]:
        """Positions of candidates that are drawn one after the other, (P, replicates, as many as a query draws)."""
        plan = self._plan
        if plan.with_replacement:
            return kernels.draws_with(self.offsets, plan.drawn, plan.replicates, plan.seed, self.numbers)
        length = min(plan.drawn, int(np.diff(self.offsets).max()))
        return kernels.draws_without(self.offsets, length, plan.replicates, plan.seed, self.numbers)

    def thresholds(self, ns: NDArray[np.int64], beta: float) -> Floats:
        """λ of the first n draws; (J, P, replicates)."""
        key = (beta, *ns.tolist())
        if key not in self._thresholds:
            self._thresholds[key] = kernels.thresholds(self.offsets, self.q, ns, beta, self.draws)
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
