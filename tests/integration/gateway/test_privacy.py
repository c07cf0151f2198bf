"""What the plumbing may tell: no reward in anything that is emitted, and a latency that does not depend on rewards.

Latency may tell the halting time, to a multiple of the chunk, and how long candidates are; both are covered by the guarantee or
public. It must not tell anything else of the rewards: with the same halting time, flat and peaked rewards take the same time.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from scipy.stats import ks_2samp

from privalign.aligner import Performance
from privalign.ledger import Ledger, Role
from privalign.mechanisms.privbon import PrivBoN
from privalign.secret import make_installation_key

HERE = Path(__file__).parent
PLANTED = 0.7390851332151607  # what every candidate scores in slow_upstream.py
DEPLOYMENT = """
[ledger]
url = "sqlite:///ledger.db"

[accounts.prefs]
epsilon = 1e6
delta = 1e-6
rule = "basic"

[policies.local]
independent_of_accounts = true
kind = "openai"
base_url = "http://127.0.0.1:PORT/v1"
model = "m"

[rewards.learned]
kind = "tei-rerank"
base_url = "http://127.0.0.1:PORT"
model = "scorer"
range = [0.0, 1.0]

[models.aligned]
policy = "local"
reward = "learned"
account = "prefs"
mechanism = { kind = "privbon", n = 4, scale = 1.0 }

[models.aligned-itp]
policy = "local"
reward = "learned"
account = "prefs"
mechanism = { kind = "privitp", n = 4, n2 = 4, beta = 0.05, sigma_x = 0.5, sigma_z = 0.5 }
"""


@pytest.fixture
def port() -> Iterator[str]:
    process = subprocess.Popen([sys.executable, str(HERE / "slow_upstream.py"), "0.01"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.terminate()
    process.wait()
    process.stdout.close()


def test_no_reward_is_emitted_under_load(
    port: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve_process: Callable[..., Any]
) -> None:
    """Every tenth scoring fails with an error text that embeds the reward; clients are wrong, leave, and come again."""
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "secret"))
    make_installation_key()
    file = tmp_path / "privalign.toml"
    file.write_text(DEPLOYMENT.replace("PORT", port))
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    key, officer = ledger.create_key(Role.CLIENT).secret, ledger.create_key(Role.OFFICER).secret
    gateway = serve_process(file)
    emitted: list[str] = []
    statuses: list[int] = []

    def ask(number: int) -> None:
        body = {
            "model": ("aligned", "aligned-itp", "none")[number % 3],
            "messages": [{"role": "user", "content": "hello"}],
            "stream": number % 2 == 0,
            "logprobs": number % 5 == 0,
            "n": 1 + number % 2,
            **({"seed": "x"} if number % 7 == 0 else {}),
        }
        headers = {"authorization": f"Bearer {key}", **({"idempotency-key": f"k{number // 2}"} if number % 4 < 2 else {})}
        try:
            timeout = 0.02 if number % 11 == 0 else 30.0
            response = client.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers, timeout=timeout)
        except httpx.TimeoutException:
            return
        emitted.append(f"{response.headers} {response.text}")
        statuses.append(response.status_code)

    with httpx.Client() as client, ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, range(240)))
    reading = {"authorization": f"Bearer {officer}"}
    paths = ("/metrics", "/readyz", "/openapi.json", "/v1/models")
    emitted += [httpx.get(gateway.url + path, headers=reading, timeout=30.0).text for path in paths]
    entries = list(ledger.journal("prefs"))
    ledger.close()
    assert gateway.end() == 0
    assert gateway.process.stdout is not None
    log = gateway.log.read_text()
    emitted += [log, gateway.process.stdout.read(), *(entry.record for entry in entries)]
    assert {200, 400, 404, 500} <= set(statuses)
    text = "\n".join(emitted)
    for shown in _shapes(PLANTED):
        assert shown not in text
    assert "not what it should be" not in text
    assert "Traceback" not in text
    assert '"/rerank' not in text
    assert f":{port}" not in text
    events = {json.loads(line)["event"] for line in log.splitlines()}
    assert events <= {
        "request",
        "failure",
        "library",
        "start",
        "not ready",
        "ready",
        "stopping",
        "stop",
    }  # the probe may be a tenth scoring


def _shapes(value: float) -> list[str]:
    """A number as it might be written: shorter, as a percentage, in another base, negated in the unit range, summed, squashed."""
    whole = [f"{number:.12f}" for number in (value, 100 * value, 1 - value, 4 * value, 1 / (1 + math.exp(-value)))]
    return [value.hex()[4:13], *(number.lstrip("0.")[:9] for number in whole)]  # long enough never to occur by chance


@pytest.mark.statistical
def test_latency_does_not_tell_flat_from_peaked_rewards(gateway: Callable[..., Any]) -> None:
    """Two-sample Kolmogorov-Smirnov on requests in turns; false-alarm rate 10⁻⁴. Detects a shift of half of the spread."""
    running = gateway(PrivBoN(8, 0.3), padding=Performance().padding)
    flat, peaked = np.full(8, 0.5), np.eye(8)[0]
    for _ in range(10):
        running.ask()
    times: dict[str, list[float]] = {"flat": [], "peaked": []}
    with httpx.Client(headers={"authorization": f"Bearer {running.key}"}, timeout=30.0) as client:
        for kind, rewards in itertools.islice(itertools.cycle([("flat", flat), ("peaked", peaked)]), 500):
            running.reward.answer = lambda count, rewards=rewards: rewards[:count]
            body = {"model": "aligned", "messages": [{"role": "user", "content": "hello"}]}
            response = client.post(f"{running.url}/v1/chat/completions", json=body)
            assert response.status_code == 200
            times[kind].append(response.elapsed.total_seconds())
    assert ks_2samp(times["flat"], times["peaked"]).pvalue > 1e-4


def test_metrics_hold_no_content_and_tell_no_kind_of_failure(gateway: Callable[..., Any]) -> None:
    running = gateway()
    running.ask(messages=[{"role": "user", "content": "a secret prompt"}], model="a-secret-model")
    running.ask(messages=[{"role": "user", "content": "a secret prompt"}])

    def fail(*_: Any) -> Any:
        raise RuntimeError("why")

    running.policy.answer, proper = fail, running.policy.answer
    running.ask()
    running.policy.answer, running.reward.answer = proper, fail
    running.ask()
    text = running.get("/metrics", running.officer).text
    assert "secret" not in text
    assert "why" not in text
    assert re.findall(r'privalign_requests_total\{model="aligned",outcome="(\w+)"\} (\S+)', text) == [
        ("answered", "1.0"),
        ("failed", "2.0"),
    ]
