"""How many scores are wanted, and that all that fit are handed over at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privalign.aligner.steps import Steps
from privalign.events import Free
from privalign.mechanisms.base import Base
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privitp import PrivITP
from privalign.mechanisms.protocol import Draw, Run, Selection
from privalign.randomness import SeededRandomness
from privalign.sensitivity import RewardRange, Sensitivity

SENSITIVITY = Sensitivity(0.05, RewardRange(0.0, 1.0))
NOISE = SeededRandomness(0)


@dataclass
class Script:
    """Asks as told and keeps what it was sent."""

    draws: list[Draw]
    name = "script"
    pool_size = 100

    def __post_init__(self) -> None:
        self.sent: list[Any] = []

    def event(self, sensitivity: Sensitivity) -> Any:
        return Free()

    def run(self, sensitivity: Sensitivity, noise: Any) -> Run:
        for draw in self.draws:
            self.sent.append((yield draw))
        return Selection(0, Free())


def played(mechanism: Any, chunk: int, most: int = 1000) -> list[int]:
    """The sizes of all batches."""
    steps, sizes, next_score = Steps(mechanism, SENSITIVITY, NOISE, chunk), [], 0
    while wanted := steps.wanted:
        sizes.append(wanted)
        steps.take(np.arange(next_score, next_score + wanted, dtype=np.float64) * 0.0)
        next_score += wanted
        assert len(sizes) < most
    return sizes


def test_a_mechanism_that_reads_nothing_wants_nothing() -> None:
    steps = Steps(Base(), SENSITIVITY, NOISE, 8)
    assert steps.wanted == 0
    assert steps.selection.index == 0


@pytest.mark.parametrize("chunk", [1, 4, 8, 100])
def test_one_batch_is_what_it_is_whatever_the_chunk(chunk: int) -> None:
    assert played(PrivBoN(16, 0.3), chunk) == [16]


@pytest.mark.parametrize(("n", "n2", "chunk"), [(4, 6, 2), (16, 16, 8), (4, 5, 1), (3, 7, 100), (16, 20, 8)])
def test_the_first_chunk_of_phase_2_comes_with_phase_1_and_the_fallback_never(n: int, n2: int, chunk: int) -> None:
    mechanism = PrivITP(n=n, n2=n2, beta=0.05, sigma_x=0.2, sigma_z=0.2, tail=3.0)
    seen = set()
    for _ in range(30):
        first, *later = played(mechanism, chunk)
        assert first == n + min(chunk, n2)
        assert all(size == chunk for size in later[:-1])
        assert first + sum(later) <= n + n2
        if later:
            assert later[-1] == min(chunk, n2 - (first - n) - sum(later[:-1]))
        seen.add(len(later))
    assert len(seen) > 1 or chunk >= n2


draws = st.builds(lambda least, more, ahead: Draw(least, least + more, ahead), st.integers(1, 6), st.integers(0, 12), st.integers(0, 6))


@given(st.lists(draws, min_size=1, max_size=6), st.integers(1, 9))
def test_every_score_arrives_once_in_order_and_as_many_at_once_as_may(asked: list[Draw], chunk: int) -> None:
    script = Script(asked)
    steps, given_out = Steps(script, SENSITIVITY, NOISE, chunk), 0
    while wanted := steps.wanted:
        steps.take(np.arange(given_out, given_out + wanted, dtype=np.float64))
        given_out += wanted
    received = [len(rewards) for rewards in script.sent]
    assert np.concatenate(script.sent).tolist() == list(range(sum(received)))
    for draw, size in zip(asked, received, strict=True):
        assert draw.least <= size <= draw.most


class Stubborn(Script):
    def run(self, sensitivity: Sensitivity, noise: Any) -> Run:
        kept = yield Draw(2, 2)
        try:
            yield Draw(5, 5)
        finally:
            raise RuntimeError(kept)


@pytest.mark.parametrize("mechanism", [Script([Draw(2, 2), Draw(5, 5)]), Stubborn([])], ids=lambda mechanism: type(mechanism).__name__)
def test_what_is_forgotten_is_in_no_frame_of_the_mechanism(mechanism: Script) -> None:
    steps = Steps(mechanism, SENSITIVITY, NOISE, 1)
    steps.take(np.zeros(2))
    run = steps._run
    steps.forget()
    assert run.gi_frame is None  # and with it all that it held
    assert len(steps._unused) == 0
    assert steps.wanted == 0
    assert "_run" not in vars(steps)
