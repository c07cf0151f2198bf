"""A draw that an account pays for: drawn once, paid once, written once, whatever is killed in between.

The noise is drawn first, and the draw kept on the disk beside the place where it will be written, for this user alone and in no form
that anything reads. Then the account pays, under an idempotency key of the data and all settings, and with the digest of the draw as
the body of the request: the ledger knows for good which draw was paid. Only then is it written to its place. The same command run
again finds out what is left to do:

| killed                           | run again                                      |
|----------------------------------|------------------------------------------------|
| before the draw was kept         | draws and pays: nothing was spent              |
| before or while the account pays | takes the kept draw, pays unless that was done |
| before all was written           | writes the paid draw                           |
| never                            | finds the paid draw in its place               |

Another draw for the same key is thrown away unseen, because the ledger refuses it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from privalign.errors import BudgetExhausted, IdempotencyConflict, InvalidInput
from privalign.events import Event
from privalign.files import put_first
from privalign.ledger import IdempotencyKey, Ledger, Reservation

LEASE = 30 * 86400.0  # nothing here gives a debit back, so that one left open by a crash is paid like a settled one


@dataclass(frozen=True, slots=True)
class Payment:
    """One draw, paid for once.

    Args:
        scope: of the idempotency key. key: a secret digest of everything that the draw is a draw of. events: what is paid.
        place: where the draw is written in the end, byte for byte. out: what the user called it.
    """

    ledger: Ledger
    account: str
    scope: str
    key: bytes
    events: tuple[Event, ...]
    place: Path
    out: Path

    @contextlib.contextmanager
    def made(self, draw: Callable[[], bytes], check: Callable[[Path, bytes], object]) -> Iterator[bytes]:
        """The draw that was paid, now or before. The block writes it to its place; the kept one goes when the block ends well.

        Args:
            draw: makes it; called unless one was kept. check: refuses a kept one that is damaged, before it is paid.

        Raises:
            BudgetExhausted: the account cannot pay; nothing is kept. InvalidInput: this was paid before, and the draw is no longer
            where it was written; or a file cannot be written.
        """
        draft = self.place.with_name(f".{hashlib.sha256(self.key).hexdigest()[:24]}.draft")
        content = _read(draft)
        if content is None:
            content = _keep(draft, draw())
        check(draft, content)
        try:
            paid = self._pay(content)
        except (BudgetExhausted, InvalidInput):
            _remove(draft)
            raise
        if not paid:  # another draw was, long ago: it is in its place, or lost
            _remove(draft)
            content = _read(self.place)
            if content is None or not self._pay(content):
                raise InvalidInput("out", f"{self.out} was paid and written before and is no longer there; give another name to pay anew")
        yield content
        _remove(draft)

    def _pay(self, content: bytes) -> bool:
        """Whether this draw is paid, now or before; False where another draw was paid under the key."""
        request = IdempotencyKey(self.scope, self.key.hex(), hmac.digest(self.key, content, "sha256").hex())
        try:
            reservation = self.ledger.reserve(self.account, self.events, lease=LEASE, idempotency=request)
        except IdempotencyConflict as conflict:
            return not conflict.mismatch  # without a mismatch only the ledger's copy of the answer has expired
        if isinstance(reservation, Reservation):
            self.ledger.settle(reservation, self.events, {})
        return True


def _keep(draft: Path, content: bytes) -> bytes:
    """The content, durably in the draft; where another process was first, that one's."""
    try:
        return put_first(draft, content)
    except OSError as error:
        raise InvalidInput("out", f"{draft.parent} cannot be written to ({error.strerror}); give another place") from None


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidInput("out", f"{path} cannot be read ({error.strerror}); correct its permissions") from None


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
