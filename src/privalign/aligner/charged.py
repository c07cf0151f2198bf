"""Selection that an account pays for: each prompt of a file is one request to the aligner, replayed after a crash."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import hmac
import random
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from privalign import statements
from privalign.aligner import Aligner, Performance, ServedModel
from privalign.aligner.file_scores import Scores
from privalign.aligner.selection import Selector
from privalign.candidates.pools import RecordedTexts
from privalign.canonical import canonical
from privalign.errors import BudgetExhausted, IdempotencyConflict, InvalidInput
from privalign.ledger import IdempotencyKey, Ledger
from privalign.mechanisms.protocol import event_of
from privalign.policies.recorded import RecordedPolicy
from privalign.rewards.provenance import digest_of
from privalign.secret import installation_key
from privalign.types import Release, Request

LEASE = 15.0  # seconds; a rerun after a crash waits so long for the one prompt that was being answered


class ChargedRun:
    """One file against one account; a context manager, which ends its event loop.

    The key of a line is an HMAC, under the installation's key, of the file's content, the line's number, the settings
    and the account: a rerun of the same command replays what was paid and goes on where it stopped. The order in which
    candidates are drawn follows from that key, so that a replayed index means the same candidate.

    Args:
        scores: of the candidates; asked for only once the account has been debited.
        again: another number is another run, which selects and pays anew.

    Raises:
        InvalidInput: no such account, or the mechanism has no guarantee that an account could pay for.
    """

    def __init__(self, ledger: Ledger, account: str, selector: Selector, scores: Scores, file: Path, again: int = 0) -> None:
        self.account = account
        self.exhausted: BudgetExhausted | None = None
        self._ledger, self._selector, self._scores = ledger, selector, scores
        found = ledger.account(account)
        found.rule.charge(event_of(selector.mechanism, selector.sensitivity))  # refuses what no account can pay for
        self._before = found.spent
        self._neighbours = {"relation": found.relation.value, "records_per_person": found.records_per_person}  # that it promises about
        settings = {
            "mechanism": selector.mechanism.name,
            **dataclasses.asdict(cast(Any, selector.mechanism)),
            **selector.sensitivity.stated(),
            "delta": selector.settings_delta,
            "draw": selector.order.value,
            **scores.identity,
            "account": account,
            "again": again,
        }
        body = canonical(settings, "spaced").encode()
        self._key = hmac.digest(installation_key(), hashlib.sha256(digest_of(file) + body).digest(), "sha256")
        self._line = 0
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._runner.close()

    def answer(self, pool: RecordedTexts) -> dict[str, Any]:
        """The line of the answers' file for the next prompt; a refusal once the budget is exhausted."""
        outcome = self._release(pool)
        if outcome is None:
            return {"prompt": pool.prompt, "refused": True}
        release, index = outcome
        privacy = {"mechanism": release.mechanism, "epsilon": release.epsilon, "delta": release.delta, "account": self.account}
        privacy |= self._selector.sensitivity.released
        return {"prompt": pool.prompt, "text": release.text, "index": index, "fallback": release.fallback, "privacy": privacy}

    def _release(self, pool: RecordedTexts) -> tuple[Release, int] | None:
        """The release and its position in the file's responses."""
        self._line += 1
        if self.exhausted is not None:
            return None
        selector = self._selector
        name = hmac.new(self._key, str(self._line).encode(), hashlib.sha256).digest()
        positions = selector.order.positions(len(pool.texts), selector.mechanism.pool_size, random.Random(name))
        model = ServedModel(
            name="select",
            policy=RecordedPolicy("recorded", [pool.texts[position] for position in positions]),
            reward=self._scores.reward(pool, positions, selector.sensitivity),
            mechanism=selector.mechanism,
            account=self.account,
            delta=selector.settings_delta,
            performance=Performance(padding=0.0, lease=LEASE),
        )
        key = IdempotencyKey("select", name.hex(), name.hex())
        aligner = Aligner(self._ledger, model, selector.noise)
        try:
            (release,) = self._runner.run(aligner.answer(Request.of_prompt(pool.prompt), idempotency=key))
        except BudgetExhausted as refusal:
            self.exhausted = refusal
            return None
        except IdempotencyConflict:
            raise InvalidInput(
                "again", "these answers were paid and are no longer kept by the ledger; give another number to select anew, and pay anew"
            ) from None
        return release, positions[release.index]

    def summary(self, prompts: int, answered: int) -> dict[str, Any]:
        """The document of the run."""
        facts = self._selector.summary(prompts, answered, self._spent()) | {"account": self.account}
        facts |= {name: value for name, value in self._neighbours.items() if facts[name] is None}
        return facts | {"spent_is": statements.SPENT_ROSE}

    def _spent(self) -> dict[str, float | None]:
        """What the account's (ε, δ) rose by since this run began, queries of others included."""
        epsilon, delta = self._ledger.account(self.account).spent
        return {"epsilon": max(0.0, epsilon - self._before[0]), "delta": max(0.0, delta - self._before[1])}
