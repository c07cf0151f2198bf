"""Where a SQLite ledger lies: the one place where it may be used.

Under a second name, by a hard link or a mount of the single file, SQLite keeps a second write-ahead log beside that name, so that
each name pays from the whole budget. A copy does the same. So the ledger stores the place that it was made at, and is refused at any
other until somebody says that it was moved.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class Place:
    """A file: its path without links, the device it is on, its inode there."""

    path: str
    device: int
    inode: int

    @classmethod
    def of(cls, file: str) -> Place | None:
        """The place of a file; None where there is none."""
        try:
            status = os.stat(file)
        except OSError:
            return None
        return cls(os.path.realpath(file), status.st_dev, status.st_ino)

    @classmethod
    def read(cls, fields: dict[str, object]) -> Place:
        """The place that `to_json` wrote.

        Raises:
            TypeError: the fields are others.
        """
        return cls(**fields)  # type: ignore[arg-type]

    def to_json(self) -> dict[str, object]:
        """Its fields, by name."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.path} (device {self.device}, inode {self.inode})"


def is_writable(file: str) -> bool:
    """Whether this user may write a SQLite file, with what lies beside it; True where there is none yet, for SQLite to say."""
    if not os.path.exists(file):
        return True
    # asked again where the answer is no: a process that ends or begins removes or makes the shared memory between two questions
    return _may_write(file) and any(_may_write_beside(file) for _ in range(3))


def _may_write_beside(file: str) -> bool:
    """Whether this user may write the shared memory of a SQLite file, or make it where it is not there."""
    shared = f"{file}-shm"
    return _may_write(shared) or (not os.path.exists(shared) and _may_write(os.path.dirname(os.path.realpath(file))))


def _may_write(path: str) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def is_mounted_alone(file: str) -> bool:
    """Whether the file itself is a mount point, so that what lies beside it lies elsewhere for others. False where nothing tells."""
    return os.path.realpath(file) in set(_mount_points())


def _mount_points() -> Iterator[str]:
    try:
        lines = os.fsdecode(MOUNTS.read_bytes()).splitlines()
    except OSError:
        return
    for line in lines:
        point = line.split(" ")[4]
        yield re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point)
