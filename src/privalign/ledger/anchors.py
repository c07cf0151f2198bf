"""Anchors: the last head of each account, kept outside the database, so that a ledger that went back is found out.

    FOLDER/LEDGER-ID/SHA-256 OF THE ACCOUNT'S NAME      {"account", "check", "head", "ledger", "row"}

A restore, a snapshot or a copy that takes a ledger's place is a good ledger by itself; only what is kept elsewhere shows that it lacks
debits. An anchor is written after the commit that it is about, whole or not at all, and only forward. So a ledger is never behind its
anchor by a crash: killed in between, or after a power cut (anchors are not forced to the disk), it is ahead of it, which is fine as
long as it holds the anchored row. Several hosts on one PostgreSQL have an anchor each.

A file has two slots, and the older one is written: half a write spoils no anchor, and the file keeps its place on the disk. (To replace the
file each time is as safe, but every commit of the ledger would wait until the disk has found a place for it: up to twice the time.)
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from privalign.canonical import canonical
from privalign.ledger.failures import LedgerFailed
from privalign.secret import secret_path

FOLDER_VARIABLE = "PRIVALIGN_ANCHOR_FOLDER"
_SLOT = 512  # bytes: a sector, of which there is no half
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_TURN = 0.05  # seconds to wait for another process that writes; then it writes alone


@dataclass(frozen=True, slots=True)
class Anchor:
    """A row of an account's journal that was committed: its number and hash."""

    account: str
    row: int
    head: str


class Anchors:
    """The anchors of this host, in the folder that `PRIVALIGN_ANCHOR_FOLDER` names, else in `anchors` beside the installation key.

    A folder that is named must be writable. Where the one beside the key is not, as with keys that a service manager hands over
    read-only, anchors that are there are read and none is written: `problem` says so.
    """

    def __init__(self) -> None:
        self._named = bool(os.environ.get(FOLDER_VARIABLE))
        self._folder: Path | None = None
        self.problem: str | None = None
        with contextlib.suppress(RuntimeError):  # nobody's home is known
            self._folder = Path(os.environ.get(FOLDER_VARIABLE) or secret_path().parent / "anchors").absolute()
        self._prepared = False

    def read(self, ledger: str, account: str) -> Anchor | None:
        """The anchor of an account. Read it before the transaction that it is compared in: a ledger only grows.

        Raises:
            LedgerFailed: it is there and cannot be read, or the folder that was named cannot be written.
        """
        self._prepare()
        return None if self._folder is None else _read(os.path.join(self._folder, ledger, _name(account)), ledger)

    def all(self, ledger: str) -> dict[str, Anchor]:
        """All anchors of a ledger, by account.

        Raises:
            LedgerFailed: as `read`.
        """
        self._prepare()
        if self._folder is None:
            return {}
        try:
            files = sorted((self._folder / ledger).iterdir())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _unreadable(self._folder / ledger, error) from None
        found = (_read(file, ledger) for file in files)
        return {anchor.account: anchor for anchor in found if anchor is not None}

    def write(self, ledger: str, anchor: Anchor) -> None:
        """Moves the anchor of an account forward. What keeps it from doing so is no error: the ledger is then ahead of it."""
        if self._folder is None or self.problem is not None:
            return
        file = os.path.join(self._folder, ledger, _name(anchor.account))
        with contextlib.suppress(OSError), _writing(file) as descriptor:
            slots = _slots(os.pread(descriptor, 2 * _SLOT, 0), ledger)
            rows = [0 if each is None else each.row for each in slots]
            if max(rows) < anchor.row:
                os.pwrite(descriptor, _text(ledger, anchor), _SLOT * rows.index(min(rows)))

    def _prepare(self) -> None:
        """Makes the folder, once, and finds out whether it can be written."""
        if self._prepared:
            return
        if self._folder is None:
            self.problem = "no home folder is known"
        else:
            try:
                _make(self._folder)
                if not os.access(self._folder, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            except OSError as error:
                self.problem = f"{self._folder} cannot be written ({error.strerror})"
                if self._named:
                    raise LedgerFailed(f"anchors: {self.problem}; correct {FOLDER_VARIABLE}, or give access") from None
                if not _can_look_into(self._folder):
                    self._folder = None
        self._prepared = True


def _name(account: str) -> str:
    """The file of an account: a file system may take two names of accounts for one."""
    return hashlib.sha256(account.encode()).hexdigest()


def _can_look_into(folder: Path) -> bool:
    try:
        folder.stat()
    except OSError:
        return False
    return True


def _read(file: str | Path, ledger: str) -> Anchor | None:
    try:
        with open(file, "rb", buffering=0) as stored:
            content = stored.read(2 * _SLOT)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(file, error) from None
    whole = [each for each in _slots(content, ledger) if each is not None]
    if not whole and content.strip(b"\0"):  # zeros are what a power cut may leave of a file that was new
        raise LedgerFailed(f"anchor {file}: damaged, so it cannot tell whether the ledger went back; restore it, or see `account verify`")
    return max(whole, key=lambda each: each.row, default=None)


def _slots(content: bytes, ledger: str) -> tuple[Anchor | None, Anchor | None]:
    return _slot(content[:_SLOT], ledger), _slot(content[_SLOT:], ledger)


def _slot(content: bytes, ledger: str) -> Anchor | None:
    """The anchor of a slot that was written whole."""
    try:
        fields = json.loads(content)
        anchor = Anchor(fields["account"], fields["row"], fields["head"])
        return anchor if content == _text(ledger, anchor) else None
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def _text(ledger: str, anchor: Anchor) -> bytes:
    fields = {"account": anchor.account, "head": anchor.head, "ledger": ledger, "row": anchor.row}
    check = hashlib.sha256(canonical(fields).encode()).hexdigest()[:16]
    return canonical({**fields, "check": check}).encode().ljust(_SLOT - 1) + b"\n"


def _unreadable(file: str | Path, error: OSError) -> LedgerFailed:
    return LedgerFailed(f"anchor {file}: cannot be read ({error.strerror}); give this user access, or set {FOLDER_VARIABLE}")


@contextlib.contextmanager
def _writing(file: str) -> Iterator[int]:
    """The file, open; one writer at a time, so that none takes the place of a later row. One that hangs is not waited for long."""
    try:
        descriptor = os.open(file, _FLAGS, 0o600)
    except FileNotFoundError:
        _make(Path(file).parent)
        descriptor = os.open(file, _FLAGS, 0o600)
    try:
        _give_to_owner(descriptor, os.path.dirname(file))
        deadline = time.monotonic() + _TURN
        while not _locked(descriptor):
            if time.monotonic() > deadline:
                raise BlockingIOError(errno.EWOULDBLOCK, "another process is writing")
            time.sleep(0.0005)
        yield descriptor
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: of two writers at once the later row may be lost
        pass
    return True


def _make(folder: Path) -> None:
    """The folder, for its user alone, with those above it."""
    if folder.is_dir():
        return
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _give_to_owner(descriptor, each.parent)
        finally:
            os.close(descriptor)


def _give_to_owner(descriptor: int, folder: str | Path) -> None:
    """What the superuser makes in another user's folder is that user's, who could not read it otherwise."""
    if os.geteuid() == 0:
        owner = os.stat(folder)
        if owner.st_uid != 0:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
