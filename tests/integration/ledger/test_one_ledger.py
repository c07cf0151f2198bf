"""One ledger is one ledger: a second name, a copy or an older state of it pays nothing twice."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from privalign.accounting.rules import Renyi
from privalign.errors import CheckFailed, InvalidInput
from privalign.events import GumbelMax
from privalign.ledger import IdempotencyKey, Ledger, LedgerBehind, LedgerFailed, Reservation, UnknownAccount, place
from privalign.ledger.anchors import Anchor, Anchors
from privalign.sensitivity import RewardRange, Sensitivity

EVENT = GumbelMax(Sensitivity.of_range(RewardRange(0.0, 1.0)), 10.0, 16)
RULE = Renyi(50.0, 1e-6, 2.0)
MOVED = r"it belongs at .*; use it where it belongs|if it was moved, say so with `privalign ledger moved --ledger sqlite:///"


def file_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def spend(ledger: Ledger, queries: int = 1, account: str = "prefs") -> None:
    for _ in range(queries):
        reservation = ledger.reserve(account, [EVENT])
        assert isinstance(reservation, Reservation)
        ledger.settle(reservation, [EVENT])


@pytest.fixture
def ledger(sqlite_url: str) -> Ledger:
    ledger = Ledger(sqlite_url)
    ledger.create_account("prefs", RULE)
    spend(ledger)
    return ledger


@pytest.fixture
def other_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Ledger]:
    """Opens a ledger as a host does that has an anchor folder of its own."""

    def opened(url: str) -> Ledger:
        with monkeypatch.context() as patch:
            patch.setenv("PRIVALIGN_ANCHOR_FOLDER", str(tmp_path / "of another host"))
            return Ledger(url)

    return opened


def uses(ledger: Ledger) -> list[Callable[[], object]]:
    return [
        lambda: spend(ledger),
        lambda: ledger.account("prefs"),
        lambda: ledger.accounts(),
        lambda: ledger.verify("prefs"),
        lambda: ledger.raise_budget("prefs", 60.0, "more"),
        lambda: list(ledger.journal("prefs")),
        lambda: list(ledger.export("prefs")),
    ]


# Places


def test_a_hard_link_is_refused_under_both_names(ledger: Ledger, sqlite_url: str) -> None:
    """Each name has a write-ahead log of its own: both paid the whole budget, and each journal verified."""
    file = file_of(sqlite_url)
    second = file.with_name("second.db")
    second.hardlink_to(file)
    for url in (sqlite_url, f"sqlite:///{second}"):
        for use in uses(Ledger(url)):
            with pytest.raises(LedgerFailed, match=r"its file has 2 names .*; remove the others"):
                use()
    with pytest.raises(LedgerFailed, match="2 names"):  # it is open, too
        spend(ledger)
    with pytest.raises(LedgerFailed, match="2 names"):
        Ledger(f"sqlite:///{second}").moved()
    assert not second.with_name("second.db-wal").exists()
    second.unlink()
    spend(ledger)


def test_a_file_that_was_renamed_or_copied_is_refused_until_somebody_says_that_it_moved(ledger: Ledger, sqlite_url: str) -> None:
    ledger.create_account("other", RULE)
    ledger.close()
    file = file_of(sqlite_url)
    moved = file.rename(file.with_name("moved.db"))
    elsewhere = Ledger(f"sqlite:///{moved}")
    for use in uses(elsewhere):
        with pytest.raises(LedgerFailed, match=MOVED):
            use()
    move = elsewhere.moved()
    assert (move.before.path, move.now.path, move.accounts) == (str(file), str(moved), ("other", "prefs"))  # type: ignore[union-attr]
    spend(elsewhere)
    for name in ("prefs", "other"):
        entry = next(entry for entry in elsewhere.journal(name) if entry.kind == "move")
        assert (entry.note["from"], entry.note["to"]) == (move.before.to_json(), move.now.to_json())  # type: ignore[union-attr]
        elsewhere.verify(name)
    with pytest.raises(InvalidInput, match=r"it belongs at .*moved.db .* and is there; nothing was changed"):
        elsewhere.moved()
    elsewhere.close()
    shutil.copy(moved, file)  # a copy at the old name is another file
    with pytest.raises(LedgerFailed, match=MOVED):
        Ledger(sqlite_url).accounts()


def test_of_a_ledger_and_its_copy_only_one_pays(ledger: Ledger, sqlite_url: str) -> None:
    ledger.close()
    copy = Path(shutil.copy(file_of(sqlite_url), file_of(sqlite_url).with_name("copy.db")))
    other = Ledger(f"sqlite:///{copy}")
    other.moved()
    for use in uses(ledger):
        with pytest.raises((LedgerBehind, CheckFailed), match="an older copy of the ledger was put back, or the journal was rewritten"):
            use()
    spend(other)


def test_another_way_to_the_same_file_is_the_same_place(ledger: Ledger, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = file_of(sqlite_url)
    link = file.with_name("link.db")
    link.symlink_to(file)
    spend(Ledger(f"sqlite:///{link}"))
    monkeypatch.chdir(file.parent)
    spend(Ledger("sqlite:///ledger.db"))
    assert ledger.verify("prefs").length == 7


@pytest.fixture
def mount() -> Iterator[Callable[[Path, Path], None]]:
    """Mounts a single file at a second place, where this user may."""
    mounted: list[Path] = []

    def mount(file: Path, at: Path) -> None:
        at.touch()
        if subprocess.run(["mount", "--bind", file, at], capture_output=True).returncode != 0:
            pytest.skip("this user may not mount")
        mounted.append(at)

    yield mount
    for at in mounted:
        subprocess.run(["umount", "-l", at], check=True)


def test_a_file_that_is_mounted_alone_is_refused(ledger: Ledger, sqlite_url: str, mount: Callable[[Path, Path], None]) -> None:
    """Its write-ahead log would lie in the folder where it is mounted, and nobody else would read it."""
    second = file_of(sqlite_url).with_name("mounted.db")
    mount(file_of(sqlite_url), second)
    for use in (*uses(Ledger(f"sqlite:///{second}")), Ledger(f"sqlite:///{second}").moved):
        with pytest.raises(LedgerFailed, match=r"its file is mounted alone, .*; mount its folder"):
            use()
    assert not second.with_name("mounted.db-wal").exists()
    spend(ledger)


def test_mount_points_are_read_with_their_escapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mountinfo").write_text("36 35 8:1 /a /data/my\\040ledger.db rw - ext4 /dev/vda rw\n")
    monkeypatch.setattr(place, "MOUNTS", tmp_path / "mountinfo")
    assert place.is_mounted_alone("/data/my ledger.db")
    assert not place.is_mounted_alone("/data/other.db")
    monkeypatch.setattr(place, "MOUNTS", tmp_path / "nowhere")
    assert not place.is_mounted_alone("/data/my ledger.db")


@pytest.mark.parametrize("change", ["device", "inode"])
def test_another_device_or_inode_under_the_same_path_is_refused(ledger: Ledger, sqlite_url: str, change: str) -> None:
    """As of a snapshot of the disk."""
    with sqlite3.connect(file_of(sqlite_url)) as connection:
        (stored,) = connection.execute("SELECT place FROM ledger_identity").fetchone()
        fields = json.loads(stored)
        connection.execute("UPDATE ledger_identity SET place = ?", [json.dumps({**fields, change: fields[change] + 1})])
    connection.close()
    ledger.close()
    with pytest.raises(LedgerFailed, match=MOVED):
        ledger.accounts()
    ledger.moved()
    spend(ledger)


def test_a_damaged_identity_is_one_line(ledger: Ledger, sqlite_url: str) -> None:
    with sqlite3.connect(file_of(sqlite_url)) as connection:
        connection.execute("DELETE FROM ledger_identity")
    connection.close()
    with pytest.raises(LedgerFailed, match="its row in ledger_identity is damaged"):
        Ledger(sqlite_url).accounts()


def test_postgresql_has_no_place(postgresql_url: str) -> None:
    Ledger(postgresql_url).create_account("prefs", RULE)
    with pytest.raises(InvalidInput, match="PostgreSQL keeps no place"):
        Ledger(postgresql_url).moved()


# Going back


def back_up(url: str, to: Path) -> None:
    with sqlite3.connect(file_of(url)) as source, sqlite3.connect(to) as target:
        source.backup(target)
    source.close()
    target.close()


def put_back(url: str, backup: Path) -> None:
    """SQLite's own restore: into the file that is there, whoever has it open."""
    with sqlite3.connect(backup) as source, sqlite3.connect(file_of(url)) as target:
        source.backup(target)
    source.close()
    target.close()


@pytest.mark.parametrize("opened", ["before", "after"])
def test_a_restore_into_a_live_file_reopens_nothing(ledger: Ledger, sqlite_url: str, tmp_path: Path, opened: str) -> None:
    """Path, device and inode stay what they were; a program that had it open went on from the restored counters."""
    back_up(sqlite_url, tmp_path / "backup.db")
    spend(ledger, 3)
    head = ledger.account("prefs").head
    put_back(sqlite_url, tmp_path / "backup.db")
    for use in uses(ledger if opened == "before" else Ledger(sqlite_url)):
        with pytest.raises((LedgerBehind, CheckFailed), match=rf"the hash {head} is not in its journal of 3 rows; an older copy"):
            use()


def test_a_copied_back_file_reopens_nothing(ledger: Ledger, sqlite_url: str, tmp_path: Path) -> None:
    ledger.close()
    backup = shutil.copy(file_of(sqlite_url), tmp_path / "backup.db")
    spend(ledger)
    ledger.close()
    shutil.copyfile(backup, file_of(sqlite_url))  # the same inode
    for use in uses(ledger):
        with pytest.raises((LedgerBehind, CheckFailed), match="an older copy of the ledger was put back"):
            use()


def test_a_backup_from_before_an_account_does_not_make_it_anew(ledger: Ledger, sqlite_url: str, tmp_path: Path) -> None:
    back_up(sqlite_url, tmp_path / "backup.db")
    ledger.create_account("later", RULE)
    put_back(sqlite_url, tmp_path / "backup.db")
    for use in (
        lambda: ledger.create_account("later", RULE),
        lambda: ledger.account("later"),
        lambda: ledger.accounts(),
        lambda: spend(ledger, account="later"),
        lambda: ledger.verify("later"),
    ):
        with pytest.raises((LedgerBehind, CheckFailed), match="not in its journal of 0 rows"):
            use()
    spend(ledger)  # an account that lacks nothing goes on
    with pytest.raises(UnknownAccount):
        ledger.account("never")


def test_a_backup_from_before_the_upgrade_is_the_same_ledger(
    sqlite_url: str, older_ledger: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVALIGN_ANCHOR_FOLDER", str(tmp_path / "anchors"))
    older_ledger(sqlite_url, "0002")
    upgraded = Ledger(sqlite_url)
    spend(upgraded, account="prefs-2026")
    upgraded.close()
    file_of(sqlite_url).unlink()
    older_ledger(sqlite_url, "0002")
    with pytest.raises(LedgerBehind, match="an older copy of the ledger was put back"):
        spend(Ledger(sqlite_url), account="prefs-2026")


def test_a_fork_is_found_when_both_went_on(ledger: Ledger, sqlite_url: str, tmp_path: Path, other_host: Callable[[str], Ledger]) -> None:
    back_up(sqlite_url, tmp_path / "backup.db")
    spend(ledger)
    put_back(sqlite_url, tmp_path / "backup.db")
    spend(other_host(sqlite_url), 5)  # longer than what is anchored here, and another journal
    with pytest.raises(LedgerBehind, match="the journal was rewritten"):
        spend(ledger)


# Several hosts, processes and crashes


def test_a_host_that_was_away_goes_on(ledger_url: str, other_host: Callable[[str], Ledger]) -> None:
    here, there = Ledger(ledger_url), other_host(ledger_url)
    here.create_account("prefs", RULE)
    for host in (there, here, there, there, here):
        spend(host, 3)
        assert host.verify("prefs").anchored == host.account("prefs").length


def test_a_failover_that_forgot_commits_is_found(postgresql_url: str) -> None:
    ledger = Ledger(postgresql_url)
    ledger.create_account("prefs", RULE)
    spend(ledger, 2)
    head = ledger.account("prefs").head
    engine = ledger._database._engine
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP FUNCTION ledger_refuse CASCADE")
        connection.exec_driver_sql("DELETE FROM ledger_journal WHERE seq = 5")
        connection.exec_driver_sql("UPDATE ledger_accounts SET length = 4, head = (SELECT hash FROM ledger_journal WHERE seq = 4)")
    with pytest.raises(LedgerBehind, match=head):
        spend(ledger)


def test_a_crash_before_the_anchor_is_written_refuses_nothing(ledger: Ledger, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Anchors, "write", lambda *_: None)
        spend(ledger, 2)
    assert ledger.verify("prefs").anchored == 3
    spend(Ledger(sqlite_url))
    assert ledger.verify("prefs").anchored == 9


def test_an_anchor_only_moves_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVALIGN_ANCHOR_FOLDER", str(tmp_path / "anchors"))
    anchors = Anchors()
    assert anchors.read("l", "prefs") is None
    assert anchors.all("l") == {}
    for row, head in ((3, "c"), (5, "e"), (4, "d")):  # the slower of two processes is last
        anchors.write("l", Anchor("prefs", row, head))
    anchors.write("l", Anchor("Prefs", 1, "a"))
    anchors.write("m", Anchor("prefs", 9, "z"))
    assert anchors.read("l", "prefs") == Anchor("prefs", 5, "e")
    assert anchors.all("l") == {"prefs": Anchor("prefs", 5, "e"), "Prefs": Anchor("Prefs", 1, "a")}
    files = [path for path in (tmp_path / "anchors").rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE((tmp_path / "anchors").stat().st_mode) == 0o700


def test_a_writer_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    monkeypatch.setenv("PRIVALIGN_ANCHOR_FOLDER", str(tmp_path))
    anchors = Anchors()
    anchors.write("l", Anchor("prefs", 1, "a"))
    with anchor_file(tmp_path).open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        anchors.write("l", Anchor("prefs", 2, "b"))
        assert anchors.read("l", "prefs") == Anchor("prefs", 1, "a")
    anchors.write("l", Anchor("prefs", 3, "c"))
    assert anchors.read("l", "prefs") == Anchor("prefs", 3, "c")


def anchor_file(folder: Path) -> Path:
    (file,) = folder.glob("*/*")
    return file


@pytest.fixture
def anchored(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("PRIVALIGN_ANCHOR_FOLDER", str(tmp_path / "anchors"))
    ledger = Ledger(sqlite_url)
    ledger.create_account("prefs", RULE)
    return ledger


@pytest.mark.parametrize("left", [b"", b"\0" * 200])
def test_what_a_power_cut_leaves_of_an_anchor_refuses_nothing(anchored: Ledger, tmp_path: Path, left: bytes) -> None:
    anchor_file(tmp_path / "anchors").write_bytes(left)
    assert anchored.verify("prefs").anchored is None
    spend(anchored)
    assert anchored.verify("prefs").anchored == 3


def test_half_a_write_leaves_the_anchor_before(anchored: Ledger, tmp_path: Path) -> None:
    """As a power cut does, or a reader meets it."""
    spend(anchored, 2)
    file = anchor_file(tmp_path / "anchors")
    whole = file.read_bytes()
    assert len(whole) == 1024
    rows = sorted(json.loads(whole[start : start + 512])["row"] for start in (0, 512))
    assert rows == [4, 5]
    for start in (0, 512):
        for half in (b"\0" * 512, b" " * 512, whole[512 - start :][:256] + whole[start + 256 : start + 512]):
            file.write_bytes(whole[:start] + half + whole[start + 512 :])
            assert anchored.verify("prefs").anchored in rows
            assert anchored.account("prefs").length == 5


@pytest.mark.parametrize("content", ["{}", "[]", "not JSON", '{"account": "prefs", "head": "a", "ledger": "another", "row": 1}'])
def test_a_damaged_anchor_is_refused_in_one_line(anchored: Ledger, tmp_path: Path, content: str) -> None:
    anchor_file(tmp_path / "anchors").write_text(content)
    for use in uses(anchored):
        with pytest.raises(LedgerFailed, match=r"anchor .*: damaged, so it cannot tell whether the ledger went back"):
            use()


def test_a_named_folder_that_cannot_be_written_is_refused(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PRIVALIGN_ANCHOR_FOLDER", str(tmp_path / "file" / "anchors"))
    with pytest.raises(LedgerFailed, match=r"anchors: .*file/anchors cannot be written .*; correct PRIVALIGN_ANCHOR_FOLDER"):
        Ledger(sqlite_url).create_account("prefs", RULE)


def test_beside_a_key_that_is_read_only_there_is_no_anchor_and_the_ledger_goes_on(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()  # as a folder that not even the superuser may write to
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "file" / "secret"))
    ledger = Ledger(sqlite_url)
    ledger.create_account("prefs", RULE)
    spend(ledger)
    assert ledger.verify("prefs").anchored is None
    assert "cannot be written" in str(ledger.unanchored)


# Modes


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_ledger_is_its_users_alone_whatever_the_umask(sqlite_url: str, umask: int) -> None:
    before = os.umask(umask)
    try:
        ledger = Ledger(sqlite_url)
        ledger.create_account("prefs", RULE)
        ledger.settle(ledger.reserve("prefs", [EVENT], idempotency=IdempotencyKey("a", "b", "c")), [EVENT], {"text": "x"})  # type: ignore[arg-type]
        files = list(file_of(sqlite_url).parent.iterdir())
        assert {path.name.removeprefix("ledger.db") for path in files} == {"", "-wal", "-shm"}
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
        ledger.close()
    finally:
        os.umask(before)
