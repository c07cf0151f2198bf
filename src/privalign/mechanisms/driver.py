"""Runs a mechanism over rewards that are already in memory: recorded pools, seeded simulations, tests."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from privalign.errors import BackendFailed, InvalidInput, PrivalignError
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
        InvalidInput: the pool is too small, or a setting is refused. InvalidRewards: a score is not a finite number.
        BackendFailed: anything else that goes wrong on the way. No error leads to a score, not by its traceback either.
    """
    if len(rewards) < mechanism.pool_size:
        raise InvalidInput("responses", f"{len(rewards)} candidates where {mechanism.name} needs {mechanism.pool_size}")
    try:
        return _drive(mechanism.run(sensitivity, noise), rewards)
    except BaseException as error:
        failure = _without_scores(error)
    del rewards
    raise failure  # here, where no other exception is its context


def _drive(run: Run, rewards: Pool) -> Selection:
    drawn, chunk = 0, None
    while True:
        try:
            request = run.send(chunk)  # type: ignore[arg-type]  # the first send of a generator is None
        except StopIteration as stop:
            selection: Selection = stop.value
            return selection
        chunk = rewards[drawn : drawn + request.most]
        drawn += request.most


def _without_scores(error: BaseException) -> BaseException:
    """The error as it may leave: frames that held scores are emptied, and a message that is not privalign's own is not passed on."""
    traceback.clear_frames(error.__traceback__)
    if isinstance(error, Exception) and not isinstance(error, PrivalignError):
        return BackendFailed(f"the selection failed ({type(error).__name__}); nothing was released")
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)
