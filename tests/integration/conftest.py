"""The command line as a script sees it, in this process: exit code, stdout, stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privalign import cli
from privalign.secret import make_installation_key

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Runs the command line in an empty folder, with an installation key of its own."""
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path_factory.mktemp("key") / "secret"))
    make_installation_key()
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["privalign", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        captured = capsys.readouterr()
        return int(exit.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def document(run: Run) -> Callable[..., Any]:
    """The one JSON document of a command that must succeed silently."""

    def document(*arguments: object) -> Any:
        code, out, error = run(*arguments, "--json")
        assert (code, error) == (0, "")
        assert "\x1b" not in out
        assert out.count("\n") == 1
        return json.loads(out)

    return document
