"""Files that appear whole or not at all, for their user alone."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


def private(path: str, flags: int) -> int:
    """An opener of files that are made with mode 0600, whatever the umask."""
    return os.open(path, flags, 0o600)


@contextlib.contextmanager
def replacement(target: Path, **encoding: Any) -> Iterator[IO[str]]:
    """A new text file, durably in the place of `target` when the block ends well; else nothing of it stays.

    Args:
        encoding: how it is opened, as `open` takes it.

    Raises:
        OSError: it cannot be written.
    """
    fresh = target.parent / f".privalign-{secrets.token_hex(8)}.tmp"
    try:
        with open(fresh, "x", opener=private, **encoding) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(target)
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink()
