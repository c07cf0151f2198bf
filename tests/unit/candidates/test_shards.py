"""Folders of shards: resumed with the same settings, refused with others, never half-written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from privalign.candidates.shards import MANIFEST, Shards, to_parquet, working_on
from privalign.errors import InvalidFile, InvalidInput

TABLE = pa.table(
    {"prompt_id": [0, 0, 1], "prompt": ["a", "a", "b"], "gt_answer": ["1", "1", None], "text": ["1", "2", "3"], "reward": [0.5, None, 1.0]}
)


def work(path: Path, numbers: tuple[int, ...] = (), shards: int = 2, **settings: Any) -> Shards:
    with working_on(path, "score", settings, prompts=3, shards=shards, session={"engine": "local"}) as folder:
        for number in numbers:
            folder.write(number, to_parquet(TABLE))
    return folder


def test_a_folder_is_taken_up_where_it_was_left(tmp_path: Path) -> None:
    first = work(tmp_path / "a/b", (1,), n=4)
    again = work(tmp_path / "a/b", n=4)
    assert again == first
    assert again.missing() == [0]
    assert again.table(1).equals(TABLE)
    work(tmp_path / "a/b", (0,), n=4)
    whole = Shards.read(tmp_path / "a/b")
    assert whole.counts("reward") == (6, {"reward": 2})


def test_every_session_that_did_something_is_noted_with_its_versions(tmp_path: Path) -> None:
    for numbers in ((0,), (1,), ()):
        work(tmp_path, numbers)
    sessions = json.loads((tmp_path / MANIFEST).read_text())["sessions"]
    assert len(sessions) == 2
    assert all({"python", "privalign", "pyarrow"} <= session["versions"].keys() and session["engine"] == "local" for session in sessions)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"n": 5}, "n: 5 here, 4 in"),
        ({"policy": {"kind": "openai", "model": "b"}}, 'policy.model: "b" here, "a" in'),
        ({"policy": {"kind": "openai"}}, 'policy.model: unset here, "a" in'),
        ({"seed": 1}, "seed: 1 here, unset in"),
        ({"n": 4.0}, "n: 4.0 here, 4 in"),
        ({"shards": 3}, "shards: 3 here, 2 in"),
    ],
)
def test_another_setting_is_refused_naming_both_values(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    settings: dict[str, Any] = {"n": 4, "policy": {"kind": "openai", "model": "a"}}
    work(tmp_path, (0,), **settings)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(InvalidInput) as refusal:
        work(tmp_path, (), **{**settings, **change})
    assert said in str(refusal.value)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("change", [{"n": 5}, {"seed": 1}, {"shards": 3}, {"policy": {"kind": "openai"}}])
def test_a_folder_without_a_finished_shard_is_begun_anew(tmp_path: Path, change: dict[str, Any]) -> None:
    first = work(tmp_path, n=4)
    wanted = {"n": 4, **change}
    again = work(tmp_path, (0,), **wanted)
    assert again.id != first.id  # other data
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    assert manifest["settings"] == {name: value for name, value in wanted.items() if name != "shards"}
    assert (manifest["id"], manifest["shards"], len(manifest["sessions"])) == (again.id, again.shards, 1)
    with pytest.raises(InvalidInput, match="here, "):
        work(tmp_path, n=4)


def test_the_folder_of_another_stage_is_refused_with_or_without_shards(tmp_path: Path) -> None:
    for done in ((), (0,)):
        work(tmp_path, done, n=4)
        with (
            pytest.raises(InvalidInput, match=r"is a folder of score, not of collect; give another folder"),
            working_on(tmp_path, "collect", {"n": 4}, prompts=5, shards=3, session={}),
        ):
            pass


def test_somebody_elses_manifest_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text('{"name": "a web page"}')
    with pytest.raises(InvalidFile, match=MANIFEST):
        work(tmp_path)
    assert json.loads((tmp_path / MANIFEST).read_text()) == {"name": "a web page"}


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with (
        working_on(tmp_path, "score", {}, prompts=1, shards=1, session={}),
        pytest.raises(InvalidInput, match="another process is at work"),
    ):
        work(tmp_path)


def test_rests_of_a_killed_process_go_and_are_no_shards(tmp_path: Path) -> None:
    work(tmp_path, (0,))
    (tmp_path / ".part-00001.parquet.tmp").write_bytes(b"PAR1 half")
    assert work(tmp_path).missing() == [1]
    assert not list(tmp_path.glob(".*.tmp"))


def test_nothing_stays_of_a_shard_that_cannot_be_written(tmp_path: Path) -> None:
    folder = work(tmp_path, (0,))
    folder.file(1).mkdir()
    with pytest.raises(OSError, match="directory"):
        folder.write(1, b"x")
    assert not list(tmp_path.glob(".*.tmp"))


def test_an_unfinished_folder_is_no_source(tmp_path: Path) -> None:
    work(tmp_path, (0,))
    with pytest.raises(InvalidFile, match="1 of 2 shards are missing; run `score` again"):
        Shards.read(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"id": "a"}'])
def test_what_is_no_manifest_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(InvalidFile, match=MANIFEST):
        Shards.read(tmp_path)


def test_shards_without_a_manifest_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "part-00000.parquet").write_bytes(to_parquet(TABLE))
    with pytest.raises(InvalidInput, match="holds shards but no manifest"):
        work(tmp_path)


def test_a_folder_that_parquet_cannot_name_is_refused_before_it_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "out\udcff"
    for touch in (work, Shards.read):
        with pytest.raises(InvalidFile, match=r"out\\udcff': the folder's name is not UTF-8") as error:
            touch(folder)
        str(error.value).encode()
    assert not folder.exists()


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    folder = work(tmp_path, (0, 1))
    folder.file(1).write_bytes(b"PAR1")
    with pytest.raises(InvalidFile, match=r"part-00001\.parquet: damaged"):
        folder.table(1)


def test_equal_tables_have_equal_bytes() -> None:
    assert to_parquet(TABLE) == to_parquet(pa.table(TABLE.to_pydict()))


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("id", None),
        ("stage", 5),
        ("prompts", "3"),
        ("shards", "2"),
        ("shards", -1),
        ("shards", 0),
        ("shards", 10**9),
    ],
)
def test_a_manifest_that_cannot_be_is_one_line(tmp_path: Path, member: str, value: Any) -> None:
    work(tmp_path, (0, 1))
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps({**manifest, member: value}))
    with pytest.raises(InvalidFile, match=member):
        Shards.read(tmp_path)


@pytest.mark.parametrize("text", ["", "[" * 100_000, "[]", '{"id": '])
def test_a_file_that_is_no_manifest_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(InvalidFile, match="no manifest"):
        Shards.read(tmp_path)


@pytest.mark.parametrize("column", ["prompt_id", "prompt", "gt_answer", "text"])
def test_a_shard_without_a_column_of_every_stage_is_one_line(tmp_path: Path, column: str) -> None:
    folder = work(tmp_path, (0, 1))
    folder.write(1, to_parquet(TABLE.drop_columns([column])))
    with pytest.raises(InvalidFile, match=f"part-00001.parquet: column '{column}' is missing"):
        folder.table(1)


def test_a_damaged_shard_is_one_line_wherever_it_is_read(tmp_path: Path) -> None:
    folder = work(tmp_path, (0, 1))
    folder.file(1).write_bytes(folder.file(1).read_bytes()[:-20])
    for read in (lambda: folder.table(1), lambda: folder.counts("reward")):
        with pytest.raises(InvalidFile, match=r"part-00001.parquet: damaged"):
            read()
