"""Prompts: the paper's benchmarks by name through Hugging Face `datasets`, or a file, each with its zero-shot template.

The paper (appendix F.1) uses zero-shot chain-of-thought prompting and does not print its templates; those below ask for steps and
for a final answer in the form that the grader reads: `\\boxed{…}` or a letter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privalign.errors import BackendFailed, InvalidFile, InvalidInput, MissingDependency

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
USUAL = 4  # options of a question where nothing else is said
LETTERS = ALPHABET[:USUAL]

_BOXED = "{question}\n\nReason step by step, then give your final answer within \\boxed{{}}."
_CHOICE = (
    "{question}\n\n{choices}\n\n"
    'Reason step by step, then end with a line of the form "The answer is (X)", where X is one of the letters A, B, C and D.'
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the policy is asked, word for word, and the answer that counts as right (None: there is none)."""

    text: str
    gt_answer: str | None


@dataclass(frozen=True, slots=True)
class Task:
    """One benchmark.

    Args:
        repository: its id on the Hugging Face hub. config, split: which part; config None: the only one.
        data_file: a JSON file of the repository to read instead, where the repository holds a script, which no longer runs.
        read: a row of the data set -> the prompt. Raises KeyError, TypeError or ValueError on a row of another shape.
        grade: the kind of grading that fits.
    """

    repository: str
    config: str | None
    split: str
    read: Callable[[Mapping[str, Any]], Prompt]
    grade: str
    data_file: str | None = None


def _gsm8k(row: Mapping[str, Any]) -> Prompt:
    """The final answer stands after `####`, thousands with commas."""
    _, mark, answer = row["answer"].rpartition("####")
    if not mark:
        raise ValueError("no ####")
    return Prompt(_BOXED.format(question=row["question"].strip()), answer.strip().replace(",", ""))


def _math500(row: Mapping[str, Any]) -> Prompt:
    return Prompt(_BOXED.format(question=row["problem"].strip()), row["answer"].strip())


def _mmlu(row: Mapping[str, Any]) -> Prompt:
    choices = "\n".join(f"({letter}) {choice}" for letter, choice in zip(LETTERS, row["choices"], strict=True))
    return Prompt(_CHOICE.format(question=row["question"].strip(), choices=choices), LETTERS[int(row["answer"])])


def _alpaca(row: Mapping[str, Any]) -> Prompt:
    """The reference output is that of the baseline model; it helps a judge, and no answer has to equal it."""
    return Prompt(row["instruction"], row["output"])


TASKS: Mapping[str, Task] = {
    "gsm8k": Task("openai/gsm8k", "main", "test", _gsm8k, "math"),
    "math500": Task("HuggingFaceH4/MATH-500", None, "test", _math500, "math"),
    "mmlu-college-mathematics": Task("cais/mmlu", "college_mathematics", "test", _mmlu, "letter"),
    "mmlu-college-chemistry": Task("cais/mmlu", "college_chemistry", "test", _mmlu, "letter"),
    "alpaca-eval": Task("tatsu-lab/alpaca_eval", None, "train", _alpaca, "judge", data_file="alpaca_eval_gpt4_baseline.json"),
}


def load_task(name: str, hub: Path | None = None, limit: int | None = None) -> list[Prompt]:
    """The prompts of a benchmark, in the order of the data set.

    Args:
        hub: a folder that holds `OWNER/NAME/…` as the hub does, instead of the hub. limit: only the first.

    Raises:
        BackendFailed: the hub cannot be reached, or the data set is not there. InvalidFile: a row is not what it should be.
        MissingDependency: `datasets` is not installed.
    """
    try:
        import datasets
    except ImportError:
        raise MissingDependency("datasets is not installed; get it with: pip install 'privalign[experiments]'") from None
    task = TASKS[name]
    where = task.repository if hub is None else str(hub / task.repository)
    if hub is not None and not Path(where).is_dir():
        raise InvalidInput("hub", f"{where} is no folder; give the folder that holds {task.repository}")
    datasets.disable_progress_bars()
    try:
        if task.data_file is None:
            rows = datasets.load_dataset(where, task.config, split=task.split)
        else:
            root = where if hub is not None else f"hf://datasets/{where}"
            rows = datasets.load_dataset("json", data_files=f"{root}/{task.data_file}", split=task.split)
    except Exception as error:  # of the library, of its transports and of its file formats
        said = " ".join(str(error).split())[:200]
        remedy = "check the network, or give --hub FOLDER with a copy" if hub is None else "copy the data set there again"
        raise BackendFailed(f"{where}: cannot be loaded ({type(error).__name__}: {said}); {remedy}") from None
    prompts = []
    for number, row in enumerate(rows, start=1):
        if limit is not None and number > limit:
            break
        try:
            prompts.append(task.read(row))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            raise InvalidFile(where, None, f"row {number} is not one of {task.repository}; check the copy") from None
    if not prompts:
        raise InvalidFile(where, None, "holds no prompts; check the copy")
    return prompts


def load_file(path: Path, limit: int | None = None) -> list[Prompt]:
    """The prompts of a JSONL file: `{"prompt": str, "gt_answer": str}`, `gt_answer` optional; asked as they stand.

    Raises:
        InvalidFile: names the line.
    """
    prompts: list[Prompt] = []
    for number, line in _lines(path):
        if limit is not None and len(prompts) == limit:
            break
        shape = 'give {"prompt": "…", "gt_answer": "…"}'
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise InvalidFile(str(path), number, f"not JSON; {shape}") from None
        if not isinstance(record, dict) or not isinstance(record.get("prompt"), str) or not record["prompt"]:
            raise InvalidFile(str(path), number, f"has no text as prompt; {shape}")
        answer = record.get("gt_answer")
        if not isinstance(answer, str | None):
            raise InvalidFile(str(path), number, f"its gt_answer is no text; {shape}")
        if any("\ud800" <= letter <= "\udfff" for letter in record["prompt"] + (answer or "")):
            raise InvalidFile(str(path), number, "holds half a surrogate pair, which is not Unicode; repair the escape")
        prompts.append(Prompt(record["prompt"], answer))
    if not prompts:
        raise InvalidFile(str(path), None, 'no prompts in it; give one {"prompt": "…", "gt_answer": "…"} a line')
    return prompts


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            yield from ((number, line) for number, line in enumerate(file, start=1) if line.strip())
    except UnicodeDecodeError:
        raise InvalidFile(str(path), None, "not UTF-8 text; give JSONL in UTF-8") from None
    except OSError as error:
        raise InvalidFile(str(path), None, f"cannot be read ({error.strerror}); give a JSONL file of prompts") from None
