"""A folder of Parquet shards with its manifest: what every stage writes, and what the next one reads.

`manifest.json` holds every setting, and the versions of each session that worked on the folder. A shard is there or not: it is
written beside its place and renamed. A stage that is started again keeps the shards that are there and makes the others;
started with other settings it is refused. Settings bind from the first finished shard on: a folder without one is begun anew.
"""

from __future__ import annotations

import contextlib
import json
import platform
import secrets
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privalign.errors import InvalidFile, InvalidInput, MissingDependency, setting
from privalign.files import put

if TYPE_CHECKING:
    import pyarrow as pa

MANIFEST = "manifest.json"
COLUMNS = ("prompt_id", "prompt", "gt_answer", "text")  # of the shards of every stage
LIBRARIES = ("numpy", "pyarrow", "datasets", "math-verify", "sympy", "torch", "transformers", "xllamacpp", "httpx", "ray", "vllm")


@dataclass(frozen=True, slots=True)
class Shards:
    """A folder of shards, complete or not. `id` is drawn when the folder is begun: equal ids mean the same data."""

    path: Path
    id: str
    stage: str
    prompts: int
    shards: int

    @classmethod
    def read(cls, path: Path) -> Shards:
        """A folder whose stage is finished.

        Raises:
            InvalidFile: it has no manifest, or shards are missing, or its name is not UTF-8.
        """
        _check_name(path)
        folder = cls._of(path, _manifest(path))
        missing = folder.missing()
        if missing:
            raise InvalidFile(
                str(path), None, f"{len(missing)} of {folder.shards} shards are missing; run `{folder.stage}` again, it resumes"
            )
        return folder

    @classmethod
    def _of(cls, path: Path, manifest: Mapping[str, Any]) -> Shards:
        for name, kind in (("id", str), ("stage", str), ("prompts", int), ("shards", int)):
            if not isinstance(manifest.get(name), kind):
                raise InvalidFile(str(path / MANIFEST), None, f"'{name}' is missing or wrong; start anew in another folder")
        folder = cls(path, manifest["id"], manifest["stage"], manifest["prompts"], manifest["shards"])
        if not 1 <= folder.shards <= folder.prompts:
            raise InvalidFile(
                str(path / MANIFEST), None, f"{folder.shards} shards of {folder.prompts} prompts cannot be; start anew in another folder"
            )
        return folder

    def file(self, number: int) -> Path:
        """Where a shard is, or will be."""
        return self.path / f"part-{number:05d}.parquet"

    def missing(self) -> list[int]:
        """The numbers of the shards that are not there yet."""
        return [number for number in range(self.shards) if not self.file(number).is_file()]

    def table(self, number: int) -> pa.Table:
        """One shard, one row a candidate, the rows of a prompt next to each other.

        Raises:
            InvalidFile: it cannot be read, or lacks a column that every stage writes.
        """
        parquet = _parquet()
        with self._reading(number):
            table = parquet.read_table(self.file(number), partitioning=None)
        for name in COLUMNS:
            if name not in table.column_names:
                raise InvalidFile(str(self.file(number)), None, f"column '{name}' is missing; give a folder that a stage wrote")
        return table

    def write(self, number: int, content: bytes) -> None:
        """Puts a shard in its place, whole or not at all."""
        put({self.file(number): content})

    def counts(self, *columns: str) -> tuple[int, dict[str, int]]:
        """Candidates, and how many of each column are null, from the shards' footers.

        Raises:
            InvalidFile: as `table`.
        """
        parquet = _parquet()
        rows, nulls = 0, dict.fromkeys(columns, 0)
        for number in range(self.shards):
            with self._reading(number):
                footer = parquet.read_metadata(self.file(number))
            rows += footer.num_rows
            for group in range(footer.num_row_groups):
                for place in range(footer.num_columns):
                    column = footer.row_group(group).column(place)
                    if column.path_in_schema in nulls:
                        nulls[column.path_in_schema] += column.statistics.null_count
        return rows, nulls

    @contextlib.contextmanager
    def _reading(self, number: int) -> Iterator[None]:
        """Turns what pyarrow raises into one line about the shard."""
        try:
            yield
        except (OSError, ValueError):  # pyarrow's errors are ValueErrors
            raise InvalidFile(str(self.file(number)), None, "damaged; remove it and run the stage again, which makes it anew") from None


@contextlib.contextmanager
def working_on(
    path: Path, stage: str, settings: Mapping[str, Any], *, prompts: int, shards: int, session: Mapping[str, Any]
) -> Iterator[Shards]:
    """The folder, made or taken up again, locked against other processes until the block ends.

    Args:
        settings: everything that the rows depend on. session: what else to note down (engine, workers).

    Raises:
        InvalidInput: it has shards of other settings (both values are named), it holds something else, it is in use, or its
            name is not UTF-8.
        MissingDependency: pyarrow is not installed.
    """
    _parquet()  # without it hours of drawing could not be written
    _check_name(path)
    wanted = json.loads(json.dumps({"stage": stage, "prompts": prompts, "shards": shards, "settings": dict(settings)}, default=str))
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(setting("out"), f"{path} cannot be made ({error.strerror}); give a folder that can") from None
    with _locked(path):
        for rest in path.glob(".*.tmp"):  # of a process that was killed
            rest.unlink()
        begun, has_shards = (path / MANIFEST).exists(), next(path.glob("part-*.parquet"), None) is not None
        if has_shards and not begun:
            raise InvalidInput(setting("out"), f"{path} holds shards but no {MANIFEST}; give another folder")
        manifest = wanted | {"id": secrets.token_hex(16), "sessions": []}
        if begun:
            there = _manifest(path)
            other = Shards._of(path, there).stage  # somebody else's manifest.json is not overwritten
            if other != stage:
                raise InvalidInput(setting("out"), f"{path} is a folder of {other}, not of {stage}; give another folder")
            if has_shards:
                manifest = there
                _refuse_other(path, manifest, wanted)
        folder = Shards._of(path, manifest)
        if folder.missing():
            now = datetime.now(UTC).isoformat(timespec="seconds")
            manifest["sessions"] = [*manifest.get("sessions", []), {"started": now, **session, "versions": versions()}]
            put({path / MANIFEST: (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode()})
        yield folder


@cache
def versions() -> Mapping[str, str]:
    """Python, privalign, and the libraries that are installed and shape the rows."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("privalign", *LIBRARIES):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def to_parquet(table: pa.Table) -> bytes:
    """The file's content: equal tables have equal bytes."""
    content = BytesIO()
    _parquet().write_table(table, content, compression="zstd")
    return content.getvalue()


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise MissingDependency("Parquet files need pyarrow; get it with: pip install 'privalign[experiments]'") from None
    return pyarrow.parquet


def _manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidFile(str(file), None, f"cannot be read ({error.strerror}); give a folder that a stage wrote") from None
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict):
        raise InvalidFile(str(file), None, "is no manifest; give a folder that a stage wrote")
    return manifest


def _check_name(path: Path) -> None:
    """Refuses a folder that pyarrow cannot read from again."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InvalidFile(ascii(str(path)), None, "the folder's name is not UTF-8, as Parquet needs it; give another one") from None


def _refuse_other(path: Path, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    old, new = ({name: there.get(name) for name in wanted}, wanted)
    old_flat, new_flat = dict(_flat(old)), dict(_flat(new))
    for name in sorted(old_flat.keys() | new_flat.keys(), key=lambda name: (name.endswith("_sha256"), name)):
        before, now = (json.dumps(flat[name]) if name in flat else "unset" for flat in (old_flat, new_flat))
        if before != now:
            shown = name.removeprefix("settings.")
            raise InvalidInput(shown, f"{now} here, {before} in {path / MANIFEST}; give the same settings, or another folder")


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else key)
    else:
        yield name, value


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; the lock goes with the process, however it ends."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    with (path / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInput(setting("out"), f"another process is at work in {path}; wait for it, or give another folder") from None
        except OSError:  # a file system without locks
            pass
        yield
