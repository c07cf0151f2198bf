"""A user's own back-ends in five lines each: right ones pass the contract, wrong ones do not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import privalign as pa
from privalign.testing import FakeOpenAI, PolicyContract, RewardContract, passing_ledger
from privalign.testing.fake_openai import MODEL


def number(request: pa.Request, candidates: Sequence[pa.Candidate]) -> list[float]:
    return [len(each.text) / 100 for each in candidates]


class TestMyReward(RewardContract):
    @pytest.fixture
    def reward(self) -> pa.Reward:
        return pa.FunctionReward(number, name="length", sensitivity=pa.Sensitivity.of_range(pa.RewardRange(0.0, 1.0)))


class TestMyPolicy(PolicyContract):
    @pytest.fixture
    def policy(self) -> pa.Policy:
        with FakeOpenAI().running() as server:
            yield pa.OpenAIPolicy(server.url, MODEL)


def test_a_ledger_that_passes() -> None:
    with passing_ledger() as ledger:
        policy = pa.CallablePolicy(lambda request, count: ["a", "b", "c", "d"][:count], "letters")
        reward = pa.FunctionReward(number, name="length", sensitivity=pa.Sensitivity.of_range(pa.RewardRange(0.0, 1.0)))
        aligner = pa.Aligner(ledger, pa.ServedModel("m", policy, reward, pa.PrivBoN(n=4, scale=8.0), account="prefs"))
        assert aligner.ask("hello").text in "abcd"
        assert ledger.account("prefs").settled_queries == 1


WRONG = """
import pytest
from privalign.testing import PolicyContract
from privalign.types import Candidate


class TestWrong(PolicyContract):
    @pytest.fixture
    def policy(self):
        class Wrong:
            name = "wrong"

            async def draw(self, request, count):
                return [Candidate("the same")]

            async def probe(self): ...

            async def aclose(self): ...

        return Wrong()
"""


def test_a_policy_that_keeps_no_contract_fails(tmp_path: Path) -> None:
    (tmp_path / "test_wrong.py").write_text(WRONG)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "test_wrong.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    for broken in ("as_many_candidates_as_asked_for[3]", "candidates_are_fresh_and_differ", "no_candidates_are_refused[0]"):
        assert f"FAILED test_wrong.py::TestWrong::test_{broken}" in done.stdout
