"""Runs a mechanism over rewards that are already in memory: recorded pools, seeded simulations, tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from privalign.errors import InvalidInput, bare
from privalign.mechanisms.protocol import Mechanism, Run, Selection
from privalign.randomness import Randomness
from privalign.sensitivity import Sensitivity

Pool = Sequence[float] | NDArray[Any]


def select_from_pool(mechanism: Mechanism, sensitivity: Sensitivity, noise: Randomness, rewards: Pool) -> Selection:
    """Selects from a pool in which candidates lie in the order in which they would have been drawn.

    Args:
        rewards: at least `mechanism.pool_size` scores in the reward model's own units, shape (N,). The score of a
            fallback or base candidate is never looked at.

    Raises:
        InvalidInput: the pool is too small. InvalidRewards: a score is not a finite number. RuntimeError: the mechanism or the noise
            failed; what they raise passes as it is with seeded noise only, whose selection is not private.
    """
    if len(rewards) < mechanism.pool_size:
        raise InvalidInput("responses", f"{len(rewards)} candidates where {mechanism.name} needs {mechanism.pool_size}")
    if not noise.private:
        return _driven(mechanism.run(sensitivity, noise), rewards)
    try:
        return _driven(mechanism.run(sensitivity, noise), rewards)
    except BaseException as failure:
        error = bare(failure)
    del rewards
    raise error  # out of the handler and of all frames that hold rewards


def _driven(run: Run, rewards: Pool) -> Selection:
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
