"""A ledger that may only be read is shown and verified, wherever it is, and pays nothing."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from privalign.accounting.rules import Renyi
from privalign.events import GumbelMax
from privalign.ledger import Ledger, LedgerFailed, Reservation
from privalign.sensitivity import RewardRange, Sensitivity

EVENT = GumbelMax(Sensitivity.of_range(RewardRange(0.0, 1.0)), 10.0, 16)


def as_nobody(act: Callable[[], Any]) -> Any:
    """What `act` returns, or says when it is refused, for a user who owns nothing: the superuser may write anywhere."""
    fork = multiprocessing.get_context("fork")
    said: Any = fork.Queue()

    def run() -> None:
        if os.geteuid() == 0:
            os.seteuid(65534)
        try:
            said.put(act())
        except LedgerFailed as error:
            said.put(str(error))

    process = fork.Process(target=run)
    process.start()
    answer = said.get(timeout=30)
    process.join()
    return answer


@pytest.fixture
def file(sqlite_url: str) -> Iterator[Path]:
    """A ledger of three rows that others may read and nobody may write."""
    ledger = Ledger(sqlite_url)
    ledger.create_account("prefs", Renyi(50.0, 1e-6, 2.0))
    reservation = ledger.reserve("prefs", [EVENT])
    assert isinstance(reservation, Reservation)
    ledger.settle(reservation, [EVENT])
    ledger.close()
    file = Path(sqlite_url.removeprefix("sqlite:///"))
    file.chmod(0o444)
    file.parent.chmod(0o555)
    yield file
    file.parent.chmod(0o755)


def reading(url: str) -> list[object]:
    ledger = Ledger(url)
    rows = len(list(ledger.journal("prefs"))), len(list(ledger.export("prefs")))
    return [ledger.account("prefs").length, [each.name for each in ledger.accounts()], ledger.verify("prefs").length, *rows]


def test_who_may_only_read_it_reads_everything(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVALIGN_ANCHOR_FOLDER", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    before = sorted(file.parent.iterdir())
    assert as_nobody(lambda: reading(f"sqlite:///{file}")) == [3, ["prefs"], 3, 3, 4]
    assert "read-only; give this user write access" in as_nobody(lambda: Ledger(f"sqlite:///{file}").reserve("prefs", [EVENT]))
    assert "read-only" in as_nobody(lambda: Ledger(f"sqlite:///{file}").create_key("client"))  # type: ignore[arg-type]
    assert sorted(file.parent.iterdir()) == before


def test_a_copy_on_read_only_media_is_read_where_it_is(file: Path, tmp_path: Path) -> None:
    disc = tmp_path / "disc"
    disc.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", disc], capture_output=True).returncode != 0:
        pytest.skip("this user may not mount")
    try:
        shutil.copy(file, disc / "copy.db")
        subprocess.run(["mount", "-o", "remount,ro", disc], check=True)
        assert reading(f"sqlite:///{disc}/copy.db") == [3, ["prefs"], 3, 3, 4]
        with pytest.raises(LedgerFailed, match="read-only"):
            Ledger(f"sqlite:///{disc}/copy.db").reserve("prefs", [EVENT])
        with pytest.raises(LedgerFailed, match="read-only"):
            Ledger(f"sqlite:///{disc}/copy.db").moved()
    finally:
        subprocess.run(["umount", "-l", disc], check=True)


def test_what_changes_while_it_is_read_is_read_again(sqlite_url: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without locks a reader could see half of what another user writes."""
    monkeypatch.setattr("privalign.ledger.database.is_writable", lambda _: False)
    ledger = Ledger(sqlite_url)
    ledger.accounts()
    os.utime(file)
    with pytest.raises(LedgerFailed, match="changed while it was read; read it again"):
        ledger.accounts()
    assert len(ledger.accounts()) == 1


def test_who_may_write_again_goes_on(sqlite_url: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(sqlite_url)
    with monkeypatch.context() as patch:
        patch.setattr("privalign.ledger.database.is_writable", lambda _: False)
        with pytest.raises(LedgerFailed, match="read-only"):
            ledger.reserve("prefs", [EVENT])
    file.parent.chmod(0o755)
    file.chmod(0o644)
    ledger.reserve("prefs", [EVENT])
