"""The `[gateway]` table, and one process that serves every model of a file."""

from __future__ import annotations

import json
from ipaddress import ip_network
from pathlib import Path

import pytest

from privalign.deployment import load
from privalign.errors import InvalidInput
from privalign.gateway.settings import GatewaySettings

DEPLOYMENT = """
[accounts.prefs]
epsilon = 8.0
delta = 1e-6

[policies.local]
independent_of_accounts = true
kind = "recorded"
file = "candidates.jsonl"

[rewards.learned]
kind = "tei-rerank"
base_url = "http://127.0.0.1:1"
model = "m"
range = [0.0, 1.0]

[rewards.other]
kind = "tei-rerank"
base_url = "http://127.0.0.1:1"
model = "n"
range = [0.0, 1.0]

[models.one]
policy = "local"
reward = "learned"
account = "prefs"
mechanism = { kind = "privbon", n = 4, scale = 1.0 }

[models.two]
policy = "local"
reward = "learned"
account = "prefs"
mechanism = { kind = "privbon", n = 2, scale = 1.0 }

[models.three]
policy = "local"
reward = "other"
account = "prefs"
mechanism = { kind = "privbon", n = 2, scale = 1.0 }
"""


def file(folder: Path, gateway: str = "") -> Path:
    written = folder / "privalign.toml"
    written.write_text(gateway + DEPLOYMENT)
    record = {"prompt": "hello", "gt_answer": "", "responses": [{"text": "a", "is_correct": 1, "proxy_reward": 0.5}]}
    (folder / "candidates.jsonl").write_text(json.dumps(record) + "\n")
    return written


def test_without_a_table_everything_is_the_default(tmp_path: Path) -> None:
    assert load(file(tmp_path)).gateway == GatewaySettings()


def test_every_setting(tmp_path: Path) -> None:
    table = """[gateway]
show_budget = false
max_body = 1000
max_depth = 9
body_timeout = 1.5
max_n = 2
max_concurrency = 3
max_concurrency_of_key = 2
requests_per_minute = 0.5
burst = 4
ping_every = 2
shutdown_grace = 3
session_lifetime = 60
secure_cookies = true
trusted_proxies = ["127.0.0.1", "10.0.0.0/8"]
"""
    settings = load(file(tmp_path, table)).gateway
    proxies = (ip_network("127.0.0.1/32"), ip_network("10.0.0.0/8"))
    assert settings == GatewaySettings(False, False, 1000, 9, 1.5, 2, 3, 2, 0.5, 4, 2.0, 3.0, 60.0, True, proxies)


@pytest.mark.parametrize(
    "line",
    [
        "max_body = 0",
        "burst = 1.5",
        "ping_every = 0",
        "requests_per_minute = 0",
        "show_budget = 1",
        "port = 1",
        "trusted_proxies = ['proxy']",
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(InvalidInput, match=rf"\[gateway\] {line.split()[0]}"):
        load(file(tmp_path, f"[gateway]\n{line}\n"))


def test_models_share_what_they_name(tmp_path: Path) -> None:
    deployment = load(file(tmp_path))
    ledger = deployment.ledger()
    one, two, three = (aligner.model for aligner in deployment.serve_all(ledger, deployment.back_ends()))
    assert [one.name, two.name, three.name] == ["one", "two", "three"]
    assert one.policy is two.policy is three.policy
    assert one.reward is two.reward is not three.reward
    ledger.close()
