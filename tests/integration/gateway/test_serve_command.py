"""`privalign serve`: what it refuses to start with, what it says, and how it ends."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from privalign.cli.serve import serve
from privalign.errors import InvalidInput, PrivalignError
from privalign.ledger import Ledger, Role
from privalign.preferences.bradley_terry import fit_head
from privalign.preferences.features import CharacterCrosses, Cross, Pick
from privalign.preferences.pairs import PreferencePair
from privalign.secret import make_installation_key
from privalign.sensitivity import Relation, RewardRange

COMMAND = [sys.executable, "-c", "from privalign.cli import main; main()", "serve"]
DEPLOYMENT = """
[ledger]
url = "sqlite:///ledger.db"

[gateway]
show_budget = false
shutdown_grace = 2.0

[accounts.prefs]
epsilon = 8.0
delta = 1e-6

[policies.local]
independent_of_accounts = true
kind = "recorded"
file = "candidates.jsonl"
draw = "with"

[rewards.learned]
kind = "head"
certificate = "head.json"

[models.aligned]
policy = "local"
reward = "learned"
account = "prefs"
mechanism = { kind = "privbon", n = 4, scale = 1.0 }

[models.same]
policy = "local"
reward = "learned"
account = "prefs"
mechanism = { kind = "privitp", n = 4, n2 = 4, beta = 0.05, sigma_x = 0.5, sigma_z = 0.5 }
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "secret"))
    make_installation_key()
    features = CharacterCrosses((Cross(1.0, (Pick("answer", 0, 0),)),), cells=31)
    pairs = [PreferencePair("hello", "a", "b")] * 20
    head = fit_head(pairs, features, regularisation=40.0, relation=Relation.REPLACE, range=RewardRange(0.0, 1.0), records_per_person=1)
    head.save(tmp_path / "head.json")
    record = {
        "prompt": "hello",
        "gt_answer": "",
        "responses": [{"text": f"text {place}", "is_correct": 1, "proxy_reward": 0.5} for place in range(4)],
    }
    (tmp_path / "candidates.jsonl").write_text(json.dumps(record) + "\n")
    written = tmp_path / "privalign.toml"
    written.write_text(DEPLOYMENT)
    return written


def refusal(file: Path, *, host: str = "127.0.0.1", port: int = 0, allow_anonymous: bool = True) -> str:
    """The line of a start that is refused."""
    with pytest.raises(InvalidInput) as refused:
        serve(file, host, port, allow_anonymous)
    return str(refused.value)


@pytest.mark.usefixtures("interruptible")
def test_it_serves_and_ends(file: Path, serve_process: Callable[..., Any]) -> None:
    ledger = Ledger(f"sqlite:///{file.parent / 'ledger.db'}")
    key = ledger.create_key(Role.CLIENT).secret
    gateway = serve_process(file)
    headers = {"authorization": f"Bearer {key}"}
    for model in ("aligned", "same"):
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
        response = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers)
        assert response.json()["choices"][0]["message"]["content"].startswith("text")
        assert response.json()["privalign"]["remaining"] is None  # [gateway] is read
    assert httpx.get(f"{gateway.url}/readyz").status_code == 200
    assert httpx.get(f"{gateway.url}/dashboard/login").status_code == 200
    assert gateway.end(signal.SIGHUP) == 0  # of the terminal that it was started in
    assert '"event": "stop"' in gateway.log.read_text().splitlines()[-1]
    for line in gateway.log.read_text().splitlines():
        assert json.loads(line).keys() >= {"time", "level", "event"}
    ledger.close()


def test_open_to_everybody_where_told_so_and_interrupted(file: Path, serve_process: Callable[..., Any]) -> None:
    gateway = serve_process(file, "--allow-anonymous", "--host", "0.0.0.0")
    everybody, plain = gateway.log.read_text().splitlines()[:2]
    assert everybody.startswith("privalign: warning: everybody")
    assert plain.endswith("is plain http beyond this machine: keys and answers can be read; put TLS before it")
    body = {"model": "aligned", "messages": [{"role": "user", "content": "hello"}]}
    assert httpx.post(f"{gateway.url}/v1/chat/completions", json=body).status_code == 200
    assert gateway.end(signal.SIGINT) == 130


@pytest.mark.parametrize("made", [True, False])
def test_a_start_that_is_refused_makes_no_account_and_no_ledger(file: Path, monkeypatch: pytest.MonkeyPatch, made: bool) -> None:
    database = file.parent / "ledger.db"
    if made:
        with contextlib.closing(Ledger(f"sqlite:///{database}")) as ledger:
            ledger.create_key(Role.CLIENT)
    else:
        assert f"make one: privalign key create --config {file}" in refusal(file, allow_anonymous=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refusal(file, port=taken.getsockname()[1])
    for wrong in ('file = "nosuch.jsonl"', 'file = "head.json"'):
        file.write_text(DEPLOYMENT.replace('file = "candidates.jsonl"', wrong))
        refusal(file)
    file.write_text(DEPLOYMENT)
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(file.parent / "nosuch"))
    with pytest.raises(PrivalignError):
        serve(file, "127.0.0.1", 0, True)
    assert database.exists() == made
    if made:
        with contextlib.closing(Ledger(f"sqlite:///{database}")) as ledger:
            assert ledger.accounts() == []


def test_it_does_not_serve_openly_by_itself(file: Path) -> None:
    assert "privalign key create" in refusal(file, allow_anonymous=False)
    ledger = Ledger(f"sqlite:///{file.parent / 'ledger.db'}")
    ledger.revoke_key(ledger.create_key(Role.CLIENT).key.id)
    ledger.close()
    assert "privalign key create" in refusal(file, allow_anonymous=False)


def test_what_it_cannot_start_with(file: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in refusal(file, port=port)
    assert "--port" in refusal(file, port=70_000)
    assert "--host" in refusal(file, host="no.such.host.invalid")
    for wrong in ("shutdown_grase = 2.0", "max_body = 0", "requests_per_minute = -1", "allow_anonymous = true", "ping_every = 0"):
        file.write_text(DEPLOYMENT.replace("shutdown_grace = 2.0", wrong))
        assert f"[gateway] {wrong.split()[0]}" in refusal(file)
    file.write_text(DEPLOYMENT.partition("[models.aligned]")[0])
    assert "[models.*]" in refusal(file)


def test_where_it_listens_as_json(file: Path) -> None:
    command = [*COMMAND, "--config", str(file), "--port", "0", "--allow-anonymous", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["models"] == ["aligned", "same"]
        assert httpx.get(f"{ready['url']}/healthz").status_code == 200
        process.terminate()
        assert process.wait(60) == 0
