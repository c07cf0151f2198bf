"""A head that an account pays for: noisy weights, drawn once, paid once, written once (`payment`)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privalign.aligner.payment import Payment
from privalign.canonical import canonical
from privalign.errors import InvalidFile, InvalidInput
from privalign.events import release_event
from privalign.ledger import Ledger
from privalign.preferences.bradley_terry import Head, HeadSettings, check_place
from privalign.preferences.release import grid_of, release_scale, released_certificate, released_head
from privalign.secret import installation_key
from privalign.sensitivity import Certificate, HeadRelease

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PaidRelease:
    """One release of one data set, from public settings.

    Args:
        prefs: the file of the preferences. reading: how its records are chosen; a JSON-able mapping.
        out: where the certificate goes. Another place is another release.

    Raises:
        InvalidInput: ε, δ or the noise that they need is out of its range, or the account protects other neighbours.
    """

    ledger: Ledger
    account: str
    settings: HeadSettings
    epsilon: float
    delta: float
    prefs: Path
    reading: dict[str, object]
    out: Path

    def __post_init__(self) -> None:
        grid_of(self.scale)
        account = self.ledger.account(self.account)
        if account.relation is not self.settings.relation or account.records_per_person > self.settings.records_per_person:
            raise InvalidInput(
                "account",
                f"{self.account} protects {account.records_per_person} records a person under {account.relation.value}; "
                "fit the head for these",
            )
        if account.dataset != self.settings.dataset:
            raise InvalidInput("account", f"{self.account} protects data set {account.dataset}, not {self.settings.dataset}; name that")

    @property
    def scale(self) -> float:
        """The noise of each weight."""
        return release_scale(self.settings.weight_bound, self.epsilon, self.delta)

    @property
    def _terms(self) -> HeadRelease:
        settings = self.settings
        return HeadRelease(
            self.epsilon,
            self.delta,
            self.scale,
            settings.weight_bound,
            settings.relation,
            settings.records_per_person,
            self.account,
            settings.dataset,
        )

    def make(self, minimise: Callable[[], Floats]) -> tuple[Head, Certificate]:
        """The head in its place with its signed certificate, paid now or before.

        Args:
            minimise: computes the weights without noise; called unless a draw was kept.

        Raises:
            BudgetExhausted: the account cannot pay; nothing is kept. InvalidInput: these settings were paid before, and the head is no
            longer where it was written; or a file cannot be written.
        """

        def draw() -> bytes:
            weights = minimise()
            check_place(self.out, weights.nbytes)
            return released_head(weights, self.settings, self.scale, epsilon=self.epsilon, delta=self.delta, account=self.account).content

        def check(kept: Path, content: bytes) -> None:
            check_place(self.out)
            self._head(kept, content)

        event = release_event(self._terms)
        payment = Payment(self.ledger, self.account, "release", self._key(), (event,), self.out.with_suffix(".safetensors"), self.out)
        with payment.made(draw, check) as content:
            head = self._head(self.out, content)
            return head, head.save(self.out)

    def _head(self, path: Path, content: bytes) -> Head:
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            weights = load(content)["weights"]
        except (SafetensorError, KeyError):
            raise InvalidFile(str(path), None, "the kept draw is damaged; remove the file to draw, and perhaps pay, anew") from None
        certificate = released_certificate(self.settings, self.scale, epsilon=self.epsilon, delta=self.delta, account=self.account)
        return Head(weights, certificate)

    def _key(self) -> bytes:
        """An HMAC of everything that a release is a release of."""
        with self.prefs.open("rb") as stream:
            data = hashlib.file_digest(stream, "sha256").digest()
        certificate = released_certificate(self.settings, self.scale, epsilon=self.epsilon, delta=self.delta, account=self.account)
        # as version 1 of the format writes it: what was paid then is found again, and the data set's name changes no weight
        public = {name: value for name, value in replace(certificate, version=1).to_json().items() if name != "versions"}
        body = canonical([public, self.reading, str(self.out.resolve())], "spaced").encode()
        return hmac.digest(installation_key(), b"release" + data + hashlib.sha256(body).digest(), "sha256")
