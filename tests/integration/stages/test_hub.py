"""The benchmarks by name through `datasets`, from a folder in the hub's layout: files, names and columns as the hub has them."""

from __future__ import annotations

import csv
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from privalign.errors import BackendFailed, InvalidFile, InvalidInput
from privalign.stages.tasks import LETTERS, TASKS, load_task

GSM8K = [{"question": "1 + 1?", "answer": "1+1=2\n#### 2"}, {"question": "999 + 1?", "answer": "=<<999+1=1000>>1000\n#### 1,000"}]
MATH = [{"problem": "Half of 1?", "solution": "…", "answer": "\\frac{1}{2}", "subject": "Algebra", "level": 1, "unique_id": "test/1.json"}]
MMLU = [{"question": "Which is B?", "subject": "college_mathematics", "choices": ["a", "b", "c", "d"], "answer": 1}]
ALPACA = [{"instruction": "Say hello.", "output": "Hello.", "generator": "gpt4_turbo", "dataset": "helpful_base"}]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def hub(folder: Path, gsm8k: list[Any] = GSM8K, math: list[Any] = MATH, mathematics: list[Any] = MMLU, chemistry: list[Any] = MMLU) -> Path:
    """The four repositories, with the parts of their cards that say where the configurations are."""

    def parquet(repository: str, configs: dict[str, list[Any]]) -> None:
        card = ["---", "configs:"]
        for config, rows in configs.items():
            file = folder / repository / config / "test-00000-of-00001.parquet"
            file.parent.mkdir(parents=True)
            pyarrow.parquet.write_table(pa.Table.from_pylist(rows), file)
            card += [f"- config_name: {config}", "  data_files:", "  - split: test", f"    path: {config}/test-*"]
        (folder / repository / "README.md").write_text("\n".join([*card, "---", ""]))

    def jsonl(repository: str, name: str, rows: list[Any]) -> None:
        (folder / repository).mkdir(parents=True)
        text = json.dumps(rows) if name.endswith(".json") else "\n".join(map(json.dumps, rows)) + "\n"
        (folder / repository / name).write_text(text)

    parquet("openai/gsm8k", {"main": gsm8k, "socratic": gsm8k[:1]})
    parquet("cais/mmlu", {"college_mathematics": mathematics, "college_chemistry": chemistry})
    jsonl("HuggingFaceH4/MATH-500", "test.jsonl", math)
    jsonl("tatsu-lab/alpaca_eval", "alpaca_eval_gpt4_baseline.json", ALPACA)
    return folder


def test_every_task_is_read_from_its_repository(tmp_path: Path) -> None:
    root = hub(tmp_path / "hub")
    answers = {name: [prompt.gt_answer for prompt in load_task(name, root)] for name in TASKS}
    assert answers == {
        "gsm8k": ["2", "1000"],
        "math500": ["\\frac{1}{2}"],
        "mmlu-college-mathematics": ["B"],
        "mmlu-college-chemistry": ["B"],
        "alpaca-eval": ["Hello."],
    }
    assert [prompt.gt_answer for prompt in load_task("gsm8k", root, limit=1)] == ["2"]


def test_a_row_of_another_shape_is_named(tmp_path: Path) -> None:
    root = hub(tmp_path / "hub", gsm8k=[GSM8K[0], {"question": "1 + 1?", "answer": "2"}])
    with pytest.raises(InvalidFile, match=r"row 2 is not one of openai/gsm8k"):
        load_task("gsm8k", root)


def test_a_repository_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="openai/gsm8k is no folder"):
        load_task("gsm8k", tmp_path)
    (tmp_path / "openai/gsm8k").mkdir(parents=True)
    with pytest.raises(BackendFailed, match="cannot be loaded"):
        load_task("gsm8k", tmp_path)


def test_a_task_is_collected_by_name(terminal: Any, deployment: Path, tmp_path: Path) -> None:
    options = ["--task", "gsm8k", "--hub", hub(tmp_path / "hub"), "--policy", "served", "--config", deployment, "--n", 2, "--seed", 1]
    assert terminal.done("collect", *options, "--out", tmp_path / "out")["candidates"] == 4


@pytest.mark.realdata
def test_the_real_benchmarks(tmp_path: Path) -> None:
    if "PRIVALIGN_DATA" not in os.environ:
        pytest.skip("set PRIVALIGN_DATA to the folder of real data sets")
    data = Path(os.environ["PRIVALIGN_DATA"])

    def lines(name: str) -> list[Any]:
        with gzip.open(data / name, "rt", encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def questions(name: str) -> list[Any]:
        with (data / "mmlu" / name).open(encoding="utf-8", newline="") as file:
            return [
                {"question": row["question"], "choices": [row[f"choice{i}"] for i in range(4)], "answer": int(row["answer"])}
                for row in csv.DictReader(file)
            ]

    gsm8k = [{"question": row["question"], "answer": row["answer"]} for row in lines("gsm8k/test.jsonl.gz")]
    math = [
        {"problem": row["question"], "answer": row["answer"].rpartition("The answer is: ")[2]} for row in lines("math500/test.jsonl.gz")
    ]
    mathematics, chemistry = questions("college_mathematics_test.csv"), questions("college_chemistry_test.csv")
    root = hub(tmp_path / "hub", gsm8k, math, mathematics, chemistry)
    counts = {name: len(load_task(name, root)) for name in TASKS}
    assert counts == {"gsm8k": 1319, "math500": 500, "mmlu-college-mathematics": 100, "mmlu-college-chemistry": 100, "alpaca-eval": 1}
    assert all((prompt.gt_answer or "x").lstrip("-").replace(".", "").isdigit() for prompt in load_task("gsm8k", root))
    assert all(prompt.gt_answer in LETTERS for prompt in load_task("mmlu-college-chemistry", root))


@pytest.mark.realdata
def test_math_verify_agrees_with_the_published_correctness_of_real_solutions() -> None:
    if "PRIVALIGN_DATA" not in os.environ:
        pytest.skip("set PRIVALIGN_DATA to the folder of real data sets")
    from privalign.stages.mathematics import Verifier

    data = Path(os.environ["PRIVALIGN_DATA"])
    with gzip.open(data / "gsm8k/solutions.jsonl.gz", "rt", encoding="utf-8") as file:
        records = [json.loads(line) for line in file][:100]
    with Verifier(10.0) as verifier:
        verdicts = [
            (verifier.is_right(record["gt_answer"].rpartition("A: ")[2].replace(",", ""), response["text"]), bool(response["is_correct"]))
            for record in records
            for response in record["responses"]
        ]
    assert sum(ours != theirs for ours, theirs in verdicts) <= 0.01 * len(verdicts)
    with gzip.open(data / "math500/test.jsonl.gz", "rt", encoding="utf-8") as file:
        golds = [json.loads(line)["answer"].rpartition("The answer is: ")[2] for line in file][:100]
    with Verifier(10.0) as verifier:
        assert all(verifier.is_right(gold, f"So it is $\\boxed{{{gold}}}$.") for gold in golds)
