"""What is remembered of released thresholds, and under which name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from privalign.aligner import ServedModel, thresholds
from privalign.aligner.thresholds import Thresholds
from privalign.errors import InvalidInput
from privalign.events import Composed, Free
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privitp import PrivITP, PrivITPPhase2
from privalign.mechanisms.protocol import event_of
from privalign.policies.recorded import RecordedPolicy
from privalign.rewards.recorded import RecordedReward
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.types import Request

SENSITIVITY = Sensitivity(0.05, RewardRange(0.0, 1.0))
PRIVITP = PrivITP(n=4, n2=6, beta=0.05, sigma_x=0.2, sigma_z=0.2, tail=3.0)
MODEL = ServedModel("aligned", RecordedPolicy("p", []), RecordedReward("r", [], SENSITIVITY), PRIVITP, "prefs", reuse_threshold=True)
KEY = b"k" * 32
REQUEST = Request.of_prompt("hello")
RELEASED = Composed((Free(), PRIVITP.phase_2(SENSITIVITY).at(0.25, 3)))


def memory(**changes: Any) -> Thresholds:
    return Thresholds(dataclasses.replace(MODEL, **changes), KEY)


def test_a_repeated_request_gets_phase_2_at_its_threshold() -> None:
    known = memory()
    assert known.mechanism(REQUEST) is PRIVITP
    known.remember(REQUEST, RELEASED)
    assert known.mechanism(REQUEST) == PrivITPPhase2(PRIVITP, 0.25)
    assert known.mechanism(Request.of_prompt("hello!")) is PRIVITP
    assert known.mechanism(REQUEST.with_defaults({"temperature": 0.5})) is PRIVITP


def test_an_event_without_a_threshold_leaves_no_trace() -> None:
    known = memory()
    for event in (Free(), event_of(PRIVITP, SENSITIVITY)):
        known.remember(REQUEST, event)
    assert known.mechanism(REQUEST) is PRIVITP


def test_nothing_is_remembered_unless_asked_for() -> None:
    known = memory(reuse_threshold=False)
    known.remember(REQUEST, RELEASED)
    assert known.mechanism(REQUEST) is PRIVITP
    bon = PrivBoN(4, 0.3)
    assert memory(reuse_threshold=False, mechanism=bon).mechanism(REQUEST) is bon


def test_the_oldest_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "MOST", 3)
    known = memory()
    requests = [Request.of_prompt(str(number)) for number in range(5)]
    for request in requests:
        known.remember(request, RELEASED)
    assert [known.mechanism(request) is PRIVITP for request in requests] == [True, True, False, False, False]


def test_without_a_key_there_is_no_memory() -> None:
    with pytest.raises(InvalidInput, match="installation key"):
        Thresholds(MODEL, b"")


def test_prompts_are_kept_as_names_only() -> None:
    known = memory()
    known.remember(Request.of_prompt("a secret prompt"), RELEASED)
    assert "secret" not in repr(vars(known))
