"""A released head from its fit to an answer: free under the account that paid, on its own terms everywhere, and refused by others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privalign.preferences.pairs import PreferencePair, write_pairs

Run = Callable[..., tuple[int, str, str]]
FILE = """
[ledger]
url = "sqlite:///LEDGER"

[accounts.NAME]
epsilon = EPSILON
delta = 1e-5
rule = "basic"
delta_per_query = 1e-9
relation = "RELATION"
records_per_person = RECORDS
dataset = "votes"

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
account = "NAME"
mechanism = { kind = "privbon", n = 4, scale = 1.0 }
"""
WORDS = (
    "the head itself was released with (1.0, 1e-05)-differential privacy against turning round the label of one person's record "
    "(prompt and answers are public) in data set votes, paid once by account paying"
)
TERMS = {
    "epsilon": 1.0,
    "delta": 1e-5,
    "relation": "flip",
    "records_per_person": 1,
    "account": "paying",
    "dataset": "votes",
    "guarantee": WORDS.removeprefix("the head itself was "),
}


def deployment(name: str, relation: str, records: int, epsilon: float = 9.0, ledger: str = "privalign.db") -> str:
    text = FILE.replace("NAME", name).replace("RELATION", relation).replace("RECORDS", str(records))
    Path("privalign.toml").write_text(text.replace("EPSILON", str(epsilon)).replace("LEDGER", ledger))
    return "privalign.toml"


@pytest.fixture
def released(run: Run, tmp_path: Path) -> None:
    """A head of flip and one record a person, released with (1, 10⁻⁵), paid by account `paying`."""
    chance = np.random.default_rng(0)
    words = ["good", "bad", "plain"]
    texts = [(" ".join(chance.choice(words, 4)) + " a", " ".join(chance.choice(words, 4)) + " b") for _ in range(60)]
    write_pairs(tmp_path / "prefs.jsonl.gz", [PreferencePair(f"p{n}", *pair) for n, pair in enumerate(texts)])
    responses = [{"text": f"{words[place % 3]} {place}", "proxy_reward": 0.5} for place in range(8)]
    (tmp_path / "candidates.jsonl").write_text(json.dumps({"prompt": "hello", "responses": responses}) + "\n")
    budget = ("--epsilon", 9, "--delta", 1e-5, "--rule", "basic", "--delta-per-query", 1e-9, "--relation", "flip", "--dataset", "votes")
    assert run("account", "create", "paying", *budget)[0] == 0
    release = ("--release-epsilon", 1, "--release-delta", 1e-5, "--account", "paying")
    features = ("--features", '{"kind": "hashed-ngrams", "bits": 6}', "--lambda", 10, "--relation", "flip", "--workers", 1)
    assert run("reward", "fit", "prefs.jsonl.gz", "--out", "head.json", *features, *release)[0] == 0


def test_it_serves_under_the_account_that_paid_on_its_own_terms(run: Run, document: Any, released: None) -> None:
    file = deployment("paying", "flip", 1)
    spent = document("account", "show", "paying")["spent"]
    assert spent["epsilon"] > 1  # what the rule charges at its own δ
    (model,) = document("config", "check", file)["models"]
    assert WORDS in model["guarantee"]
    assert "All answers together" not in model["guarantee"]  # not the account's sentence
    assert (model["epsilon"], model["answers"], model["release"]) == (0.0, None, TERMS)
    answer = document("ask", "hello", "--config", file)
    assert (answer["privacy"]["epsilon"], answer["privacy"]["release"], answer["privacy"]["account"]) == (0.0, TERMS, "paying")
    assert document("account", "show", "paying")["spent"] == spent
    for command in (
        ("epsilon", "privbon", "--scale", 1, "--certificate", "head.json"),
        ("reward", "show", "head.json"),
    ):
        assert WORDS.removeprefix("the head itself was ") in json.dumps(document(*command), ensure_ascii=False)


@pytest.mark.parametrize(
    ("name", "relation", "records", "says"),
    [
        ("strict", "replace", 5, "relation: the head was released for flip, the account protects replace"),
        ("strict", "flip", 5, "records-per-person: the head was released for 1 per person, the account protects 5"),
        ("other", "flip", 1, "paid once by account paying; other promises nothing about it: serve it under paying"),
    ],
)
def test_an_account_that_promises_more_refuses_it(run: Run, released: None, name: str, relation: str, records: int, says: str) -> None:
    """Released for flip and one record, it was served under replace and five: shown as free and (1, 10⁻⁵), with a true ε of 3.47."""
    file = deployment(name, relation, records, epsilon=1.0)
    text = Path(file).read_text()
    Path(file).write_text(text.replace('dataset = "votes"', 'dataset = "votes"\nalso = ["paying"]') if name == "other" else text)
    if name == "strict":
        Path(file).write_text(text.replace("privalign.db", "another.db"))  # a data set has one relation in a ledger
    for command, expected in ((("config", "check", file), 5), (("ask", "hello", "--config", file), 2)):
        code, out, error = run(*command)
        assert (code, out, error.count("\n")) == (expected, "", 1), error
        assert says in error


def test_the_same_name_in_another_ledger_did_not_pay(run: Run, document: Any, released: None) -> None:
    file = deployment("paying", "flip", 1, ledger="fresh.db")
    for command, expected in ((("config", "check", file), 5), (("ask", "hello", "--config", file), 2)):
        code, out, error = run(*command)
        assert (code, out, error.count("\n")) == (expected, "", 1), error
        assert "which paying of this ledger did not pay; use the ledger that the release was paid from" in error
    assert document("account", "show", "paying", "--ledger", "sqlite:///fresh.db")["queries"]["settled"] == 0


def test_select_takes_it_from_the_account_that_paid_only(run: Run, document: Any, released: None) -> None:
    budget = ("--epsilon", 1, "--delta", 1e-5, "--rule", "basic", "--delta-per-query", 1e-9)
    assert run("account", "create", "strict", *budget, "--relation", "replace", "--records-per-person", 5)[0] == 0
    spent = document("account", "show", "strict")["spent"]
    assert spent == {"epsilon": 0.0, "delta": 0.0}
    common = ("select", "candidates.jsonl", "--mechanism", "bon", "--n", 4, "--range", "0,1", "--certificate", "head.json")
    code, out, error = run(*common, "--account", "strict")
    assert (code, out, error.count("\n")) == (2, "", 1), error
    assert document("account", "show", "strict")["spent"] == spent


def test_certificates_of_another_data_set_are_refused(run: Run, document: Any, released: None) -> None:
    common = ("--features", '{"kind": "hashed-ngrams", "bits": 6}', "--lambda", 10, "--relation", "flip", "--workers", 1)
    assert run("reward", "fit", "prefs.jsonl.gz", "--out", "head.json", *common)[0] == 0  # of data set "prefs", as the file
    file = deployment("paying", "flip", 1)
    says = "the certificate is about data set prefs, the account protects votes; charge the account of prefs"
    for command, expected in ((("config", "check", file), 5), (("ask", "hello", "--config", file), 2)):
        code, out, error = run(*command)
        assert (code, out, error.count("\n")) == (expected, "", 1), error
        assert says in error
    assert run("reward", "fit", "prefs.jsonl.gz", "--out", "head.json", *common, "--dataset", "votes")[0] == 0
    (model,) = document("config", "check", file)["models"]
    assert "certified, data set votes" in model["guarantee"]
    assert document("ask", "hello", "--config", file)["privacy"]["dataset"] == "votes"


def test_a_version_1_certificate_goes_on_under_any_account(
    run: Run, document: Any, released: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Path(__file__).parents[1] / "fixtures" / "certificates"
    Path("old-secret").write_bytes((old / "secret").read_bytes())  # the ledger keeps its anchors beside it
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(Path("old-secret").resolve()))
    for name in ("sigmoid.json", "sigmoid.safetensors"):
        Path(name.replace("sigmoid", "head")).write_bytes((old / name).read_bytes())
    file = deployment("paying", "flip", 2, ledger="second.db")
    (model,) = document("config", "check", file)["models"]
    assert "certified, data set not stated" in model["guarantee"]
    assert document("ask", "hello", "--config", file)["privacy"]["sensitivity_source"] == "certificate"
    assert "The data set is not stated" in " ".join(document("reward", "show", "head.json")["explanation"])
