"""The same lines and the same digits for all scores: what the time of a selection could tell, it does not know.

Every line of privalign that a selection runs is counted, in its order, and so is every digit that it draws. The old
samplers, whose work followed the scores, are kept here in small: they fail the same check.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np
import pytest
from flint import arb
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import privalign
from privalign import randomness
from privalign.acceptance import AcceptanceCurve
from privalign.intervals import at_precision
from privalign.mechanisms.normaliser import descending, normaliser
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privbon_gaussian import PrivBoNGaussian
from privalign.mechanisms.privitp import PrivITP, PrivITPPhase2
from privalign.mechanisms.protocol import Mechanism
from privalign.randomness import SecureRandomness, continued
from privalign.sensitivity import RewardRange, Sensitivity

Floats = NDArray[np.float64]
FILES = (os.path.dirname(privalign.__file__), __file__)
SENSITIVITY = Sensitivity(0.1, RewardRange(-1.0, 2.0))
N = 7


@dataclass
class Counting(SecureRandomness):
    """Draws the digits of a seed, the same for all scores, or real ones; counts them."""

    seed: int | None = None
    drawn: list[int] = field(default_factory=list)

    def _bits(self, count: int) -> int:
        self.drawn.append(count)
        if self.seed is None:
            return secrets.randbits(count)
        stream = hashlib.shake_256(f"{self.seed}, {len(self.drawn)}".encode()).digest(count // 8)
        return int.from_bytes(stream, "big")


def lines(work: Callable[[], object]) -> str:
    """A digest of the lines that the work runs, in their order."""
    digest = hashlib.sha256()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(FILES) or frame.f_code.co_name in ("_bits", "chunk_of"):
            return None
        if event == "line":
            digest.update(f"{name}:{frame.f_lineno};".encode())
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return digest.hexdigest()


Trace = tuple[str, tuple[int, ...]]


def step(mechanism: Mechanism, scores: Any, seed: int | None) -> Trace:
    """The first step of a mechanism: from the scores that it asked for to what it decides on them."""
    noise = Counting(seed)
    run = mechanism.run(SENSITIVITY, noise)
    next(run)

    def work() -> None:
        with contextlib.suppress(StopIteration):
            run.send(scores)

    return lines(work), tuple(noise.drawn)


near = st.integers(-3, 3).map(lambda k: 0.5 + k * 2.0**-53)
reward = st.floats(-3, 3) | st.sampled_from([-1.0, 2.0, 0.0, -1e300, 1e300, 5e-324, 0.1]) | near
anything = st.lists(reward, min_size=N, max_size=N)
shaped = st.builds(
    lambda scores, how: how(scores), anything, st.sampled_from([sorted, list, lambda s: sorted(s, reverse=True), lambda s: [s[0]] * N])
)
seeds = st.none() | st.integers(0, 2**32)

ONE_PHASE: dict[str, Mechanism] = {
    **{f"privbon {scale}": PrivBoN(N, scale) for scale in (1e-100, 1e-17, 0.2, 1e20)},
    **{f"privbon-gaussian {scale}": PrivBoNGaussian(N, scale) for scale in (1e-100, 1e-17, 0.2, 1e20)},
}


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """Tables are made at their first use, whatever the scores."""
    for mechanism in (*ONE_PHASE.values(), RULE, RULE_SHORT):
        step(mechanism, [0.0] * N, None)
    for rule in (RULE, RULE_SHORT):
        step(PrivITPPhase2(rule, 0.3), [0.5] * N, None)


RULE = PrivITP(n=N, n2=600, beta=0.05, sigma_x=0.2, sigma_z=0.2, tail=3.0)
RULE_SHORT = PrivITP(n=N, n2=600, beta=0.05, sigma_x=0.2, sigma_z=1e4, tail=0.01)  # h < 1
RULE_TINY = PrivITP(n=N, n2=600, beta=0.05, sigma_x=1e-90, sigma_z=1e-100, tail=3.0)


@pytest.mark.parametrize("mechanism", ONE_PHASE.values(), ids=ONE_PHASE)
@given(shaped, shaped, seeds)
@example([0.5] * N, [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6], None)
@example([2.0] * N, [-1.0] * (N - 1) + [2.0], 1)
@settings(max_examples=50, deadline=None)
def test_an_argmax_runs_the_same_lines_and_draws_the_same_digits(
    mechanism: Mechanism, one: list[float], other: list[float], seed: int | None
) -> None:
    assert step(mechanism, one, seed) == step(mechanism, other, seed)


@given(shaped, shaped, seeds)
@example([-1.0] * N, [2.0] * N, None)
@settings(max_examples=100, deadline=None)
def test_phase_1_runs_the_same_lines_and_draws_the_same_digits(one: list[float], other: list[float], seed: int | None) -> None:
    for rule in (RULE, RULE_TINY):
        assert step(rule, one, seed) == step(rule, other, seed)


@pytest.mark.parametrize("rule", [RULE, RULE_SHORT, RULE_TINY], ids=["long", "short", "tiny"])
@given(shaped, shaped, st.integers(1, N), st.sampled_from([0, 400, 1023]), seeds)
@example([-1.0] * N, [2.0] * N, N, 400, None)
@settings(max_examples=100, deadline=None)
def test_a_batch_of_phase_2_is_decided_by_the_same_lines_and_digits(
    rule: PrivITP, one: list[float], other: list[float], count: int, index: int, seed: int | None
) -> None:
    """Whatever comes of it: which of them are accepted is an output."""
    curve = AcceptanceCurve(float(np.linspace(-0.05, 2.95, 1024)[index]), 3.0, rule.sigma_z, rule.tail)

    def decided(scores: list[float]) -> Trace:
        noise, rewards = Counting(seed), np.clip(np.array(scores[:count]), -1, 2) + 1
        return lines(lambda: noise.bernoullis(curve.accept(rewards))), tuple(noise.drawn)

    assert decided(one) == decided(other)


@given(st.lists(shaped, min_size=2, max_size=8), st.integers(1, N))
@settings(max_examples=60, deadline=None)
def test_a_step_of_phase_2_tells_only_what_it_releases(batches: list[list[float]], count: int) -> None:
    """Runs of one outcome (goes on, or which is accepted) have one trace."""
    traces: dict[object, set[Trace]] = {}
    for scores in batches:
        noise = Counting(None)
        run = PrivITPPhase2(RULE, 0.3).run(SENSITIVITY, noise)
        next(run)
        outcome: list[object] = []

        def chunk_of(run: Any = run, scores: list[float] = scores, outcome: list[object] = outcome) -> None:
            try:
                run.send(scores[:count])
                outcome.append(None)
            except StopIteration as stop:
                outcome.append(stop.value.index)

        trace = lines(chunk_of)
        traces.setdefault(outcome[0] is None, set()).add((trace, tuple(noise.drawn)))
    assert all(len(alike) == 1 for alike in traces.values())


@given(st.integers(1, 70), st.data())
@settings(max_examples=60, deadline=None)
def test_sorting_runs_the_same_lines_and_sorts(n: int, data: st.DataObject) -> None:
    one, other = (np.array(data.draw(st.lists(reward, min_size=n, max_size=n))) for _ in range(2))
    assert descending(one).tolist() == sorted(one.tolist(), reverse=True)
    assert lines(lambda: normaliser(one, 0.05)) == lines(lambda: normaliser(other, 0.05))


def test_the_chance_of_a_continuation_is_negligible() -> None:
    assert continued(16) < 1e-24
    assert continued(4096) < 1e-20
    assert continued(10**6) < 2.0**-54


def test_a_continuation_shows_in_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: with a look that sees nothing, further digits are drawn, and by lines that were not run before."""

    def traced() -> list[Trace]:
        return [step(PrivBoN(N, 0.2), scores, 3) for scores in ([0.5] * N, [-1.0] * (N - 1) + [2.0])]

    usual = traced()
    monkeypatch.setattr(randomness, "_look", lambda *arguments: arguments[-1])
    assert all(len(drawn) == 1 for _, drawn in usual)
    assert all(len(drawn) > 1 for _, drawn in traced())
    assert not {ran for ran, _ in usual} & {ran for ran, _ in traced()}


# --- the foil ----------------------------------------------------------------------------------------------------------


class OldSampler(Counting):
    """How it was done: digits and precision are doubled until one comparison is certain, one candidate after the other."""

    def bernoulli(self, enclose: Callable[[], arb]) -> bool:
        digits, bits = self._bits(64), 64
        while True:
            low, high = arb((digits, -bits)), arb((digits + 1, -bits))
            p = at_precision(bits + 64, enclose)
            if high <= p:
                return True
            if low >= p:
                return False
            digits, bits = (digits << bits) | self._bits(bits), 2 * bits

    def rounds(self, curve: AcceptanceCurve, rewards: Floats) -> int | None:
        for i, reward in enumerate(rewards.tolist()):
            if self.bernoulli(functools.partial(curve.enclose_accept, reward)):
                return i
        return None

    def argmax(self, scores: Floats, scale: float) -> int:
        """An inverse distribution function that stops where it arrives."""
        weights = np.exp((scores - scores.max()) / scale)
        target, reached = self._bits(64) * 2.0**-64 * math.fsum(weights), 0.0
        for i, weight in enumerate(weights.tolist()):
            reached += weight
            if target < reached:
                return i
        return len(scores) - 1


@pytest.fixture
def pairs() -> tuple[Floats, Floats]:
    return np.full(N, 0.0), np.full(N, 3.0)


def test_the_old_sampler_of_phase_2_fails_the_same_check(pairs: tuple[Floats, Floats]) -> None:
    curve = AcceptanceCurve(2.0, 3.0, 0.05, 3.0)

    def traces(decide: Callable[[Counting, Floats], object], noise: Callable[[int], Counting]) -> set[Trace]:
        found = set()
        for rewards in pairs:
            source = noise(5)
            found.add((lines(lambda source=source, rewards=rewards: decide(source, rewards)), tuple(source.drawn)))
        return found

    assert len(traces(lambda noise, rewards: noise.rounds(curve, rewards), OldSampler)) == 2  # type: ignore[attr-defined]
    assert len(traces(lambda noise, rewards: noise.bernoullis(curve.accept(rewards)), Counting)) == 1


def test_the_old_sampler_of_one_round_fails_it_for_a_single_reward() -> None:
    """Equal outcomes, one candidate: the lines of ball arithmetic follow the reward."""
    curve = AcceptanceCurve(2.0, 3.0, 0.05, 3.0)
    old, new = set(), set()
    for reward in (0.0, 1.7, 1.95):  # far below the threshold, and near it
        noise = OldSampler(5)
        old.add((lines(lambda noise=noise, reward=reward: noise.rounds(curve, np.array([reward]))), tuple(noise.drawn)))
        counting = Counting(5)
        new.add((lines(lambda counting=counting, reward=reward: counting.bernoullis(curve.accept([reward]))), tuple(counting.drawn)))
    assert len(old) > 1
    assert len(new) == 1


def test_an_inverse_distribution_function_fails_it() -> None:
    noises = [OldSampler(5), OldSampler(5)]
    found = {lines(lambda n=noise, top=top: n.argmax(np.eye(N)[top], 0.05)) for noise, top in zip(noises, (0, N - 1), strict=True)}
    assert len(found) == 2
