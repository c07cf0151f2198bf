"""A folder of shards as JSONL, the format of `select` and of the paper authors' scripts: one record a prompt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from privalign.experiments.stages.score import prompt_runs
from privalign.experiments.stages.shards import Shards

SHARED = ("prompt_id", "prompt", "gt_answer")


def jsonl(path: Path) -> Iterator[str]:
    """One line a prompt, `{"prompt", "gt_answer", "responses": [{"text", …every other column}]}`; memory holds one shard.

    Raises:
        InvalidFile: the folder's stage is not finished.
    """
    shards = Shards.read(path)
    for number in range(shards.shards):
        table = shards.table(number)
        columns = {name: table.column(name).to_pylist() for name in table.column_names}
        own = [name for name in columns if name not in SHARED]
        for prompt, rows in prompt_runs(table):
            responses = [{name: columns[name][row] for name in own} for row in rows]
            yield json.dumps({"prompt": prompt, "gt_answer": columns["gt_answer"][rows.start], "responses": responses}, ensure_ascii=False)
