"""Runs a mechanism over rewards that are already in memory: recorded pools, seeded simulations, tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from privalign.errors import InvalidInput
from privalign.mechanisms.protocol import Mechanism, Selection
from privalign.randomness import Randomness
from privalign.sensitivity import Sensitivity

Pool = Sequence[float] | NDArray[Any]


def select_from_pool(mechanism: Mechanism, sensitivity: Sensitivity, noise: Randomness, rewards: Pool) -> Selection:
    """Selects from a pool in which candidates lie in the order in which they would have been drawn.

    Args:
        rewards: at least `mechanism.pool_size` scores in the reward model's own units, shape (N,). The score of a
            fallback or base candidate is never looked at.

    Raises:
        InvalidInput: the pool is too small. InvalidRewards: a score is not a finite number.
    """
    if len(rewards) < mechanism.pool_size:
        raise InvalidInput("responses", f"{len(rewards)} candidates where {mechanism.name} needs {mechanism.pool_size}")
    run = mechanism.run(sensitivity, noise)
    drawn = 0
    try:
        request = next(run)
        while True:
            chunk = rewards[drawn : drawn + request.most]
            drawn += request.most
            request = run.send(chunk)
    except StopIteration as stop:
        selection: Selection = stop.value
        return selection
