"""The ends of a protected head's raw scores, released with noise that an account pays for once (`payment`)."""

from __future__ import annotations

import hmac
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privalign.aligner.payment import Payment
from privalign.candidates.pools import read_texts
from privalign.canonical import canonical
from privalign.errors import InvalidFile, InvalidInput
from privalign.events import Event
from privalign.files import put
from privalign.ledger import Ledger
from privalign.preferences.ranges import end_event, ends_epsilon, ends_scale, raw_movement, released_ends
from privalign.preferences.release import grid_of
from privalign.rewards.head import HeadReward
from privalign.rewards.provenance import digest_of
from privalign.secret import installation_key
from privalign.sensitivity import RewardRange


@dataclass(frozen=True, slots=True)
class RangeTerms:
    """What noisy ends are, from public settings.

    Args:
        head: whose raw scores they are. coverage: the share of scores between the ends, in (0, 1]. scale: σ of the noise on each end,
            in raw units. epsilon, delta: of both ends together.
    """

    head: HeadReward
    coverage: float
    scale: float
    epsilon: float
    delta: float

    @classmethod
    def of(cls, head: HeadReward, coverage: float, *, epsilon: float | None, scale: float | None, delta: float) -> RangeTerms:
        """The terms for an ε of both ends together, or for a noise.

        Raises:
            InvalidInput: not exactly one of the two is given, the certificate bounds no movement of raw scores, or the noise is out of
            its range.
        """
        if (epsilon is None) == (scale is None):
            raise InvalidInput("epsilon", "give either it, for both ends together, or scale, the noise on each")
        movement = raw_movement(head.certificate)
        noise = scale if epsilon is None else ends_scale(movement, epsilon, delta)
        assert noise is not None
        grid_of(noise)  # refuses what is no scale
        return cls(head, coverage, noise, ends_epsilon(movement, noise, delta), delta)

    @property
    def events(self) -> tuple[Event, ...]:
        """What an account pays: two Gaussian releases at Δ = B·‖w − w′‖."""
        return (end_event(self.head.certificate, self.scale),) * 2

    def stated(self, account: str) -> dict[str, Any]:
        """The terms as JSON has them, beside the ends."""
        certificate = self.head.certificate
        return {
            "coverage": self.coverage,
            "movement": raw_movement(certificate),
            "scale": self.scale,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "relation": certificate.relation.value,
            "records_per_person": certificate.records_per_person,
            "account": account,
            "head": certificate.mac,
        }


@dataclass(frozen=True, slots=True)
class PaidRange:
    """Noisy quantiles of a head's raw scores of public texts.

    Args:
        account: who pays. file: the texts. out: where the ends are written; another place is another draw.

    Raises:
        InvalidInput: the account protects other neighbours or other data.
    """

    ledger: Ledger
    account: str
    terms: RangeTerms
    file: Path
    out: Path

    def __post_init__(self) -> None:
        found, dataset = self.ledger.account(self.account), self.terms.head.certificate.dataset
        if dataset not in (None, found.dataset):
            raise InvalidInput("account", f"{found.name} protects data set {found.dataset}, not {dataset}; name that one's")
        found.terms.charge(self.terms.events)  # refuses other neighbours before anything is scored

    def make(self) -> dict[str, Any]:
        """The ends in their place, paid now or before: the document that is written, and `out`.

        Raises:
            BudgetExhausted: the account cannot pay; nothing is kept. InvalidInput, InvalidFile: as `Payment.made`, or the kept draw
            is damaged.
        """
        payment = Payment(self.ledger, self.account, "range", self._key(), self.terms.events, self.out, self.out)
        with payment.made(self._draw, self._read) as content:
            if not self.out.exists() or self.out.read_bytes() != content:
                self._write(content)
            return self._read(self.out, content) | {"out": str(self.out)}

    def _draw(self) -> bytes:
        head, terms = self.terms.head, self.terms
        raw: NDArray[np.float64] = np.concatenate([head.raw(each.prompt, each.texts)[0] for each in read_texts(self.file)])
        ends = released_ends(raw, terms.coverage, terms.scale)
        return (json.dumps({"range": [ends.low, ends.high], **terms.stated(self.account)}) + "\n").encode()

    def _key(self) -> bytes:
        """An HMAC of everything that the ends are the ends of."""
        about = [digest_of(self.file).hex(), self.terms.stated(self.account), str(self.out.resolve())]
        return hmac.digest(installation_key(), b"range" + canonical(about, "spaced").encode(), "sha256")

    def _write(self, content: bytes) -> None:
        try:
            put({Path(os.path.realpath(self.out)): content})  # a link keeps pointing to the file that it names
        except OSError as error:
            remedy = "give a file in a folder that exists and has room"
            raise InvalidInput("out", f"{self.out} cannot be written ({error.strerror}); {remedy}") from None

    def _read(self, path: Path, content: bytes) -> dict[str, Any]:
        stated = self.terms.stated(self.account)
        try:
            document = json.loads(content)
            low, high = document["range"]
            RewardRange(low, high)
            if document != {"range": [low, high], **stated}:
                raise ValueError
        except (ValueError, TypeError, KeyError):
            raise InvalidFile(str(path), None, "the kept draw is damaged; remove the file to draw, and perhaps pay, anew") from None
        return {"range": [low, high], **stated}
