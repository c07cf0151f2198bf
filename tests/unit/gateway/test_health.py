"""Which models can be asked: one part that is away takes away the models that need it, and the ledger takes all."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from privalign.aligner import Aligner
from privalign.errors import BackendFailed
from privalign.gateway import health
from privalign.gateway.health import Readiness
from privalign.gateway.reads import LedgerReads
from privalign.ledger import LedgerFailed


class Part:
    """A policy, a reward or the ledger, which counts how often it was asked, and fails while it is away."""

    def __init__(self, name: str, failure: Exception) -> None:
        self.name = name
        self.failure = failure
        self.away = False
        self.asked = 0

    async def probe(self, *_: Any) -> Any:
        self.asked += 1
        if self.away:
            raise self.failure
        return []

    check_writable = probe


class World:
    """Two models over two policies and one reward."""

    def __init__(self) -> None:
        self.ledger = Part("ledger", LedgerFailed("ledger l: the disk is full; free some space"))
        self.reward = Part("reward", BackendFailed("secret"))
        self.policies = [Part(f"policy {number}", BackendFailed("secret")) for number in range(2)]
        models = [
            SimpleNamespace(model=SimpleNamespace(name=f"model-{number}", policy=policy, reward=self.reward, account="prefs"))
            for number, policy in enumerate(self.policies)
        ]
        self.readiness = Readiness(cast(list[Aligner], models), cast(LedgerReads, self.ledger))

    def document(self) -> dict[str, Any]:
        return asyncio.run(self.readiness.document())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [1000.0]
    monkeypatch.setattr(health.time, "monotonic", lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


def test_all_is_well() -> None:
    models = {"model-0": {"status": "ready"}, "model-1": {"status": "ready"}}
    assert World().document() == {"status": "ready", "models": models}


def test_a_dead_policy_takes_away_its_own_model() -> None:
    world = World()
    world.policies[1].away = True
    models = {"model-0": {"status": "ready"}, "model-1": {"status": "not ready", "away": ["policy"]}}
    assert world.document() == {"status": "ready", "away": ["policy"], "models": models}


@pytest.mark.parametrize("part", ["ledger", "reward"])
def test_what_all_models_need_takes_away_all(part: str) -> None:
    world = World()
    getattr(world, part).away = True
    document = world.document()
    assert (document["status"], document["away"]) == ("not ready", [part])
    assert all(model == {"status": "not ready", "away": [part]} for model in document["models"].values())


def test_findings_are_kept_for_a_while(clock: Callable[[float], None]) -> None:
    world = World()
    for _ in range(3):
        world.document()
    assert (world.ledger.asked, world.reward.asked, world.policies[0].asked) == (1, 1, 1)
    clock(5.0)
    world.document()
    assert (world.ledger.asked, world.reward.asked) == (2, 1)
    clock(5.0)
    world.document()
    assert (world.ledger.asked, world.reward.asked) == (3, 2)


def test_what_changes_is_logged_once_with_its_cause(clock: Callable[[float], None], caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    with caplog.at_level(logging.INFO):
        for away in (False, True, True, False):
            world.ledger.away = away
            world.document()
            clock(10.0)
    facts = [(record.msg, record.__dict__["facts"]) for record in caplog.records]
    assert [event for event, _ in facts] == ["not ready", "ready"]
    gone = facts[0][1]
    assert (gone["backend"], gone["exception"], gone["models"]) == ("ledger", "LedgerFailed", ["model-0", "model-1"])
    assert "free some space" in gone["remedy"]
    assert "secret" not in json.dumps(facts)


def test_a_back_end_that_says_nothing_counts_as_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "PATIENCE", 0.02)
    answering = Part.probe

    async def silent(part: Part) -> Any:
        return await asyncio.sleep(60) if part.name == "policy 0" else await answering(part)

    monkeypatch.setattr(Part, "probe", silent)
    world = World()
    assert world.document()["models"]["model-0"] == {"status": "not ready", "away": ["policy"]}
