"""The comparison that the paper authors' published scripts make, for numbers that can be laid beside theirs.

One pool for both phases, rewards as z-scores over the whole file, M from the data: it is not Algorithm 2, and none of it is a
private mechanism. What is computed: docs/evaluate.md, protocol `authors`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from privalign.candidates.scored import ScoredPrompts
from privalign.errors import InvalidInput, setting
from privalign.evaluation import kernels
from privalign.evaluation.outcomes import ENOUGH, LARGEST_SEED, PAIRED, in_order, lacks, over, recovered
from privalign.evaluation.outcomes import numbers as as_numbers

Floats = NDArray[np.float64]

NOT_PRIVATE: Final = "not a private mechanism: one pool for both phases, and settings taken from the rewards"
MECHANISMS: Final = ("bon", "privbon", "itp", "privitp")
SIGMA: Final = 1.0  # the authors' settings, in units of the standard deviation of rewards
BETA: Final = 0.05
REPLICATES: Final = 50
NOISE_DRAWS: Final = 150
_TABLE: Final = 1 << 20  # normals in the table that noise is read from, or four times what one replicate reads
_COMPARED: Final = ("base", *MECHANISMS)
_CHUNK: Final = 64  # most prompts of one task


def compare(
    read: Callable[[], Iterable[ScoredPrompts]],
    n_grid: Sequence[int],
    *,
    mechanisms: Sequence[str] = MECHANISMS,
    scale: float = SIGMA,
    beta: float = BETA,
    sigma_phase: float | None = None,
    replicates: int = REPLICATES,
    noise_draws: int = NOISE_DRAWS,
    seed: int = 0,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows, in the units of `evaluate`, and facts about the file.

    BoN over draws without replacement is exact; the other three average `replicates` nested samples, PrivITP `noise_draws` noise
    vectors in each. `true_se` and `lift_se_pp` are population standard deviations over prompts / √prompts, as the scripts print
    them: the lift is against one constant, the mean gold of the file. `proxy_mean` is a z-score; the win rates count a fallback
    as a base draw, ½.

    Args:
        read: makes a pass over the file; called twice, first for the mean and deviation of all rewards.
        scale: σ of PrivBoN. sigma_phase: noise of PrivITP's two phases, σ/2 unless given.

    Raises:
        InvalidInput: a setting is out of range, or no prompt has enough candidates, or all rewards are equal.
    """
    sigma_phase = scale / 2 if sigma_phase is None else sigma_phase
    for field, value in ((setting("scale"), scale), (setting("beta"), beta), (setting("sigma_x"), sigma_phase)):
        if not (math.isfinite(value) and value > 0):
            raise InvalidInput(field, f"{value} is not a finite number above 0")
    for name in mechanisms:
        if name not in _COMPARED:
            raise InvalidInput(setting("mechanisms"), f"{name!r} is not one of {', '.join(_COMPARED)}, which protocol authors compares")
    if any(after <= before for before, after in pairwise((0, *n_grid))):
        raise InvalidInput(setting("n_grid"), f"{', '.join(map(str, n_grid))} does not rise from at least 1; samples are nested")
    if replicates < 2:
        raise InvalidInput(setting("replicates"), f"{replicates} is too few to tell their error; give at least 2")
    if not 0 <= seed <= LARGEST_SEED:
        raise InvalidInput(setting("seed"), f"{seed} is not a whole number from 0 to 2^62")
    moments = _Moments.of(read())
    able = [int((moments.counts >= n).sum()) for n in n_grid]
    fitting = [n for n, count in zip(n_grid, able, strict=True) if count >= ENOUGH * moments.counts.size] or [n_grid[0]]
    ns, least = np.array(fitting, np.int64), int(max(fitting))
    size = max(_TABLE, 4 * (least + 1) * noise_draws)
    normals = np.random.default_rng(seed).standard_normal(size, dtype=np.float32)
    base = np.array([moments.gold, 0.0, 0.5, 0.5])
    prompts = candidates = 0

    def run(block: ScoredPrompts, first: int) -> Floats:
        z = (block.rewards - moments.mean) / moments.deviation
        low, high = z.min(), z.max()  # every rule here depends on differences of rewards only
        q, payoffs, means = kernels.prepare(block.offsets, z, block.gold, low, high, high - low)
        numbers = np.arange(first, first + block.prompts)
        best = kernels.best_of(block.offsets, payoffs, ns, False)
        sampled = kernels.authors_comparison(
            block.offsets, q, payoffs, base, ns, scale, beta, sigma_phase, normals, noise_draws, replicates, seed, numbers
        )
        plain = np.broadcast_to(means, best.shape)  # the base policy
        exact = np.stack([np.concatenate([each, np.zeros_like(best)], axis=2) for each in (plain, best)])
        return np.concatenate([exact, sampled])

    def tasks() -> Iterator[tuple[ScoredPrompts, int]]:
        nonlocal candidates, prompts
        first = 0
        for block in read():
            enough = block.counts >= least
            candidates += block.skipped
            prompts += int((~enough).sum())
            kept = block.take(enough)
            for start in range(0, kept.prompts, _CHUNK):
                part = kept.take(np.arange(start, min(start + _CHUNK, kept.prompts)))
                yield part, first
                first += part.prompts

    results, done = [], 0
    for result in in_order(run, tasks(), workers):
        results.append(result)
        done += result.shape[2]
        if progress is not None:
            progress(done)
    if not results:
        most = moments.counts.max(initial=0)
        lacking = f"no prompt has the {least} usable candidates that one query needs (the most is {most})"
        raise InvalidInput(setting("n_grid"), f"{lacking}; give smaller sizes")
    table = np.concatenate(results, axis=2)
    missing = np.full((len(_COMPARED), len(n_grid) - len(fitting), *table.shape[2:]), math.nan)  # sizes rise: those are the largest
    table = np.concatenate([table, missing], axis=1)
    reasons = [None if n in fitting else lacks(n, count, moments.counts.size) for n, count in zip(n_grid, able, strict=True)]
    rows = [
        _row(name, n, table[_COMPARED.index(name), j], moments.gold) | {"reason": reason} | _pairs(name, table[:, j], moments.gold)
        for name in mechanisms
        for j, (n, reason) in enumerate([(1, None)] if name == "base" else zip(n_grid, reasons, strict=True))
    ]
    return rows, {"base_gold": moments.gold, "prompts": table.shape[2], "skipped": {"candidates": candidates, "prompts": prompts}}


class _Moments:
    """Mean and population standard deviation of all rewards, and the mean gold, of one pass (pairwise merging of blocks)."""

    def __init__(self, count: int, mean: float, squares: float, gold: float, counts: NDArray[np.int64]) -> None:
        self.mean, self.gold = mean, gold
        self.counts = counts  # usable candidates of each prompt that has any
        self.deviation = math.sqrt(squares / count)

    @classmethod
    def of(cls, blocks: Iterable[ScoredPrompts]) -> _Moments:
        count, mean, squares, gold = 0, 0.0, 0.0, 0.0
        lowest, highest = math.inf, -math.inf
        counts = [np.empty(0, np.int64)]
        for block in blocks:
            counts.append(block.counts[block.counts > 0])
            fresh = len(block.rewards)
            if not fresh:
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                centre = float(block.rewards.mean())
                within = float(((block.rewards - centre) ** 2).sum())
            both = count + fresh
            squares += within + (centre - mean) * (centre - mean) * count * fresh / both
            mean += (centre - mean) * fresh / both
            gold += (float(block.gold.mean()) - gold) * fresh / both
            count = both
            lowest, highest = min(lowest, float(block.rewards.min())), max(highest, float(block.rewards.max()))
        if not (lowest < highest and math.isfinite(squares)):  # rounding may leave equal rewards a deviation
            raise InvalidInput("file", "its rewards are all equal or too large, or none is usable; z-scores need rewards that differ")
        return cls(count, mean, squares, gold, np.concatenate(counts))


def _row(name: str, n: int, outcome: Floats, base: float) -> dict[str, Any]:
    """One mechanism and size from its results (P, 8)."""
    true, rounds = outcome[:, kernels.GOLD], name in ("itp", "privitp")
    row = {
        "true_mean": true.mean(),
        "true_se": _error(true),
        "lift_pp": 100 * (true.mean() - base),
        "lift_se_pp": 100 * _error(true),
        "mc_se_pp": 100 * math.sqrt(outcome[:, kernels.VARIANCE].sum()) / outcome.shape[0],
    }
    columns = {"proxy_mean": kernels.PROXY, "win_rate": kernels.WIN, "gold_win_rate": kernels.GOLD_WIN, "fallback_rate": kernels.FALLBACK}
    for key, column in (columns | {"halting_mean": kernels.HALTING}).items():
        row[key] = outcome[:, column].mean() if rounds or key != "halting_mean" else math.nan
        row[f"{key.removesuffix('_mean')}_se"] = _error(outcome[:, column]) if rounds or key != "halting_mean" else math.nan
        if key == "proxy_mean":
            row["gap_se"] = math.nan  # of other units
    return {"mechanism": name, "n": n, **as_numbers(row), "epsilon": None, "epsilon_mean": None}


def _pairs(name: str, outcomes: Floats, base: float) -> dict[str, float | None]:
    """A mechanism beside PrivBoN and ITP on the same prompts; `outcomes` (M, P, 8) at one size."""
    found: dict[str, float | None] = dict.fromkeys(PAIRED)
    true = dict(zip(_COMPARED, outcomes[:, :, kernels.GOLD], strict=True))
    if name not in ("base", "privbon"):
        found |= over(true[name], true["privbon"], _error)
    if name not in ("base", "itp"):
        found |= recovered(true[name] - base, true["itp"] - base, _error)
    return found


def _error(values: Floats) -> float:
    """The population standard deviation over √prompts, as the scripts have it."""
    return float(values.std() / math.sqrt(values.size))
