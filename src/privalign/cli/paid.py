"""A head that an account pays for: drawn once, paid once, written once, whatever is killed in between.

The noise is drawn first, and the draw kept on the disk beside the place of the head, for this user alone and without the
certificate that it could be served with. Then the account pays, under an idempotency key of the data and all settings, and with the
digest of the draw as the body of the request: the ledger knows for good which draw was paid. Only then are weights and certificate
written to their place. The same command run again finds out what is left to do:

| killed                           | run again                                      |
|----------------------------------|------------------------------------------------|
| before the draw was kept         | fits, draws and pays: nothing was spent        |
| before or while the account pays | takes the kept draw, pays unless that was done |
| before all was written           | writes the paid draw                           |
| never                            | finds the paid draw in its place               |

Another draw for the same key is thrown away unseen, because the ledger refuses it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privalign.errors import BudgetExhausted, IdempotencyConflict, InvalidFile, InvalidInput
from privalign.events import release_event
from privalign.ledger import IdempotencyKey, Ledger, Reservation
from privalign.preferences.bradley_terry import Head, HeadSettings, check_place
from privalign.preferences.release import grid_of, release_scale, released_certificate, released_head
from privalign.secret import installation_key
from privalign.sensitivity import Certificate, HeadRelease

Floats = NDArray[np.float64]
LEASE = 30 * 86400.0  # nothing here gives a debit back, so that one left open by a crash is paid like a settled one


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
                "--account",
                f"{self.account} protects {account.records_per_person} records a person under {account.relation.value}; "
                "fit the head for these",
            )
        if account.dataset != self.settings.dataset:
            raise InvalidInput("--account", f"{self.account} protects data set {account.dataset}, not {self.settings.dataset}; name that")

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
        key = self._key()
        draft = self.out.with_name(f".{hashlib.sha256(key).hexdigest()[:24]}.draft")
        content = _read(draft)
        weights = minimise() if content is None else None
        check_place(self.out, 0 if weights is None else weights.nbytes)
        if weights is not None:
            head = released_head(weights, self.settings, self.scale, epsilon=self.epsilon, delta=self.delta, account=self.account)
            content = _keep(draft, head.content)
        assert content is not None
        self._head(draft, content)  # refuses a damaged draft before it is paid
        try:
            paid = self._pay(key, content)
        except (BudgetExhausted, InvalidInput):
            _remove(draft)
            raise
        if not paid:  # another draw was, long ago: it is in its place, or lost
            _remove(draft)
            content = _read(self.out.with_suffix(".safetensors"))
            if content is None or not self._pay(key, content):
                raise InvalidInput("--out", f"{self.out} was paid and written before and is no longer there; give another name to pay anew")
        head = self._head(self.out, content)
        certificate = head.save(self.out)
        _remove(draft)
        return head, certificate

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
        body = json.dumps([public, self.reading, str(self.out.resolve())], sort_keys=True).encode()
        return hmac.digest(installation_key(), b"release" + data + hashlib.sha256(body).digest(), "sha256")

    def _pay(self, key: bytes, content: bytes) -> bool:
        """Whether this draw is paid, now or before; False where another draw was paid under the key."""
        request = IdempotencyKey("release", key.hex(), hmac.digest(key, content, "sha256").hex())
        event = release_event(self._terms)
        try:
            reservation = self.ledger.reserve(self.account, [event], lease=LEASE, idempotency=request)
        except IdempotencyConflict as conflict:
            return not conflict.mismatch  # without a mismatch only the ledger's copy of the answer has expired
        if isinstance(reservation, Reservation):
            self.ledger.settle(reservation, [event], {})
        return True


def _keep(draft: Path, content: bytes) -> bytes:
    """The content, durably in the draft; where another process was first, that one's."""
    fresh = draft.with_name(f"{draft.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(fresh, draft)
        folder = os.open(draft.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return draft.read_bytes()
    except OSError as error:
        raise InvalidInput("--out", f"{draft.parent} cannot be written to ({error.strerror}); give another place") from None
    finally:
        _remove(fresh)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidInput("--out", f"{path} cannot be read ({error.strerror}); correct its permissions") from None


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
