"""Load: a fake upstream that takes a second, many clients, one gateway or two; and a gateway that is killed under them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from privalign.ledger import Ledger, Role
from privalign.preferences.bradley_terry import fit_head
from privalign.preferences.features import CharacterCrosses, Cross, Pick
from privalign.preferences.pairs import PreferencePair
from privalign.secret import make_installation_key
from privalign.sensitivity import Relation, RewardRange

HERE = Path(__file__).parent
CLIENTS = 64
SECONDS = float(os.environ.get("PRIVALIGN_SOAK_SECONDS", "15"))
ADDED_WORK = 0.015  # seconds of the processor that the gateway may add to an answer of the aligner
ADDED_WAIT = 0.015  # seconds at the median that it may add on a quiet machine
DEPLOYMENT = """
[ledger]
url = "LEDGER"

[gateway]
requests_per_minute = 1e6
burst = 100000

[accounts.prefs]
epsilon = EPSILON
delta = 1e-6
rule = "basic"

[policies.local]
independent_of_accounts = true
kind = "openai"
base_url = "UPSTREAM"
model = "m"
retries = 1

[rewards.learned]
kind = "head"
certificate = "head.json"

[models.aligned]
policy = "local"
reward = "learned"
account = "prefs"
mechanism = { kind = "privbon", n = 4, scale = 1.0 }
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "secret"))
    make_installation_key()
    features = CharacterCrosses((Cross(1.0, (Pick("answer", 0, 0),)),), cells=31)
    pairs = [PreferencePair("hello", "a", "b")] * 20
    head = fit_head(pairs, features, regularisation=40.0, relation=Relation.REPLACE, range=RewardRange(0.0, 1.0), records_per_person=1)
    head.save(tmp_path / "head.json")


@pytest.fixture
def upstream() -> Iterator[Callable[[float], str]]:
    """Starts the fake upstream: `upstream(seconds)` is its base URL."""
    started = []

    def start(seconds: float) -> str:
        process = subprocess.Popen([sys.executable, str(HERE / "slow_upstream.py"), str(seconds)], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"

    yield start
    for process in started:
        process.terminate()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def deployment(folder: Path, ledger: str, upstream: str, epsilon: float = 1e6) -> Path:
    file = folder / "privalign.toml"
    file.write_text(DEPLOYMENT.replace("LEDGER", ledger).replace("UPSTREAM", upstream).replace("EPSILON", repr(epsilon)))
    return file


def load(key: str, *urls: str, clients: int = CLIENTS, seconds: float = SECONDS) -> Any:
    command = [sys.executable, str(HERE / "loader.py"), str(clients), str(seconds), key, *urls]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 60).stdout)


def direct_load(file: Path) -> Any:
    """The same load on the aligner alone."""
    command = [sys.executable, str(HERE / "direct.py"), str(CLIENTS), str(min(SECONDS, 8.0)), str(file)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def work(process: subprocess.Popen[str]) -> float:
    """Seconds of the processor that it has used: load that is none of its own hardly changes them."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(process: subprocess.Popen[str]) -> int:
    """Resident KiB."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def test_many_clients(sqlite_url: str, tmp_path: Path, upstream: Callable[[float], str], serve_process: Callable[..., Any]) -> None:
    file = deployment(tmp_path, sqlite_url, upstream(1.0))
    ledger = Ledger(sqlite_url)
    key = ledger.create_key(Role.CLIENT).secret
    direct = direct_load(file)
    before = ledger.account("prefs").settled_queries
    assert before == len(direct["answers"])
    gateway = serve_process(file)
    used = work(gateway.process)
    sizes: list[int] = []

    def watch() -> None:
        while not done.wait(SECONDS / 15):
            sizes.append(memory(gateway.process))

    done = threading.Event()
    watcher = threading.Thread(target=watch)
    watcher.start()
    results = load(key, gateway.url)
    done.set()
    watcher.join()
    used = work(gateway.process) - used
    statuses = [status for status, _, _ in results["responses"]]
    account = ledger.account("prefs")
    assert (set(statuses), results["errors"], results["broken"]) == ({200}, [], 0)
    assert (account.settled_queries - before, account.open_queries, account.refused_queries) == (len(statuses), 0, 0)
    ledger.verify("prefs")
    ledger.close()
    assert gateway.end() == 0
    settled = len(sizes) // 3
    assert max(sizes[-3:]) <= 1.1 * max(sizes[settled : settled + 2])
    added = used / len(statuses) - direct["work"] / len(direct["answers"])
    print(f"\n{len(statuses)} answers; the gateway adds {added * 1e3:.1f} ms of work to each")
    assert added <= ADDED_WORK


@pytest.mark.soak
def test_a_quiet_gateway_adds_little_to_the_wait(
    sqlite_url: str, tmp_path: Path, upstream: Callable[[float], str], serve_process: Callable[..., Any]
) -> None:
    """Where other programs take the processors they show in the wait: this is asked of a quiet machine alone."""
    file = deployment(tmp_path, sqlite_url, upstream(1.0))
    with contextlib.closing(Ledger(sqlite_url)) as ledger:
        key = ledger.create_key(Role.CLIENT).secret
    direct = direct_load(file)["answers"]
    served = [(start, duration) for _, duration, start in load(key, serve_process(file).url)["responses"]]
    added = quietest(served) - quietest(direct)
    plain = statistics.median(duration for _, duration in served) - statistics.median(duration for _, duration in direct)
    print(f"\n{len(served)} answers; the gateway adds {added * 1e3:.1f} ms at the median, {plain * 1e3:.1f} ms over the whole run")
    assert added <= ADDED_WAIT


def quietest(answers: Sequence[tuple[float, float]]) -> float:
    """The median duration in the quietest stretch of three seconds, after the first two: other programs of the machine come
    and go, and what they take is no one's overhead."""
    windows: dict[int, list[float]] = {}
    for start, duration in answers:
        windows.setdefault(int((start - 2.0) // 3.0), []).append(duration)
    return min(statistics.median(durations) for number, durations in windows.items() if number >= 0 and len(durations) >= CLIENTS)


def test_two_replicas_never_exceed_the_account_and_losing_one_loses_nothing(
    postgresql_url: str, tmp_path: Path, upstream: Callable[[float], str], serve_process: Callable[..., Any]
) -> None:
    file = deployment(tmp_path, postgresql_url, upstream(0.2), epsilon=70.0)  # some 400 answers
    ledger = Ledger(postgresql_url)
    key = ledger.create_key(Role.CLIENT).secret
    first, second = serve_process(file), serve_process(file)

    def kill() -> None:
        time.sleep(1.5)
        first.process.send_signal(signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    results = load(key, first.url, second.url, clients=32, seconds=30.0)
    killer.join()
    account = ledger.account("prefs")
    answered = sum(status == 200 for status, _, _ in results["responses"])
    assert set(results["errors"]) <= {"insufficient_quota", "budget_busy"}
    assert results["broken"] >= 1
    assert 0 < account.rule.epsilon - account.spent[0] < 1.0  # used up, and no more than that
    lost = account.settled_queries + account.open_queries - answered
    assert 0 <= lost <= 32  # what the dead one had under way stays paid
    assert account.debited.fits(account.limit)
    ledger.verify("prefs")
    ledger.close()
    assert second.end() == 0
