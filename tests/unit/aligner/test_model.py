"""The limit of tokens of a served model."""

from __future__ import annotations

from typing import Any, cast

import pytest

from privalign.aligner import ServedModel
from privalign.errors import InvalidInput
from privalign.mechanisms.privbon import PrivBoN
from privalign.policies.protocol import Policy
from privalign.rewards.protocol import Reward
from privalign.types import Request


def model(most: int | None, **parameters: Any) -> ServedModel:
    policy = type("Given", (), {"parameters": parameters} if parameters else {})()
    return ServedModel("aligned", cast(Policy, policy), cast(Reward, None), PrivBoN(2, 1.0), "prefs", max_tokens=most)


def asked(served: ServedModel, **parameters: Any) -> dict[str, Any]:
    return dict(served.limited(Request(Request.of_prompt("hello").messages, parameters)).parameters)


def test_requests_within_the_limit_pass_as_they_are() -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        assert asked(model(100), **{name: 100}) == {name: 100}
    assert asked(model(None), max_tokens=10**9) == {"max_tokens": 10**9}
    assert asked(model(None)) == {}


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_request_for_more_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^{name}: 101 is above 100, .* aligned; ask for fewer"):
        asked(model(100), **{"max_tokens": 1, name: 101})


def test_a_request_that_leaves_it_open_gets_the_smaller_of_both_limits() -> None:
    assert asked(model(100)) == {"max_tokens": 100}
    assert asked(model(100, max_tokens=64)) == {"max_tokens": 64}
    assert asked(model(100, max_completion_tokens=500)) == {"max_tokens": 100}
    assert asked(model(100), max_tokens=None) == {"max_tokens": 100}


def test_a_limit_below_1_is_refused() -> None:
    with pytest.raises(InvalidInput, match="max_tokens: 0 is below 1"):
        model(0)
