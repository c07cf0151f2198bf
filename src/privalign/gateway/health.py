"""Whether the gateway can answer: the ledger, which must be writable, and the back-ends of each model, asked with public texts only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from privalign.aligner import Aligner, Part, ServedModel
from privalign.gateway import causes
from privalign.gateway.reads import LedgerReads

FRESH = 10.0  # seconds for which a finding is good: whoever asks cannot wear the back-ends out
LEDGER_FRESH = 5.0  # likewise of the ledger, which commits for it
PATIENCE = 20.0  # seconds until a back-end that says nothing counts as away


class Readiness:
    """Asks the ledger for a small commit, each policy for one token, and each reward model for the score of a public text.

    One round at a time, for all who ask meanwhile. No account is touched, and only which kinds of parts are away is told. What changes is
    logged, with its cause.
    """

    def __init__(self, aligners: Sequence[Aligner], reads: LedgerReads) -> None:
        self._models = [aligner.model for aligner in aligners]
        account = self._models[0].account if self._models else ""
        self._ledger = _Probe(Part.LEDGER, lambda: reads.check_writable(account), LEDGER_FRESH, self._models)
        self._probes: dict[int, _Probe] = {}
        for model in self._models:
            for part, served in ((Part.POLICY, model.policy), (Part.REWARD, model.reward)):
                users = [each for each in self._models if served in (each.policy, each.reward)]
                self._probes.setdefault(id(served), _Probe(part, served.probe, FRESH, users))
        self._asking = asyncio.Lock()

    async def document(self) -> dict[str, Any]:
        """What `/readyz` answers: "ready" where at least one model can be asked; what is away, in all and of each model."""
        async with self._asking:
            await asyncio.gather(self._ledger.refresh(), *(probe.refresh() for probe in self._probes.values()))
        models = {model.name: self._away(model) for model in self._models}
        away = sorted({part for parts in models.values() for part in parts})
        ready = any(not parts for parts in models.values())
        return {
            "status": _status(ready),
            **({"away": away} if away else {}),
            "models": {name: {"status": _status(not parts), **({"away": parts} if parts else {})} for name, parts in models.items()},
        }

    def _away(self, model: ServedModel) -> list[str]:
        probes = {"ledger": self._ledger, "policy": self._probes[id(model.policy)], "reward": self._probes[id(model.reward)]}
        return [name for name, probe in probes.items() if probe.away]


class _Probe:
    """One part and what was found of it.

    Args:
        fresh: seconds for which that is good. users: the models that need it.
    """

    def __init__(self, part: Part, ask: Callable[[], Awaitable[None]], fresh: float, users: Sequence[ServedModel]) -> None:
        self.away = False
        self._part = part
        self._ask = ask
        self._fresh = fresh
        self._users = users
        self._until = 0.0

    async def refresh(self) -> None:
        """Asks again, unless the last finding is good; logs what has changed."""
        if time.monotonic() < self._until:
            return
        failure: Exception | None = None
        try:
            await asyncio.wait_for(self._ask(), PATIENCE)
        except Exception as error:
            failure = error
        self._until = time.monotonic() + self._fresh
        if (failure is not None) != self.away:
            self.away = failure is not None
            causes.tell_readiness(self._part, self._users, failure)


def _status(ready: bool) -> str:
    return "ready" if ready else "not ready"
