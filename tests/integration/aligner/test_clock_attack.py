"""An attack on the clock: two neighbouring worlds, told apart by when answers come and by what they took.

An event (answers that took longer, or less long, than a threshold, among those with a given halting time) is chosen on one half
of the answers; on the other half its two probabilities are bounded by Clopper and Pearson, jointly at 99.9 %. What their ratio
certainly exceeds may not be above e^ε of the request: a false alarm has probability 10⁻³ in each setting.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta

from privalign.acceptance import default_tail
from privalign.accounting import costs
from privalign.mechanisms.privitp import PrivITP
from privalign.sensitivity import RewardRange, Sensitivity

WORKER = Path(__file__).with_name("clock_worker.py")
REQUESTS = int(os.environ.get("PRIVALIGN_ATTACK_REQUESTS", "2000"))  # a world
OLD_REQUESTS = 600  # a world; enough for the old sampler
CONFIDENCE = 0.999
PHASE_1_DELTA = 1e-6
Sample = tuple[int, float, int]


@dataclass(frozen=True)
class Event:
    """Answers of `world` are thought likelier to be in it than the other world's."""

    world: int
    slower: bool
    seconds: float
    drawn: int | None  # None: whatever it took

    def holds(self, sample: Sample) -> bool:
        _, seconds, drawn = sample
        return (self.drawn is None or drawn == self.drawn) and (seconds > self.seconds) == self.slower

    def epsilon(self, samples: Sequence[Sample], confidence: float) -> float:
        """A lower bound on ε: log of what the probability of the event grows by at least, given δ of phase 1."""
        inside = [[self.holds(sample) for sample in samples if sample[0] == world] for world in (self.world, 1 - self.world)]
        (here, n), (there, m) = ((sum(hits), len(hits)) for hits in inside)
        error = (1 - confidence) / 2
        low = float(beta.ppf(error, here, n - here + 1)) if here else 0.0
        high = float(beta.ppf(1 - error, there + 1, m - there)) if there < m else 1.0
        return math.log((low - PHASE_1_DELTA) / high) if low > PHASE_1_DELTA else -math.inf


def likeliest(samples: Sequence[Sample]) -> Event:
    """The event that tells most of these samples apart."""
    halts: list[int | None] = [None, *sorted({drawn for _, _, drawn in samples})]
    thresholds = np.quantile([seconds for _, seconds, _ in samples], np.linspace(0, 1, 81))
    events = [
        Event(world, slower, float(seconds), drawn)
        for world in (0, 1)
        for slower in (True, False)
        for seconds in (-math.inf, *thresholds)
        for drawn in halts
    ]
    return max(events, key=lambda event: event.epsilon(samples, 0.9))


def attack(samples: Sequence[Sample]) -> tuple[float, Event, list[Sample]]:
    """The bound, the event, and the half on which it was judged; halves by chance, so that load that comes and goes meets both."""
    shuffled = random.Random(0).sample(samples, len(samples))
    event, judged = likeliest(shuffled[: len(samples) // 2]), shuffled[len(samples) // 2 :]
    return event.epsilon(judged, CONFIDENCE), event, judged


def answers(**settings: Any) -> list[Sample]:
    run = subprocess.run([sys.executable, str(WORKER), json.dumps(settings)], capture_output=True, text=True, timeout=6000)
    assert run.returncode == 0, run.stderr
    return [tuple(sample) for sample in json.loads(run.stdout)]


def printed(n2: int) -> float:
    """ε of a request."""
    mechanism = PrivITP(n=16, n2=n2, beta=0.05, sigma_x=0.1, sigma_z=0.1, tail=default_tail(n2))
    return costs.epsilon(mechanism.event(Sensitivity(1e-4, RewardRange(0.0, 1.0))), PHASE_1_DELTA)


def told(way: str, n2: int, samples: Sequence[Sample]) -> tuple[float, str]:
    """The bound, and the attack in a line."""
    bound, event, judged = attack(samples)
    means = [np.mean([seconds for world, seconds, _ in samples if world == one]) * 1e3 for one in (0, 1)]
    counts = [[event.holds(sample) for sample in judged if sample[0] == one] for one in (event.world, 1 - event.world)]
    inside = " against ".join(f"{sum(hits)} of {len(hits)}" for hits in counts)
    facts = f"{means[0]:.2f} and {means[1]:.2f} ms; {inside} in {event}"
    return bound, f"{way}, n2 = {n2}: {facts}: ε ≥ {bound:.3f} where {printed(n2):.3f} is printed"


def test_the_attack_finds_what_is_there_and_nothing_else() -> None:
    dice = np.random.default_rng(0)
    worlds, halts = dice.integers(0, 2, 2000).tolist(), dice.integers(0, 3, 2000).tolist()
    noise = dice.lognormal(size=2000)
    same = list(zip(worlds, noise.tolist(), halts, strict=True))
    assert attack(same)[0] < 0.2
    slower = [(world, seconds + 0.5 * world, halt) for world, seconds, halt in same]
    assert attack(slower)[0] > 1.0
    sooner_at_2 = [(world, seconds - (world == 0 and halt == 2) * 1.0, halt) for world, seconds, halt in same]
    bound, event, _ = attack(sooner_at_2)
    assert bound > 1.0
    assert (event.world, event.slower) == (0, False)
    other_halts = [(world, seconds, 7 if world == 1 and halt == 0 else halt) for world, seconds, halt in same]
    assert attack(other_halts)[0] > 2.0


@pytest.mark.soak
@pytest.mark.statistical
@pytest.mark.parametrize("way", ["library", "http"])
@pytest.mark.parametrize("n2", [16, 128, 512])
def test_the_clock_tells_no_more_than_the_answers(way: str, n2: int) -> None:
    samples = answers(way=way, n2=n2, requests=REQUESTS, at_once=4, old=False)
    assert len(samples) == 2 * REQUESTS
    bound, facts = told(way, n2, samples)
    print(f"\n{facts}")
    assert bound <= printed(n2)


@pytest.mark.soak
@pytest.mark.statistical
@pytest.mark.parametrize("way", ["library", "http"])
def test_the_old_sampler_is_caught(way: str) -> None:
    samples = answers(way=way, n2=512, requests=OLD_REQUESTS, at_once=1, old=True)
    bound, facts = told(way, 512, samples)
    print(f"\nthe old sampler, {facts}")
    assert bound > printed(512)
