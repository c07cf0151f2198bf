"""What `check_deployment` finds wrong, and what it knows of each model; it writes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privalign import statements
from privalign.deployment import load
from privalign.deployment.asking import ask
from privalign.deployment.check import check_deployment
from privalign.errors import CheckFailed, InvalidFile, InvalidInput
from privalign.secret import make_installation_key

FILE = """
[ledger]
url = "sqlite:///ledger.db"
[accounts.prefs]
epsilon = 8.0
delta = 1e-6
rule = "basic"
[policies.local]
independent_of_accounts = true
kind = "recorded"
file = "candidates.jsonl"
draw = "with"
[rewards.learned]
kind = "tei"
base_url = "http://127.0.0.1:9"
range = [0.0, 1.0]
sensitivity = "range"
[models.aligned]
policy = "local"
reward = "learned"
account = "prefs"
mechanism = { kind = "privbon", n = 4, scale = 2.0 }
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "secret"))
    make_installation_key()
    (tmp_path / "candidates.jsonl").write_text(json.dumps({"prompt": "q", "responses": [{"text": "a", "proxy_reward": 0.5}]}) + "\n")
    (tmp_path / "p.toml").write_text(FILE)
    return tmp_path / "p.toml"


def test_a_model_promises_what_its_account_does_and_nothing_is_written(file: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    checked = check_deployment(file, probe=False)
    assert sorted(tmp_path.iterdir()) == before
    (model,) = checked.models
    assert (model.name, model.policy, model.reward, model.account, model.mechanism) == ("aligned", "local", "learned", "prefs", "privbon")
    terms = load(file).accounts["prefs"]
    assert model.answers == model.left == int(8.0 / model.epsilon)
    assert (model.spent, model.deadline, checked.probed, checked.accounts_to_create) == (None, None, False, ("prefs",))
    assert model.guarantee == statements.of_model(
        "privbon",
        model.epsilon,
        model.sensitivity,
        "operator",
        f"prefs, against {terms.relation.change(1)}",
        statements.of_rule(terms.rule),
        statements.pays(model.answers),
    )
    document = checked.to_json()
    assert list(document) == ["file", "ledger", "probed", "models", "accounts_to_create", "warnings"]
    json.dumps(document, allow_nan=False)


def test_what_is_left_is_what_was_not_spent(file: Path) -> None:
    account = load(file).ledger()
    checked = check_deployment(file, probe=False)
    assert (checked.models[0].spent, checked.accounts_to_create) == (0.0, ())
    account.close()


def test_all_that_is_wrong_is_named(file: Path) -> None:
    file.write_text(FILE.replace("epsilon = 8.0", "epsilon = 0.001").replace('rule = "basic"', 'rule = "basic"\ndelta_per_query = 1e-9'))
    with pytest.raises(CheckFailed, match=r"\[models.aligned\] account: prefs cannot pay for a single answer"):
        check_deployment(file, probe=False)
    file.write_text(FILE)
    with pytest.raises(CheckFailed, match=r"\[rewards.learned\]: ") as failed:
        check_deployment(file)
    assert len(failed.value.messages) == 1
    file.write_text(FILE.split("[models")[0])
    with pytest.raises(CheckFailed, match=r"no \[models\.\*\] table"):
        check_deployment(file)


def test_a_file_that_cannot_be_read_ends_the_check(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match=r"none\.toml"):
        check_deployment(tmp_path / "none.toml")


def test_asking_a_model_that_is_not_there_makes_no_ledger(file: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="'other' is not in"):
        ask(load(file), "q", "other")
    assert not (tmp_path / "ledger.db").exists()
