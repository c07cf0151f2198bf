"""How many queries of PrivITP a budget answers under each rule, on a public example pool: `python scripts/streams.py`.

The pool: y ~ Bernoulli(.3), r = clip(.35 + .25y + .12z, 0, 1), z ~ N(0, 1), 200,000 draws. Rewards and noise are simulated
from a seed, so nothing here is a private release; charges are those of real events, by the rules of real accounts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privalign.accounting.rules import Basic, Debit, Fsrc, Renyi, Rule, TwoCounter
from privalign.events import Event
from privalign.mechanisms.driver import select_from_pool
from privalign.mechanisms.privitp import PrivITP
from privalign.randomness import SeededRandomness
from privalign.sensitivity import RewardRange, Sensitivity

QUERIES_AT_MOST = 100_000


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table: Δ, total noise σ (σ_X = σ_Z = σ/2) and the budget of the stream."""

    sensitivity: float
    noise: float
    epsilon: float
    delta: float


SETTINGS = (Setting(0.1, 0.5, 50.0, 1e-2), Setting(0.01, 0.2, 50.0, 1e-2), Setting(0.01, 0.2, 8.0, 1e-5))


def example_pool(seed: int = 0) -> NDArray[np.float64]:
    """The rewards of the example pool, shape (200000,)."""
    rng = np.random.default_rng(seed)
    good = rng.random(200_000) < 0.3
    return np.clip(0.35 + 0.25 * good + 0.12 * rng.standard_normal(200_000), 0.0, 1.0)


def mechanism(setting: Setting) -> PrivITP:
    """PrivITP at n = 16, β = 0.05, L = 3."""
    return PrivITP(n=16, n2=16, beta=0.05, sigma_x=setting.noise / 2, sigma_z=setting.noise / 2, tail=3.0)


def rules(setting: Setting, worst: Event) -> tuple[Rule, ...]:
    """Each rule with its default parameters for this budget and this mechanism."""
    epsilon, delta = setting.epsilon, setting.delta
    return (
        Basic(epsilon, delta, delta / 10_000),
        Fsrc(epsilon, delta, delta / 10_000),
        TwoCounter.halved(epsilon, delta),
        Renyi.default(epsilon, delta, worst),
    )


def outcomes(setting: Setting, pool: NDArray[np.float64], seed: int = 0) -> Iterator[Event]:
    """The realised events of an endless stream of queries on fresh draws from the pool."""
    rng, noise = np.random.default_rng(seed), SeededRandomness(seed)
    rule, sensitivity = mechanism(setting), Sensitivity(setting.sensitivity, RewardRange(0.0, 1.0))
    while True:
        yield select_from_pool(rule, sensitivity, noise, rng.choice(pool, rule.pool_size)).realised


def answered(rule: Rule, worst: Event, stream: Iterator[Event]) -> int:
    """How many queries fit: each reserves its worst case and settles at what it realised."""
    reserve, debited = rule.charge(worst), Debit()
    for count, realised in enumerate(stream):
        if not (debited + reserve).fits(rule.limit) or count == QUERIES_AT_MOST:
            return count
        debited += rule.charge(realised).at_most(reserve)
    raise AssertionError("the stream is endless")


def table() -> Iterator[tuple[Setting, dict[str, int]]]:
    """Answered queries per rule, a setting at a time."""
    pool = example_pool()
    for setting in SETTINGS:
        worst = mechanism(setting).event(Sensitivity(setting.sensitivity, RewardRange(0.0, 1.0)))
        yield setting, {rule.name: answered(rule, worst, outcomes(setting, pool)) for rule in rules(setting, worst)}


def main() -> None:
    """Prints the table as Markdown."""
    sys.stdout.write("Simulated rewards and seeded noise: not a private release.\n\n")
    sys.stdout.write("| Δ | σ | ε | δ | basic | fsrc | two-counter | renyi |\n|---|---|---|---|---|---|---|---|\n")
    for setting, counts in table():
        budget = f"| {setting.sensitivity:g} | {setting.noise:g} | {setting.epsilon:g} | {setting.delta:g} |"
        sys.stdout.write(budget + "".join(f" {count:,} |" for count in counts.values()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
