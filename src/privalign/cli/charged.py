"""Selection that an account pays for: each prompt of a file is one request to the aligner, replayed after a crash."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privalign.aligner import Aligner, Performance, ServedModel
from privalign.candidates.pools import RecordedTexts
from privalign.errors import BudgetExhausted, IdempotencyConflict, InvalidInput
from privalign.ledger import IdempotencyKey, Ledger
from privalign.mechanisms.protocol import event_of
from privalign.policies.recorded import DrawOrder, RecordedPolicy
from privalign.rewards.provenance import digest_of
from privalign.secret import installation_key
from privalign.types import Release, Request

if TYPE_CHECKING:
    from privalign.cli.scores import Scores
    from privalign.mechanisms.protocol import Mechanism
    from privalign.randomness import Randomness
    from privalign.sensitivity import Sensitivity

LEASE = 15.0  # seconds; a rerun after a crash waits so long for the one prompt that was being answered


class ChargedRun:
    """One file against one account.

    The key of a line is an HMAC, under the installation's key, of the file's content, the line's number, the settings
    and the account: a rerun of the same command replays what was paid and goes on where it stopped. The order in which
    candidates are drawn follows from that key, so that a replayed index means the same candidate.

    Args:
        scores: of the candidates; asked for only once the account has been debited.
        settings: every public setting that changes what is released, as a JSON-able mapping.

    Raises:
        InvalidInput: no such account, or the mechanism has no guarantee that an account could pay for.
    """

    def __init__(
        self,
        ledger: Ledger,
        account: str,
        file: Path,
        scores: Scores,
        mechanism: Mechanism,
        sensitivity: Sensitivity,
        noise: Randomness,
        order: DrawOrder,
        delta: float,
        settings: dict[str, Any],
    ) -> None:
        self.account = account
        self._ledger, self._scores = ledger, scores
        self._mechanism, self._sensitivity, self._noise = mechanism, sensitivity, noise
        self._order, self._delta = order, delta
        found = ledger.account(account)
        found.rule.charge(event_of(mechanism, sensitivity))  # refuses what no account can pay for
        self._before = found.spent
        self.neighbours = {"relation": found.relation.value, "records_per_person": found.records_per_person}  # that it promises about
        body = json.dumps(settings, sort_keys=True, default=str).encode()
        self._key = hmac.digest(installation_key(), hashlib.sha256(digest_of(file) + body).digest(), "sha256")
        self._line = 0
        self._runner = asyncio.Runner()
        self.exhausted: BudgetExhausted | None = None

    def close(self) -> None:
        """Ends the event loop."""
        self._runner.close()

    def release(self, pool: RecordedTexts) -> tuple[Release, int] | None:
        """The release for the next line and its position in the file's responses; None once the budget is exhausted."""
        self._line += 1
        if self.exhausted is not None:
            return None
        name = hmac.new(self._key, str(self._line).encode(), hashlib.sha256).digest()
        positions = self._order.positions(len(pool.texts), self._mechanism.pool_size, random.Random(name))
        model = ServedModel(
            name="select",
            policy=RecordedPolicy("recorded", [pool.texts[position] for position in positions]),
            reward=self._scores.reward(pool, positions, self._sensitivity),
            mechanism=self._mechanism,
            account=self.account,
            delta=self._delta,
            performance=Performance(padding=0.0, lease=LEASE),
        )
        key = IdempotencyKey("select", name.hex(), name.hex())
        aligner = Aligner(self._ledger, model, self._noise)
        try:
            (release,) = self._runner.run(aligner.answer(Request.of_prompt(pool.prompt), idempotency=key))
        except BudgetExhausted as refusal:
            self.exhausted = refusal
            return None
        except IdempotencyConflict:
            raise InvalidInput(
                "--again", "these answers were paid and are no longer kept by the ledger; give another number to select anew, and pay anew"
            ) from None
        return release, positions[release.index]

    def spent(self) -> dict[str, float]:
        """What the account's (ε, δ) rose by since this run began, queries of others included."""
        epsilon, delta = self._ledger.account(self.account).spent
        return {"epsilon": max(0.0, epsilon - self._before[0]), "delta": max(0.0, delta - self._before[1])}
