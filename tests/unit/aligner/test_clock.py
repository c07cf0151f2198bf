"""When sections leave: at start + D, whatever their work took, and what D is."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privalign.aligner import Performance, ServedModel, clock
from privalign.aligner.clock import SAFETY, Clock, Deadline, measured
from privalign.aligner.steps import Steps
from privalign.mechanisms.base import Base
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privitp import PrivITP
from privalign.mechanisms.protocol import Mechanism
from privalign.policies.recorded import RecordedPolicy
from privalign.randomness import SecureRandomness
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.types import Candidate, Request

PRIVITP = PrivITP(n=16, n2=20, beta=0.05, sigma_x=0.2, sigma_z=0.2, tail=3.0)


class Reward:
    """Scores here, in so many seconds a character and a candidate."""

    name = "reward"
    sensitivity = Sensitivity(0.05, RewardRange(0.0, 1.0))
    in_process = True

    def __init__(self, per_candidate: float = 0.0, per_character: float = 0.0) -> None:
        self._costs = per_candidate, per_character

    async def score(self, request: Request, candidates: Sequence[Candidate]) -> Any:
        per_candidate, per_character = self._costs
        characters = sum(len(candidate.text) for candidate in candidates)
        time.sleep(per_candidate * len(candidates) + per_character * characters)
        return np.zeros(len(candidates))

    async def probe(self) -> None:
        pass


def model(padding: float | None = None, mechanism: Mechanism = PRIVITP, reward: Reward | None = None) -> ServedModel:
    performance = Performance(padding=padding)
    return ServedModel("aligned", RecordedPolicy("p", []), reward or Reward(), mechanism, "prefs", performance=performance)


def section(work: Callable[[], None], padding: float, *, before: float = 0.0) -> tuple[bool, float]:
    """Whether it succeeded, and the seconds from its start, which was a while `before` it was handed over."""

    async def main() -> tuple[bool, float]:
        start = time.perf_counter() - before
        done = await Clock(model(padding), SecureRandomness()).section(work, start, 8, 0)
        return done, time.perf_counter() - start

    return asyncio.run(main())


def busy(seconds: float) -> Callable[[], None]:
    def work() -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    return work


@pytest.mark.parametrize("seconds", [0.0, 1e-4, 5e-4, 9e-4, 5e-3])
@pytest.mark.parametrize("before", [0.0, 3e-3])
def test_the_thread_sleeps_to_the_deadline_whatever_the_work_took(monkeypatch: pytest.MonkeyPatch, seconds: float, before: float) -> None:
    """To a moment, not for a time: the moment at which the sleep ends is start + D to the microsecond."""
    ends, slept_in = [], []

    def sleep(duration: float) -> None:
        ends.append(time.perf_counter() + duration)
        slept_in.append(threading.current_thread())

    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=time.perf_counter, sleep=sleep))
    padding, starts = 0.5, []

    async def main() -> None:
        starts.append(time.perf_counter() - before)
        assert await Clock(model(padding), SecureRandomness()).section(busy(seconds), starts[0], 8, 0)

    asyncio.run(main())
    assert slept_in[0] is not threading.current_thread()
    assert abs(ends[0] - (starts[0] + padding)) < 2e-4  # what lies between two readings of the clock


def test_it_leaves_no_sooner_and_a_late_one_when_it_is_ready() -> None:
    done, taken = section(busy(0.001), 0.03)
    assert done
    assert taken >= 0.03
    done, taken = section(busy(0.05), 0.03)
    assert done
    assert 0.05 <= taken < 0.06 + 0.03  # not the next multiple


def test_work_that_fails_leaves_at_the_deadline_too_and_without_a_word() -> None:
    def fails() -> None:
        raise ValueError("why")

    done, taken = section(fails, 0.03)
    assert not done
    assert taken >= 0.03
    assert section(fails, 0.0)[0] is False


def test_offline_work_takes_no_thread() -> None:
    seen: list[threading.Thread] = []
    assert section(lambda: seen.append(threading.current_thread()), 0.0)[0]
    assert seen == [threading.current_thread()]


@pytest.mark.parametrize("times", [1, 3])
def test_a_cancelled_section_ends_before_the_cancelling_is_heard(times: int) -> None:
    async def main() -> None:
        began, ended = threading.Event(), threading.Event()

        def work() -> None:
            began.set()
            time.sleep(0.05)
            ended.set()

        task = asyncio.create_task(Clock(model(0.02), SecureRandomness()).section(work, time.perf_counter(), 8, 0))
        await asyncio.to_thread(began.wait)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    asyncio.run(main())


@pytest.mark.parametrize("mechanism", [PRIVITP, PrivBoN(64, 0.3)], ids=lambda mechanism: mechanism.name)
def test_the_measured_deadline_holds_every_section_several_times_over(mechanism: Mechanism) -> None:
    served, noise = model(mechanism=mechanism), SecureRandomness()
    deadline = measured(served, noise, scoring=False)
    assert deadline.per_character == 0
    late = total = 0
    for _ in range(40):
        steps = Steps(mechanism, served.reward.sensitivity, noise, served.performance.chunk)
        while wanted := steps.wanted:
            began = time.perf_counter()
            steps.take(np.linspace(0.0, 1.0, wanted))
            late += time.perf_counter() - began > deadline.after(wanted, 0)
            total += 1
    assert late <= total / 4  # of a machine that does other things meanwhile


def test_scoring_that_runs_here_is_measured_by_candidates_and_characters() -> None:
    reward = Reward(per_candidate=2e-4, per_character=1e-6)
    served = model(mechanism=PrivBoN(4, 0.3), reward=reward)
    deadline = Clock(served, SecureRandomness()).deadline()
    for count, length in ((1, 200), (4, 200), (4, 4000)):
        assert deadline.after(count, count * length) >= SAFETY * count * (2e-4 + 1e-6 * length)
    assert SAFETY * 1e-6 * 0.5 < deadline.per_character < SAFETY * 1e-6 * 3


def test_a_deadline_is_measured_once_and_a_stated_one_never(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def watched(*arguments: Any, **options: Any) -> Deadline:
        time.sleep(0.02)
        calls.append(options)
        return Deadline(0.01)

    monkeypatch.setattr(clock, "measured", watched)
    timer = Clock(model(), SecureRandomness())

    async def crowd() -> None:
        await asyncio.gather(*(timer.ready() for _ in range(10)))

    asyncio.run(crowd())
    assert (timer.deadline(), calls) == (Deadline(0.01), [{"scoring": True}])
    assert Clock(model(0.2), SecureRandomness()).deadline() == Deadline(0.2)
    assert len(calls) == 1


def test_the_base_policy_has_a_deadline_like_any_other() -> None:
    assert measured(model(mechanism=Base()), SecureRandomness(), scoring=False).seconds > 0


def test_a_reward_that_does_not_say_where_it_scores_scores_elsewhere() -> None:
    reward = Reward()
    assert Clock(model(reward=reward), SecureRandomness()).here
    del Reward.in_process
    try:
        assert not Clock(model(reward=reward), SecureRandomness()).here
    finally:
        Reward.in_process = True


@given(st.floats(1e-9, 1e3))
def test_figures_are_rounded_up_to_two_digits(value: float) -> None:
    rounded = clock._rounded_up(value)
    assert value * (1 - 1e-12) <= rounded <= value * 1.1
    assert float(f"{rounded:.1e}") == pytest.approx(rounded)


def test_a_deadline_reads_as_a_sentence_does() -> None:
    assert str(Deadline(0.0042, 3e-5)) == "4.2 ms + 0.03 ms a candidate"
    assert [str(Deadline(seconds)) for seconds in (0.02, 0.25, 12.5, 0.0)] == ["20 ms", "250 ms", "12500 ms", "0 ms"]
    assert str(Deadline(0.0042, 3e-5, 2e-7)) == "4.2 ms + 0.03 ms a candidate + 0.2 µs a character"
    assert Deadline(0.001, 0.01, 0.1).after(2, 3) == pytest.approx(0.321)
