"""The paper's full grid on synthetic scores: 2,019 prompts × 10,000 candidates × n = 1 … 2,048 × 4 mechanisms × 4 reward models.

    python benchmarks/full_grid.py --fraction 0.05 --workers 2

prints the time, peak memory and largest Monte-Carlo error, and what they come to for the whole grid: time is linear in prompts,
the error falls with their square root. Goal: ≤ 10 minutes, ≤ 6 GB and `mc_se_pp` ≤ 0.15 on 2 cores.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator

import numpy as np

from privalign.acceptance import default_tail
from privalign.candidates.scored import ScoredPrompts
from privalign.evaluation.outcomes import measure
from privalign.mechanisms.bon import BoN
from privalign.mechanisms.itp import ITP
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privitp import PrivITP
from privalign.sensitivity import RewardRange, Sensitivity

PROMPTS, CANDIDATES, MODELS, SIZES = 2019, 10_000, 4, tuple(2**k for k in range(12))
BLOCK = 50  # prompts


def blocks(prompts: int, model: int) -> Iterator[ScoredPrompts]:
    """Binary gold of varying difficulty; rewards in [0, 1] that follow it more or less, by reward model."""
    rng = np.random.default_rng(model)
    for start in range(0, prompts, BLOCK):
        count = min(BLOCK, prompts - start)
        level = rng.beta(0.8, 1.2, (count, 1))
        gold = (rng.random((count, CANDIDATES)) < level).astype(np.float64)
        rewards = 0.3 + (0.1 + 0.05 * model) * gold + 0.2 * level + 0.12 * rng.standard_normal((count, CANDIDATES))
        yield ScoredPrompts(np.arange(count + 1) * CANDIDATES, rewards.ravel(), gold.ravel())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fraction", type=float, default=1.0, help="of the prompts")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--replicates", type=int, default=50)
    arguments = parser.parse_args()
    prompts = max(2, round(PROMPTS * arguments.fraction))
    sensitivity = Sensitivity.of_range(RewardRange(0.0, 1.0))
    rules = [rule for n in SIZES for rule in (BoN(n), PrivBoN(n, 0.2), ITP(n, n, 0.05), PrivITP(n, n, 0.05, 0.25, 0.25, default_tail(n)))]
    started, worst, making = time.perf_counter(), 0.0, 0.0
    for model in range(MODELS):
        begun = time.perf_counter()
        outcomes = measure(
            blocks(prompts, model), rules, sensitivity.range, sensitivity, replicates=arguments.replicates, workers=arguments.workers
        )
        worst = max(worst, *(row["mc_se_pp"] for row in outcomes.rows()))
        print(f"reward model {model}: {time.perf_counter() - begun:.1f} s", flush=True)
        if model == 0:
            making = time.perf_counter() - begun  # compiling, worst-case prices and the first reward model
    seconds = time.perf_counter() - started
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{prompts} prompts: {seconds:.1f} s with the making of scores, {memory:.2f} GiB, mc_se_pp at most {worst:.4f}")
    steady = (seconds - making) / (MODELS - 1) * MODELS
    scale = PROMPTS / prompts
    print(f"the whole grid: {(steady * scale + making) / 60:.1f} minutes, mc_se_pp about {worst / scale**0.5:.4f}")


if __name__ == "__main__":
    main()
