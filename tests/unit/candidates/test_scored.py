"""Reading scored and graded candidates: all formats give the same arrays; what is missing is counted and never zero."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privalign.candidates.scored import ScoredPrompts, join, read_scored
from privalign.errors import InvalidFile

POOLS: list[list[tuple[float | None, float | None]]] = [
    [(0.5, 1), (None, 1), (0.25, 0)],
    [(None, 0)],
    [(0.1, None), (math.nan, 1), (-3.0, 0.75), (2.0, 1)],
    [(1.0, 0)],
]
COUNTS, REWARDS, GOLD, SKIPPED = [2, 0, 2, 1], [0.5, 0.25, -3.0, 2.0, 1.0], [1, 0, 0.75, 1, 0], 4


def records(key: str = "proxy_reward") -> list[dict[str, Any]]:
    return [
        {"prompt": f"p{number}", "gt_answer": None, "responses": [{"text": "x", "is_correct": g, key: r} for r, g in pool]}
        for number, pool in enumerate(POOLS)
    ]


def table(ids: Any = None, key: str = "proxy_reward") -> pa.Table:
    rows = [(number, r, g) for number, pool in enumerate(POOLS) for r, g in pool]
    numbers = [row[0] for row in rows]
    return pa.table(
        {
            "prompt_id": pa.array(numbers if ids is None else [ids(number) for number in numbers]),
            "text": ["a text that is never read"] * len(rows),
            key: pa.array([row[1] for row in rows], pa.float32()),
            "is_correct": pa.array([row[2] for row in rows], pa.float64()),
        }
    )


def write(folder: Path, form: str) -> Path:
    path = folder / "scored"
    if form == "jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records()))
    elif form == "array":
        path.write_text(json.dumps(records()))
    elif form == "gzip":
        path.write_bytes(gzip.compress("".join(json.dumps(record) + "\n" for record in records()).encode()))
    elif form == "parquet":
        pq.write_table(table(), path, row_group_size=2)
    elif form == "dictionary":
        whole = table(str)
        pq.write_table(whole.set_column(0, "prompt_id", whole["prompt_id"].dictionary_encode()), path)
    else:  # shards, the third prompt on both sides of a border
        path.mkdir()
        whole = table(str)
        for number, (start, length) in enumerate([(0, 5), (5, 0), (5, 4)]):
            pq.write_table(whole.slice(start, length), path / f"part-{number}.parquet")
        (path / "manifest.json").write_text("{}")
    return path


@pytest.mark.parametrize("form", ["jsonl", "array", "gzip", "parquet", "dictionary", "shards"])
@pytest.mark.parametrize("block", [1, 3, 1 << 19])
def test_every_format_gives_the_same_prompts(tmp_path: Path, form: str, block: int) -> None:
    blocks = list(read_scored(write(tmp_path, form), block=block))
    assert len(blocks) == {1: 4, 3: 3, 1 << 19: 1}[block]
    whole = join(blocks)
    assert whole.prompts == 4
    assert whole.counts.tolist() == COUNTS
    assert whole.rewards.tolist() == REWARDS
    assert whole.gold.tolist() == GOLD
    assert whole.skipped == SKIPPED


def test_true_and_false_are_grades(tmp_path: Path) -> None:
    path = tmp_path / "scored"
    path.write_text(
        json.dumps({"prompt": "p", "responses": [{"text": "x", "is_correct": True, "other": 10**400}, {"is_correct": False, "other": 1}]})
    )
    (block,) = read_scored(path, "other")
    assert (block.rewards.tolist(), block.gold.tolist(), block.skipped) == ([1.0], [0.0], 1)
    rows = pa.table({"prompt_id": ["a", "a"], "is_correct": [True, False], "proxy_reward": [0.5, 0.25]})
    pq.write_table(rows, path)
    (block,) = read_scored(path)
    assert block.gold.tolist() == [1.0, 0.0]


def test_a_long_file_is_streamed(tmp_path: Path) -> None:
    """The first blocks are there while the end of the file is still damaged: nothing reads ahead."""
    path = tmp_path / "scored"
    line = json.dumps({"prompt": "p", "responses": [{"text": "x", "is_correct": 1, "proxy_reward": 0.5}] * 10}) + "\n"
    path.write_text(line * 50 + "damaged")
    blocks: Iterator[ScoredPrompts] = read_scored(path, block=100)
    assert [next(blocks).prompts for _ in range(4)] == [10] * 4
    with pytest.raises(InvalidFile, match="line 51: not JSON"):
        list(blocks)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("\n", "no records"),
        ("[]", "no records"),
        ("[1]", "record 1: not a record"),
        ('{"prompt": "p"}', "line 1: not a record with a list of responses"),
        ('{"responses": [{"is_correct": 1}]}', "'proxy_reward' of response 1 is missing"),
        ('{"responses": [{"proxy_reward": 1}]}', "'is_correct' of response 1 is missing"),
        ('{"responses": [{"proxy_reward": "1", "is_correct": 1}]}', "a proxy_reward is neither a number nor null"),
        ('{"responses": [7]}', "'proxy_reward' of response 1 is missing"),
        ('{"responses": [{"proxy_reward": 1, "is_correct": 1.5}]}', "line 1: an is_correct lies outside"),
        ('{"responses": [{"proxy_reward": null, "is_correct": -1}]}', "line 1: an is_correct lies outside"),
    ],
)
def test_bad_records_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "scored"
    path.write_text(text)
    with pytest.raises(InvalidFile, match=message):
        list(read_scored(path))


def test_bad_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "scored"
    pq.write_table(table(lambda number: (number + 1) % 3), path)
    with pytest.raises(InvalidFile, match="comes back after another one"):
        list(read_scored(path))
    with pytest.raises(InvalidFile, match="column 'armo' is missing"):
        list(read_scored(path, "armo"))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InvalidFile, match="damaged Parquet"):
        list(read_scored(path))
    for column, values, message in (
        ("is_correct", pa.array(["1"] * 9), "'is_correct' is of type string, which is no number"),
        ("is_correct", pa.array([1.0] * 8 + [2.0]), "an is_correct lies outside"),
        ("proxy_reward", pa.array(["0.5"] * 9), "'proxy_reward' is of type string"),
        ("proxy_reward", pa.array([[0.5]] * 9), "'proxy_reward' is of type list"),
        ("proxy_reward", pa.array([0] * 9, pa.timestamp("s")), "'proxy_reward' is of type timestamp"),
        ("prompt_id", pa.array([[0]] * 9), "'prompt_id' is of type list"),
        ("prompt_id", pa.array([{"a": 0}] * 9), "'prompt_id' is of type struct"),
        ("prompt_id", pa.array([0] * 8 + [None]), "a prompt_id is null"),
    ):
        good = table()
        pq.write_table(good.set_column(good.column_names.index(column), column, values), path)
        with pytest.raises(InvalidFile, match=message):
            list(read_scored(path))
    pq.write_table(table().slice(0, 0), path)
    with pytest.raises(InvalidFile, match="no records"):
        list(read_scored(path))
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidFile, match=r"without \*\.parquet files"):
        list(read_scored(tmp_path / "folder"))
    with pytest.raises(InvalidFile, match="cannot be read"):
        list(read_scored(tmp_path / "nowhere"))


def test_a_stage_that_was_cut_off_is_not_evaluated(tmp_path: Path) -> None:
    folder = write(tmp_path, "shards")
    (folder / "manifest.json").write_text('{"stage": "grade", "shards": 4}')
    with pytest.raises(InvalidFile, match="holds 3 of 4 shards; run the stage"):
        list(read_scored(folder))
    (folder / "manifest.json").write_text('{"stage": "grade", "shards": 3}')
    assert join(read_scored(folder)).prompts == 4


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.data())
def test_taking_prompts(counts: list[int], data: st.DataObject) -> None:
    offsets = np.concatenate([[0], np.cumsum(counts)])
    block = ScoredPrompts(offsets, np.arange(offsets[-1], dtype=float), -np.arange(offsets[-1], dtype=float))
    chosen = data.draw(st.lists(st.integers(0, len(counts) - 1), max_size=6))
    taken = block.take(np.array(chosen, dtype=int))
    assert taken.counts.tolist() == [counts[number] for number in chosen]
    assert taken.rewards.tolist() == [float(row) for number in chosen for row in range(offsets[number], offsets[number + 1])]
    assert (taken.gold == -taken.rewards).all()
    mask = np.array(counts) > 2
    assert block.take(mask).counts.tolist() == [count for count in counts if count > 2]
