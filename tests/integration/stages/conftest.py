"""What tests of the stages share: the strict server of the policies' tests, a terminal, and a folder with prompts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_lines import overriding

from privalign import cli
from privalign.secret import make_installation_key
from privalign.testing.fake_openai import FakeOpenAI

PROMPTS = 12


class Terminal:
    """Runs the command line in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def run(self, *arguments: object) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["privalign", *map(str, overriding(arguments, "--reward", "--also", "--run"))])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        captured = self._capsys.readouterr()
        return int(exit.value.code or 0), captured.out, captured.err

    def done(self, *arguments: object) -> Any:
        """The document of a run that must succeed silently."""
        code, out, error = self.run(*arguments, "--json")
        assert (code, error) == (0, "")
        return json.loads(out)

    def failed(self, *arguments: object, code: int = 2) -> str:
        """The one line of a run that must fail."""
        got, out, error = self.run(*arguments)
        assert (got, out, error.count("\n")) == (code, "", 1), error
        return error


@pytest.fixture(scope="session", autouse=True)
def _installation_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One for the whole session: workers of a Ray that tests share were started with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path_factory.mktemp("installation") / "secret"))
        make_installation_key()
        yield


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(monkeypatch, capsys)


@pytest.fixture
def server() -> Iterator[Any]:
    """A server whose answers depend on the seed alone, and its URL."""
    with FakeOpenAI().running() as started:
        started._http.handle_error = lambda *_: None  # about clients that are killed
        yield started


@pytest.fixture
def deployment(tmp_path: Path, server: Any) -> Path:
    """Back-ends and prompts, side by side."""
    lines = [json.dumps({"prompt": f"What is {i} + {i}?", "gt_answer": str(2 * i)}) for i in range(PROMPTS)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    file = tmp_path / "back-ends.toml"
    file.write_text(
        f'[policies.served]\nindependent_of_accounts = true\nkind = "openai"\nbase_url = "{server.url}"\nmodel = "strict-1"\nretries = 1\n'
        f'[policies.recorded]\nindependent_of_accounts = true\nkind = "recorded"\nfile = "candidates.jsonl"\n'
    )
    return file


@pytest.fixture
def collecting(tmp_path: Path, deployment: Path) -> list[object]:
    """A collection of 12 prompts in 12 shards, without its folder."""
    options = ["--policy", "served", "--config", deployment, "--n", 3, "--seed", 5, "--shard", 1]
    return ["collect", "--file", tmp_path / "prompts.jsonl", *options]


@pytest.fixture
def certificate(terminal: Terminal, tmp_path: Path) -> Path:
    """A head fitted on a few preferences, and a reward table for it in the deployment file."""
    pairs = [{"prompt": f"What is {i} + 1?", "chosen": f"It is {i + 1}", "rejected": f"no idea, {i}"} for i in range(30)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    file = tmp_path / "head.json"
    terminal.done("reward", "fit", tmp_path / "pairs.jsonl", "--lambda", 10, "--out", file)
    return file


@pytest.fixture
def rewarding(deployment: Path, certificate: Path) -> Path:
    """The deployment file with a reward."""
    with deployment.open("a") as file:
        file.write(f'[rewards.learned]\nkind = "head"\ncertificate = "{certificate}"\n')
    return deployment
