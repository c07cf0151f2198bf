"""Where a SQLite file is, and who may write it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from privalign.ledger.place import is_writable


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("moment", range(1, 9))
def test_a_file_whose_shared_memory_comes_or_goes_stays_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int, there: bool
) -> None:
    """Another process may open or close the ledger before any of the questions; that makes no file look read-only."""
    file, shared = tmp_path / "ledger.db", tmp_path / "ledger.db-shm"
    file.touch()
    if there:
        shared.touch()
    asked = 0

    def disturbed(question: Any) -> Any:
        def answer(*arguments: Any, **terms: Any) -> bool:
            nonlocal asked
            asked += 1
            if asked == moment and there:
                shared.unlink()
            if asked == moment and not there:
                shared.touch()
            return bool(question(*arguments, **terms))

        return answer

    monkeypatch.setattr("privalign.ledger.place.os.path.exists", disturbed(os.path.exists))
    access = disturbed(os.access)
    monkeypatch.setattr("privalign.ledger.place.os.access", access)
    monkeypatch.setattr("privalign.ledger.place.os.supports_effective_ids", {access})
    assert is_writable(str(file))
