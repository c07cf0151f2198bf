"""The ends of a protected head's raw scores, released with noise that an account pays for once (`payment`)."""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privalign.aligner.payment import Payment
from privalign.candidates.pools import read_texts
from privalign.errors import InvalidFile, InvalidInput, setting
from privalign.events import Event
from privalign.files import replacement
from privalign.ledger import Ledger
from privalign.preferences.ranges import end_event, ends_epsilon, ends_scale, raw_movement, released_ends
from privalign.preferences.release import grid_of
from privalign.rewards.head import HeadReward
from privalign.rewards.provenance import digest_of
from privalign.secret import installation_key
from privalign.sensitivity import RewardRange


@dataclass(frozen=True, slots=True)
class PaidRange:
    """Noisy quantiles of a head's raw scores of public texts, from public settings.

    Args:
        ledger, account: who pays. head: whose scores they are. coverage: the share of scores between the ends, in (0, 1].
        scale: σ of the noise on each end, in raw units; `of` chooses it for an ε. delta: δ at which ε is stated.
        file: the texts. out: where the ends are written; another place is another draw.

    Formal guarantee: both ends together are two `GaussianRelease`s at Δ = B·‖w − w′‖ in raw units, charged before they are drawn.

    Raises:
        InvalidInput: nothing certifies how far raw scores move, the noise is out of its range, or the account protects other
            neighbours or other data.
    """

    ledger: Ledger
    account: str
    head: HeadReward
    coverage: float
    scale: float
    delta: float
    file: Path
    out: Path

    def __post_init__(self) -> None:
        grid_of(self.scale)  # refuses what is no scale
        found, dataset = self.ledger.account(self.account), self.head.certificate.dataset
        if dataset not in (None, found.dataset):
            raise InvalidInput(setting("account"), f"{found.name} protects data set {found.dataset}, not {dataset}; name that one's")
        found.terms.charge(self._events)  # refuses other neighbours before anything is scored

    @classmethod
    def scale_for(cls, head: HeadReward, epsilon: float, delta: float) -> float:
        """The noise on each end at which both together cost at most ε at δ."""
        return ends_scale(raw_movement(head.certificate), epsilon, delta)

    @property
    def _events(self) -> tuple[Event, ...]:
        return (end_event(self.head.certificate, self.scale),) * 2

    @property
    def terms(self) -> dict[str, Any]:
        """What the ends are, from public settings; JSON-able."""
        certificate = self.head.certificate
        movement = raw_movement(certificate)
        return {
            "coverage": self.coverage,
            "movement": movement,
            "scale": self.scale,
            "epsilon": ends_epsilon(movement, self.scale, self.delta),
            "delta": self.delta,
            "relation": certificate.relation.value,
            "records_per_person": certificate.records_per_person,
            "account": self.account,
            "head": certificate.mac,
        }

    def make(self) -> dict[str, Any]:
        """The ends in their place, paid now or before: the document that is written, and `out`.

        Raises:
            BudgetExhausted: the account cannot pay; nothing is kept. InvalidInput, InvalidFile: as `Payment.made`, or the kept draw
            is damaged.
        """
        payment = Payment(self.ledger, self.account, "range", self._key(), self._events, self.out, self.out)
        with payment.made(self._draw, self._read) as content:
            if not self.out.exists() or self.out.read_bytes() != content:
                with replacement(self.out, encoding="utf-8", newline="\n") as writing:
                    writing.write(content.decode())
            return self._read(self.out, content) | {"out": str(self.out)}

    def _draw(self) -> bytes:
        raw: NDArray[np.float64] = np.concatenate([self.head.raw(each.prompt, each.texts)[0] for each in read_texts(self.file)])
        ends = released_ends(raw, self.coverage, self.scale)
        return (json.dumps({"range": [ends.low, ends.high], **self.terms}) + "\n").encode()

    def _key(self) -> bytes:
        """An HMAC of everything that the ends are the ends of."""
        about = [digest_of(self.file).hex(), self.terms, str(self.out.resolve())]
        return hmac.digest(installation_key(), b"range" + json.dumps(about, sort_keys=True).encode(), "sha256")

    def _read(self, path: Path, content: bytes) -> dict[str, Any]:
        try:
            document = json.loads(content)
            low, high = document["range"]
            RewardRange(low, high)
            if document != {"range": [low, high], **self.terms}:
                raise ValueError
        except (ValueError, TypeError, KeyError):
            raise InvalidFile(str(path), None, "the kept draw is damaged; remove the file to draw, and perhaps pay, anew") from None
        return {"range": [low, high], **self.terms}
