"""Reading scored candidates: one meaning in every format, bounded memory, and draws of the stated law."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privalign.candidates import records
from privalign.candidates.pools import Pool, read_pools
from privalign.errors import InvalidFile

PLANTED = 0.123456789
RECORDS: list[dict[str, Any]] = [
    {
        "prompt": "1 + 1 = ?\n\u2028 twice",
        "gt_answer": "2",
        "responses": [
            {"text": 'two "quoted" \\ }]', "is_correct": 1, "proxy_reward": PLANTED},
            {"text": "two 🙂", "is_correct": 1, "proxy_reward": -1e-3},
            {"text": "two 🙂", "is_correct": 1, "proxy_reward": 3},
        ],
    },
    {"prompt": "", "gt_answer": None, "responses": [{"text": "", "is_correct": 0.5, "proxy_reward": 0.25}]},
    {"prompt": "same", "responses": [{"text": "a", "proxy_reward": 1.0}, {"text": "b", "proxy_reward": 2.0}]},
    {"prompt": "same", "responses": [{"text": "c", "proxy_reward": 1.0}]},
]
POOLS = [
    Pool(r["prompt"], tuple(x["text"] for x in r["responses"]), tuple(float(x["proxy_reward"]) for x in r["responses"])) for r in RECORDS
]


def lines(records: list[Any], end: str = "\n") -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + end for record in records).encode()


def write_parquet(path: Path, records: list[dict[str, Any]], group_size: int = 3, **columns: Any) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [(number, record, response) for number, record in enumerate(records) for response in record["responses"]]
    table = {
        "prompt_id": [number for number, _, _ in rows],
        "prompt": [record["prompt"] for _, record, _ in rows],
        "gt_answer": [record.get("gt_answer") for _, record, _ in rows],
        "text": [response["text"] for _, _, response in rows],
        "is_correct": pa.array([response.get("is_correct") for _, _, response in rows], pa.float64()),
        "proxy_reward": pa.array([response["proxy_reward"] for _, _, response in rows], pa.float64()),
        **columns,
    }
    kept = {name: column for name, column in table.items() if column is not None}
    pq.write_table(pa.table(kept), path, row_group_size=group_size)
    return path


FORMATS: dict[str, Callable[[], bytes]] = {
    "lines": lambda: lines(RECORDS),
    "no last line end": lambda: lines(RECORDS).rstrip(b"\n"),
    "byte order mark": lambda: b"\xef\xbb\xbf" + lines(RECORDS),
    "carriage returns": lambda: lines(RECORDS, "\r\n"),
    "blank lines": lambda: b"\n \r\n" + lines(RECORDS, "\n\n\t\n"),
    "escapes": lambda: "\n".join(json.dumps(record) for record in RECORDS).encode(),
    "array": lambda: json.dumps(RECORDS).encode(),
    "indented array": lambda: b"\xef\xbb\xbf\r\n \n" + json.dumps(RECORDS, indent=3, ensure_ascii=False).encode() + b"\r\n\r\n",
    "gzip": lambda: gzip.compress(lines(RECORDS)),
    "two gzip members": lambda: gzip.compress(lines(RECORDS[:1])) + gzip.compress(lines(RECORDS[1:])),
    "gzip array": lambda: gzip.compress(json.dumps(RECORDS, indent=1).encode()),
}


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_gives_the_same_records(form: str, tmp_path: Path) -> None:
    file = tmp_path / "whatever-the-name"
    file.write_bytes(FORMATS[form]())
    assert list(read_pools(file)) == POOLS


@pytest.mark.parametrize("group_size", [1, 2, 100])
def test_parquet_gives_the_same_records(group_size: int, tmp_path: Path) -> None:
    assert list(read_pools(write_parquet(tmp_path / "scored.parquet", RECORDS, group_size))) == POOLS


def test_parquet_columns_may_have_other_types_and_names(tmp_path: Path) -> None:
    import pyarrow as pa

    file = write_parquet(
        tmp_path / "scored.parquet",
        RECORDS,
        text=pa.array([r["text"] for record in RECORDS for r in record["responses"]]).dictionary_encode(),
        prompt_id=pa.array(["a", "a", "a", "b", "c", "c", "d"], pa.large_string()),
        proxy_reward=None,
        gt_answer=None,
        is_correct=None,
        single=pa.array([0.5] * 7, pa.float32()),
        half=pa.array([0.5] * 7, pa.float16()),
        whole=pa.array([2] * 7, pa.int8()),
    )
    for column, value in (("single", 0.5), ("half", 0.5), ("whole", 2.0)):
        assert [pool.rewards for pool in read_pools(file, column)] == [(value,) * len(pool.texts) for pool in POOLS]
    with pytest.raises(InvalidFile, match="column 'proxy_reward' is missing; give one row per candidate"):
        list(read_pools(file))


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"prompt_id": [0, 0, 0, 1, 2, 0, 3]}, "row group 2, row 6: a prompt_id comes back"),
        ({"prompt_id": [0, 0, 0, 1, 1, 1, 3]}, "row group 2, row 5: two prompts share a prompt_id"),
        ({"prompt_id": [0, 0, 0, None, 2, 2, 3]}, "row group 2, row 4: the prompt_id is neither"),
        ({"text": ["x", "x", "x", "x", "x", None, "x"]}, "row group 2, row 5: the text of response 2 is not a string"),
        ({"proxy_reward": [PLANTED, PLANTED, None, 0.0, 0.0, 0.0, 0.0]}, "row group 1, row 1: a proxy_reward is null"),
        ({"proxy_reward": [PLANTED, PLANTED, float("nan"), 0.0, 0.0, 0.0, 0.0]}, "row group 1, row 1: a proxy_reward is not finite"),
        ({"proxy_reward": [str(PLANTED)] * 7}, "row group 1, row 1: a proxy_reward is not a number"),
        ({"proxy_reward": [True] * 7}, "row group 1, row 1: a proxy_reward is not a number"),
        ({"prompt": [7] * 7}, "row group 1, row 1: the prompt is not a string"),
    ],
)
def test_bad_parquet_is_refused_at_its_row(columns: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "scored.parquet", RECORDS, **columns)
    with pytest.raises(InvalidFile) as caught:
        list(read_pools(file))
    assert f"{file}: {complaint}" in str(caught.value)
    assert str(PLANTED) not in str(caught.value)


def test_damaged_parquet_is_refused(tmp_path: Path) -> None:
    good = write_parquet(tmp_path / "scored.parquet", RECORDS).read_bytes()
    middle = len(good) // 3
    for damaged in (good[: len(good) // 2], good[:-1], b"PAR1", good[:8] + b"\x00" * middle + good[8 + middle :]):
        file = tmp_path / "damaged.parquet"
        file.write_bytes(damaged)
        with pytest.raises(InvalidFile, match="damaged or cut off Parquet; write the file again"):
            list(read_pools(file))


def test_other_keys_are_not_looked_at_and_the_score_has_any_name(tmp_path: Path) -> None:
    file = tmp_path / "scored.jsonl"
    file.write_bytes(lines([{"prompt": "p", "extra": float("nan"), "responses": [{"text": "t", "is_correct": "?", "other": 0.5}]}]))
    assert list(read_pools(file, "other")) == [Pool("p", ("t",), (0.5,))]


def test_records_come_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "scored.jsonl"
    file.write_bytes(lines(RECORDS) + b"{")
    pools = read_pools(file)
    assert [next(pools) for _ in POOLS] == POOLS
    with pytest.raises(InvalidFile) as caught:
        next(pools)
    assert caught.value.line == 5


def test_a_long_record_is_fine_in_every_form(tmp_path: Path) -> None:
    text = "x" * 10_000_000
    record = {"prompt": "p", "responses": [{"text": text, "proxy_reward": 0.5}]}
    for content in (lines([record, record]), json.dumps([record, record]).encode()):
        file = tmp_path / "scored"
        file.write_bytes(content)
        assert list(read_pools(file)) == [Pool("p", (text,), (0.5,))] * 2


def test_a_record_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MOST_BYTES", 1 << 20)
    record = {"prompt": "p", "responses": [{"text": "x" * (5 << 20), "proxy_reward": 0.5}]}
    for content in (lines([record]), gzip.compress(lines([record])), json.dumps([record]).encode()):
        file = tmp_path / "scored"
        file.write_bytes(content)
        with pytest.raises(InvalidFile, match="longer than 1 MiB"):
            list(read_pools(file))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(
    st.lists(st.dictionaries(st.text(), json_values, max_size=4), max_size=5),
    st.integers(1, 40),
    st.sampled_from([None, 2]),
    st.booleans(),
    st.data(),
)
def test_an_array_is_read_as_the_library_reads_it(
    values: list[Any], chunk: int, indent: int | None, escaped: bool, data: st.DataObject
) -> None:
    """Whatever the size of the pieces that the text arrives in; and every proper prefix is refused."""
    text = json.dumps(values, indent=indent, ensure_ascii=escaped or any("\\ud" in json.dumps(value) for value in values))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_CHUNK", chunk)
        read = [value for _, value in records._array(Path("f"), io.BytesIO(text.encode()))]
        assert repr(read) == repr(json.loads(text))
        cut = data.draw(st.integers(1, len(text) - 1))
        with pytest.raises(InvalidFile):
            list(records._array(Path("f"), io.BytesIO(text[:cut].encode())))


def test_a_pool_does_not_show_its_rewards() -> None:
    assert str(PLANTED) not in repr(POOLS[0])


PEAK_MEMORY = """
import sys
from pathlib import Path
from privalign.candidates.pools import read_pools
count = sum(1 for _ in read_pools(Path(sys.argv[1])))
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(count, peak.split()[1])
"""


def write_many(path: Path, form: str, count: int) -> None:
    """A file of `count` records of about 16 kB, written piece by piece."""
    texts = [f"{i} " + "lorem ipsum " * 80 for i in range(16)]
    record = {"prompt": "p", "responses": [{"text": text, "proxy_reward": 0.5} for text in texts]}
    if form == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema([("prompt_id", pa.int64()), ("prompt", pa.string()), ("text", pa.string()), ("proxy_reward", pa.float64())])
        with pq.ParquetWriter(path, schema, use_dictionary=False, compression="none") as writer:
            for start in range(0, count, 50):
                ids = [prompt for prompt in range(start, min(start + 50, count)) for _ in texts]
                columns = [ids, ["p"] * len(ids), texts * (len(ids) // 16), [0.5] * len(ids)]
                writer.write_table(pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema))
        return
    array = form.startswith("array")
    with gzip.open(path, "wt", compresslevel=1) if form.endswith("gz") else path.open("w") as file:
        file.write("[" if array else "")
        for number in range(count):
            file.write(("," if array and number else "") + json.dumps(record) + "\n")
        file.write("]" if array else "")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to read the peak memory of a process")
@pytest.mark.parametrize("form", ["lines", "lines.gz", "array", "array.gz", "parquet"])
def test_memory_does_not_grow_with_the_file(form: str, tmp_path: Path) -> None:
    """60 MB of records take no more memory than 1.6 MB of them, but for 12 MB of slack."""
    peaks = []
    for count in (100, 3_800):
        file = tmp_path / f"{count}.{form}"
        write_many(file, form, count)
        done = subprocess.run([sys.executable, "-c", PEAK_MEMORY, str(file)], capture_output=True, text=True, check=True)
        read, kilobytes = map(int, done.stdout.split())
        assert read == count
        peaks.append(kilobytes)
    assert peaks[1] - peaks[0] < 12_000
