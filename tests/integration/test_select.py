"""`privalign select` end to end: its contract, what it says about privacy, and what it never says."""

from __future__ import annotations

import gzip
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from privalign import cli

PLANTED = 0.123456789
LOSER = "a losing candidate"
MECHANISMS = {
    "base": [],
    "bon": ["--n", "4"],
    "privbon": ["--n", "4", "--scale", "0.5"],
    "privbon-gaussian": ["--n", "4", "--scale", "0.5"],
    "itp": ["--n", "4", "--n2", "3"],
    "itp-reuse": ["--n", "4"],
    "privitp": ["--n", "4", "--n2", "3", "--sigma-x", "0.5", "--sigma-z", "0.5"],
}
PRIVATE = ("base", "privbon", "privbon-gaussian", "privitp")
COMMAND = [sys.executable, "-c", "from privalign.cli import main; main()"]


class Terminal:
    """Runs the command line in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def run(self, *arguments: object) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["privalign", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        captured = self._capsys.readouterr()
        return int(exit.value.code or 0), captured.out, captured.err

    def select(self, file: Path, *options: object, range: str = "0,1") -> Any:
        """The summary document of a run that must succeed silently."""
        code, out, error = self.run("select", file, f"--range={range}", *options, "--json")
        assert (code, error) == (0, "")
        return json.loads(out)

    def refused(self, *arguments: object) -> str:
        """The one line of a run that must be refused."""
        code, out, error = self.run("select", *arguments)
        assert (code, out, error.count("\n")) == (2, "", 1)
        return error


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(monkeypatch, capsys)


def write(path: Path, pools: list[list[float]]) -> Path:
    """One prompt a pool; the text of a candidate is its position."""
    with path.open("w") as file:
        for number, pool in enumerate(pools):
            responses = [{"text": str(i), "is_correct": 0, "proxy_reward": reward} for i, reward in enumerate(pool)]
            file.write(json.dumps({"prompt": f"p{number}", "gt_answer": None, "responses": responses}) + "\n")
    return path


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    return write(tmp_path / "scored.jsonl", [[0.1, 0.9, 0.4, 0.2, 0.5, 0.6, 0.7, 0.8, 0.3, 0.0]] * 6)


def read(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("draw", ["first", "without", "with"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_contract(mechanism: str, draw: str, scored: Path, tmp_path: Path, terminal: Terminal) -> None:
    out = tmp_path / "out.jsonl"
    summary = terminal.select(scored, "--mechanism", mechanism, *MECHANISMS[mechanism], "--draw", draw, "--out", out)
    answers = read(out)
    assert [answer["prompt"] for answer in answers] == [f"p{i}" for i in range(6)]
    for answer in answers:
        assert set(answer) == {"prompt", "text", "index", "fallback", "privacy"}
        assert answer["text"] == str(answer["index"])
        assert type(answer["fallback"]) is bool
        assert {"mechanism", "epsilon", "delta", "account"} <= set(answer["privacy"])
        assert (answer["privacy"]["mechanism"], answer["privacy"]["account"]) == (mechanism, None)
    assert (summary["prompts"], summary["answered"], summary["refused"]) == (6, 6, 0)
    assert "results" not in summary
    assert summary["private"] is (mechanism in PRIVATE)
    privacy, spent = answers[0]["privacy"], summary["spent"]
    if mechanism in PRIVATE:
        assert "notice" not in summary
        assert set(privacy) == {"mechanism", "epsilon", "delta", "account"}
        assert privacy["delta"] == (1e-6 if mechanism == "privitp" else 0)
        assert (privacy["epsilon"] == 0) is (mechanism == "base")
        for name in ("epsilon", "delta"):
            assert 6 * privacy[name] <= spent[name] <= 6 * privacy[name] * (1 + 1e-12)
    else:
        assert summary["notice"].startswith("not a private release: ")
        assert privacy == {"mechanism": mechanism, "epsilon": None, "delta": 0, "account": None, "private": False}
        assert spent == {"epsilon": None, "delta": None}


def test_epsilon_is_the_calculators_worst_case(scored: Path, terminal: Terminal) -> None:
    for mechanism in ("privbon", "privbon-gaussian", "privitp"):
        options = (*MECHANISMS[mechanism], "--sensitivity", "0.1")
        few = ("--orders", "2") if mechanism == "privitp" else ()
        code, out, _ = terminal.run("epsilon", mechanism, *options, *few, "--json")
        assert code == 0
        assert terminal.select(scored, "--mechanism", mechanism, *options)["epsilon"] == json.loads(out)["epsilon"]


def test_calibrated_noise_never_costs_more(scored: Path, terminal: Terminal) -> None:
    summary = terminal.select(scored, "--mechanism", "privbon", "--n", 4, "--epsilon", 2, "--sensitivity", "0.01")
    assert 1.99 < summary["epsilon"] <= 2
    assert summary["scale"] > 0
    assert (summary["sensitivity"], summary["sensitivity_source"], summary["range"]) == (0.01, "declared", [0, 1])


def test_without_out_the_summary_has_the_results(scored: Path, tmp_path: Path, terminal: Terminal) -> None:
    out = tmp_path / "out.jsonl"
    options = ("--mechanism", "privbon", "--n", 4, "--scale", 0.5, "--seed", 5)
    terminal.select(scored, *options, "--out", out)
    assert terminal.select(scored, *options)["results"] == read(out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "scored.jsonl"]


def test_every_format_gives_the_same_answers(scored: Path, tmp_path: Path, terminal: Terminal) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    records = read(scored)
    rows = [
        {"prompt_id": i, "prompt": r["prompt"], "text": x["text"], "proxy_reward": x["proxy_reward"]}
        for i, r in enumerate(records)
        for x in r["responses"]
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "parquet", row_group_size=7)
    (tmp_path / "array").write_text("\ufeff" + json.dumps(records, indent=2).replace("\n", "\r\n"))
    (tmp_path / "gzip").write_bytes(gzip.compress(scored.read_bytes()))
    options = ("--mechanism", "privitp", *MECHANISMS["privitp"], "--draw", "without", "--seed", 3)
    expected = terminal.select(scored, *options)
    for form in ("parquet", "array", "gzip"):
        assert terminal.select(tmp_path / form, *options) == expected


def test_parquet_without_its_library_is_one_line(tmp_path: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "scored.parquet"
    file.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'privalign[parquet]'" in terminal.refused(file, "--range", "0,1", "--mechanism", "base")


def test_noise_too_small_for_a_finite_price_is_refused(scored: Path, terminal: Terminal) -> None:
    code, out, error = terminal.run("select", scored, "--range", "0,1", "--mechanism", "privbon", "--n", 4, "--scale", "1e-310")
    assert (code, out, error.count("\n")) == (2, "", 1)


def test_the_price_of_seeded_noise_is_not_stated(scored: Path, terminal: Terminal) -> None:
    summary = terminal.select(scored, "--mechanism", "privbon", "--n", 4, "--scale", "1", "--seed", "1")
    assert (summary["epsilon"], summary["private"], summary["spent"]["epsilon"]) == (None, False, None)


def test_people_see_a_table_and_the_texts(scored: Path, tmp_path: Path, terminal: Terminal) -> None:
    code, out, error = terminal.run("select", scored, "--range", "0,1", "--mechanism", "bon", "--n", 10)
    assert (code, error) == (0, "")
    assert out.count("\n1\n") == 6
    assert "not a private release: bon has no guarantee" in out
    code, out, _ = terminal.run("select", scored, "--range", "0,1", "--mechanism", "bon", "--n", 10, "--out", tmp_path / "out")
    assert code == 0
    assert out.count("\n1\n") == 0
    assert "answered" in out


def test_a_text_cannot_steer_the_terminal(tmp_path: Path, terminal: Terminal) -> None:
    file = tmp_path / "scored.jsonl"
    file.write_text(json.dumps({"prompt": "p\x1b[2J", "responses": [{"text": "[red]é\tx\n\x1b]0;t\x07", "proxy_reward": 0}]}))
    _, out, _ = terminal.run("select", file, "--range", "0,1", "--mechanism", "base")
    assert "[red]é\tx\n\ufffd]0;t\ufffd" in out
    assert "\x1b" not in out


@pytest.mark.parametrize("draw", ["first", "without", "with"])
def test_a_seed_reproduces_a_run_and_marks_it(draw: str, tmp_path: Path, terminal: Terminal) -> None:
    file = write(tmp_path / "scored.jsonl", [[i / 40 for i in range(40)]] * 40)
    options = ("--mechanism", "privbon", "--scale", 0.5, "--draw", draw)
    first, again, other = (terminal.select(file, *options, "--seed", seed) for seed in (1, 1, 2))
    assert first == again
    assert [answer["index"] for answer in first["results"]] != [answer["index"] for answer in other["results"]]
    assert first["private"] is False
    assert first["notice"].startswith("not a private release: ")
    assert first["spent"] == {"epsilon": None, "delta": None}
    assert all(answer["privacy"]["private"] is False for answer in first["results"])


@pytest.mark.parametrize("draw", ["first", "without", "with"])
def test_runs_without_a_seed_differ(draw: str, tmp_path: Path, terminal: Terminal) -> None:
    """Equal by chance with probability below 16^-40 (nearly uniform selection)."""
    file = write(tmp_path / "scored.jsonl", [[0.5] * 40] * 40)
    options = ("--mechanism", "privbon", "--scale", 0.5, "--draw", draw)
    first, second = ([answer["index"] for answer in terminal.select(file, *options)["results"]] for _ in range(2))
    assert first != second


@pytest.mark.parametrize("mechanism", ["privbon", "privbon-gaussian", "privitp"])
def test_the_peak_wins_at_tiny_noise_wherever_it_lies(mechanism: str, tmp_path: Path, terminal: Terminal) -> None:
    """privitp: phase 1 sees only the best reward, so that phase 2 waits for one; missed once in 10^6 runs."""
    noise = ["--sigma-x", "1e-9", "--sigma-z", "1e-9"] if mechanism == "privitp" else ["--scale", "1e-4"]
    n, before = (4, [1.0] * 4) if mechanism == "privitp" else (12, [0.0] * 4)
    for peak in (4, 7):
        file = write(tmp_path / "scored.jsonl", [before + [float(i == peak) for i in range(4, 12)]] * 10)
        summary = terminal.select(file, "--mechanism", mechanism, "--n", n, *noise)
        assert [answer["index"] for answer in summary["results"]] == [peak] * 10


@pytest.mark.parametrize("draw", ["without", "with"])
def test_the_index_is_the_place_in_the_file_for_random_draws_too(draw: str, tmp_path: Path, terminal: Terminal) -> None:
    """The best of 30 lies elsewhere for every prompt; 1,000 draws with replacement miss it once in 10^13 runs."""
    file = write(tmp_path / "scored.jsonl", [[float(i == number % 30) for i in range(30)] for number in range(40)])
    n = 30 if draw == "without" else 1_000
    results = terminal.select(file, "--mechanism", "bon", "--n", n, "--draw", draw)["results"]
    assert [answer["index"] for answer in results] == [number % 30 for number in range(40)]


def test_the_base_policy_follows_the_draws(tmp_path: Path, terminal: Terminal) -> None:
    """Uniform over the pool for random draws: 4 places, 2,000 prompts, 6.5 standard deviations (false alarm below 1e-9)."""
    file = write(tmp_path / "scored.jsonl", [[0.5] * 4] * 2_000)
    assert {answer["index"] for answer in terminal.select(file, "--mechanism", "base")["results"]} == {0}
    for draw in ("without", "with"):
        counts = Counter(answer["index"] for answer in terminal.select(file, "--mechanism", "base", "--draw", draw)["results"])
        assert all(abs(counts[i] - 500) < 6.5 * math.sqrt(2_000 * 3 / 16) for i in range(4))


def test_the_law_of_privbon_is_softmax(tmp_path: Path, terminal: Terminal) -> None:
    """Two candidates one scale apart: e : 1, 4,000 secure draws, 6 standard deviations (false alarm below 1e-8)."""
    file = write(tmp_path / "scored.jsonl", [[0.75, 0.25]] * 4_000)
    results = terminal.select(file, "--mechanism", "privbon", "--n", 2, "--scale", 0.5)["results"]
    p = math.e / (1 + math.e)
    assert abs(sum(answer["index"] == 0 for answer in results) - 4_000 * p) < 6 * math.sqrt(4_000 * p * (1 - p))


def test_fallbacks_are_marked_and_not_counted(tmp_path: Path, terminal: Terminal) -> None:
    """Phase 2 sees only the worst rewards, so without noise every query falls back to the candidate after it."""
    file = write(tmp_path / "scored.jsonl", [[1.0, 1.0, 0.0, 0.0, 0.5]] * 3)
    summary = terminal.select(file, "--mechanism", "itp", "--n", 2)
    assert [(answer["index"], answer["fallback"]) for answer in summary["results"]] == [(4, True)] * 3
    assert "fallback" not in " ".join(key for key in summary if key != "results")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("form", [["--json"], []])
def test_rewards_and_losers_are_never_shown(mechanism: str, form: list[str], tmp_path: Path, terminal: Terminal) -> None:
    file = tmp_path / "scored.jsonl"
    responses = [{"text": f"{LOSER} {i}", "is_correct": 0, "proxy_reward": PLANTED + i / 1e10} for i in range(9)]
    file.write_text(json.dumps({"prompt": "p", "responses": responses}))
    out = tmp_path / "out.jsonl"
    for options in ([], ["--out", str(out)]):
        code, shown, error = terminal.run(
            "select", file, "--range", "0,1", "--mechanism", mechanism, *MECHANISMS[mechanism], *form, *options
        )
        assert (code, error) == (0, "")
        assert (shown + (out.read_text() if options else "")).count(LOSER) == 1
        assert "12345678" not in shown
    assert "12345678" not in out.read_text()


def test_clipped_rewards_leave_no_trace(scored: Path, terminal: Terminal) -> None:
    """The summary of rewards far outside the range is that of rewards within it."""
    options = ("--mechanism", "privbon", "--n", 4, "--scale", 0.5)
    inside, outside = terminal.select(scored, *options), terminal.select(scored, *options, range="-9,-8")
    for summary in (inside, outside):
        del summary["results"], summary["range"]
    assert inside == outside


def test_another_reward_by_name(tmp_path: Path, terminal: Terminal) -> None:
    file = tmp_path / "scored.jsonl"
    responses = [{"text": str(i), "proxy_reward": 1.0 - i, "other": float(i)} for i in range(2)]
    file.write_text(json.dumps({"prompt": "p", "responses": responses}))
    assert terminal.select(file, "--mechanism", "bon", "--n", 2)["results"][0]["index"] == 0
    assert terminal.select(file, "--mechanism", "bon", "--n", 2, "--reward", "other")["results"][0]["index"] == 1


def test_the_pool_must_hold_both_phases_and_the_fallback(tmp_path: Path, terminal: Terminal) -> None:
    file = write(tmp_path / "scored.jsonl", [[0.5] * 8, [0.5] * 7])
    options = (file, "--range", "0,1", "--mechanism", "privitp", "--n", 4, "--n2", 3, "--sigma-x", 1, "--sigma-z", 1)
    for draw in ("first", "without"):
        assert f"{file}, line 2: 7 responses where 8 are needed; " in terminal.refused(*options, "--draw", draw)
    assert terminal.run("select", *options, "--draw", "with")[0] == 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--mechanism", "privbon", "--scale", "1"], "--range: missing; give"),
        (["--range", "0,1", "--scale", "1"], "--mechanism"),
        (["--range", "1,0", "--mechanism", "bon"], "range: 1,0 is empty; "),
        (["--range", "0,1", "--mechanism", "best"], "mechanism: 'best' is not one of "),
        (["--range", "0,1", "--mechanism", "privbon"], "--scale: missing"),
        (["--range", "0,1", "--mechanism", "bon", "--scale", "1"], "--scale: bon adds no noise"),
        (["--range", "0,1", "--mechanism", "privbon", "--scale", "0"], "scale"),
        (["--range", "0,1", "--mechanism", "bon", "--draw", "last"], "--draw: 'last' is not one of first, without, with"),
        (["--range", "0,1", "--mechanism", "bon", "--seed", "-1"], "seed: -1 is negative; "),
        (["--range", "0,1", "--mechanism", "privbon", "--scale", "1", "--seed", "1", "--account", "a"], "--seed"),
    ],
)
def test_bad_options_are_refused_by_name(options: list[str], complaint: str, scored: Path, terminal: Terminal) -> None:
    assert complaint in terminal.refused(scored, *options)


def test_bad_outputs_are_refused_before_the_work(tmp_path: Path, terminal: Terminal) -> None:
    """The input is bad too; what is said is about the output."""
    file = tmp_path / "scored.jsonl"
    file.write_text("bad")
    (tmp_path / "folder").mkdir()
    (tmp_path / "symbolic").symlink_to(file)
    (tmp_path / "hard").hardlink_to(file)
    os.mkfifo(tmp_path / "pipe")
    same, irregular = "is the file to read; give another name", "is not a regular file; give"
    for name, complaint in {
        "scored.jsonl": same,
        "folder/../scored.jsonl": same,
        "symbolic": same,
        "hard": same,
        "folder": irregular,
        "pipe": irregular,
        "missing/out.jsonl": "cannot be written (No such file or directory); give",
        "/": irregular,
        "scored.jsonl/out.jsonl": "cannot be written (Not a directory); give",
    }.items():
        out = tmp_path / name
        assert f"--out: {out} {complaint}" in terminal.refused(file, "--range", "0,1", "--mechanism", "base", "--out", out)
    assert "--out: /dev/null is not a regular file" in terminal.refused(file, "--range", "0,1", "--mechanism", "base", "--out", "/dev/null")
    assert file.read_text() == "bad"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "hard", "pipe", "scored.jsonl", "symbolic"]


def test_an_output_is_replaced_whole_and_through_links(scored: Path, tmp_path: Path, terminal: Terminal) -> None:
    out, link = tmp_path / "out.jsonl", tmp_path / "link"
    out.write_text("older\n" * 1_000)
    link.symlink_to(out)
    terminal.select(scored, "--mechanism", "base", "--out", link)
    assert link.is_symlink()
    assert [answer["index"] for answer in read(out)] == [0] * 6


def test_texts_arrive_byte_by_byte(tmp_path: Path, terminal: Terminal) -> None:
    text = '\r\n\u2028\u0085 "🙂" \\ \x00 ' + "x" * 100_000
    file, out = tmp_path / "scored.jsonl", tmp_path / "out.jsonl"
    file.write_text(json.dumps({"prompt": text, "responses": [{"text": text, "proxy_reward": 0}]}))
    terminal.select(file, "--mechanism", "base", "--out", out)
    lines = out.read_bytes().split(b"\n")
    assert len(lines) == 2
    assert (json.loads(lines[0])["prompt"], json.loads(lines[0])["text"]) == (text, text)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    file, out = write(tmp_path / "scored.jsonl", [[0.5] * 9] * 20_000), tmp_path / "out.jsonl"
    out.write_text("older\n")
    options = ["--range", "0,1", "--mechanism", "privitp", *MECHANISMS["privitp"], "--out", str(out), "--json"]
    process = subprocess.Popen([*COMMAND, "select", str(file), *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size for path in tmp_path.glob(".privalign-*")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    shown, error = process.communicate(timeout=60)
    assert (process.returncode, shown) == (130, "")
    assert error in ("", "privalign: interrupted\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "scored.jsonl"]
    assert out.read_text() == "older\n"


def test_a_terminal_sees_progress_on_stderr_only(scored: Path) -> None:
    import pty

    reader, writer = pty.openpty()
    done = subprocess.run(
        [*COMMAND, "select", str(scored), "--range", "0,1", "--mechanism", "bon", "--n", "4", "--json"],
        stdout=subprocess.PIPE,
        stderr=writer,
        text=True,
        check=True,
        env=os.environ | {"TERM": "xterm"},
    )
    os.close(writer)
    shown = os.read(reader, 100_000).decode()
    os.close(reader)
    assert "selecting" in shown
    assert len(json.loads(done.stdout)["results"]) == 6


def test_the_command_line_starts_without_the_heavy_parts() -> None:
    heavy = ("numpy", "scipy", "opendp", "flint", "pyarrow", "dp_accounting", "rich.progress")
    code = f"import sys, privalign.cli; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.realdata
def test_real_candidates(tmp_path: Path, terminal: Terminal) -> None:
    folder = os.environ.get("PRIVALIGN_DATA")
    if not folder:
        pytest.skip("set PRIVALIGN_DATA to the folder of real data sets")
    file, out = Path(folder) / "alpaca-judged" / "scored.jsonl.gz", tmp_path / "out.jsonl"
    options = ("--mechanism", "privbon", "--n", 16, "--epsilon", 2, "--sensitivity", "0.01", "--out", out)
    summary = terminal.select(file, *options, range="-0.25,0.36")
    answers = read(out)
    assert summary["prompts"] == summary["answered"] == len(answers) == 200
    assert 1.99 < summary["epsilon"] <= 2
    assert 200 * summary["epsilon"] <= summary["spent"]["epsilon"] <= 400
    assert len({answer["index"] for answer in answers}) > 2
    assert all(0 <= answer["index"] < 16 for answer in answers)
