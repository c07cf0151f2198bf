"""Protected rewards stay inside: planted ones never appear, in any usual rendering, in a byte that a command shows or leaves for others.

Commands are enumerated from the program itself. One that declares its rewards protected is run, on its usual ways and on failing
ones; a new one fails here until `WAYS` says how it is run.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer

from privalign import cli
from privalign.accounting.rules import Basic
from privalign.cli.declared import REWARDS, Rewards, rewards_of
from privalign.ledger import Ledger
from privalign.secret import make_installation_key

PLANTED = [0.7318529046172, 0.2946183507291, 0.5637091842635, 0.8192735460187, 0.4071836295074]
TEXTS = ["good good morning", "bad weather", "a plain answer", "good and bad", "something else entirely"]
PROMPTS = ["first prompt", "second prompt"]


class Scorer(BaseHTTPRequestHandler):
    """A reranker whose first part of the path says how it behaves: ok, nan, error (which quotes the scores), garbage (too)."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        count, mode = len(body["texts"]), self.path.split("/")[1]
        scores: list[dict[str, Any]] = [{"index": place, "score": PLANTED[place % len(PLANTED)]} for place in range(count)]
        probe = count == 1 and "France" in body["query"]
        if mode == "nan" and not probe:
            scores[-1]["score"] = float("nan")
        content = json.dumps(scores)
        if mode == "garbage" and not probe:
            content = f"scores: {PLANTED}"
        if mode == "error" and not probe:
            content = json.dumps({"error": f"the scores {PLANTED} are too large"})
        self.send_response(500 if mode == "error" and not probe else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())

    def log_message(self, *_: object) -> None: ...


MODES = ("ok", "nan", "error", "garbage")
DEPLOYMENT = """
[ledger]
url = "sqlite:///deployed.db"

[accounts.prefs]
epsilon = 100.0
delta = 1e-2
rule = "basic"

[accounts.small]
epsilon = 1e-3
delta = 1e-9
rule = "basic"

[policies.recorded]
independent_of_accounts = true
kind = "recorded"
file = "candidates.jsonl"
draw = "with"
"""
HEAD_TABLE = '[rewards.head]\nkind = "head"\ncertificate = "head.json"\n'
RANGE = ("--range", "0,1")
PRIVBON = ("--mechanism", "privbon", "--n", 4, "--scale", 0.5)
PRIVITP = ("--mechanism", "privitp", "--n", 2, "--n2", 2, "--sigma-x", 1, "--sigma-z", 1)
PAID = ("--account", "prefs", "--ledger", "sqlite:///ledger.db")
POOR = ("--account", "poor", "--ledger", "sqlite:///ledger.db")
BOOK = ("--ledger", "sqlite:///ledger.db")
FIT = ("prefs.jsonl", "--features", '{"kind": "hashed-ngrams", "bits": 8}', "--workers", 1)
NOISY = ("--head", "head.json", "--delta", 1e-4)
RELEASED = ("--release-epsilon", 1, "--release-delta", 1e-4)


@dataclass(frozen=True)
class Way:
    """How a command is run, and its exit code. FORM stands for the form of its output: what a run makes has its own name."""

    arguments: tuple[object, ...]
    code: int = 0


def ways(*usual: tuple[object, ...], failing: dict[int, list[tuple[object, ...]]] | None = None) -> list[Way]:
    return [Way(way) for way in usual] + [Way(way, code) for code, fails in (failing or {}).items() for way in fails]


WAYS: dict[str, list[Way]] = {
    "select": ways(
        ("scored.jsonl", *RANGE, *PRIVBON),
        ("scored.jsonl", *RANGE, *PRIVITP, "--out", "answers-1-FORM.jsonl"),
        ("scored.jsonl", *RANGE, "--mechanism", "bon", "--n", 4),
        ("scored.jsonl", *RANGE, *PRIVBON, *PAID),
        ("scored.jsonl", *RANGE, *PRIVITP, *PAID, "--out", "answers-2-FORM.jsonl"),
        ("candidates.jsonl", *PRIVBON, "--head", "head.json"),
        ("candidates.jsonl", *PRIVITP, "--head", "head.json", *PAID, "--out", "answers-3-FORM.jsonl"),
        failing={
            2: [
                ("nan.jsonl", *RANGE, *PRIVBON),
                ("nan.jsonl", *RANGE, *PRIVBON, *PAID),
                ("null.jsonl", *RANGE, *PRIVBON),
                ("text.jsonl", *RANGE, *PRIVBON),
                ("scored.jsonl", *RANGE, *PRIVBON, "--n", 99),
                ("scored.jsonl", *RANGE, *PRIVBON, "--reward", "nosuch"),
                ("scored.jsonl", *RANGE, *PRIVBON, "--certificate", "head.json"),
                ("scored.jsonl", "--range", "1,0", *PRIVBON),
                ("candidates.jsonl", *PRIVBON, "--head", "damaged.json"),
            ],
            3: [
                ("scored.jsonl", *RANGE, *PRIVBON, *POOR),
                ("candidates.jsonl", *PRIVBON, "--head", "head.json", *POOR, "--out", "answers-4-FORM.jsonl"),
            ],
        },
    ),
    "ask": ways(
        (PROMPTS[0], "--config", "p.toml", "--model", "privbon-ok"),
        (PROMPTS[0], "--config", "p.toml", "--model", "privitp-ok", "--stream"),
        (PROMPTS[0], "--config", "p.toml", "--model", "privbon-head"),
        failing={
            2: [(PROMPTS[0], "--config", "p.toml", "--model", "nosuch")],
            3: [(PROMPTS[0], "--config", "p.toml", "--model", "small-ok"), (PROMPTS[0], "--config", "p.toml", "--model", "small-head")],
            4: [
                *((PROMPTS[0], "--config", "p.toml", "--model", f"privbon-{mode}") for mode in MODES if mode != "ok"),
                *((PROMPTS[0], "--config", "p.toml", "--model", f"privitp-{mode}") for mode in MODES if mode != "ok"),
                (PROMPTS[0], "--config", "p.toml", "--model", "privbon-away"),
                ("a prompt that is not recorded", "--config", "p.toml", "--model", "privbon-ok"),
            ],
        },
    ),
    "config check": ways(
        ("rich.toml", "--no-probe"),
        failing={5: [("p.toml", "--no-probe"), ("p.toml",), ("nosuch-reward.toml",)]},  # an account is too small, a scorer away
    ),
    "serve": ways(failing={2: [("--config", "p.toml", "--port", 0), ("--config", "nosuch.toml")]}),  # the gateway has its own suite
    "score": ways(
        ("--from", "collected", "--config", "p.toml", "--reward", "head", "--out", "sc-1-FORM", "--export", "sc-1-FORM.jsonl"),
        (
            "--from",
            "collected",
            "--config",
            "p.toml",
            "--reward",
            "ok",
            "--reward",
            "head",
            "--out",
            "sc-2-FORM",
            "--export",
            "sc-2-FORM.jsonl",
        ),
        ("--from", "collected", "--config", "p.toml", "--reward", "nan", "--out", "sc-3-FORM", "--export", "sc-3-FORM.jsonl"),
        ("--from", "collected", "--config", "p.toml", "--reward", "error", "--out", "sc-4-FORM"),
        ("--from", "collected", "--config", "p.toml", "--reward", "garbage", "--out", "sc-5-FORM"),
        failing={
            2: [("--from", "collected", "--config", "p.toml", "--reward", "nosuch", "--out", "sc-6-FORM")],
        },
    ),
    "grade": ways(
        ("--from", "given", "--kind", "math", "--out", "gr-1-FORM", "--export", "gr-1-FORM.jsonl"),
        ("--from", "given", "--kind", "reward", "--reward", "proxy_reward", *RANGE, "--out", "gr-2-FORM", "--export", "gr-2-FORM.jsonl"),
        failing={2: [("--from", "given", "--kind", "reward", "--reward", "nosuch", *RANGE, "--out", "gr-3-FORM")]},
    ),
    "account create": ways(
        ("made-FORM", "--epsilon", 1, "--delta", 1e-6, *BOOK), failing={2: [("prefs", "--epsilon", 1, "--delta", 1e-6, *BOOK)]}
    ),
    "account list": ways(BOOK),
    "account show": ways(("prefs", *BOOK), failing={2: [("nosuch", *BOOK)]}),
    "account journal": ways(("prefs", *BOOK), failing={2: [("nosuch", *BOOK)]}),
    "account verify": ways(("prefs", *BOOK), failing={5: [("prefs", *BOOK, "--expect-head", "0" * 64)]}),
    "account raise": ways(
        ("raised-FORM", "--epsilon", 9, "--reason", "r", *BOOK), failing={2: [("prefs", "--epsilon", 1, "--reason", "r", *BOOK)]}
    ),
    "account export": ways(("prefs", *BOOK), ("prefs", *BOOK, "--out", "journal-FORM.jsonl")),
    "ledger moved": ways(("--ledger", "sqlite:///moved-FORM.db"), failing={2: [BOOK, ("--ledger", "sqlite:///nosuch.db")]}),
    "key create": ways(BOOK, failing={2: [("--role", "nosuch", *BOOK)]}),
    "key list": ways(BOOK),
    "key revoke": ways(failing={2: [("nosuch", *BOOK)]}),
    "reward fit": ways(
        (*FIT, "--lambda", 9, "--out", "fit-1-FORM.json", "--diagnostics", "facts-FORM.json"),
        (*FIT, "--lambda", 9, "--shards", 2, "--out", "fit-2-FORM.json"),
        (*FIT, "--lambda", 9, *RELEASED, *PAID, "--out", "fit-3-FORM.json"),
        failing={
            2: [(*FIT, "--lambda", 0, "--out", "fit-4-FORM.json"), ("nan.jsonl", "--lambda", 9, "--out", "fit-5-FORM.json")],
            3: [(*FIT, "--lambda", 9, *RELEASED, *POOR, "--out", "fit-6-FORM.json")],
        },
    ),
    "reward show": ways(("head.json",), failing={2: [("damaged.json",), ("scored.jsonl",)]}),
    "reward range": ways(
        ("candidates.jsonl", *NOISY, "--epsilon", 1, *PAID, "--out", "range-1-FORM.json"),
        failing={
            2: [
                ("scored.jsonl",),
                ("nan.jsonl", "--public"),
                ("candidates.jsonl", *NOISY, "--epsilon", 0, *PAID, "--out", "range-2-FORM.json"),
                ("candidates.jsonl", "--head", "damaged.json", "--epsilon", 1, *PAID, "--out", "range-3-FORM.json"),
            ],
            3: [("candidates.jsonl", *NOISY, "--epsilon", 1, *POOR, "--out", "range-4-FORM.json")],
        },
    ),
}


def program() -> Iterator[str]:
    """Every command that the program has."""

    def leaves(command: Any, path: tuple[str, ...]) -> Iterator[str]:
        if not hasattr(command, "commands"):
            yield " ".join(path)
            return
        context: Any = None
        for name in command.list_commands(context):
            yield from leaves(command.get_command(context, name), (*path, name))

    return leaves(typer.main.get_command(cli.app), ())


PROTECTED = [command for command in program() if rewards_of(*command.split()) is Rewards.PROTECTED]


def run(*arguments: object) -> tuple[int, str, str]:
    out, error = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        patch.setattr(sys, "argv", ["privalign", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            cli.main()
    return int(exit.value.code or 0), out.getvalue(), error.getvalue()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, exposure: Any) -> Iterator[Path]:
    """A folder with scored candidates, a head, accounts and a deployment; what holds planted rewards is for this user alone."""
    folder = tmp_path_factory.mktemp("exposure")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Scorer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PRIVALIGN_SECRET_FILE", str(folder / "key" / "secret"))
        make_installation_key()
        files(server.server_address[1])
        exposure.plant(*PLANTED, *scores_of_the_head())
        before = os.umask(0)  # what is not made for this user alone is for all
        yield folder
        os.umask(before)
    server.shutdown()
    server.server_close()


def files(port: int) -> None:
    pairs = [{"prompt": f"p{i}", "chosen": f"good thing {i}", "rejected": f"bad thing {i}"} for i in range(40)]
    Path("prefs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    for name, last in {"scored": PLANTED[4], "nan": float("nan"), "null": None, "text": str(PLANTED[4])}.items():
        with open(os.open(f"{name}.jsonl", os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            for prompt in PROMPTS:
                scores = [*PLANTED[:4], last if prompt == PROMPTS[-1] else PLANTED[4]]
                responses = [{"text": text, "proxy_reward": score} for text, score in zip(TEXTS, scores, strict=True)]
                file.write(json.dumps({"prompt": prompt, "responses": responses}) + "\n")
    records = [{"prompt": prompt, "responses": [{"text": text, "proxy_reward": 0} for text in TEXTS]} for prompt in PROMPTS]
    Path("candidates.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert run("reward", "fit", *FIT, "--lambda", 10, "--out", "head.json")[0] == 0
    Path("damaged.json").write_text(Path("head.json").read_text())
    Path("damaged.safetensors").write_bytes(Path("head.safetensors").read_bytes()[:-1] + b"x")
    for account, epsilon in {"prefs": 100, "poor": 1e-3}.items():
        terms = ("--epsilon", epsilon, "--delta", 1e-2, "--rule", "basic", "--dataset", "prefs", *BOOK)
        assert run("account", "create", account, *terms, *(("--also", "prefs") if account == "poor" else ()))[0] == 0
    for form in ("people", "json"):
        assert run("account", "create", f"raised-{form}", "--epsilon", 1, "--delta", 1e-6, *BOOK)[0] == 0
        ledger = Ledger("sqlite:///before.db")
        ledger.create_account("prefs", Basic(1.0, 1e-6, 1e-9))
        ledger.close()
        Path("before.db").rename(f"moved-{form}.db")
    assert run("select", "scored.jsonl", *RANGE, *PRIVITP, *PAID, "--again", 7)[0] == 0  # so that accounts have something to show
    stages()
    modes = {mode: f"http://127.0.0.1:{port}/{mode}" for mode in MODES} | {"away": "http://127.0.0.1:9"}
    tables = [DEPLOYMENT, HEAD_TABLE]
    for name, url in modes.items():
        tables.append(f'[rewards.{name}]\nkind = "tei-rerank"\nbase_url = "{url}"\nmodel = "m"\nrange = [0.0, 1.0]\ntimeout = 5.0\n')
    mechanisms = {
        "privbon": '{ kind = "privbon", n = 4, scale = 0.5 }',
        "privitp": '{ kind = "privitp", n = 2, n2 = 2, sigma_x = 1.0, sigma_z = 1.0 }',
        "small": '{ kind = "privbon", n = 4, scale = 0.5 }',
    }
    for reward in (*modes, "head"):
        for name, mechanism in mechanisms.items():
            account = "small" if name == "small" else "prefs"
            tables.append(
                f'[models.{name}-{reward}]\npolicy = "recorded"\nreward = "{reward}"\naccount = "{account}"\nmechanism = {mechanism}\n'
            )
    tables[0] = DEPLOYMENT.replace("[accounts.small]", '[accounts.small]\ndataset = "prefs"\nalso = ["prefs"]')
    Path("p.toml").write_text("\n".join(tables))
    Path("rich.toml").write_text("\n".join(table for table in tables if 'account = "small"' not in table))
    Path("nosuch-reward.toml").write_text(Path("p.toml").read_text().replace('reward = "ok"', 'reward = "nosuch"'))


def stages() -> None:
    """A folder as `collect` writes it, and one that somebody scored with the planted rewards."""
    import pyarrow as pa

    from privalign.candidates.shards import to_parquet, working_on

    rows = [
        {"prompt_id": number, "prompt": prompt, "gt_answer": "1", "text": text} for number, prompt in enumerate(PROMPTS) for text in TEXTS
    ]
    for name, columns in {"collected": rows, "given": [row | {"proxy_reward": PLANTED[i % 5]} for i, row in enumerate(rows)]}.items():
        with working_on(Path(name), "collect", {}, prompts=2, shards=1, session={}) as folder:
            folder.write(0, to_parquet(pa.Table.from_pylist(columns)))


def scores_of_the_head() -> list[float]:
    from privalign.rewards.head import HeadReward

    head = HeadReward.load(Path("head.json"))
    return [float(score) for prompt in PROMPTS for score in (*head.score(prompt, TEXTS), *head.raw(prompt, TEXTS)[0])]


def test_every_command_declares_its_rewards() -> None:
    studies = {command for command in program() if command.startswith("study ")}
    assert set(program()) - studies == set(REWARDS) - {"study"}


def test_every_protected_command_says_here_how_it_is_run() -> None:
    assert set(WAYS) == set(PROTECTED)


@pytest.mark.parametrize("form", ["people", "json"])
@pytest.mark.parametrize("command", PROTECTED)
def test_no_planted_reward_is_shown_or_left_for_others(command: str, form: str, place: Path, exposure: Any) -> None:
    for number, way in enumerate(WAYS[command]):
        arguments = [str(part).replace("FORM", form) for part in way.arguments]
        code, out, error = run(*command.split(), *arguments, *(["--json"] if form == "json" else []))
        assert code == way.code, (command, arguments, out, error)
        assert not exposure.shown(out.encode()), (command, number)
        assert not exposure.shown(error.encode()), (command, number)
        assert not exposure.readable(place), (command, number)


def test_public_commands_say_so_in_their_help() -> None:
    for command in program():
        text = " ".join(run(*command.split(), "--help")[1].split())
        assert ("Rewards are treated as public" in text) is (rewards_of(*command.split()) is Rewards.PUBLIC), command
        assert ("Rewards are protected" in text) is (rewards_of(*command.split()) is Rewards.PROTECTED), command


# The search itself: what it would find


@pytest.mark.parametrize(
    "text",
    ["0.7318529046172", "0.731853", "7.318529e-01", "73.1853", "731852904617", "7.31852905E-01".lower(), "0.26814709538"],
)
def test_the_search_finds_usual_renderings(text: str, exposure: Any) -> None:
    exposure.plant(*PLANTED)
    assert exposure.shown(f"a line that says {text}, say".encode())


def test_the_search_finds_bytes_columns_and_archives(tmp_path: Path, exposure: Any) -> None:
    import gzip
    import struct

    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    exposure.plant(*PLANTED)
    (tmp_path / "bytes").write_bytes(b"x" + struct.pack("<d", PLANTED[0]))
    (tmp_path / "gzip").write_bytes(gzip.compress(repr(PLANTED[1]).encode()))
    np.save(tmp_path / "array.npy", np.array(PLANTED))
    pq.write_table(pa.table({"score": PLANTED}), tmp_path / "table", compression="zstd")
    (tmp_path / "hexadecimal").write_text(PLANTED[2].hex())
    for path in tmp_path.iterdir():
        path.chmod(0o644)
    assert len(exposure.readable(tmp_path)) == 5
    for path in tmp_path.iterdir():
        path.chmod(0o600)
    assert not exposure.readable(tmp_path)
