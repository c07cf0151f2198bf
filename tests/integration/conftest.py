"""The command line as a script sees it, in this process: exit code, stdout, stderr."""

from __future__ import annotations

import gzip
import io
import json
import math
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_lines import overriding

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
        monkeypatch.setattr(sys, "argv", ["privalign", *map(str, overriding(arguments, "--reward", "--also", "--run"))])
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


def _renderings(value: float) -> set[bytes]:
    """A number as it might be written, its usual relatives too; each long enough never to occur by chance."""
    found = {struct.pack(form, value) for form in ("<d", ">d")} | {value.hex()[4:13].encode()}
    for number in (value, 100 * value, 1 - value, 1 / (1 + math.exp(-value))):
        found |= {text.encode() for text in (repr(number), f"{number:.6e}")}
        for exact in (8, 16):  # rounded and cut off
            digits = f"{abs(number):.{exact}e}".replace(".", "")[:9]
            found |= {digits.encode(), f"{digits[0]}.{digits[1:]}".encode()}
        found |= {text.encode() for text in (f"{number:g}", f"{number:.6f}") if len(text.strip("-0.").replace(".", "")) >= 6}
    return found


def _contents(path: Path) -> bytes:
    """A file as it is, and what it unpacks to."""
    content = path.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        content += gzip.decompress(content)
    if content.startswith(b"PAR1"):
        import pyarrow.parquet as pq

        table = pq.read_table(io.BytesIO(content))
        content += repr(table.to_pylist()).encode() + repr(table.schema.metadata).encode()
    return content


class Exposure:
    """Rewards that were planted, and whether any byte shows one."""

    def __init__(self) -> None:
        self._sought: dict[bytes, float] = {}

    def plant(self, *values: float) -> None:
        """Values with digits enough to be told from others; the rest would be found everywhere."""
        for value in values:
            if len(f"{abs(value):.17g}".strip("0.").partition("e")[0].replace(".", "")) >= 12:
                self._sought |= dict.fromkeys(_renderings(value), value)

    def shown(self, content: bytes) -> list[bytes]:
        """The renderings of planted values in the content."""
        assert self._sought, "nothing was planted"
        return [text for text in self._sought if text in content]

    def readable(self, folder: Path) -> dict[Path, list[bytes]]:
        """The files that others may read and that show a planted value."""
        shown = {path: self.shown(_contents(path)) for path in folder.rglob("*") if path.is_file() and path.stat().st_mode & 0o077}
        return {path: texts for path, texts in shown.items() if texts}


@pytest.fixture(scope="module")
def exposure() -> Exposure:
    return Exposure()
