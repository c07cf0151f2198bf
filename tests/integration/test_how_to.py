"""The how-to pages, copied out and tried: commands parse, deployment files load, snippets run, links lead somewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from privalign import cli
from privalign.accounting.rules import Fsrc
from privalign.config import load
from privalign.gateway.settings import GatewaySettings
from privalign.mechanisms.protocol import event_of
from privalign.preferences.bradley_terry import fit_head
from privalign.preferences.features import CharacterCrosses, Cross, Pick
from privalign.preferences.pairs import PreferencePair
from privalign.secret import make_installation_key
from privalign.sensitivity import Relation, RewardRange

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
CLIENTS = ROOT / "docs" / "how-to" / "clients.md"
SHELLS = ("sh", "bash")

# Where a page shows some tables only, the rest of its deployment file is this.
AROUND = """\
[ledger]
url = "sqlite:///privalign.db"

[accounts.prefs-2026]
epsilon = 8.0
delta = 1e-6

[policies.base]
independent_of_accounts = true
kind = "openai"
base_url = "http://127.0.0.1:8000/v1"
model = "base"

[rewards.served]
kind = "vllm-classify"
base_url = "http://127.0.0.1:8001"
model = "reward"
range = [0.0, 1.0]

[models.aligned]
policy = "base"
reward = "REWARD"
account = "prefs-2026"
mechanism = { kind = "privbon", n = 16, epsilon = 1.0 }
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, without the indentation of the list that it stands in."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(*languages: str, pages: list[Path] = PAGES) -> Iterator[Block]:
    for page in pages:
        text = page.read_text()
        for match in re.finditer(r"^( *)```(\w+)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL):
            indent, language, content = match.groups()
            if language in languages:
                content = re.sub(rf"^{indent}", "", content, flags=re.MULTILINE)
                yield Block(page, text.count("\n", 0, match.start()) + 1, language, content)


def each(*languages: str, pages: list[Path] = PAGES) -> Any:
    """A test's parameter `block`, for every block in one of these languages."""
    return pytest.mark.parametrize("block", list(blocks(*languages, pages=pages)), ids=str)


# ---- deployment files


@each("toml", pages=[*PAGES, ROOT / "docs" / "certified-rewards.md"])
def test_what_is_shown_of_a_deployment_file_loads(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "secret"))
    make_installation_key()
    features = CharacterCrosses((Cross(1.0, (Pick("answer", 0, 0),)),), cells=31)
    pairs = [PreferencePair("hello", "a", "b")] * 20
    fit_head(pairs, features, regularisation=40.0, relation=Relation.REPLACE, range=RewardRange(0.0, 1.0)).save(tmp_path / "head.json")
    shown = re.findall(r"^\[([\w.-]+)\]", block.text, re.MULTILINE)
    assert shown
    tables = re.split(r"^(?=\[)", AROUND, flags=re.MULTILINE)
    rest = "".join(table for table in tables if not any(table.startswith(f"[{name}]") for name in shown))
    rewards = [name.removeprefix("rewards.") for name in shown if name.startswith("rewards.")]
    file = tmp_path / "privalign.toml"
    file.write_text(rest.replace("REWARD", rewards[-1] if rewards else "served") + "\n" + block.text)
    assert load(file).models


def test_every_file_and_heading_that_a_page_links_to_is_there() -> None:
    links = [(page, target) for page in PAGES for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text())]
    assert links
    for page, target in links:
        name, _, heading = target.partition("#")
        linked = page if not name else (page.parent / name).resolve()
        assert linked.exists(), f"{page.name} links to {target}"
        if heading:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings}, f"{page.name}: {target}"


def test_the_overview_names_every_page() -> None:
    overview = (ROOT / "docs" / "how-to" / "index.md").read_text()
    assert [page.name for page in PAGES if page.name != "index.md" and f"]({page.name})" not in overview] == []


def test_the_price_of_a_reward_model_that_nothing_is_known_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures of the page on vLLM are those of its deployment file."""
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "secret"))
    make_installation_key()
    file = tmp_path / "privalign.toml"
    file.write_text((ROOT / "deploy" / "examples" / "vllm.toml").read_text())
    deployment = load(file)
    (model,) = deployment.models.values()
    account, sensitivity = deployment.accounts[model.account], deployment.rewards[model.reward].sensitivity
    worst = account.charge(event_of(model.mechanism, sensitivity))
    answers = min(
        getattr(account.rule.limit, name) // getattr(worst, name) for name in ("epsilon", "delta", "rho", "rdp") if getattr(worst, name)
    )
    assert f"ε = {account.rule.epsilon:g} pays for at least {answers}\nanswers" in (ROOT / "docs" / "how-to" / "vllm.md").read_text()
    assert model.mechanism.scale > sensitivity.range.width  # type: ignore[attr-defined]


# ---- commands


def commands() -> Any:
    """The command line's tree."""
    return cli.command()


def invocations(text: str) -> Iterator[list[str]]:
    """The arguments of every call of privalign in shell text: by its name, or as the program of the image."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        for place, word in enumerate(words):
            called = word.rpartition("/")[2] == "privalign" and (
                place == 0 or words[place - 1] in ("sudo", "as_privalign") or "=" in words[0]
            )
            in_image = word == "gateway" and "run" in words[:place]
            if called or in_image:
                rest = words[place + 1 :]
                end = next((index for index, each in enumerate(rest) if each in ("|", "&&", ";", ">", "<")), len(rest))
                yield rest[:end]


def parse(arguments: list[str]) -> Any:
    """What the command line makes of arguments; it raises where it would refuse them."""
    command = commands()
    while hasattr(command, "commands"):
        assert arguments, "a command is missing"
        assert arguments[0] in command.commands, f"there is no {arguments[0]}"
        command, arguments = command.commands[arguments[0]], arguments[1:]
    return command.make_context("privalign", arguments).params


@each(*SHELLS)
def test_every_command_that_is_shown_parses(block: Block) -> None:
    assert subprocess.run(["bash", "-n"], input=block.text, text=True, timeout=60).returncode == 0
    for arguments in invocations(block.text):
        parse(arguments)


def test_the_pages_show_commands_and_a_wrong_one_would_be_found() -> None:
    shown = [" ".join(arguments[:2]) for block in blocks(*SHELLS) for arguments in invocations(block.text)]
    assert {"key create", "config check", "account verify", "account show", "reward fit", "serve --config"} <= set(shown)
    for wrong in (
        "sudo /opt/privalign/bin/privalign serv",
        "privalign key create --rol client",
        "docker compose run --rm gateway key crate",
    ):
        (arguments,) = invocations(wrong)
        with pytest.raises((AssertionError, typer.BadParameter.__mro__[2])):
            parse(arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_setting_that_is_mentioned_exists(page: Path) -> None:
    prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for mention in re.findall(r"`privalign ([a-z][^`]*)`", prose):
        command = commands()
        for word in mention.split():
            if not hasattr(command, "commands"):
                break
            assert word in command.commands, mention
            command = command.commands[word]
    known = {field.name for field in fields(GatewaySettings)} | {"max_characters", "max_tokens"}  # of rewards and policies
    known |= {"max_connections"}  # PostgreSQL's
    for word in re.findall(r"`((?:max|requests|ping|shutdown|secure|session|body)_[a-z_]+)`", prose):
        assert word in known, word


# ---- snippets


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gateway_fixtures", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


gateway = _module(Path(__file__).parent / "gateway" / "conftest.py").gateway  # the fixture


@pytest.fixture
def run_snippet(gateway: Callable[..., Any]) -> Callable[..., tuple[Any, list[str]]]:
    """Runs a program as a client of a fresh gateway: the gateway, and the lines that were printed."""

    def run(*program: str) -> tuple[Any, list[str]]:
        running = gateway(ping_every=0.05)
        environment = {name: value for name, value in os.environ.items() if not name.upper().endswith("_PROXY")}
        environment |= {"OPENAI_BASE_URL": f"{running.url}/v1", "OPENAI_API_KEY": running.key}
        done = subprocess.run(program, capture_output=True, text=True, timeout=120, env=environment)
        assert done.returncode == 0, done.stderr
        return running, done.stdout.splitlines()

    return run


def test_every_snippet_runs_and_is_charged_as_the_page_says(run_snippet: Callable[..., tuple[Any, list[str]]]) -> None:
    """In one process, one after the other, as a reader may type them."""
    snippets = [block.text for block in blocks("python", pages=[CLIENTS])]
    running, printed = run_snippet(sys.executable, "-c", "\nprint('---')\n".join(snippets))
    shown = [part.strip().splitlines() for part in "\n".join(printed).split("---")]
    assert len(shown) == len(snippets)
    assert shown[0][0].startswith("text ")
    assert re.fullmatch(r"[\d.]+ \{'epsilon': [\d.]+, 'delta': [\de.-]+\}", shown[0][1])
    assert re.fullmatch(r"text \d[\d.]+", shown[1][0])  # text, and its price behind it
    assert [line.split()[-1] for line in shown[2]] == ["False", "True"]
    assert shown[2][0].removesuffix("False") == shown[2][1].removesuffix("True")
    assert shown[3] == []
    assert re.fullmatch(r"text \d [\d.]+", shown[4][0])
    assert shown[5][0].startswith("text ")
    assert running.queries == (6, 0)  # each once, the repeated one included


def test_the_curl_command_runs(run_snippet: Callable[..., tuple[Any, list[str]]]) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl to try the page's command with: install it with `apt-get install curl`")
    (block,) = blocks("bash", pages=[CLIENTS])
    running, printed = run_snippet("bash", "-euo", "pipefail", "-c", block.text)
    assert printed[-2:] == ["data: [DONE]", ""] or printed[-1] == "data: [DONE]"
    assert running.queries == (1, 0)


def test_a_spent_budget_is_told_as_the_page_says(gateway: Callable[..., Any]) -> None:
    running = gateway(rule=Fsrc(1e-3, 1e-2, 1e-6))
    (errors,) = [block.text for block in blocks("python", pages=[CLIENTS]) if "RateLimitError" in block.text]
    environment = {name: value for name, value in os.environ.items() if not name.upper().endswith("_PROXY")}
    environment |= {"OPENAI_BASE_URL": f"{running.url}/v1", "OPENAI_API_KEY": running.key}
    done = subprocess.run([sys.executable, "-c", errors], capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout.startswith("the privacy budget is spent"), done.stderr
    assert running.ledger.account("prefs").refused_queries == 1  # asked once, not again
