"""Settings of the stages: what is refused, and what follows from them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privalign.errors import InvalidInput
from privalign.stages.settings import CollectSettings, GradeSettings, ScoreSettings, VllmSettings


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"task": None}, "task"),
        ({"task": "gsm9k"}, "task"),
        ({"file": "prompts.jsonl"}, "task"),
        ({"policy": None}, "policy"),
        ({"vllm": VllmSettings("m")}, "policy"),
        ({"n": 0}, "n"),
        ({"limit": 0}, "limit"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"shard": 0}, "shard"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
        ({"seed": -1}, "seed"),
    ],
)
def test_collect_refuses(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        CollectSettings(**{"task": "gsm8k", "policy": "local", "n": 4, **change})
    assert refusal.value.field == field


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"kind": "essay"}, "kind"),
        ({"kind": "judge"}, "policy"),
        ({"kind": "math", "policy": "judge"}, "policy"),
        ({"kind": "reward", "range": (0.0, 1.0)}, "reward"),
        ({"kind": "reward", "reward": "gold"}, "range"),
        ({"kind": "reward", "reward": "gold", "range": (1.0, 1.0)}, "range"),
        ({"kind": "reward", "reward": "gold", "range": (0.0, float("inf"))}, "range"),
        ({"kind": "letter", "choices": 1}, "choices"),
        ({"kind": "letter", "choices": 27}, "choices"),
        ({"kind": "math", "timeout": 0.0}, "timeout"),
        ({"kind": "math", "workers": 0}, "workers"),
    ],
)
def test_grade_refuses(values: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        GradeSettings(**values)
    assert refusal.value.field == field


@pytest.mark.parametrize("rewards", [(), ("a", "a")])
def test_score_refuses(rewards: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match="rewards"):
        ScoreSettings(rewards)


@given(st.integers(1, 50), st.integers(0, 2**40), st.integers(2, 30))
def test_no_two_candidates_share_a_seed(n: int, seed: int, prompts: int) -> None:
    settings = CollectSettings(task="gsm8k", policy="local", n=n, seed=seed)
    firsts = [settings.seed_of(prompt) for prompt in range(prompts)]
    seeds = [first + number for first in firsts if first is not None for number in range(n)]
    assert seeds == list(range(seed, seed + prompts * n))


def test_an_unseeded_collection_sends_no_seed() -> None:
    assert CollectSettings(task="gsm8k", policy="local", n=4).seed_of(3) is None


@pytest.mark.parametrize(("n", "prompts"), [(1, 1024), (16, 64), (1024, 1), (10_000, 1)])
def test_a_shard_holds_about_a_thousand_candidates(n: int, prompts: int) -> None:
    assert CollectSettings(task="gsm8k", policy="local", n=n).prompts_per_shard == prompts


def test_the_manifest_of_a_grading_holds_what_its_kind_depends_on() -> None:
    assert GradeSettings("math", timeout=3.0, workers=4).manifest() == {"kind": "math", "timeout": 3.0}
    assert GradeSettings("letter").manifest() == {"kind": "letter", "choices": 4}
    assert GradeSettings("reward", reward="gold", range=(0.0, 2.0)).manifest() == {"kind": "reward", "reward": "gold", "range": (0.0, 2.0)}
