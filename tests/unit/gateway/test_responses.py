"""Releases as completions: whole and streamed say the same, and nothing but what a release may say."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from privalign.gateway.responses import Completion, Privacy
from privalign.types import Release, Usage

CALLS = st.lists(
    st.fixed_dictionaries({"id": st.text(), "type": st.just("function"), "function": st.fixed_dictionaries({"name": st.text()})}),
    max_size=3,
)
RELEASES = st.builds(
    Release,
    text=st.text(),
    index=st.integers(0, 9),
    fallback=st.booleans(),
    mechanism=st.just("privbon"),
    epsilon=st.floats(0, 10),
    delta=st.floats(0, 1e-3),
    finish_reason=st.sampled_from([None, "stop", "length", "tool_calls", "content_filter"]),
    tool_calls=CALLS.map(tuple),
    logprobs=st.none() | st.just({"content": []}),
    usage=st.none() | st.builds(Usage, st.integers(0, 99), st.integers(50, 99)),
    drawn=st.integers(1, 99),
    own_usage=st.none() | st.builds(Usage, st.integers(0, 9), st.integers(0, 9)),
)


def joined(chunks: list[dict[str, Any]], index: int) -> dict[str, Any]:
    """What a client puts together from the chunks of one choice."""
    whole: dict[str, Any] = {"content": "", "calls": []}
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] == index:
                whole["content"] += choice["delta"].get("content") or ""
                whole["calls"] += [
                    {name: value for name, value in call.items() if name != "index"} for call in choice["delta"].get("tool_calls", [])
                ]
                whole["reason"] = choice["finish_reason"]
    return whole


@given(st.lists(RELEASES, min_size=1, max_size=3), st.booleans())
def test_a_stream_says_what_the_whole_says(releases: list[Release], include_usage: bool) -> None:
    privacy = Privacy.of(releases, "prefs", (1.5, 0.0), replayed=False)
    completion = Completion("aligned")
    whole = completion.document(releases, privacy)
    chunks = list(completion.chunks(releases, privacy, include_usage=include_usage))
    json.dumps([whole, chunks], allow_nan=False)
    for choice in whole["choices"]:
        message = choice["message"]
        streamed = joined(chunks, choice["index"])
        assert streamed["content"] == (message["content"] or "")
        assert streamed["calls"] == message.get("tool_calls", [])
        assert streamed["reason"] == choice["finish_reason"]
    assert sum("privalign" in chunk for chunk in chunks) == 1
    assert chunks[-1]["privalign"] == whole["privalign"]
    assert (chunks[-1].get("usage") == whole["usage"]) == (include_usage or whole["usage"] is None)
    text = json.dumps(whole)
    assert '"fallback"' not in text
    assert '"drawn"' not in text


@given(st.lists(RELEASES, min_size=1, max_size=5))
def test_the_price_is_an_upper_bound(releases: list[Release]) -> None:
    privacy = Privacy.of(releases, "prefs", None, replayed=True)
    assert privacy.epsilon is not None
    assert privacy.epsilon >= math.fsum(release.epsilon or 0.0 for release in releases)
    assert privacy.delta >= math.fsum(release.delta for release in releases)
    assert "x-privalign-remaining" not in privacy.headers
    assert privacy.document["remaining"] is None


def test_a_released_head_is_named_in_place_of_an_epsilon_of_zero() -> None:
    head = {"epsilon": 1.0, "delta": 1e-5, "relation": "flip", "records_per_person": 1, "account": "prefs", "dataset": "votes"}
    free = Release("text", 0, False, "privbon", 0.0, 0.0, head=head)
    privacy = Privacy.of([free], "prefs", (1.5, 0.0), replayed=False)
    assert privacy.document["release"] == head
    assert (privacy.headers["x-privalign-release-epsilon"], privacy.headers["x-privalign-release-delta"]) == ("1.0", "1e-05")
    paid = Privacy.of([Release("text", 0, False, "privbon", 0.5, 0.0)], "prefs", None, replayed=False)
    assert "release" not in paid.document
    assert not [name for name in paid.headers if "release" in name]
