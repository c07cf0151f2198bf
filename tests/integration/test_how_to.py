"""The how-to pages, copied out and tried: commands parse, deployment files load, snippets run, links lead somewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from privalign import cli
from privalign.accounting.rules import Fsrc
from privalign.deployment import load
from privalign.gateway.settings import GatewaySettings
from privalign.mechanisms.protocol import event_of
from privalign.secret import make_installation_key

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
CLIENTS = ROOT / "docs" / "how-to" / "clients.md"
SHELLS = ("sh", "bash")


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


# ---- deployment files


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_setting_that_is_mentioned_exists(page: Path) -> None:
    prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for mention in re.findall(r"`privalign ([a-z][^`]*)`", prose):
        command = commands()
        for word in mention.split():
            if not hasattr(command, "commands"):
                break
            assert word in command.list_commands(None), mention
            command = command.get_command(None, word)
    known = {field.name for field in fields(GatewaySettings)} | {"max_characters", "max_tokens"}  # of rewards and policies
    known |= {"max_connections", "max_completion_tokens"}  # PostgreSQL's, OpenAI's
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


def test_a_spent_budget_is_told_as_the_page_says(gateway: Callable[..., Any]) -> None:
    running = gateway(rule=Fsrc(1e-3, 1e-2, 1e-6))
    (errors,) = [block.text for block in blocks("python", pages=[CLIENTS]) if "RateLimitError" in block.text]
    environment = {name: value for name, value in os.environ.items() if not name.upper().endswith("_PROXY")}
    environment |= {"OPENAI_BASE_URL": f"{running.url}/v1", "OPENAI_API_KEY": running.key}
    done = subprocess.run([sys.executable, "-c", errors], capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout.startswith("the privacy budget is spent"), done.stderr
    assert running.ledger.account("prefs").refused_queries == 1  # asked once, not again
