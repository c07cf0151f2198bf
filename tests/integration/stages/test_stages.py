"""The stages end to end on this machine: what they write, how they resume, and how they fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pytest

from privalign.candidates.pools import read_pools
from privalign.candidates.scored import read_scored
from privalign.candidates.shards import Shards, to_parquet, working_on
from privalign.errors import InvalidInput
from privalign.policies.callables import CallablePolicy
from privalign.policies.completions import UpstreamFailed
from privalign.policies.llamacpp import embedded_model
from privalign.rewards.function import FunctionReward
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.stages import score
from privalign.stages.engine import LocalEngine
from privalign.stages.run import Described, run_grade, run_score
from privalign.stages.settings import GradeSettings, ScoreSettings
from privalign.types import Candidate, Request

COMMAND = [sys.executable, "-c", "from privalign.cli import main; main()"]
UNIT = Sensitivity.of_range(RewardRange(0.0, 1.0))


def shards(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*.parquet"))}


def rows(folder: Path) -> pa.Table:
    return pyarrow.dataset.dataset(sorted(folder.glob("*.parquet"))).to_table()


# ---- collect


def test_candidates_of_a_seeded_collection(terminal: Any, collecting: list[object], server: Any, tmp_path: Path) -> None:
    report = terminal.done(*collecting, "--max-tokens", 5, "--out", tmp_path / "out")
    assert {name: report[name] for name in ("prompts", "candidates", "shards", "resumed")} == {
        "prompts": 12,
        "candidates": 36,
        "shards": 12,
        "resumed": 0,
    }
    table = rows(tmp_path / "out")
    assert table.column_names == ["prompt_id", "prompt", "gt_answer", "text", "finish_reason"]
    assert table.column("prompt_id").to_pylist() == [prompt for prompt in range(12) for _ in range(3)]
    assert table.column("gt_answer").to_pylist()[-1] == "22"
    assert set(table.column("finish_reason").to_pylist()) == {"stop", "length"}
    assert len(set(table.column("text").to_pylist())) == 36
    assert all((body["temperature"], body["top_p"], body["max_tokens"]) == (1.0, 1.0, 5) for body in server.bodies)


def test_neither_shard_size_nor_concurrency_changes_a_candidate(terminal: Any, collecting: list[object], tmp_path: Path) -> None:
    terminal.done(*collecting, "--out", tmp_path / "a")
    terminal.done(*collecting, "--shard", 5, "--concurrency", 4, "--out", tmp_path / "b")
    assert rows(tmp_path / "a").equals(rows(tmp_path / "b"))
    assert len(shards(tmp_path / "b")) == 3


def test_a_killed_collection_resumes_and_ends_as_if_nothing_had_happened(
    terminal: Any, collecting: list[object], server: Any, tmp_path: Path
) -> None:
    terminal.done(*collecting, "--out", tmp_path / "whole")
    server.delay = 0.1
    out = tmp_path / "killed"
    process = subprocess.Popen([*COMMAND, *map(str, collecting), "--out", str(out)])
    deadline = time.monotonic() + 60
    while len(shards(out)) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    server.delay = 0.0
    kept = shards(out)
    stamps = {name: (out / name).stat().st_mtime_ns for name in kept}
    assert 3 <= len(kept) < 12
    report = terminal.done(*collecting, "--out", out)
    assert report["resumed"] == len(kept)
    assert shards(out) == shards(tmp_path / "whole")
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == stamps
    again = terminal.done(*collecting, "--out", out)
    assert again["resumed"] == 12


def test_another_setting_is_refused(terminal: Any, collecting: list[object], tmp_path: Path) -> None:
    out = tmp_path / "out"
    terminal.done(*collecting, "--limit", 2, "--out", out)
    line = terminal.failed(*collecting, "--limit", 2, "--temperature", 0.5, "--out", out)
    assert "--temperature: 0.5 here, 1.0 in" in line
    assert ": prompts: 3 here, 2 in" in terminal.failed(*collecting, "--limit", 3, "--out", out)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "other"}\n{"prompt": "prompts"}\n')
    assert ": prompts_sha256: " in terminal.failed(*collecting, "--limit", 2, "--out", out)


def test_a_failing_policy_is_one_line_and_what_is_finished_stays(
    terminal: Any, collecting: list[object], server: Any, tmp_path: Path
) -> None:
    terminal.done(*collecting, "--out", tmp_path / "whole")
    server.replies.extend([("proper",)] * 3 + [("status", 401, {"error": {"message": "no"}})])
    out = tmp_path / "failed"
    line = terminal.failed(*collecting, "--out", out, code=4)
    assert "refused the credentials" in line
    finished = shards(out)
    assert len(finished) == 3
    assert terminal.done(*collecting, "--out", out)["resumed"] == len(finished)
    assert shards(out) == shards(tmp_path / "whole")


def test_a_stage_that_finished_nothing_can_be_begun_with_other_settings(
    terminal: Any, collecting: list[object], rewarding: Path, server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score, "FIRST_WAIT", 0.0)
    collected, scored, graded = (tmp_path / name for name in ("collected", "scored", "graded"))
    text = rewarding.read_text()
    rewarding.write_text(
        text.replace(server.url, "http://127.0.0.1:9/v1")
        + '[rewards.down]\nkind = "tei"\nmodel = "m"\nbase_url = "http://127.0.0.1:9"\nrange = [0, 1]\nsensitivity = "range"\n'
    )
    terminal.failed(*collecting, "--out", collected, code=4)  # nobody listens there
    rewarding.write_text(rewarding.read_text().replace("http://127.0.0.1:9/v1", server.url))
    assert terminal.done(*collecting, "--temperature", 0.5, "--out", collected)["resumed"] == 0

    scoring = ["score", "--from", collected, "--config", rewarding, "--out", scored]
    terminal.failed(*scoring, "--reward", "down", code=4)
    assert terminal.done(*scoring, "--reward", "learned")["resumed"] == 0

    grading = ["grade", "--from", scored, "--out", graded]
    server.replies.append(("status", 401, {"error": {"message": "no"}}))
    terminal.failed(*grading, "--kind", "judge", "--config", rewarding, "--policy", "served", code=4)
    assert terminal.done(*grading, "--kind", "math")["resumed"] == 0
    assert all(len(shards(folder)) == 12 for folder in (collected, scored, graded))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["collect"], "--n: missing"),
        (["collect", "--n", 2], "--policy: missing"),
        (["collect", "--n", 2, "--policy", "served", "--task", "gsm8k"], "--config: missing"),
        (["collect", "--n", 2, "--policy", "served", "--task", "gsm9k"], "--task: 'gsm9k' is not one of"),
        (["collect", "--recipe", "r.toml"], "--run: missing"),
        (["collect", "--recipe", "r.toml", "--run", "x", "--n", 2], "--n: belongs into the recipe"),
        (["score"], "--reward: missing"),
        (["score", "--reward", "armo"], "--config: missing"),
        (["grade"], "--kind: missing"),
        (["grade", "--kind", "math"], "--from: missing"),
        (["grade", "--kind", "reward", "--reward", "gold"], "--range: missing"),
        (["grade", "--kind", "math", "--from", "x", "--out", "y", "--engine", "dask"], "--engine: 'dask' is not one of"),
        (["grade", "--kind", "math", "--from", "x", "--out", "y", "--gpus", 1], "--gpus: belongs to --engine ray"),
        (["grade", "--kind", "math", "--from", "x", "--out", "y", "--workers", 2], "cannot be read"),
    ],
)
def test_what_is_missing_is_named(terminal: Any, arguments: list[object], said: str) -> None:
    assert said in terminal.failed(*arguments)


def test_vllm_needs_ray(terminal: Any, tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text('[collect]\nfile = "prompts.jsonl"\nn = 2\nvllm = { model = "m" }\n')
    options = ["--recipe", recipe, "--run", tmp_path / "run"]
    assert "--engine: local cannot run [collect] vllm; give ray" in terminal.failed("collect", *options)
    assert "--gpus: vllm is set in the recipe" in terminal.failed("collect", *options, "--engine", "ray", "--gpus", 1)
    assert "[score]: missing; add the table" in terminal.failed("score", *options)


# ---- score and grade


def test_rewards_and_grades_stand_beside_the_candidates(terminal: Any, collecting: list[object], rewarding: Path, tmp_path: Path) -> None:
    terminal.done(*collecting, "--out", tmp_path / "collected")
    common = ["--config", rewarding, "--reward", "learned"]
    report = terminal.done("score", "--from", tmp_path / "collected", *common, "--out", tmp_path / "scored")
    assert report["nulls"] == {"learned": 0}
    report = terminal.done(
        "grade", "--from", tmp_path / "scored", "--kind", "math", "--out", tmp_path / "graded", "--export", tmp_path / "graded.jsonl"
    )
    assert report["nulls"] == {"is_correct": 0}
    table = rows(tmp_path / "graded")
    assert table.column_names[-3:] == ["proxy_reward", "learned", "is_correct"]
    assert table.column("proxy_reward").equals(table.column("learned"))
    assert set(table.column("is_correct").to_pylist()) <= {0.0, 1.0}
    assert table.drop_columns(["proxy_reward", "learned", "is_correct"]).equals(rows(tmp_path / "collected"))
    pools = list(read_pools(tmp_path / "graded.jsonl"))
    assert [len(pool.texts) for pool in pools] == [3] * 12
    assert [reward for pool in pools for reward in pool.rewards] == table.column("proxy_reward").to_pylist()
    (whole,) = [list(read_pools(tmp_path / "graded" / "part-00000.parquet"))]
    assert whole == pools[:1]
    (block,) = read_scored(tmp_path / "graded", "learned")
    assert (block.prompts, block.skipped) == (12, 0)
    assert block.rewards.tolist() == table.column("learned").to_pylist()
    assert block.gold.tolist() == table.column("is_correct").to_pylist()
    line = terminal.failed("score", "--from", tmp_path / "scored", *common, "--out", tmp_path / "again")
    assert "has a column 'learned' already" in line
    assert "is graded already" in terminal.failed("grade", "--from", tmp_path / "graded", "--kind", "math", "--out", tmp_path / "again")
    assert "is the folder to read" in terminal.failed(
        "grade", "--from", tmp_path / "graded", "--kind", "math", "--out", tmp_path / "graded"
    )


@pytest.fixture
def uneven(tmp_path: Path) -> Path:
    """A folder with 1, 3 and 2 candidates a prompt, one of which cannot be scored."""
    counts = {0: ["\\boxed{0}"], 1: ["\\boxed{2}", "x", "the answer is (B)"], 2: ["\\boxed{4}", "no"]}
    table = pa.table(
        {
            "prompt_id": [prompt for prompt, texts in counts.items() for _ in texts],
            "prompt": [f"p{prompt}" for prompt, texts in counts.items() for _ in texts],
            "gt_answer": pa.array(
                [None if prompt == 2 else str(2 * prompt) for prompt, texts in counts.items() for _ in texts], pa.string()
            ),
            "text": [text for texts in counts.values() for text in texts],
        }
    )
    folder = tmp_path / "uneven"
    with working_on(folder, "collect", {}, prompts=3, shards=2, session={}) as made:
        made.write(0, to_parquet(table.slice(0, 4)))
        made.write(1, to_parquet(table.slice(4)))
    return folder


def test_unequal_counts_and_a_candidate_that_cannot_be_scored(uneven: Path, tmp_path: Path) -> None:
    def length(request: Request, candidates: Sequence[Candidate]) -> list[float]:
        return [float("nan") if candidate.text == "x" else len(candidate.text) / 10 for candidate in candidates]

    reward = Described({"kind": "function"}, lambda: FunctionReward(length, name="length", sensitivity=UNIT))
    report = run_score(ScoreSettings(("length",)), uneven, {"length": reward}, tmp_path / "scored", LocalEngine())
    assert (report.prompts, report.candidates, report.nulls) == (3, 6, {"length": 1})
    assert rows(tmp_path / "scored").column("length").to_pylist() == [0.9, 0.9, None, 1.7, 0.9, 0.2]

    graded = run_grade(GradeSettings("math"), tmp_path / "scored", None, tmp_path / "math", LocalEngine())
    assert rows(tmp_path / "math").column("is_correct").to_pylist() == [1.0, 1.0, None, None, None, None]
    assert graded.nulls == {"is_correct": 4}

    gold = GradeSettings("reward", reward="length", range=(0.2, 1.2))
    run_grade(gold, tmp_path / "scored", None, tmp_path / "gold", LocalEngine())
    assert rows(tmp_path / "gold").column("is_correct").to_pylist() == pytest.approx([0.7, 0.7, None, 1.0, 0.7, 0.0])
    for column in ("other", "text", "prompt_id"):
        with pytest.raises(InvalidInput, match=f"no column '{column}' of scores"):
            run_grade(GradeSettings("reward", reward=column, range=(0.0, 1.0)), tmp_path / "scored", None, tmp_path / "x", LocalEngine())


def asked(folder: Path, *prompts: tuple[str | None, list[str]]) -> Path:
    """A folder of a shard a prompt, each with its right answer and candidates."""
    with working_on(folder, "collect", {}, prompts=len(prompts), shards=len(prompts), session={}) as made:
        for number, (gold, texts) in enumerate(prompts):
            columns = {"prompt_id": [number] * len(texts), "prompt": ["p"] * len(texts), "text": texts}
            made.write(number, to_parquet(pa.table(columns | {"gt_answer": pa.array([gold] * len(texts), pa.string())})))
    return folder


def test_letters(terminal: Any, tmp_path: Path) -> None:
    texts = ["\\boxed{A^{-1}}. The answer is (B)", "The answer is (c).", "I do not know.", "The answer is (F)."]
    source = asked(tmp_path / "asked", ("B", texts), (None, texts), (" C\n", texts))
    grading = ["grade", "--from", source, "--kind", "letter"]
    report = terminal.done(*grading, "--out", tmp_path / "letters")
    assert rows(tmp_path / "letters").column("is_correct").to_pylist() == [1.0, 0.0, None, None] + [None] * 4 + [0.0, 1.0, None, None]
    assert report["nulls"] == {"is_correct": 8}
    terminal.done(*grading, "--choices", 6, "--out", tmp_path / "six")
    assert rows(tmp_path / "six").column("is_correct").to_pylist() == [1.0, 0.0, None, 0.0] + [None] * 4 + [0.0, 1.0, None, 0.0]
    code, out, _ = terminal.run(*grading, "--out", tmp_path / "letters")
    assert code == 0
    assert "nulls.is_correct" in out


@pytest.mark.parametrize(
    ("kind", "gold", "said"),
    [
        ("letter", "E", "prompt_id 1: gt_answer 'E' is none of A, B, C, D; "),
        ("letter", "b", "prompt_id 1: gt_answer 'b' is none of"),
        ("letter", "(B)", "prompt_id 1: gt_answer '(B)' is none of"),
        ("letter", "AB", "prompt_id 1: gt_answer 'AB' is none of"),
        ("letter", "", "prompt_id 1: gt_answer '' is none of"),
        ("letter", "N/A", "prompt_id 1: gt_answer 'N/A' is none of"),
        ("letter", "hello world", "prompt_id 1: gt_answer 'hello world' is none of"),
        ("math", "", "prompt_id 1: gt_answer '' cannot be read"),
        ("math", "\\frac{1}{", "prompt_id 1: gt_answer '\\\\frac{1}{' cannot be read"),
    ],
)
def test_a_right_answer_that_nothing_can_equal_is_refused_before_anything_is_graded(
    terminal: Any, tmp_path: Path, kind: str, gold: str, said: str
) -> None:
    source = asked(tmp_path / "asked", ("B", ["The answer is (B)."]), (gold, ["The answer is (B)."]))
    line = terminal.failed("grade", "--from", source, "--kind", kind, "--out", tmp_path / "graded")
    assert said in line
    assert "part-00001.parquet" in line
    assert not (tmp_path / "graded").exists()


def test_a_judge_that_says_nothing_usable_gives_null_and_no_zero(uneven: Path, tmp_path: Path) -> None:
    def judge(request: Request, count: int) -> list[str]:
        asked = request.messages[0].text
        if "\nx\n" in asked:
            raise UpstreamFailed("too long", 400)
        return ["I like it. [RESULT] 4" if "boxed" in asked else "I like it."]

    described = Described({"kind": "function"}, lambda: CallablePolicy(judge, "judge"))
    report = run_grade(GradeSettings("judge", policy="judge"), uneven, described, tmp_path / "judged", LocalEngine())
    assert rows(tmp_path / "judged").column("is_correct").to_pylist() == [0.75, 0.75, None, None, 0.75, None]
    assert report.nulls == {"is_correct": 3}


def test_a_judge_that_refuses_everything_is_a_failure(uneven: Path, tmp_path: Path) -> None:
    def judge(request: Request, count: int) -> list[str]:
        raise UpstreamFailed("no such parameter", 400)

    described = Described({"kind": "function"}, lambda: CallablePolicy(judge, "judge"))
    with pytest.raises(UpstreamFailed, match="no such parameter"):
        run_grade(GradeSettings("judge", policy="judge"), uneven, described, tmp_path / "judged", LocalEngine())


def test_scores_of_other_candidates_are_refused(uneven: Path, tmp_path: Path) -> None:
    run_grade(GradeSettings("math"), uneven, None, tmp_path / "math", LocalEngine())
    manifest = json.loads((uneven / "manifest.json").read_text())
    (uneven / "manifest.json").write_text(json.dumps(manifest | {"id": "another"}))
    with pytest.raises(InvalidInput, match='source: "another" here, '):
        run_grade(GradeSettings("math"), uneven, None, tmp_path / "math", LocalEngine())
    assert Shards.read(tmp_path / "math").missing() == []


# ---- the whole run, by recipe, on a real model


@pytest.mark.model
def test_a_recipe_runs_stage_by_stage_on_a_real_model(terminal: Any, certificate: Path, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    embedded_model()
    prompts = [{"prompt": f"What is {i} plus 2? Answer with the number.", "gt_answer": str(i + 2)} for i in range(3)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    recipe = tmp_path / "sums.toml"
    recipe.write_text(
        """
[collect]
file = "sums.jsonl"
policy = "small"
n = 8
seed = 3
max_tokens = 24
shard = 1

[score]
rewards = ["learned"]

[grade]
kind = "math"

[policies.small]
independent_of_accounts = true
kind = "llamacpp"
slots = 8
context = 256

[rewards.learned]
kind = "head"
certificate = "head.json"
"""
    )
    run = tmp_path / "run"
    options = ["--recipe", recipe, "--run", run]
    assert terminal.done("collect", *options)["candidates"] == 24
    assert terminal.done("score", *options)["nulls"] == {"learned": 0}
    report = terminal.done("grade", *options)
    no_folder = ["--recipe", recipe, "--run", recipe]
    assert f"--run: {recipe}/collect cannot be made" in terminal.failed("collect", *no_folder)  # no --out was given
    grades = rows(run / "grade").column("is_correct").to_pylist()
    assert (report["path"], report["candidates"], report["nulls"]) == (str(run / "grade"), 24, {"is_correct": grades.count(None)})
    assert 0 < grades.count(1.0) < 24 - grades.count(None)  # a small model: some of its answers hold no number
    assert terminal.done("grade", *options)["resumed"] == 3
    summary = terminal.done("select", run / "grade" / "part-00000.parquet", "--mechanism", "bon", "--n", 8, "--range", "0,1")
    assert summary["answered"] == 1
