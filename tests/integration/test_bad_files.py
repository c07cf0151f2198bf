"""Every way in which a file of scored candidates can be bad, through the command line: one line, exit code 2, nothing written."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from privalign import cli

PLANTED = 0.123456789
GOOD: dict[str, Any] = {
    "prompt": "p",
    "gt_answer": "g",
    "responses": [{"text": f"t{i}", "is_correct": 1, "proxy_reward": PLANTED} for i in range(3)],
}
OPTIONS = ("--mechanism", "privbon", "--n", "3", "--scale", "0.5", "--range", "0,1")


def with_response(**changes: Any) -> dict[str, Any]:
    """The good record, its second response changed; `without` names a key to remove from it."""
    removed = changes.pop("without", None)
    response = {key: value for key, value in (GOOD["responses"][1] | changes).items() if key != removed}
    return GOOD | {"responses": [GOOD["responses"][0], response, GOOD["responses"][2]]}


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in GOOD.items() if name != key}


def after_good(record: Any) -> bytes:
    """A file whose third line is the record; the first is good and the second blank."""
    return f"{json.dumps(GOOD)}\n\n{record if isinstance(record, str) else json.dumps(record)}\n".encode()


BAD: dict[str, tuple[bytes, str]] = {
    # name: (content, what follows the name of the file; … stands for a number that depends on how much is read at once)
    "empty": (b"", ": empty; give"),
    "only white space": (b"\n \r\n\n", ": no records in it; give"),
    "only a byte order mark": (b"\xef\xbb\xbf", ": no records in it; give"),
    "empty array": (b" [ ] ", ": no records in it; give"),
    "empty gzip": (gzip.compress(b""), ": no records in it; give"),
    "not JSON": (after_good("hello"), ", line 3: not JSON (Expecting value, column 1); give"),
    "two records on a line": (after_good("{} {}"), ", line 3: not JSON (Extra data, column 4); give"),
    "cut line": (json.dumps(GOOD)[:-9].encode(), ", line 1: not JSON"),
    "one indented record": (json.dumps(GOOD, indent=1).encode(), ", line 1: not JSON"),
    "deep nesting": (b'{"prompt": ' + b"[" * 200_000, ", line 1: JSON that cannot be read here; give"),
    "huge whole number": (after_good('{"prompt": ' + "9" * 5_000 + "}"), ", line 3: JSON that cannot be read here; give"),
    "a number as record": (after_good(3), ", line 3: not a record; give"),
    "a list as record": (after_good([GOOD]), ", line 3: not a record; give"),
    "prompt missing": (after_good(without("prompt")), ", line 3: 'prompt' is missing; give"),
    "responses missing": (after_good(without("responses")), ", line 3: 'responses' is missing; give"),
    "text missing": (after_good(with_response(without="text")), ", line 3: 'text' of response 2 is missing; give"),
    "reward missing": (after_good(with_response(without="proxy_reward")), ", line 3: 'proxy_reward' of response 2 is missing; give"),
    "prompt is a number": (after_good(GOOD | {"prompt": 5}), ", line 3: the prompt is not a string; give"),
    "prompt is null": (after_good(GOOD | {"prompt": None}), ", line 3: the prompt is not a string; give"),
    "text is null": (after_good(with_response(text=None)), ", line 3: the text of response 2 is not a string; give"),
    "half a surrogate pair": (after_good(with_response(text="\ud800")), ", line 3: the text of response 2 holds half a surrogate pair"),
    "responses is an object": (after_good(GOOD | {"responses": {}}), ", line 3: 'responses' is not a list; give"),
    "a response is a string": (after_good(GOOD | {"responses": ["a", "b", "c"]}), ", line 3: response 1 is not an object; give"),
    "no responses": (after_good(GOOD | {"responses": []}), ", line 3: 0 responses where 3 are needed; add"),
    "too few responses": (after_good(GOOD | {"responses": GOOD["responses"][:2]}), ", line 3: 2 responses where 3 are needed; add"),
    "null reward": (after_good(with_response(proxy_reward=None)), ", line 3: a proxy_reward is null; score"),
    "NaN reward": (after_good(with_response(proxy_reward=float("nan"))), ", line 3: a proxy_reward is not finite; score"),
    "infinite reward": (after_good(with_response(proxy_reward=float("inf"))), ", line 3: a proxy_reward is not finite; score"),
    "minus infinite reward": (after_good(with_response(proxy_reward=float("-inf"))), ", line 3: a proxy_reward is not finite; score"),
    "overflowing reward": (after_good(json.dumps(GOOD).replace(str(PLANTED), "1e999")), ", line 3: a proxy_reward is not finite; score"),
    "overflowing whole reward": (after_good(with_response(proxy_reward=10**400)), ", line 3: a proxy_reward is not finite; score"),
    "string reward": (after_good(with_response(proxy_reward=str(PLANTED))), ", line 3: a proxy_reward is not a number; score"),
    "true as reward": (after_good(with_response(proxy_reward=True)), ", line 3: a proxy_reward is not a number; score"),
    "list as reward": (after_good(with_response(proxy_reward=[PLANTED])), ", line 3: a proxy_reward is not a number; score"),
    "bad record in a long file": (
        (json.dumps(GOOD) + "\n").encode() * 999 + json.dumps(with_response(proxy_reward=None)).encode(),
        ", line 1000: a proxy_reward is null; score",
    ),
    "array: null reward": (json.dumps([GOOD, with_response(proxy_reward=None)]).encode(), ": record 2: a proxy_reward is null; score"),
    "array: a number": (b"[1]", ": record 1: not a record; give"),
    "array: cut off": (json.dumps([GOOD, GOOD])[:-1].encode(), ": record 2: not JSON, or cut off; give"),
    "array: cut off in a text": (json.dumps([GOOD, GOOD])[:-60].encode(), ": record 2: not JSON"),
    "array: comma missing": (json.dumps([GOOD, GOOD]).replace('}, {"prompt', '} {"prompt').encode(), ": record 1: not JSON"),
    "array: comma too much": (json.dumps([GOOD])[:-1].encode() + b", ]", ": record 2: not JSON"),
    "array: more behind it": (json.dumps([GOOD]).encode() + b" []", ": record 1: something follows the end of the JSON array; remove"),
    "array: deep nesting": (b"[" * 200_000, ": record 1: JSON that cannot be read here; give"),
    "array: not UTF-8": (json.dumps([GOOD])[:-1].encode() + b"\xff]", ": record 1: not UTF-8 text; give"),
    "gzip: cut off": (gzip.compress(after_good(GOOD) * 50)[:-20], ", line …: the gzip data are damaged or cut off; copy"),
    "gzip: cut off in its head": (gzip.compress(after_good(GOOD))[:5], ", line 1: the gzip data are damaged or cut off; copy"),
    "gzip: check sum wrong": (gzip.compress(after_good(GOOD))[:-8] + b"12345678", ", line …: the gzip data are damaged or cut off; copy"),
    "gzip: something behind it": (gzip.compress(after_good(GOOD)) + b"x", ", line …: the gzip data are damaged or cut off; copy"),
    "gzip: null reward": (gzip.compress(after_good(with_response(proxy_reward=None))), ", line 3: a proxy_reward is null; score"),
    "gzip in gzip": (gzip.compress(gzip.compress(after_good(GOOD))), ", line 1: not UTF-8 text; give"),
    "binary": (bytes(range(256)) * 64, ", line 1: not JSON"),
    "binary from a random source": (b"\x80" + os.urandom(1 << 16), ", line 1: not UTF-8 text; give"),
    "UTF-16": (json.dumps(GOOD).encode("utf-16"), ", line 1: not UTF-8 text; give"),
    "latin-1": (after_good('{"prompt": "\xe9"}').decode().encode("latin-1"), ", line 3: not UTF-8 text; give"),
    "cut Parquet": (b"PAR1" + bytes(100), ": damaged or cut off Parquet; write"),
}


def check(code: int, out: str, error: str, file: Path, complaint: str) -> None:
    assert code == 2
    assert out == ""
    assert error.count("\n") == 1
    assert re.match(re.escape(f"privalign: {file}{complaint}").replace("…", "[0-9]+"), error)
    assert str(PLANTED) not in error
    assert [path.name for path in file.parent.iterdir() if path.name.startswith(".") or path.name == "out.jsonl"] == []


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("to_file", [True, False])
def test_a_bad_file_is_refused_with_one_line(
    name: str, to_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content, complaint = BAD[name]
    file = tmp_path / "scored"
    file.write_bytes(content)
    out = ("--out", str(tmp_path / "out.jsonl")) if to_file else ("--json",)
    monkeypatch.setattr(sys, "argv", ["privalign", "select", str(file), *OPTIONS, *out])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    captured = capsys.readouterr()
    assert type(exit.value.code) is int
    check(exit.value.code, captured.out, captured.err, file, complaint)


@pytest.mark.parametrize("name", ["empty", "NaN reward", "gzip: cut off", "binary", "array: deep nesting", "cut Parquet"])
def test_the_installed_command_does_the_same(name: str, tmp_path: Path) -> None:
    content, complaint = BAD[name]
    file = tmp_path / "scored"
    file.write_bytes(content)
    command = [sys.executable, "-c", "from privalign.cli import main; main()", "select", str(file), *OPTIONS]
    done = subprocess.run([*command, "--json", "--out", str(tmp_path / "out.jsonl")], capture_output=True, text=True, check=False)
    check(done.returncode, done.stdout, done.stderr, file, complaint)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda path: None, ": cannot be read (No such file or directory); give"),
        (lambda path: path.mkdir(), ": not a regular file; it is read twice"),
        (lambda path: os.mkfifo(path), ": not a regular file; it is read twice"),
        (lambda path: path.symlink_to(path), ": cannot be read (Too many levels of symbolic links); give"),
    ],
)
def test_what_is_no_file_is_refused(
    make: Any, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scored"
    make(file)
    monkeypatch.setattr(sys, "argv", ["privalign", "select", str(file), *OPTIONS])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    captured = capsys.readouterr()
    assert type(exit.value.code) is int
    check(exit.value.code, captured.out, captured.err, file, complaint)


def test_a_bad_file_leaves_an_older_output_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "scored", tmp_path / "older.jsonl"
    file.write_bytes(after_good(with_response(proxy_reward=None)))
    out.write_text("older\n")
    monkeypatch.setattr(sys, "argv", ["privalign", "select", str(file), *OPTIONS, "--out", str(out)])
    with pytest.raises(SystemExit):
        cli.main()
    assert out.read_text() == "older\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["older.jsonl", "scored"]
    assert capsys.readouterr().out == ""


def test_no_option_reads_a_null_reward_as_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even where the candidate would not have been scored: the base policy, and candidates beyond the pool."""
    file = tmp_path / "scored"
    file.write_bytes(after_good(with_response(proxy_reward=None)))
    for options in (["--mechanism", "base"], ["--mechanism", "bon", "--n", "1"], ["--mechanism", "bon", "--draw", "with"]):
        monkeypatch.setattr(sys, "argv", ["privalign", "select", str(file), *options, "--range", "0,1"])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        assert exit.value.code == 2
        assert ", line 3: a proxy_reward is null" in capsys.readouterr().err
