"""A folder of shards as JSONL, the format of `select` and of the paper authors' scripts: one record a prompt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from privalign.candidates.shards import Shards
from privalign.rewards.provenance import ScoredBy, sign_scores, signature_file, signed_columns
from privalign.stages.score import prompt_runs

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


def write_jsonl(path: Path, file: IO[str], out: Path) -> None:
    """Writes the lines into a file that is to take the place of `out`, and signs them where all shards are signed, before it does.

    Raises:
        InvalidFile: the folder's stage is not finished, or a shard is not the one that was signed. InvalidInput: the signature cannot
        be written.
    """
    columns, digest = common_signatures(path), hashlib.sha256()
    for line in jsonl(path):
        file.write(f"{line}\n")
        digest.update(f"{line}\n".encode())
    if columns:
        sign_scores(out, digest.digest(), columns)
    else:
        signature_file(out).unlink(missing_ok=True)


def common_signatures(path: Path) -> dict[str, ScoredBy]:
    """The columns that one head made in all shards of a folder, as their signatures say.

    Raises:
        InvalidFile: a shard is not the one that was signed.
    """
    shards = Shards.read(path)
    first, *others = (signed_columns(shards.file(number)) for number in range(shards.shards))
    return {column: by for column, by in first.items() if all(other.get(column) == by for other in others)}
