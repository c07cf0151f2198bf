"""Runs a mechanism over rewards that are already in memory: recorded pools, seeded simulations, tests."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from privalign.errors import InvalidInput
from privalign.mechanisms.protocol import Mechanism, Selection
from privalign.randomness import Randomness
from privalign.sensitivity import Sensitivity


def select_from_pool(mechanism: Mechanism, sensitivity: Sensitivity, noise: Randomness, rewards: ArrayLike) -> Selection:
    """Selects from a pool in which candidates lie in the order in which they would have been drawn.

    Args:
        rewards: at least `mechanism.pool_size` scores in the reward model's own units, shape (N,). The score of a
            fallback or base candidate is never looked at.

    Raises:
        InvalidInput: the pool is too small. InvalidRewards: a score is not a finite number.
    """
    pool = np.asarray(rewards)
    if len(pool) < mechanism.pool_size:
        raise InvalidInput("responses", f"{len(pool)} candidates where {mechanism.name} needs {mechanism.pool_size}")
    run = mechanism.run(sensitivity, noise)
    drawn = 0
    try:
        request = next(run)
        while True:
            chunk = pool[drawn : drawn + request.most]
            drawn += request.most
            request = run.send(chunk)
    except StopIteration as stop:
        selection: Selection = stop.value
        return selection
