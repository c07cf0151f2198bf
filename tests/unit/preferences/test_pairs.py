"""Reading preference files: what is accepted, and what a refusal says."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privalign.errors import InvalidFile
from privalign.preferences.pairs import PreferencePair, iterate_pairs, read_pairs, write_pairs

LINE = json.dumps({"prompt": "p", "chosen": "c", "rejected": "r", "note": 1})
PAIR = PreferencePair("p", "c", "r")


@pytest.mark.parametrize(
    "content",
    [LINE, LINE + "\n", LINE + "\r\n", "\ufeff" + LINE, "\n\n" + LINE + "\n \n"],
    ids=["bare", "newline", "crlf", "bom", "blank lines"],
)
@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs.jsonl.gz"])
def test_accepted_forms(tmp_path: Path, content: str, name: str) -> None:
    raw = content.encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    assert read_pairs(tmp_path / name) == [PAIR]


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        (b"", None, "no preference pair"),
        (b"\n\n", None, "no preference pair"),
        (LINE.encode() + b"\n{", 2, "not JSON"),
        (b"[" * 100_000, 1, "not JSON"),
        (b"[1]", 1, "not a JSON object"),
        (b'{"prompt": "p", "chosen": "c"}', 1, "'rejected' is missing"),
        (b'{"prompt": "p", "chosen": null, "rejected": "r"}', 1, "'chosen' is missing or not a string"),
        (b"\xff\xfe\x00\x01", None, "not UTF-8"),
        (b'{"prompt": "p", "chosen": "c", "rejected": "c"}', 1, "the same"),
        (b'{"prompt": 3, "chosen": "c", "rejected": "d"}', 1, "'prompt' is not a string"),
        (b'{"chosen": "c", "rejected": "d"}', 1, "share no beginning"),
        (b'{"prompt": "p", "chosen": "c", "rejected": "d", "annotator": 1.5}', 1, "'annotator' is neither"),
        (b'{"prompt": "p", "chosen": "\\ud800", "rejected": "d"}', 1, "surrogate"),
    ],
)
def test_refusals_name_file_line_and_remedy(tmp_path: Path, content: bytes, line: int | None, says: str) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(content)
    with pytest.raises(InvalidFile, match=says) as refusal:
        read_pairs(path)
    assert refusal.value.line == line
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "content",
    [gzip.compress((LINE + "\n").encode() * 1000)[:-20], b"plain text", gzip.compress(LINE.encode())[:15] + b"\x00" * 9],
    ids=["cut off", "no gzip", "damaged"],
)
def test_damaged_gzip_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pairs.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(InvalidFile, match="gzip"):
        read_pairs(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="cannot be read"):
        read_pairs(tmp_path / "none.jsonl")


TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def test_conversations_with_a_common_beginning(tmp_path: Path) -> None:
    start = "\n\nHuman: hi\n\nAssistant: hello\n\nHuman: more\n\nAssistant:"
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"chosen": start + " yes\n\nAssistant: b", "rejected": start + " no", "annotator": 7}))
    assert read_pairs(path) == [PreferencePair(start, "yes\n\nAssistant: b", "no", "7")]


def test_progress_is_a_share_of_the_file(tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs.jsonl.gz", [PAIR] * 5000)
    shares: list[float] = []
    assert sum(1 for _ in iterate_pairs(tmp_path / "pairs.jsonl.gz", shares.append)) == 5000
    assert shares == sorted(shares)
    assert all(0 < share <= 1 for share in shares)


@given(
    st.lists(
        st.builds(PreferencePair, TEXT, TEXT, TEXT, st.none() | TEXT.filter(bool)).filter(lambda pair: pair.chosen != pair.rejected),
        min_size=1,
        max_size=5,
    )
)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, pairs: list[PreferencePair]) -> None:
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl.gz"
    write_pairs(path, pairs)
    assert read_pairs(path) == pairs
    first = path.read_bytes()
    write_pairs(path, pairs)
    assert path.read_bytes() == first


SPELLINGS = [
    ("Ann", "ann"),
    ("ann lee", "ann  lee"),
    ("ann lee", " ann lee\t"),
    ("ann lee", "ann\u00a0lee"),  # a space that does not break
    ("Ren\u00e9", "Rene\u0301"),  # composed and not
    ("\uff21nn", "Ann"),  # full width
    ("Stra\u00dfe", "STRASSE"),
    ("7", "\uff17"),
]


@pytest.mark.parametrize(("first", "second"), [*SPELLINGS, *(pair[::-1] for pair in SPELLINGS)])
def test_one_person_in_two_spellings_is_refused_before_anything_is_done_with_the_records(tmp_path: Path, first: str, second: str) -> None:
    file = tmp_path / "prefs.jsonl"
    names = ["bob", first, "\u00e9", first, second]
    lines = [json.dumps({"prompt": "p", "chosen": "c", "rejected": "r", "annotator": name}) for name in names]
    file.write_text("\n".join([*lines[:1], "", *lines[1:]]))
    with pytest.raises(InvalidFile) as refusal:
        read_pairs(file)
    message = str(refusal.value)
    assert message == f"{file}, line 6: annotator {second!a} is one person with {first!a} of line 3; spell each name in one way"
    assert message.isascii()
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("names", [["ann", "anne"], ["a b", "ab"], ["o'neil", "oneil"], ["1", "01"], ["i", "j", "i"], ["\u0131", "i"]])
def test_different_names_are_different_persons(tmp_path: Path, names: list[str]) -> None:
    file = tmp_path / "prefs.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": "p", "chosen": "c", "rejected": "r", "annotator": name}) for name in names))
    assert [pair.annotator for pair in read_pairs(file)] == names
