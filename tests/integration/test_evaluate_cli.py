"""`privalign evaluate` as a script sees it: documents, exit codes, one line of error."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from privalign.cli.evaluate import evaluate
from privalign.cli.spelling import Command
from privalign.errors import InvalidInput
from privalign.report.wording import terms
from privalign.studies.study import read_study

KEYS = [
    "mechanism", "n", "true_mean", "true_se", "lift_pp", "lift_se_pp", "mc_se_pp", "proxy_mean", "proxy_se", "gap_se", "win_rate",
    "win_rate_se",
    "gold_win_rate", "gold_win_rate_se", "fallback_rate", "fallback_rate_se", "halting_mean", "halting_se", "epsilon", "epsilon_mean",
    "reason", "over_privbon_pp", "over_privbon_se_pp", "recovered_percent", "recovered_se_percent",
]  # fmt: skip
COMMAND = [sys.executable, "-c", "from privalign.cli import main; main()", "evaluate"]
EVERYTHING = (
    *("--mechanisms", "base,bon,privbon,privbon-gaussian,itp,itp-reuse,privitp", "--n-grid", "1,2,4", "--range", "0,1"),
    *("--scale", "0.2", "--sigma-x", "0.3", "--sigma-z", "0.3", "--beta", "0.1", "--json"),
)


def privalign(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve prompts of ten candidates, one of them with three; two rewards are missing."""
    rng = np.random.default_rng(3)
    path = tmp_path_factory.mktemp("scored") / "scored.jsonl"
    with path.open("w") as file:
        for number in range(12):
            gold = rng.integers(0, 2, 3 if number == 7 else 10)
            responses = [{"text": "t", "is_correct": int(g), "proxy_reward": float(0.3 * g + 0.6 * rng.random())} for g in gold]
            if number in (1, 2):
                responses[0]["proxy_reward"] = None
            file.write(json.dumps({"prompt": f"p{number}", "gt_answer": None, "responses": responses}) + "\n")
    return path


def scored_file(path: Path, rewards: list[float]) -> Path:
    """Two prompts of these rewards each, every other answer right."""
    responses = [{"text": "t", "is_correct": i % 2, "proxy_reward": reward} for i, reward in enumerate(rewards)]
    path.write_text("".join(json.dumps({"prompt": name, "gt_answer": "", "responses": responses}) + "\n" for name in "pq"))
    return path


def run(*arguments: object) -> None:
    """In this process: what is printed is left to the test's capture."""
    app = typer.Typer()
    app.command(cls=Command)(evaluate)
    app([str(argument) for argument in arguments], standalone_mode=False)


def called(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    run(*arguments)
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def document(*arguments: object) -> dict[str, Any]:
    done = privalign(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_the_document_of_the_contract_and_the_study(scored: Path, tmp_path: Path) -> None:
    out = tmp_path / "study.json"
    result = document(scored, *EVERYTHING, "--out", out, "--workers", 2)
    assert {"rows", "settings", "seconds", "notice"} <= set(result)
    assert "not a private release" in result["notice"]
    assert [list(row) for row in result["rows"]] == [KEYS] * 19
    settings = result["settings"]
    assert settings["skipped"] == {"candidates": 2, "prompts": 1}
    assert settings["prompts"] == 11
    assert (settings["protocol"], settings["draw"], settings["replicates"], settings["seed"]) == ("faithful", "without", 50, 0)
    assert settings["draws"] == "draws without replacement: a pool is a sample of the policy"
    assert (settings["range"], settings["sensitivity"], settings["sensitivity_source"]) == ([0.0, 1.0], 1.0, "range")
    study = read_study(out)
    assert (study.kind, list(study.rows)) == ("comparison", result["rows"])
    assert document(scored, *EVERYTHING, "--workers", 1)["rows"] == result["rows"]


def test_a_folder_of_shards_gives_the_same_rows(scored: Path, tmp_path: Path) -> None:
    rows = [
        (number, response["is_correct"], response["proxy_reward"])
        for number, line in enumerate(scored.read_text().splitlines())
        for response in json.loads(line)["responses"]
    ]
    names = ("prompt_id", "is_correct", "armo")
    whole = pa.table({name: [row[column] for row in rows] for column, name in enumerate(names)})
    for number, start in enumerate((0, 37, 81)):
        pq.write_table(whole.slice(start, (37, 44, None)[number]), tmp_path / f"part-{number}.parquet")
    arguments = ("--mechanisms", "bon,privbon", "--n-grid", "2,4", "--range", "0,1", "--epsilon", "4", "--sensitivity", "0.4", "--json")
    result = document(tmp_path, *arguments, "--reward", "armo")
    assert result["rows"] == document(scored, *arguments)["rows"]
    assert all(3.9 < row["epsilon"] <= 4 for row in result["rows"] if row["mechanism"] == "privbon")  # calibrated at each size


def test_the_authors_protocol_ignores_the_range_and_says_that_it_is_not_private(scored: Path) -> None:
    arguments = ("--mechanisms", "bon,privbon,itp,privitp", "--n-grid", "1,2,4", "--protocol", "authors", "--json")
    result = document(scored, *arguments)
    assert [list(row) for row in result["rows"]] == [KEYS] * 12
    assert all(row["epsilon"] is None for row in result["rows"])
    assert "not a private mechanism" in result["settings"]["private"]
    assert document(scored, *arguments, "--range", "0,0.1")["rows"] == result["rows"]


def test_people_get_a_table_under_a_warning(scored: Path) -> None:
    done = privalign(scored, "--mechanisms", "bon,privbon", "--n-grid", "4", "--range", "0,1", "--scale", "0.5")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("not a private release")
    assert lines[1].split()[:3] == ["mechanism", "n", "gold"]
    assert "1 prompts with too few candidates, 2 candidates without a reward" in " ".join(lines)
    assert "ε for Δ = 1 (range) and δ = 1e-6, rounded up" in " ".join(lines)


@pytest.mark.parametrize("protocol", ["faithful", "authors"])
def test_a_row_that_pools_are_too_small_for_is_null_with_the_reason(
    scored: Path, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the reason, and no error for the others, which are what they are without it."""
    arguments = (scored, "--mechanisms", "bon,itp", "--protocol", protocol, "--range", "0,1", "--n-grid")
    rows = {(row["mechanism"], row["n"]): row for row in called(capsys, *arguments, "2,8,64", "--json")["rows"]}
    lacking = {"faithful": [("bon", 64), ("itp", 8), ("itp", 64)], "authors": [("bon", 64), ("itp", 64)]}[protocol]
    assert [key for key, row in rows.items() if row["reason"]] == lacking
    needed, able = {"faithful": (17, "0 of 12"), "authors": (64, "0 of 12")}[protocol]
    row = rows[lacking[1]]
    assert row["reason"] == f"needs {needed} candidates a prompt; {able} prompts have them"
    assert {name for name, value in row.items() if value is not None} == {"mechanism", "n", "reason"}
    others = called(capsys, *arguments, "2,8", "--json")["rows"]
    assert [row for row in rows.values() if row["n"] < 64] == others
    run(*arguments, "2,8,64")
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{lacking[1][0]} {lacking[1][1]} none none none none none none" in printed
    assert f"{lacking[1][0]} {lacking[1][1]}: needs {needed} candidates a prompt; {able} prompts have them" in printed


@pytest.mark.parametrize("draw", ["with", "without"])
def test_what_draws_mean_stands_on_every_output(scored: Path, draw: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (scored, "--mechanisms", "bon", "--n-grid", "2,4", "--range", "0,1", "--draw", draw)
    mark = "the pool is the policy"
    run(*arguments, "--out", tmp_path / "study.json")
    assert (mark in capsys.readouterr().out.splitlines()[1]) == (draw == "with")
    assert (mark in called(capsys, *arguments, "--json")["settings"]["draws"]) == (draw == "with")
    study = read_study(tmp_path / "study.json")
    assert (mark in study.settings["draws"]) == (draw == "with")
    assert (mark in terms(study.settings)) == (draw == "with")  # of figures, tables and the page


def test_a_range_that_cuts_the_rewards_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names counts, range and remedy, on stderr and in JSON; counts alone where little is cut."""
    file = scored_file(tmp_path / "a.jsonl", [50.0 + 3 * i for i in range(10)])
    arguments = (file, "--mechanisms", "bon", "--n-grid", "2", "--json", "--range")
    run(*arguments, "0,1")
    printed = capsys.readouterr()
    settings = json.loads(printed.out)["settings"]
    assert settings["clamped"] == {"below": 0, "above": 20, "of": 20}
    assert settings["warning"] == (
        "range: 20 of 20 rewards lie outside 0 … 1 and count as its ends (0 below, 20 above; they reach from 50 to 77); "
        "give a public range that holds most of them"
    )
    assert printed.err == f"privalign: warning: --{settings['warning']}\n"
    run(*arguments, "50,80")
    printed = capsys.readouterr()
    settings = json.loads(printed.out)["settings"]
    assert (settings["clamped"], "warning" in settings, printed.err) == ({"below": 0, "above": 0, "of": 20}, False, "")
    run(*arguments, "60,80", "--protocol", "authors")  # which ignores the range
    printed = capsys.readouterr()
    assert (printed.err, "clamped" in json.loads(printed.out)["settings"]) == ("", False)


def test_prompts_of_several_files_pool_and_the_document_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [scored_file(tmp_path / name, rewards) for name, rewards in (("a.jsonl", [0.1, 0.5, 0.9]), ("b.jsonl", [0.2, 0.3, 0.4]))]
    both = tmp_path / "both.jsonl"
    both.write_text("".join(file.read_text() for file in files))
    arguments = ("--mechanisms", "bon", "--n-grid", "2", "--range", "0,1", "--json")
    pooled, whole = called(capsys, *files, *arguments), called(capsys, both, *arguments)
    assert pooled["rows"] == whole["rows"]
    settings = pooled["settings"]
    assert (settings["file"], settings["reward"]) == ("a.jsonl, b.jsonl", "proxy_reward")
    assert settings["files"] == [{"name": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()} for file in files]
    assert set(settings["versions"]) == {"privalign", "numpy", "numba", "scipy"}
    with pytest.raises(InvalidInput, match="is the file to read"):
        run(*files, *arguments, "--out", files[1])


BON = ("--mechanisms", "bon", "--n-grid", "2", "--range", "0,1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--mechanisms", "best", "--n-grid", "2", "--range", "0,1"), "--mechanisms: 'best' is not one of bon, privbon"),
        (("--mechanisms", "bon,bon", "--n-grid", "2", "--range", "0,1"), "names one twice"),
        (("--mechanisms", "bon", "--n-grid", "4,2", "--range", "0,1"), "--n-grid: 4,2 does not rise"),
        (("--mechanisms", "bon", "--n-grid", "two", "--range", "0,1"), "--n-grid: 'two' is not a list of whole numbers"),
        (("--mechanisms", "bon", "--n-grid", "2"), "--range: missing"),
        (("--mechanisms", "bon", "--n-grid", "64", "--range", "0,1"), "no prompt has the 64 usable candidates that one query needs"),
        (("--mechanisms", "privbon", "--n-grid", "2", "--range", "0,1"), "--scale: missing"),
        ((*BON, "--sigma-x", "1"), "--sigma-x: none of bon takes it"),
        ((*BON, "--protocol", "paper"), "--protocol: 'paper' is not one of faithful, authors"),
        ((*BON, "--draw", "first"), "--draw: 'first' is not one of without, with"),
        ((*BON, "--reward", "armo"), "'armo' of response 1 is missing"),
        ((*BON, "--protocol", "authors", "--epsilon", "1"), "--epsilon: protocol authors has no such setting"),
        ((*BON, "--replicates", "1"), "--replicates: 1 is too few"),
    ],
)
def test_what_is_wrong_is_named(scored: Path, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(message)):
        run(scored, *arguments, "--json")


def test_nothing_half_written_stays(scored: Path, tmp_path: Path) -> None:
    done = privalign(scored, "--mechanisms", "bon", "--n-grid", "64", "--range", "0,1", "--out", tmp_path / "study.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
    done = privalign(scored, *BON, "--out", scored)
    assert "is the file to read" in done.stderr
