"""`init`, `config check` and `ask`: from no file at all to private answers, and everything that can be wrong on the way."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from privalign.accounting.rules import make_rule
from privalign.ledger import Ledger
from privalign.preferences.bradley_terry import fit_head
from privalign.preferences.features import CharacterCrosses, Cross, Pick
from privalign.preferences.pairs import PreferencePair
from privalign.secret import make_installation_key
from privalign.sensitivity import Relation, RewardRange

Run = Callable[..., tuple[int, str, str]]
SCORE = 0.123456789

RECORDED = """
[ledger]
url = "sqlite:///ledger.db"

[accounts.prefs]
epsilon = 8.0
delta = 1e-6
relation = "replace"

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
"""

SERVED = RECORDED.replace(
    """kind = "head"
certificate = "head.json"
""",
    """kind = "tei-rerank"
base_url = "URL"
model = "scorer"
api_key = "env:SCORER_KEY"
range = [0.0, 1.0]
sensitivity = { declared = 0.5, reason = "a test" }
timeout = 2.0
""",
)


class Scorer:
    """A reranking server: answers well, or fails as told."""

    def __init__(self) -> None:
        self.behaviour: Callable[[int], int] = lambda count: 200
        self.calls: list[int] = []
        self.keys: set[str | None] = set()
        scorer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                count = len(body.get("texts", ()))
                scorer.calls.append(count)
                scorer.keys.add(self.headers["Authorization"])
                status = scorer.behaviour(count)
                if status == 0:  # hangs up
                    self.connection.close()
                    return
                answer = [{"index": index, "score": SCORE} for index in range(count)]
                content = json.dumps(answer if status == 200 else {"error": f"a secret of the scorer {SCORE}"}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def scorer() -> Iterator[Scorer]:
    scorer = Scorer()
    yield scorer
    scorer.stop()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "key" / "secret"))
    make_installation_key()
    monkeypatch.setenv("SCORER_KEY", "s3cret-key")


@pytest.fixture
def refused(run: Run) -> Callable[..., str]:
    """The one line of a command that must fail with the code given."""

    def refused(code: int, *arguments: object) -> str:
        outcome = run(*arguments)
        assert outcome[:2] == (code, "")
        assert outcome[2].count("\n") == 1
        assert "Traceback" not in outcome[2]
        assert str(SCORE) not in outcome[2]
        assert "s3cret-key" not in outcome[2]
        return outcome[2]

    return refused


def head(path: Path = Path("head.json"), relation: Relation = Relation.REPLACE, records: int = 1) -> Path:
    """A certified head that prefers answers that begin with 'a'."""
    features = CharacterCrosses((Cross(1.0, (Pick("answer", 0, 0),)),), cells=31)
    pairs = [PreferencePair("hello", "a", "b")] * 20
    fit_head(pairs, features, regularisation=40.0, relation=relation, range=RewardRange(0.0, 1.0), records_per_person=records).save(path)
    return path


@pytest.fixture
def config(home: None) -> Path:
    """A deployment that answers recorded prompts with a certified head."""
    return deployment(RECORDED)


def deployment(text: str, file: str = "privalign.toml") -> Path:
    head()
    responses = [{"text": f"{'ab'[place % 2]}nswer {place}", "proxy_reward": SCORE} for place in range(20)]
    Path("candidates.jsonl").write_text(json.dumps({"prompt": "hello", "responses": responses}) + "\n")
    Path(file).write_text(text)
    return Path(file)


def prefs(url: str = "sqlite:///ledger.db") -> Any:
    ledger = Ledger(url)
    account = ledger.account("prefs")
    ledger.verify("prefs")
    ledger.close()
    return account


# init


def test_init_writes_a_file_that_check_explains_step_by_step(run: Run, refused: Any, document: Any) -> None:
    assert document("init") == {"file": "privalign.toml"}
    text = Path("privalign.toml").read_text()
    assert text.count("#") > 10
    assert "exists already" in refused(2, "init")
    assert Path("privalign.toml").read_text() == text
    code, out, error = run("config", "check")
    assert (code, out) == (5, "")
    assert ["independent_of_accounts: must be true: confirm" in error, "head.json" in error] == [True, True]
    code, out, error = run("init", "other.toml", "--independent")
    assert (code, error) == (0, "")
    assert "other.toml" in out
    assert "head.json" in refused(5, "config", "check", "other.toml", "--no-probe")
    head()
    assert document("config", "check", "other.toml", "--no-probe")["models"][0]["name"] == "aligned"
    assert "cannot be written" in refused(2, "init", "nosuch/folder.toml")


@pytest.mark.model
def test_three_commands_to_a_private_answer(run: Run, document: Any) -> None:
    head()
    assert run("init", "--independent")[0] == 0
    code, out, error = run("config", "check", "privalign.toml")
    assert (code, error) == (0, "")
    assert "aligned: privbon, ε ≤ 0.5" in out
    assert "certified" in out
    answer = document("ask", "Name a colour.")
    assert isinstance(answer["text"], str)
    assert answer["privacy"]["mechanism"] == "privbon"
    assert 0 < answer["privacy"]["epsilon"] <= 0.5
    assert 0 < answer["remaining"]["epsilon"] < 8.0
    assert prefs("sqlite:///privalign.db").settled_queries == 1


# config check


def test_check_states_every_guarantee_and_touches_no_budget(run: Run, document: Any, config: Path) -> None:
    checked = document("config", "check", config)
    assert set(checked) == {"file", "ledger", "probed", "models", "accounts_to_create", "warnings"}
    (model,) = checked["models"]
    assert (model["name"], model["policy"], model["reward"], model["account"]) == ("aligned", "local", "learned", "prefs")
    assert model["mechanism"] == "privbon"
    assert model["sensitivity_source"] == "certificate"
    assert model["relation"] == "replace"
    assert 0 < model["epsilon"] < 1
    assert model["answers"] > 1
    assert "certified" in model["guarantee"]
    code, out, error = run("config", "check", config)
    assert (code, error) == (0, "")
    assert model["guarantee"] in out
    assert "all back-ends answered" in out
    assert "whatever" not in run("config", "check", config, "--no-probe")[1]


def test_check_measures_when_selection_leaves_unless_the_file_says(run: Run, document: Any, config: Path) -> None:
    """The head scores in this process, so its characters may count (this one reads only the first)."""
    (model,) = document("config", "check", config)["models"]
    deadline = model["deadline"]
    assert deadline["seconds"] > 0.005
    assert 0 <= deadline["per_character"] < deadline["seconds"]
    assert 0 <= deadline["per_candidate"] < deadline["seconds"]
    out = run("config", "check", config)[1]
    assert re.search(r"aligned: selection leaves at .* ms.*, whatever the scores", out)
    assert document("config", "check", config, "--no-probe")["models"][0]["deadline"] is None
    config.write_text(config.read_text().replace('account = "prefs"\nmech', 'account = "prefs"\npadding = 0.25\nmech'))
    assert document("config", "check", config)["models"][0]["deadline"] == {"seconds": 0.25, "per_candidate": 0, "per_character": 0}
    assert "selection leaves at 250 ms, whatever the scores" in run("config", "check", config)[1]


def test_a_design_that_can_answer_nothing_fails(refused: Any) -> None:
    """Back-ends by address alone, the whole range as Δ, and noise too small for ε = 8."""
    Path("privalign.toml").write_text(
        """
[accounts.prefs]
epsilon = 8.0
delta = 1e-6

[policies.local]
independent_of_accounts = true
kind = "openai"
base_url = "http://127.0.0.1:8000/v1"
model = "base"

[rewards.armo]
kind = "vllm-classify"
base_url = "http://127.0.0.1:8001"
range = [0.0, 1.0]
sensitivity = "range"

[models.aligned]
policy = "local"
reward = "armo"
account = "prefs"
mechanism = { kind = "privitp", n = 16, beta = 0.05, sigma_x = 0.5, sigma_z = 0.5 }
"""
    )
    assert "[models.aligned] account: prefs cannot pay for a single answer" in refused(5, "config", "check", "--no-probe")


def test_check_says_what_is_left_and_fails_where_nothing_is(run: Run, document: Any, refused: Any, config: Path) -> None:
    config.write_text(config.read_text().replace("epsilon = 8.0", "epsilon = 1.0"))
    assert "left" not in run("config", "check", "--no-probe")[1]  # there is no account yet
    (before,) = document("config", "check", "--no-probe")["models"]
    assert before["left"] == before["answers"] > 1
    assert run("ask", "hello")[0] == 0
    (after,) = document("config", "check", "--no-probe")["models"]
    assert (after["answers"], after["left"]) == (before["answers"], before["answers"] - 1)
    assert f"aligned: at least {after['left']:,} answers are left, as ε = {prefs().spent[0]:.6g}"[:40] in run("config", "check")[1]
    while run("ask", "hello")[0] == 0:
        pass
    assert "[models.aligned] account: of prefs too little is left for one more answer" in refused(5, "config", "check", "--no-probe")
    config.write_text(config.read_text().replace("[models.aligned]", '[models.aligned]\non_exhausted = "base"'))
    assert document("config", "check", "--no-probe")["models"][0]["left"] == 0  # it answers from the base policy, and that is meant


def test_check_names_all_mistakes_at_once(run: Run, refused: Any) -> None:
    deployment(
        """
[ledgr]
url = "sqlite:///ledger.db"

[accounts.prefs]
epsilon = "8"
delta = 1e-6

[policies.local]
independent_of_accounts = false
kind = "openai"
base_url = "http://127.0.0.1:8000/v1"
model = "base"
retries = 0.5
api_key = "sk-secret"
timeut = 1

[rewards.learned]
kind = "heads"

[models.aligned]
policy = "local"
reward = "learned"
account = "prefs"

[gateway]
max_n = 0
"""
    )
    code, out, error = run("config", "check", "--no-probe")
    assert (code, out) == (5, "")
    wrong = ["[ledgr]", "epsilon", "independent_of_accounts", "api_key", "retries", "timeut", "kind", "max_n"]
    lines = error.splitlines()
    assert len(lines) == len(wrong)
    assert all(line.startswith("privalign: privalign.toml: [") for line in lines)
    assert all(any(f"{name}:" in line for line in lines) for name in wrong)  # and none of the model, which names what is wrong
    assert "sk-secret" not in error
    assert "[ledgr]" in refused(2, "serve")  # the first, and how many more
    assert "and 7 more: `privalign config check privalign.toml` names all" in refused(2, "ask", "hello")


def test_every_back_end_that_does_not_answer_is_named(run: Run, scorer: Scorer) -> None:
    scorer.behaviour = lambda count: 404
    text = SERVED.replace("URL", scorer.url)
    for old, new in (
        ('kind = "recorded"', 'kind = "openai"'),
        ('file = "candidates.jsonl"', f'base_url = "{scorer.url}"'),
        ("draw = ", "model = "),
    ):
        text = text.replace(old, new)
    deployment(text)
    code, out, error = run("config", "check")
    assert (code, out, error.count("\n")) == (5, "", 2)
    assert f"base_url does not end with /v1, under which most servers answer: is it {scorer.url}/v1?" in error.splitlines()[0]
    assert "[rewards.learned]" in error.splitlines()[1]


@pytest.mark.parametrize(
    ("old", "new", "doubt"),
    [
        ("n = 4, scale = 1.0", "n = 100000, scale = 0.9", "up to 100,000 candidates"),
        ("n = 4, scale = 1.0", "n = 4, scale = 1.0", "[models.aligned] mechanism: answers will be nearly random: noise of 1 on"),
        ("epsilon = 8.0", "epsilon = 1e6", "[accounts.prefs] epsilon: 1e+06 promises next to nothing"),
        ("delta = 1e-6", "delta = 0.1", "[accounts.prefs] delta: 0.1"),
        ("[models.aligned]", f'[models."{"a" * 100}"]', "is hard to type"),
        ("[models.aligned]", '[models." aligned"]', "is hard to type"),
    ],
)
def test_what_is_hardly_meant_is_doubted(run: Run, document: Any, config: Path, old: str, new: str, doubt: str) -> None:
    config.write_text(config.read_text().replace("scale = 1.0", "scale = 0.9") if "scale" not in old else config.read_text())
    assert "scale" in old or document("config", "check", "--no-probe")["warnings"] == []
    config.write_text(config.read_text().replace(old, new))
    (warning,) = document("config", "check", "--no-probe")["warnings"]
    assert doubt in warning
    assert f"warning: {warning}\n" in run("config", "check", "--no-probe")[1]


@pytest.mark.parametrize("ledger", ["none", "empty file", "without the account", "with the account"])
def test_check_writes_nothing_and_names_the_accounts_that_use_would_make(run: Run, document: Any, config: Path, ledger: str) -> None:
    if ledger == "empty file":
        Path("ledger.db").touch()
    elif ledger != "none":
        name = "prefs" if ledger == "with the account" else "other"
        with contextlib.closing(Ledger("sqlite:///ledger.db")) as made:
            made.create_account(name, make_rule("renyi", 8.0, 1e-6))
    before = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    checked = document("config", "check", config)
    assert checked["accounts_to_create"] == ([] if ledger == "with the account" else ["prefs"])
    out = run("config", "check", config)[1]
    assert ("first use will create in the ledger: account prefs" in out) == (ledger != "with the account")
    assert {path: path.read_bytes() for path in Path().iterdir() if path.is_file()} == before
    document("ask", "hello")
    after = document("config", "check", config)
    assert after["accounts_to_create"] == []
    facts = [
        [{**model, "deadline": None, "left": None} for model in document["models"]] for document in (checked, after)
    ]  # it is measured anew
    assert facts[0] == facts[1]
    assert checked["models"][0]["left"] == after["models"][0]["left"] + 1


def test_check_finds_a_ledger_that_could_not_be_made_or_read(refused: Any, config: Path) -> None:
    elsewhere = deployment(RECORDED.replace("sqlite:///ledger.db", "sqlite:///nosuch/folder/ledger.db"), "elsewhere.toml")
    assert "nosuch/folder is not a folder" in refused(5, "config", "check", elsewhere)
    Path("ledger.db").write_text("something else " * 100)
    assert "not a ledger" in refused(5, "config", "check", config)
    away = deployment(RECORDED.replace("sqlite:///ledger.db", "postgresql+psycopg://me@127.0.0.1:1/none"), "away.toml")
    assert "server is away" in refused(5, "config", "check", away)
    named = deployment(
        RECORDED.replace("[accounts.prefs]", '[accounts."a b"]').replace('account = "prefs"', 'account = "a b"'), "named.toml"
    )
    assert "cannot be a name" in refused(5, "config", "check", named)


def test_the_number_of_answers_that_check_promises_are_answered(run: Run, document: Any, config: Path) -> None:
    config.write_text(RECORDED.replace("epsilon = 8.0", "epsilon = 6.2").replace("scale = 1.0", "scale = 0.1"))
    promised = document("config", "check", config)["models"][0]["answers"]
    assert 1 <= promised < 40
    answered = 0
    while run("ask", "hello")[0] == 0:
        answered += 1
    assert answered == promised


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("independent_of_accounts = true", "independent_of_accounts = false", "[policies.local] independent_of_accounts"),
        ("independent_of_accounts = true\n", "", "[policies.local] independent_of_accounts"),
        ('"head.json"', '"nosuch.json"', "nosuch.json"),
        ('"candidates.jsonl"', '"nosuch.jsonl"', "nosuch.jsonl"),
        ('policy = "local"', 'policy = "lokal"', "[models.aligned] policy"),
        ('kind = "privbon"', 'kind = "bon"', "[models.aligned.mechanism] scale: bon adds no noise"),
        ("scale = 1.0", "scale = -1.0", "[models.aligned.mechanism] scale: -1.0"),
        ("scale = 1.0", "scale = 1.0, sigma_x = 0.1", "[models.aligned.mechanism] sigma_x: not a setting of privbon"),
        ('relation = "replace"', 'relation = "flip"', "[models.aligned] mechanism"),  # the head is certified for replace
        ('relation = "replace"', "records_per_person = 2", "[models.aligned] mechanism"),
        ('kind = "recorded"', 'kind = "carrier-pigeon"', "[policies.local] kind"),
        ("epsilon = 8.0", "epsilon = 8.0\nepsilonn = 9.0", "[accounts.prefs] epsilonn"),
        (RECORDED[RECORDED.index("[models") :], "", "[models.*]"),
    ],
)
def test_check_says_in_one_line_what_is_wrong(refused: Any, old: str, new: str, names: str) -> None:
    assert RECORDED.count(old) == 1
    config = deployment(RECORDED.replace(old, new))
    assert names in refused(5, "config", "check", config)


def test_a_file_that_is_none_is_bad_input(refused: Any) -> None:
    assert "privalign init" in refused(2, "config", "check", "nosuch.toml")
    assert "privalign init" in refused(2, "ask", "hello", "--config", "nosuch.toml")
    Path("bad.toml").write_text("[ledger\n")
    assert "not TOML" in refused(2, "config", "check", "bad.toml")
    Path("bad.toml").write_bytes(b"\xff\xfe\x00")
    assert "not TOML" in refused(2, "ask", "hello", "--config", "bad.toml")


def test_check_probes_the_scorer_with_a_public_text(document: Any, refused: Any, scorer: Scorer) -> None:
    config = deployment(SERVED.replace("URL", scorer.url))
    assert document("config", "check", config)["probed"] is True
    assert scorer.calls == [1]
    assert scorer.keys == {"Bearer s3cret-key"}
    scorer.behaviour = lambda count: 500
    assert f"{config}: [rewards.learned]: " in refused(5, "config", "check", config)
    scorer.calls.clear()
    assert document("config", "check", config, "--no-probe")["probed"] is False
    assert scorer.calls == []
    assert not Path("ledger.db").exists()


def test_check_finds_a_scorer_that_is_away_and_a_secret_that_is_missing(
    refused: Any, scorer: Scorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = deployment(SERVED.replace("URL", "http://127.0.0.1:1"))
    refused(5, "config", "check", config)
    monkeypatch.delenv("SCORER_KEY")
    config = deployment(SERVED.replace("URL", scorer.url))
    error = refused(5, "config", "check", config)
    assert "SCORER_KEY" in error
    assert "[rewards.learned]" in error
    assert scorer.calls == []


def test_check_finds_a_policy_server_that_is_away(refused: Any) -> None:
    served = 'kind = "openai"\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "m"\nretries = 1\n'
    config = deployment(RECORDED.replace('kind = "recorded"\nfile = "candidates.jsonl"\ndraw = "with"\n', served))
    assert f"{config}: [policies.local]: " in refused(5, "config", "check", config)
    error = refused(4, "ask", "hello")
    assert "\n" not in error.strip()
    assert prefs().debited.rdp == 0


# ask


def test_an_answer_its_price_and_what_remains(document: Any, config: Path) -> None:
    first = document("ask", "hello")
    assert set(first) == {"text", "privacy", "remaining"}
    assert "nswer" in first["text"]
    privacy = first["privacy"]
    assert privacy["candidates"] >= 1
    assert {"mechanism", "epsilon", "delta", "account", "sensitivity", "sensitivity_source"} <= set(privacy)
    assert (privacy["mechanism"], privacy["account"], privacy["sensitivity_source"]) == ("privbon", "prefs", "certificate")
    assert set(first["remaining"]) == {"epsilon", "delta"}
    second = document("ask", "hello", "--model", "aligned", "--config", config.resolve())
    assert 0 < second["remaining"]["epsilon"] < first["remaining"]["epsilon"] < 8.0
    account = prefs()
    assert account.settled_queries == 2
    assert second["remaining"]["epsilon"] == account.remaining[0]


def test_the_answer_for_people(run: Run, config: Path) -> None:
    for options in ([], ["--stream"]):
        code, out, error = run("ask", "hello", *options)
        assert (code, error) == (0, "")
        assert "nswer " in out.splitlines()[0]
        assert "remaining ε" in out
        assert str(SCORE) not in out


def test_a_text_cannot_steer_the_terminal(run: Run, document: Any, config: Path) -> None:
    responses = [{"text": "\x1b]0;title\x07red \x1b[31m[/x]", "proxy_reward": 0.5}]
    Path("candidates.jsonl").write_text(json.dumps({"prompt": "hello", "responses": responses}) + "\n")
    for options in ([], ["--stream"]):
        code, out, _ = run("ask", "hello", *options)
        assert code == 0
        assert "\x1b" not in out
        assert "red" in out
    assert document("ask", "hello")["text"] == responses[0]["text"]


def test_one_file_is_one_ledger_from_every_folder(document: Any, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ledgers would be two budgets for the same protected data."""
    document("ask", "hello")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    document("ask", "hello", "--config", "../privalign.toml")
    assert list(Path().iterdir()) == []
    assert prefs(f"sqlite:///{tmp_path}/ledger.db").settled_queries == 2


def test_privitp_answers_too(document: Any) -> None:
    deployment(RECORDED.replace('{ kind = "privbon", n = 4, scale = 1.0 }', '{ kind = "privitp", n = 4, sigma_x = 0.5, sigma_z = 0.5 }'))
    answer = document("ask", "hello")
    assert answer["privacy"]["mechanism"] == "privitp"
    assert answer["privacy"]["delta"] == 1e-6


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["ask", "hello", "--model", "nosuch"], "choose one of aligned"),
        (["ask"], "PROMPT"),
        (["ask", "hello", "--nosuch"], "--nosuch"),
    ],
)
def test_bad_usage(refused: Any, config: Path, arguments: list[str], names: str) -> None:
    assert names in refused(2, *arguments)


def test_a_model_must_be_named_where_there_are_two(refused: Any, document: Any) -> None:
    deployment(RECORDED + RECORDED[RECORDED.index("[models") :].replace("aligned", "other"))
    assert "aligned, other" in refused(2, "ask", "hello")
    assert document("ask", "hello", "--model", "other")["text"]


def test_a_prompt_that_is_not_recorded_costs_nothing(refused: Any, config: Path) -> None:
    assert "not among the recorded" in refused(4, "ask", "something else")
    assert prefs().debited.rdp == 0


POOR = RECORDED.replace("epsilon = 8.0", 'epsilon = 0.7\nrule = "fsrc"').replace("scale = 1.0", "epsilon = 0.2")


def test_an_exhausted_budget_is_exit_3(refused: Any, run: Run) -> None:
    deployment(POOR)
    assert [run("ask", "hello")[0] for _ in range(4)] == [0, 0, 0, 3]
    debited = prefs().debited
    error = refused(3, "ask", "hello", "--json")
    assert "budget exhausted" in error
    assert "remaining" in error
    assert "requested" in error
    assert prefs().debited == debited


def test_an_exhausted_budget_may_answer_from_the_base_policy(run: Run, document: Any) -> None:
    deployment(POOR + 'on_exhausted = "base"\n')
    answers = [document("ask", "hello") for _ in range(20)]
    mechanisms = [answer["privacy"]["mechanism"] for answer in answers]
    paid = mechanisms.count("privbon")
    assert paid == 3
    assert mechanisms == ["privbon"] * paid + ["base"] * (20 - paid)
    assert (answers[-1]["privacy"]["epsilon"], answers[-1]["privacy"]["delta"]) == (0.0, 0.0)
    assert prefs().settled_queries == paid


@pytest.mark.parametrize("way", ["away", "500", "hangs up"])
def test_a_dead_scorer_costs_nothing_however_often_it_is_asked(refused: Any, scorer: Scorer, way: str) -> None:
    """Every `ask` is a process of its own and forgets that the scorer was dead: it has to find out before it pays."""
    scorer.behaviour = {"away": lambda count: 200, "500": lambda count: 500, "hangs up": lambda count: 0}[way]
    deployment(SERVED.replace("URL", scorer.url if way != "away" else "http://127.0.0.1:1"))
    for _ in range(3):
        refused(4, "ask", "hello", "--json")
    account = prefs()
    assert (account.debited.rdp, account.settled_queries, account.open_queries) == (0, 0, 0)


def test_a_scorer_that_dies_costs_one_query(refused: Any, document: Any, scorer: Scorer) -> None:
    deployment(SERVED.replace("URL", scorer.url))
    document("ask", "hello")
    one = prefs().debited.rdp
    answered = iter([200])  # the probe still succeeds, the query does not, and nothing after it
    scorer.behaviour = lambda count: next(answered, 500)
    error = refused(4, "ask", "hello")
    assert "stays charged" in error
    for _ in range(3):
        refused(4, "ask", "hello")
    account = prefs()
    assert account.debited.rdp == 2 * one
    assert account.open_queries == 0
    scorer.behaviour = lambda count: 200
    document("ask", "hello")
    assert prefs().debited.rdp == 3 * one


def test_a_scorer_that_refuses_the_request_costs_nothing(refused: Any, scorer: Scorer) -> None:
    deployment(SERVED.replace("URL", scorer.url))
    scorer.behaviour = lambda count: 200 if count == 1 else 422
    refused(4, "ask", "hello")
    assert prefs().debited.rdp == 0


def test_an_account_that_differs_from_the_ledger_is_refused(refused: Any, document: Any, config: Path) -> None:
    document("ask", "hello")
    for old, new, here, there in (
        ("epsilon = 8.0", "epsilon = 9.0", "9.0 here", "8.0 in the ledger"),
        ("delta = 1e-6", "delta = 1e-5", "1e-05 here", "1e-06 in the ledger"),
        ("delta = 1e-6", 'delta = 1e-6\nrule = "basic"', "basic here", "renyi in the ledger"),
        ("delta = 1e-6", "delta = 1e-6\norder = 6", "6.0 here", "4 in the ledger"),
    ):
        config.write_text(RECORDED.replace(old, new))
        for code, command in ((2, ["ask", "hello"]), (5, ["config", "check", config])):
            error = refused(code, *command)
            assert here in error
            assert there in error
            assert "[accounts.prefs]" in error
    config.write_text(RECORDED)
    document("ask", "hello")


def test_a_ledger_that_cannot_be_opened(refused: Any) -> None:
    deployment(RECORDED.replace("sqlite:///ledger.db", "sqlite:///nosuch/folder/ledger.db"))
    assert "folder exists" in refused(4, "ask", "hello")
    deployment(RECORDED.replace("sqlite:///ledger.db", "postgresql+psycopg://me@127.0.0.1:1/none"))
    assert "server is away" in refused(4, "ask", "hello")


def test_a_ledger_url_with_a_password_stands_elsewhere(refused: Any, document: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("postgresql+psycopg://me:s3cret-key@127.0.0.1:1/none", "postgresql+psycopg://me@h/none?password=s3cret-key"):
        config = deployment(RECORDED.replace("sqlite:///ledger.db", url))
        assert "[ledger] url: holds a password" in refused(2, "ask", "hello")
    config = deployment(RECORDED.replace("sqlite:///ledger.db", "env:LEDGER_URL"))
    assert "LEDGER_URL" in refused(2, "ask", "hello")
    monkeypatch.setenv("LEDGER_URL", "sqlite:///by-reference.db")
    document("ask", "hello")
    assert document("config", "check", config)["ledger"] == "env:LEDGER_URL"
    assert prefs("sqlite:///by-reference.db").settled_queries == 1


def test_two_that_start_at_once_share_the_account(config: Path) -> None:
    """Both find no account; one makes it, the other takes it."""
    from privalign.deployment import load

    first, second = load(config), load(config)
    gate = threading.Barrier(2, timeout=10)
    inner = Ledger.create_account

    def create(*arguments: Any, **named: Any) -> Any:
        gate.wait()
        return inner(*arguments, **named)

    failures: list[BaseException] = []

    def open_ledger(deployment: Any) -> None:
        try:
            deployment.ledger().close()
        except BaseException as error:
            failures.append(error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "create_account", create)
        threads = [threading.Thread(target=open_ledger, args=(each,)) for each in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert prefs().length == 1


def test_postgresql(document: Any, postgresql_url: str) -> None:
    config = deployment(RECORDED.replace("sqlite:///ledger.db", postgresql_url))
    for _ in range(2):  # the first makes no tables that the second could find
        assert document("config", "check", config)["accounts_to_create"] == ["prefs"]
    assert document("ask", "hello")["remaining"]["epsilon"] < 8.0
    assert document("config", "check", config)["accounts_to_create"] == []
    assert prefs(postgresql_url).settled_queries == 1


def test_commands_that_sign_refuse_a_key_that_is_not_there(
    run: Run, refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slip in the variable made a second installation, silently; `init` and `key create` make the one that is named."""
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "slip"))
    (tmp_path / "prefs.jsonl").write_text('{"prompt": "p", "chosen": "a", "rejected": "b"}\n' * 5)
    fit = ("reward", "fit", "prefs.jsonl", "--lambda", 1000, "--out", "head.json")
    assert "slip: no installation key, and PRIVALIGN_SECRET_FILE says that it is there" in refused(2, *fit)
    assert not (tmp_path / "slip").exists()
    assert run("init")[0] == 0
    assert (tmp_path / "slip").stat().st_mode & 0o777 == 0o600
    assert run(*fit)[0] == 0
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "second"))
    assert run("key", "create", "--ledger", "sqlite:///keys.db")[0] == 0
    assert (tmp_path / "second").exists()
