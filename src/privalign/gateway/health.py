"""Whether the gateway can answer: the ledger and every back-end, asked with public texts only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from privalign.aligner import Aligner
from privalign.gateway.reads import LedgerReads
from privalign.policies.protocol import Policy
from privalign.policies.recorded import RecordedFilePolicy, RecordedPolicy
from privalign.types import Request

PUBLIC = replace(Request.of_prompt("Say hello."), parameters={"max_tokens": 1})
FRESH = 10.0  # seconds for which a finding is good: whoever asks cannot wear the back-ends out
PATIENCE = 20.0  # seconds until a back-end that says nothing counts as away


class Readiness:
    """Asks the ledger, each policy for one token, and each reward model for the score of a public text.

    One round at a time, for all who ask meanwhile. No account is touched, and only which kinds of parts are away is told.
    """

    def __init__(self, aligners: Sequence[Aligner], reads: LedgerReads) -> None:
        self._policies = list({id(each.model.policy): each.model.policy for each in aligners}.values())
        self._rewards = list({id(each.model.reward): each.model.reward for each in aligners}.values())
        self._reads = reads
        self._away: list[str] = []
        self._until = 0.0
        self._asking = asyncio.Lock()

    async def away(self) -> list[str]:
        """Which of "ledger", "policy" and "reward" are away, at least one of a kind; empty: ready."""
        async with self._asking:
            if time.monotonic() >= self._until:
                self._away = await self._ask()
                self._until = time.monotonic() + FRESH
        return self._away

    async def _ask(self) -> list[str]:
        probes = [
            ("ledger", self._reads.accounts()),
            *(("policy", _draw(policy)) for policy in self._policies),
            *(("reward", reward.probe()) for reward in self._rewards),
        ]
        answers = await asyncio.gather(*(asyncio.wait_for(probe, PATIENCE) for _, probe in probes), return_exceptions=True)
        failed = {kind for (kind, _), answer in zip(probes, answers, strict=True) if isinstance(answer, Exception)}
        return sorted(failed)


async def _draw(policy: Policy) -> None:
    if not isinstance(policy, RecordedPolicy | RecordedFilePolicy):  # those know their own prompts only
        await policy.draw(PUBLIC, 1)
