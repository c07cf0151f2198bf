"""Every code block of README and docs, executed in the order of its page: no page can fail as printed.

The blocks of a page are one session of bash in a folder of its own. `privalign` and snippets of Python run in this process; what is
listed in `UNTRIED` is checked otherwise; every other program is the machine's. What a page takes for granted stands in `GIVEN`, whatever
it names of other machines in `Reader.here`. A block that is none of this, or that fails, fails its page.
"""

from __future__ import annotations

import asyncio
import configparser
import contextlib
import functools
import gzip
import http.server
import importlib.util
import io
import itertools
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest import mock
from urllib.parse import urlsplit

import httpx
import pytest

from privalign import cli
from privalign.gateway import logs, server
from privalign.ledger import Ledger
from privalign.policies import llamacpp_chat
from privalign.policies.protocol import BasePolicy
from privalign.preferences.bradley_terry import fit_head
from privalign.preferences.features import CharacterCrosses, Cross, Pick, feature_map
from privalign.preferences.pairs import PreferencePair
from privalign.secret import make_installation_key
from privalign.sensitivity import Relation, RewardRange
from privalign.studies.recipe import read_recipe
from privalign.types import Candidate

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# What is not executed, why, and where it is tried instead. The words that follow are still checked by `Reader.untried`.
UNTRIED: Final = {
    "make": "installs, and runs the whole suite; its targets are looked up",
    "pip": "installs from a registry; its extras are looked up",
    "python": "minutes of computing, tested in tests/statistical; the module is looked up",
    "python3.11": "an environment to install into; its folder is made",
    "chown": "needs root",
    "docker": "needs a daemon; commands in the image are parsed, test_deploy_files reads Containerfile and composition",
    "nginx": "needs root; test_deploy_files runs it with the site",
    "systemctl": "needs root; what it starts is served as the unit says",
    "journalctl": "needs systemd",
    "systemd-analyze": "test_deploy_files runs it on the unit, where it is installed",
    "vllm": "needs a GPU; a server of the same paths answers for it",
    "llama-server": "another project's program; a server of the same paths answers for it",
}
# commands of privalign whose words are parsed only, by the page and how they begin
PARSED: Final = {
    ("docs/experiments.md", ("collect",)): "needs GPUs and the Hugging Face hub; tests/integration/stages runs every stage",
    ("docs/experiments.md", ("score",)): "follows collect",
    ("docs/experiments.md", ("grade",)): "follows score",
    ("docs/experiments.md", ("evaluate",)): "follows grade",
    ("docs/studies.md", ("study", "composition")): "minutes of computing; test_studies_cli runs it with less to do",
    ("docs/studies.md", ("study", "matched")): "minutes of computing; test_studies_cli runs it with less to do",
}
# output that a page shows and that is another one on every run, or comes from data that the page has and the test has not
VARYING: Final = {
    ("README.md", "make"): "the demo takes minutes; tests/unit/demo/test_demo runs a smaller one",
    ("docs/evaluate.md", "evaluate"): "200 prompts of AlpacaEval, not in the repository",
}
# what a page takes for granted, as commands; `given FILE` makes an example of a file
GATEWAY = """
cp deploy/examples/vllm.toml privalign.toml
export POLICY_KEY=policy-secret REWARD_KEY=reward-secret OPENAI_API_KEY
privalign key create --role client --ledger sqlite:///privalign.db
OPENAI_API_KEY=$(filled pa_...)
privalign serve --config privalign.toml
"""
GIVEN: Final = {
    "README.md": "given candidates.jsonl",
    "docs/budgets.md": "given candidates.jsonl head.json",
    "docs/certified-rewards.md": "given prefs.jsonl candidates.jsonl scored.jsonl texts.jsonl privalign.toml",
    "docs/dashboard.md": "given privalign.toml",
    "docs/evaluate.md": "given scored.jsonl.gz",
    "docs/report.md": "given studies",
    "docs/studies.md": "given scored.jsonl.gz",
    "docs/how-to/clients.md": GATEWAY,
    "docs/how-to/container.md": "export POLICY_KEY=policy-secret REWARD_KEY=reward-secret",
    "docs/how-to/index.md": "export POLICY_KEY=policy-secret REWARD_KEY=reward-secret",
    "docs/how-to/llamacpp.md": "given preferences.jsonl.gz model.gguf",
    "docs/how-to/nginx.md": GATEWAY,
    "docs/how-to/replicas.md": "export POLICY_KEY=policy-secret REWARD_KEY=reward-secret",
    "docs/how-to/systemd.md": "given policy-key reward-key head.json",
    "docs/how-to/vllm.md": "given scored.jsonl head.json",
}
# Where a page shows some tables only, the rest of its deployment file is this.
AROUND = """\
[ledger]
url = "sqlite:///around.db"

[accounts.prefs-2026]
epsilon = 8.0
delta = 1e-6
dataset = "DATASET"

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

    line: int
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    return [Block(text.count("\n", 0, match.start()) + 1, match[2], textwrap.dedent(match[3])) for match in found]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# ---- what answers for other people's servers and models


class Models(http.server.BaseHTTPRequestHandler):
    """A base model and a reward model, over the paths of vLLM and llama.cpp."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = urlsplit(self.path).path  # a proxy is asked for a whole URL
        if path == "/classify":
            count = len(body["input"]) if "input" in body else 1
            answer: Any = {"data": [{"index": index, "label": "LABEL_0", "probs": [0.5], "num_classes": 1} for index in range(count)]}
        elif path == "/v1/chat/completions":
            message = {"role": "assistant", "content": "The Rhine."}
            choices = [{"index": index, "message": message, "finish_reason": "stop"} for index in range(body.get("n", 1))]
            usage = {"prompt_tokens": 4, "completion_tokens": 3 * len(choices), "total_tokens": 4 + 3 * len(choices)}
            answer = {"id": "1", "object": "chat.completion", "created": 1, "model": body["model"], "choices": choices, "usage": usage}
        else:
            self.send_error(404)
            return
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


class Embedded(BasePolicy):
    """Stands in the place of a GGUF model in the process, which takes half a minute for an answer: tests/unit/policies tries it."""

    name = "embedded"

    def __init__(self, *arguments: object, **settings: object) -> None:
        pass

    async def draw(self, request: object, count: int) -> list[Candidate]:
        return [Candidate("12 + 34 = 48 in Roman numerals.", "stop")] * count


@pytest.fixture(scope="module")
def models() -> Iterator[str]:
    """The address of the models' server."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Models) as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


# ---- the reader

SHIM = """\
#!{python} -SI
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as link, link.makefile("rw") as stream:
    link.connect({address!r})
    called = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
    print(json.dumps([called, os.getcwd(), dict(os.environ)]), file=stream, flush=True)
    code, out, error = json.loads(stream.readline())
sys.stdout.write(out)
sys.stderr.write(error)
sys.exit(code)
"""
AS_SOMEBODY = '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n'  # sudo and systemd-run: by whoever runs the tests
OURS = ("privalign", "block", "given", "filled", *UNTRIED)


@dataclass
class Reader:
    """Somebody who follows one page to the letter."""

    page: str
    blocks: list[Block]
    folder: Path
    models: str
    postgresql: Callable[[], str]
    said: list[tuple[int, list[str], str]] = field(default_factory=list)  # block, words and stdout of every command of privalign
    at: int = -1  # the block under way
    stops: list[Callable[[], None]] = field(default_factory=list)
    port: int = 0

    def __post_init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    def here(self, text: str) -> str:
        """The text with what it names of the machines of its readers in the places of this one."""
        for name in ("/etc", "/opt/privalign", "/var/lib/privalign", "/run/credentials", "/run/secrets"):
            text = re.sub(rf"(?<![\w.}}]){name}(?=/)|{name}(?= |$)", f"{self.folder}/machine{name}", text, flags=re.MULTILINE)
        text = re.sub(r"(127\.0\.0\.1|models\.internal):(8000|8001|8002|8003|8004|8081)\b", self.models, text)
        text = text.replace("https://models.example", "http://models.example").replace("proxy.internal:3128", self.models)
        text = text.replace("https://privalign.example.org", "http://127.0.0.1:8080").replace(
            "http://privalign.example.org", "http://127.0.0.1:8080"
        )
        text = text.replace("127.0.0.1:8080", f"127.0.0.1:{self.port}")
        if "@db.internal" in text:
            url = self.postgresql().replace("/postgres?", "/privalign?")
            text = re.sub(r"postgresql\+psycopg://privalign(:\.\.\.)?@db\.internal/privalign(\?sslmode=verify-full)?", url, text)
        return text

    # ---- the session

    def script(self) -> str:
        """All blocks of the page as one session."""
        parts = ["set -euo pipefail", GIVEN.get(self.page, "")]
        for number, block in enumerate(self.blocks):
            parts.append(f"block {number}")
            if block.language in ("sh", "bash"):
                parts.append(block.text)
            elif block.language == "console":
                parts.append("\n".join(command for command, _ in transcript(block)))
        text = "\n".join(parts).replace("pa_...", "$(filled pa_...)").replace("HASH", "$(filled HASH)")
        return self.here(text.replace("filled $(filled pa_...)", "filled pa_..."))

    def read(self, shims: Path) -> None:
        """Executes the page, and raises what is wrong with it."""
        (self.folder / "machine/etc/systemd/system").mkdir(parents=True)
        (self.folder / "machine/etc/nginx/conf.d").mkdir(parents=True)
        for place in ("var/lib/privalign", "run/credentials", "run/secrets"):
            (self.folder / "machine" / place).mkdir(parents=True)
        for file in (ROOT / "deploy").rglob("*.*"):
            copy = self.folder / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(self.here(file.read_text()))
        preferences = Path("src/privalign/demo/demo_preferences.jsonl.gz")
        (self.folder / preferences).parent.mkdir(parents=True)
        with gzip.open(ROOT / preferences) as all_of_them, gzip.open(self.folder / preferences, "w") as some:
            some.writelines(itertools.islice(all_of_them, 50))  # what is printed depends on settings alone
        (self.folder / "recipes").symlink_to(ROOT / "recipes")
        (self.folder / ".venv/bin").mkdir(parents=True)
        (self.folder / ".venv/bin/activate").touch()
        environment = {
            **os.environ,
            "PATH": f"{shims}:/usr/bin:/bin",
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "COLUMNS": "80",
        }
        address = str(shims / "link")
        session = subprocess.Popen(
            ["bash", "-c", self.script()], cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        ended = threading.Event()
        output: list[str] = []

        def wait() -> None:
            output.extend(session.communicate())
            ended.set()
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as link:
                link.connect(address)

        waiting = threading.Thread(target=wait)
        try:
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(address)
                listening.listen()
                listening.settimeout(60)
                waiting.start()
                while True:
                    link, _ = listening.accept()
                    if ended.is_set():
                        link.close()
                        break
                    self.answer(link)
        finally:
            session.kill()
            waiting.join()
            for stop in self.stops:
                stop()
        assert session.returncode == 0, f"{self.page}, line {self.blocks[self.at].line}: {output[1]}"

    def answer(self, link: socket.socket) -> None:
        """Does what one command of the session says."""
        with link, link.makefile("rw") as stream:
            words, folder, environment = json.loads(stream.readline())
            out, error = io.StringIO(), io.StringIO()
            with (
                contextlib.chdir(folder),
                mock.patch.dict(os.environ, environment, clear=True),
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(error),
            ):
                try:
                    code = getattr(self, words[0], self.untried)(words)
                except Exception as wrong:
                    code = 1
                    print(f"{type(wrong).__name__}: {wrong}", file=sys.stderr)
            self.said.append((self.at, words, out.getvalue()))
            stream.write(json.dumps([code or 0, out.getvalue(), error.getvalue()]) + "\n")

    # ---- the commands

    def privalign(self, words: list[str]) -> int:
        """The command line in this process; `serve` goes on in a thread."""
        reasons = [why for (page, start), why in PARSED.items() if page == self.page and tuple(words[1 : 1 + len(start)]) == start]
        if reasons:
            parse(words[1:])
            return 0
        if words[1] != "serve":
            return run(words)
        ready, codes = threading.Event(), []

        async def until_stopped(app: Any, listening: socket.socket, settings: Any, tell: Callable[[], None]) -> bool:
            loop, stop = asyncio.get_running_loop(), asyncio.Event()
            self.stops.append(lambda: _end(loop, stop, thread))

            def told() -> None:
                tell()
                ready.set()

            await server.serve(app, listening, settings, told, stop)
            return False

        def serve() -> None:
            codes.append(run(words))
            ready.set()

        thread = threading.Thread(target=serve)
        with (
            mock.patch.object(server, "serve_until_signal", until_stopped),
            mock.patch.object(server, "listen", return_value=server.listen("127.0.0.1", self.port)),
            mock.patch.object(logs, "configure"),
        ):
            thread.start()
            assert ready.wait(60)
        return codes[0] if codes else 0

    def block(self, words: list[str]) -> None:
        """What a block that is no command of a shell says is true."""
        self.at = int(words[1])
        block = self.blocks[self.at]
        {
            "python": self.check_python,
            "toml": self.check_toml,
            "json": self.check_json,
            "yaml": self.check_yaml,
            "sql": self.check_sql,
            "nginx": self.check_nginx,
            "ini": self.check_ini,
            "text": lambda text: None,  # output, compared at the end
            "sh": lambda text: None,
            "bash": lambda text: None,
            "console": lambda text: None,
        }[block.language](block.text)

    def given(self, words: list[str]) -> None:
        for name in words[1:]:
            make_example(name, self.here)

    def filled(self, words: list[str]) -> None:
        """What a reader puts in the place of a word that stands for something."""
        spoken = "\n".join(out for _, _, out in self.said)
        found = {"pa_...": r"pa_\w+", "HASH": r'"head": "(\w+)"'}[words[1]]
        print(re.findall(found, spoken)[-1])

    def untried(self, words: list[str]) -> int:
        """A program that is listed."""
        match words:
            case ["make", target]:
                assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
            case ["pip", "install", *options]:
                package = options[-1]
                extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
                assert set(re.search(r"^\.\[(.*)\]$", package).group(1).split(",")) <= set(extras), package  # type: ignore[union-attr]
            case ["python", "-m", module, *_]:
                assert importlib.util.find_spec(module), module
            case ["python3.11", "-m", "venv", place]:
                shutil.copytree(Path(shutil.which("privalign") or "").parent, Path(place) / "bin", ignore=shutil.ignore_patterns("link"))
            case ["docker", *rest] if "gateway" in rest and "run" in rest:
                parse(rest[rest.index("gateway") + 1 :])
            case ["systemctl", "enable", "--now", unit]:
                return self.unit(self.folder / f"machine/etc/systemd/system/{unit}.service")
        return 0

    def unit(self, file: Path) -> int:
        """Serves as a unit says."""
        text = file.read_text()
        credentials, state = self.folder / f"machine/run/credentials/{file.name}", self.folder / "machine/var/lib"
        credentials.mkdir()
        for name, source in re.findall(r"^LoadCredential=([\w-]+):(\S+)$", text, re.MULTILINE):
            shutil.copyfile(source, credentials / name)
        variables = dict(pair.split("=", 1) for line in re.findall(r"^Environment=(.*)$", text, re.MULTILINE) for pair in line.split())
        variables = {name: value.replace("%d", str(credentials)).replace("%S", str(state)) for name, value in variables.items()}
        (command,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
        with mock.patch.dict(os.environ, variables):
            return self.privalign(["privalign", *shlex.split(command)[1:]])

    # ---- blocks that are no commands

    def check_python(self, text: str) -> None:
        exec(compile(text, self.page, "exec"), {"__name__": "__main__"})

    def check_toml(self, text: str) -> None:
        document = tomllib.loads(text)
        if "collect" in document:
            Path("recipe.toml").write_text(text)
            read_recipe(Path("recipe.toml"))
            return
        shown = re.findall(r"^\[([\w.-]+)\]", text, re.MULTILINE)
        hidden = tuple(f"[{name}]" for name in shown)
        rest = "".join(table for table in re.split(r"^(?=\[)", AROUND, flags=re.MULTILINE) if not table.startswith(hidden))
        rewards = [name.removeprefix("rewards.") for name in shown if name.startswith("rewards.")]
        dataset = json.loads(Path("head.json").read_text())["dataset"] if Path("head.json").exists() else "prefs"
        rest = rest.replace("REWARD", rewards[-1] if rewards else "served").replace("DATASET", dataset)
        Path("block.toml").write_text(self.here(rest + "\n" + text))
        assert run(["privalign", "config", "check", "block.toml"]) == 0

    def check_json(self, text: str) -> None:
        for line in text.splitlines():
            document = json.loads(line)
            if "privalign" in document:  # part of an answer: of the gateway that runs
                assert self.ask()["privalign"].keys() == document["privalign"].keys()
            elif document.get("kind") == "hashed-ngrams":
                feature_map(document)

    def ask(self) -> Any:
        (key,) = {secret for _, _, out in self.said for secret in re.findall(r"pa_\w+", out)}
        body = {"model": "aligned", "messages": [{"role": "user", "content": "hello"}]}
        answer = httpx.post(f"http://127.0.0.1:{self.port}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def check_yaml(self, text: str) -> None:
        import yaml

        assert isinstance(yaml.safe_load(text), dict)

    def check_sql(self, text: str) -> None:
        import psycopg

        with psycopg.connect(self.postgresql().replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS privalign")
            connection.execute("DROP ROLE IF EXISTS privalign")
            for statement in text.split(";\n"):
                if statement.strip():
                    connection.execute(statement)

    def check_nginx(self, text: str) -> None:
        site = Path("site.conf")
        site.write_text(f"events {{}}\npid {self.folder}/pid;\nhttp {{\n{text}}}\n")
        nginx = shutil.which("nginx", path="/usr/sbin:/usr/bin")
        if nginx is not None:
            command = [nginx, "-t", "-e", "stderr", "-p", self.folder, "-c", site.resolve()]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr

    def check_ini(self, text: str) -> None:
        parser = configparser.ConfigParser(strict=False)
        parser.read_string(text)
        unit = (ROOT / "deploy/systemd/privalign.service").read_text()
        for section in parser.sections():
            for key in parser[section]:
                assert re.search(rf"^{key}=", unit, re.MULTILINE | re.IGNORECASE), key

    # ---- output

    def check_output(self) -> None:
        """Transcripts show what commands print, and blocks of text what the block before prints."""
        for number, block in enumerate(self.blocks):
            spoken = [(words, out) for at, words, out in self.said if at == number and words[0] == "privalign"]
            if block.language == "console":
                for command, shown in transcript(block):
                    words = shlex.split(command, comments=True)
                    if words[0] == "privalign":
                        self.compare(block, words[1], shown, spoken.pop(0)[1])
            elif block.language == "text":
                before = [(words, out) for at, words, out in self.said if at == number - 1 and words[0] == "privalign"]
                words, out = before[-1] if before else (shlex.split(self.blocks[number - 1].text, comments=True)[:2], "")
                self.compare(block, words[1] if words[0] == "privalign" else words[0], block.text, out)

    def compare(self, block: Block, command: str, shown: str, printed: str) -> None:
        if shown.strip() and (self.page, command) not in VARYING:
            said = re.sub(r" +$", "", printed.replace(f":{self.port}", ":8080"), flags=re.MULTILINE)
            pattern = "".join(".*" if part.strip() == "…" else re.escape(part) for part in re.split(r"(…\n|…)", shown))
            assert re.fullmatch(pattern, said, re.DOTALL), f"{self.page}, line {block.line}: {command} prints\n{said}"


def transcript(block: Block) -> list[tuple[str, str]]:
    """The commands of a session, each with what it is shown to print."""
    parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert parts[0] == "", f"line {block.line}: begins with no command"
    found = [re.fullmatch(r"((?:[^\n]*\\\n)*[^\n]*\n)(.*)", part, re.DOTALL) for part in parts[1:]]
    return [(match[1], match[2]) for match in found if match is not None]


def _end(loop: asyncio.AbstractEventLoop, stop: asyncio.Event, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(stop.set)
    thread.join()


def run(words: Sequence[str]) -> int:
    """The command line, in this process."""
    with mock.patch.object(sys, "argv", list(words)):
        try:
            cli.main()
        except SystemExit as exit:
            return int(exit.code or 0)


def parse(arguments: list[str]) -> None:
    """Raises what the command line would refuse of arguments."""
    command, arguments = cli.command(), [word for word in arguments if word != "…"]
    while hasattr(command, "commands"):
        command, arguments = command.get_command(None, arguments[0]), arguments[1:]
    command.make_context("privalign", arguments)


# ---- examples of files that pages take for granted


def make_example(name: str, here: Callable[[str], str]) -> None:
    """A file of that name, in this folder."""
    file = Path(name)
    match name:
        case "privalign.toml":
            file.write_text(here(AROUND.replace("REWARD", "served").replace("DATASET", "prefs-2026").replace("around.db", "privalign.db")))
        case "prefs.jsonl" | "preferences.jsonl.gz":
            pairs = [{"prompt": f"prompt {number}", "chosen": f"a{number}", "rejected": f"b{number}"} for number in range(20)]
            content = "".join(json.dumps(pair) + "\n" for pair in pairs).encode()
            file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)
        case "head.json":
            features = CharacterCrosses((Cross(1.0, (Pick("answer", 0, 0),)),), cells=31)
            pairs = [PreferencePair("hello", "a", "b")] * 20
            terms = {"relation": Relation.REPLACE, "range": RewardRange(0.0, 1.0), "dataset": "prefs-2026"}
            fit_head(pairs, features, regularisation=4000.0, **terms).save(file)
        case "policy-key" | "reward-key":
            file.write_text(name)
        case "model.gguf":
            file.touch()
        case "studies":
            make_example("scored.jsonl", here)
            Path("runs/gsm8k-phi3/studies").mkdir(parents=True)
            assert (
                run(
                    [
                        "privalign",
                        *["study", "overhead", "scored.jsonl", "--range", "0,1", "--sigma", "1", "--n-grid", "4", "--out", "armo.json"],
                    ]
                )
                == 0
            )
            for copy in ("gemma.json", "runs/gsm8k-phi3/studies/armo.json"):
                shutil.copy("armo.json", copy)
        case _:
            assert run(["privalign", "simulate", "--model", "gaussian", "--prompts", "4", "--candidates", "60", "--out", "some.jsonl"]) == 0
            content = Path("some.jsonl").read_bytes()
            file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


@pytest.fixture(scope="module")
def shims(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs that a session finds first."""
    folder = tmp_path_factory.mktemp("shims")
    for name in OURS:
        (folder / name).write_text(SHIM.format(python=sys.executable, address=str(folder / "link")))
    for name in ("sudo", "systemd-run"):
        (folder / name).write_text(AS_SOMEBODY)
    for file in folder.iterdir():
        file.chmod(0o755)
    return folder


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name_of)
def test_a_page_can_be_followed_as_printed(
    page: Path, tmp_path: Path, shims: Path, models: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a ledger's place is relative to it as long as its gateway serves
    monkeypatch.setattr(llamacpp_chat, "LlamaCppChatPolicy", Embedded)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in [name for name in os.environ if name.upper().endswith("_PROXY") or name == "PRIVALIGN_SECRET_FILE"]:
        monkeypatch.delenv(name)
    reader = Reader(name_of(page), blocks(page), tmp_path, models, lambda: request.getfixturevalue("postgresql"))
    (shims / "link").unlink(missing_ok=True)
    make_installation_key()
    reader.read(shims)
    reader.check_output()
    if reader.page == "docs/how-to/clients.md":
        check_clients(reader)


def check_clients(reader: Reader) -> None:
    """What the snippets print is what the page says, and each answer is paid for once."""
    printed = [out.strip().splitlines() for at, words, out in reader.said if words[0] == "block" and reader.blocks[at].language == "python"]
    assert printed[0][0] == "The Rhine."
    assert re.fullmatch(r"0\.9{8}\d+ \{'epsilon': [\d.]+, 'delta': [\de.-]+\}", printed[0][1])
    cost = printed[0][1].split()[0]
    assert printed[1] == [f"The Rhine.{cost}"]  # the text, and its price behind it
    assert printed[2] == ["The Rhine. False", "The Rhine. True"]
    assert printed[3] == []
    assert printed[4] == [f"The Rhine. {cost}"]
    assert printed[5] == ["The Rhine."]
    with contextlib.closing(Ledger("sqlite:///privalign.db")) as ledger:
        account = ledger.account("prefs-2026")
    assert (account.settled_queries, account.open_queries) == (7, 0)  # curl's, and one of each snippet


def test_every_page_is_read_and_everything_listed_is_there() -> None:
    """A reason for what is not there any more would hide the next fault."""
    texts = {name_of(page): "\n".join(block.text for block in blocks(page)) for page in PAGES}
    assert len(texts) > 15
    for page in GIVEN:
        assert texts[page]
    for program in UNTRIED:
        assert any(re.search(rf"(^|\s|/){re.escape(program)} ", text, re.MULTILINE) for text in texts.values()), program
    for page, words in PARSED:
        assert f"privalign {' '.join(words)}" in texts[page], words
    for page, command in VARYING:
        assert command in texts[page], command


def test_every_command_in_the_text_of_a_page_parses() -> None:
    """Where it names a file; else a command, or an option, is only named."""
    found = 0
    for page in PAGES:
        prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for mention in re.findall(r"`privalign ([a-z][^`…]*\.[a-z][^`…]*)`", prose):
            found += 1
            parse(shlex.split(mention))
    assert found > 4


def test_snippets_are_typed(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Every snippet passes `mypy --strict`."""
    request.addfinalizer(functools.partial(sys.setrecursionlimit, sys.getrecursionlimit()))  # mypy raises it
    from mypy import api

    for page in PAGES:
        for block in blocks(page):
            if block.language == "python":
                (tmp_path / f"{page.stem.replace('-', '_')}_{block.line}.py").write_text(block.text)
    with mock.patch.dict(os.environ, {"MYPYPATH": str(ROOT / "src")}), contextlib.chdir(ROOT):  # in the cache of `make lint`
        out, error, code = api.run(["--config-file", "pyproject.toml", *map(str, sorted(tmp_path.glob("*.py")))])
    assert code == 0, out + error
