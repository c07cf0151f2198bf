"""Files appear whole or not at all, durably, for their user alone."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from privalign.files import PUBLIC, prepared, put, put_first, replacement


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_files_take_their_places_together_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b").write_bytes(b"old")
    renamed: list[tuple[str, int]] = []
    rename = Path.replace

    def watched(self: Path, target: Path) -> Path:
        renamed.append((target.name, len(list(tmp_path.glob(".privalign-*.tmp")))))
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", watched)
    put({tmp_path / "b": b"1", tmp_path / "a": b"2"})
    assert renamed == [("b", 2), ("a", 1)]  # all on the disk before the first
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"2", "b": b"1"}
    assert {mode(path) for path in tmp_path.iterdir()} == {0o600}


def test_a_public_file_has_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    os.umask(0o022)
    put({tmp_path / "a": b""}, mode=PUBLIC)
    assert mode(tmp_path / "a") == 0o644


def test_content_is_on_the_disk_before_the_name_and_the_name_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, bool]] = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        seen.append((os.path.isdir(f"/proc/self/fd/{descriptor}"), (tmp_path / "a").exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    for write in (lambda: put({tmp_path / "a": b"x"}), lambda: put_first(tmp_path / "a", b"x"), lambda: text(tmp_path / "a")):
        seen.clear()
        (tmp_path / "a").unlink(missing_ok=True)
        write()
        assert seen == [(False, False), (True, True)]


def text(path: Path) -> None:
    with replacement(path, encoding="utf-8") as file:
        file.write("x")


def test_nothing_stays_of_what_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for write in (
        lambda: put({tmp_path / "a": b"x", tmp_path / "b": b"y"}),
        lambda: put_first(tmp_path / "c", b"x"),
        lambda: text(tmp_path / "a"),
    ):
        with pytest.raises(OSError, match="No space left"):
            write()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"old"}


def test_what_was_prepared_and_not_moved_is_gone(tmp_path: Path) -> None:
    with prepared({tmp_path / "a": b"x"}) as fresh:
        assert (fresh[tmp_path / "a"].read_bytes(), mode(fresh[tmp_path / "a"])) == (b"x", 0o600)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_synchronised_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = os.fsync

    def refused(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refused)
    put({tmp_path / "a": b"x"})
    assert (tmp_path / "a").read_bytes() == b"x"


def test_of_many_at_once_the_first_is_what_all_get(tmp_path: Path) -> None:
    got: list[bytes] = []
    threads = [threading.Thread(target=lambda n=n: got.append(put_first(tmp_path / "a", bytes([n])))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 8
    assert set(got) == {(tmp_path / "a").read_bytes()}
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
