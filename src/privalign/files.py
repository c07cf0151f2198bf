"""Files that appear whole or not at all, durably, for their user alone. The one place where that is written."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

PRIVATE, PUBLIC = 0o600, 0o666  # modes before the umask


def private(path: str, flags: int) -> int:
    """An opener of files that are made with mode 0600, whatever the umask."""
    return os.open(path, flags, PRIVATE)


@contextlib.contextmanager
def replacement(target: Path, **encoding: Any) -> Iterator[IO[str]]:
    """A new text file, durably in the place of `target` when the block ends well; else nothing of it stays.

    Args:
        encoding: how it is opened, as `open` takes it.

    Raises:
        OSError: it cannot be written.
    """
    with _beside(target) as fresh:
        with open(fresh, "x", opener=private, **encoding) as file:
            yield file
            _to_disk(file)
        fresh.replace(target)
        _settle(target.parent)


@contextlib.contextmanager
def prepared(contents: Mapping[Path, bytes], *, mode: int = PRIVATE) -> Iterator[dict[Path, Path]]:
    """The contents, durably on the disk under other names beside the places that they are for; those that stay there are removed.

    Raises:
        OSError: one cannot be written.
    """
    with contextlib.ExitStack() as stack:
        fresh = {target: stack.enter_context(_beside(target)) for target in contents}
        for target, content in contents.items():
            with open(fresh[target], "xb", opener=lambda path, flags: os.open(path, flags, mode)) as file:
                file.write(content)
                _to_disk(file)
        yield fresh


def put(contents: Mapping[Path, bytes], *, mode: int = PRIVATE) -> None:
    """Writes files durably in their places: all are on the disk before any takes its place, in their order.

    Raises:
        OSError: one cannot be written.
    """
    with prepared(contents, mode=mode) as fresh:
        move(fresh)


def move(fresh: Mapping[Path, Path]) -> None:
    """Files that were prepared into their places, in their order."""
    for target, path in fresh.items():
        path.replace(target)
    for folder in dict.fromkeys(target.parent for target in fresh):
        _settle(folder)


def put_first(target: Path, content: bytes) -> bytes:
    """What is now durably in the place: the content, or what was there first. Of several processes at once, all get the same.

    Raises:
        OSError: it cannot be written or read.
    """
    with prepared({target: content}) as fresh:
        with contextlib.suppress(FileExistsError):
            os.link(fresh[target], target)
        _settle(target.parent)
    return target.read_bytes()


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A name that nothing has, in the same folder; a file of that name is gone at the end."""
    fresh = target.parent / f".privalign-{secrets.token_hex(8)}.tmp"
    try:
        yield fresh
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink()


def _to_disk(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _settle(folder: Path) -> None:
    """The names in a folder onto the disk, where its file system knows of such a thing."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
