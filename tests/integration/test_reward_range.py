"""`privalign reward range`: ends from a public model's scores, and ends that an account pays for, once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privalign.ledger import Ledger
from privalign.rewards.head import HeadReward
from privalign.rewards.provenance import ScoredBy, digest_of, sign_scores

Run = Callable[..., tuple[int, str, str]]
PUBLIC = ("reward", "range", "scored.jsonl", "--public", "--coverage", 0.9)


def refused(run: Run, *arguments: object, says: str, code: int = 2) -> None:
    """Refused with one line, and nothing new is written."""
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    got, out, error = run(*arguments)
    after = {path for path in Path().rglob("*") if path.is_file() and "secret" not in path.name and ".db" not in path.name}
    assert (got, out, error.count("\n")) == (code, "", 1), error
    assert says in error
    assert after <= set(before)


@pytest.fixture
def scored(run: Run) -> None:
    responses = [{"text": str(number), "is_correct": 0, "proxy_reward": number / 100} for number in range(101)]
    Path("scored.jsonl").write_text(json.dumps({"prompt": "p", "gt_answer": "", "responses": responses}))
    Path("candidates.jsonl").write_text(json.dumps({"prompt": "p", "responses": responses}) + "\n")


# Scores of a public reward model


def test_exact_ends_need_a_public_reward_model(run: Run, scored: None) -> None:
    """Ends of protected scores, exact in every digit, were a release without noise."""
    refused(run, "reward", "range", "scored.jsonl", says="--public: missing; exact ends of protected scores are a release without noise")
    paying = ("--account", "prefs", "--out", "range.json", "--epsilon", 1)
    refused(run, "reward", "range", "scored.jsonl", *paying, says="--head: missing; only the certificate of a head bounds")
    refused(run, *PUBLIC, "--head", "head.json", says="--public: says that the reward model learned nothing protected, and --head that")
    for option, value in {"--account": "prefs", "--epsilon": 1, "--scale": 1, "--out": "range.json"}.items():
        refused(run, *PUBLIC, option, value, says=f"{option}: belongs to --head")


def test_a_public_range_holds_the_asked_share(run: Run, scored: None) -> None:
    code, out, error = run(*PUBLIC, "--json")
    assert (code, error) == (0, "")
    facts = json.loads(out)
    assert facts["range"] == pytest.approx([0.05, 0.95])
    assert facts["range_from"] == "public"
    assert 0.05 * facts["scale"] + facts["offset"] == pytest.approx(0)
    assert 0.95 * facts["scale"] + facts["offset"] == pytest.approx(1)
    refused(run, *PUBLIC, "--coverage", 0, says="--coverage: 0 is not")
    refused(run, "reward", "range", "none.jsonl", "--public", says="none.jsonl")


def test_what_is_signed_as_protected_is_not_public(run: Run, scored: None, head: Path) -> None:
    file, certificate = Path("scored.jsonl"), HeadReward.load(head).certificate
    by = ScoredBy.of(certificate)
    sign_scores(file, digest_of(file), {"proxy_reward": by})
    refused(run, *PUBLIC, says="--public: proxy_reward of scored.jsonl is signed as scored by a head that is protected")
    sign_scores(file, digest_of(file), {"proxy_reward": ScoredBy(by.certificate, released=True)})
    assert run(*PUBLIC)[0] == 0
    sign_scores(file, digest_of(file), {"other": by})
    assert run(*PUBLIC)[0] == 0


CONFIG = """\
# ours
[accounts.prefs]   # one
epsilon = 8.0
delta = 1e-6

[rewards.other]
kind = "tei-rerank"
base_url = "http://127.0.0.1:9"
model = "m"
range = [0.0, 5.0]  # of other

[rewards.armo]  # the range comes from `reward range`
kind = "tei-rerank"
base_url = "http://127.0.0.1:9"
model = "m"
# range = [0.0, 1.0]

[policies.local]
independent_of_accounts = true
kind = "recorded"
file = "candidates.jsonl"
"""
STORE = (*PUBLIC, "--config", "p.toml", "--name", "armo")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_public_range_is_stored_and_nothing_else_changes(run: Run, scored: None, newline: str) -> None:
    from privalign.deployment import load as load_deployment

    file = Path("p.toml")
    file.write_bytes(CONFIG.replace("\n", newline).encode())
    file.chmod(0o640)
    code, out, error = run(*STORE, "--json")
    assert (code, error) == (0, "")
    facts = json.loads(out)
    text = file.read_bytes().decode()
    lines = [
        f"range = [0.0, 1.0]{newline}",
        f"scale = {facts['scale']!r}{newline}",
        f"offset = {facts['offset']!r}{newline}",
        f'range_from = "public"{newline}',
    ]
    assert all(text.count(line) == 1 for line in lines[1:])
    for line in lines:
        text = text.replace("`" + newline + line, "`" + newline)
    assert text == CONFIG.replace("\n", newline)
    assert file.stat().st_mode & 0o777 == 0o640
    spec = load_deployment(file).rewards["armo"]
    assert (spec.sensitivity.delta, spec.sensitivity.width, spec.range_from) == (1.0, 1.0, "public")
    assert load_deployment(file).rewards["other"].range_from == "operator"
    before = file.read_bytes()
    assert run(*STORE)[0] == 0  # the same again changes nothing
    assert file.read_bytes() == before
    Path("scored.jsonl").write_text(Path("scored.jsonl").read_text().replace("0.5}", "7.5}"))
    refused(run, *STORE[:4], "--coverage", 1, *STORE[6:], says="[rewards.armo]: has another offset already; give --replace")
    assert file.read_bytes() == before
    assert run(*STORE[:4], "--coverage", 1, *STORE[6:], "--replace")[0] == 0
    assert file.read_bytes().decode() == before.decode().replace(lines[1], f"scale = {1 / 7.5!r}{newline}").replace(
        lines[2], f"offset = -0.0{newline}"
    )


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[rewards.armo]", "[rewards.arno]", "[rewards.armo]: no such table"),
        ("# range = [0.0, 1.0]\n", "range = [-3.0, 3.0]\n", "[rewards.armo]: has another range already"),
        ("# ours", "rewards.armo = 1\n# ours", "p.toml: not TOML"),
        ("# ours", "[[", "p.toml: not TOML"),
        ('"m"\n# range', '"m"\ntimeoutt = 3\n# range', "p.toml is left as it was: p.toml: [rewards.armo] timeoutt"),
        ("range = [0.0, 5.0]", "", "p.toml is left as it was: p.toml: [rewards.other] range: missing"),
        ('kind = "tei-rerank"\nbase_url = "http://127.0.0.1:9"\nmodel = "m"\n# range', 'kind = "head"\n# range', "is of kind 'head'"),
        ("[rewards.armo]", '[rewards."arm\\u006f"]', "cannot be edited here; write by hand: range = [0.0, 1.0], scale = "),
        ("# range = [0.0, 1.0]", '"scale" = 2.0', "[rewards.armo]: has another scale already"),
        ("# range = [0.0, 1.0]", 'range_from = "operator"', "[rewards.armo]: has another range_from already"),
    ],
)
def test_a_range_that_cannot_be_stored_leaves_the_file_alone(run: Run, scored: None, old: str, new: str, says: str) -> None:
    assert old in CONFIG
    Path("p.toml").write_text(CONFIG.replace(old, new, 1))
    before = Path("p.toml").read_bytes()
    refused(run, *STORE, says=says)
    assert Path("p.toml").read_bytes() == before


def test_where_to_store_is_named_in_full(run: Run, scored: None) -> None:
    for options in (("--config", "p.toml"), ("--name", "armo"), ("--replace",)):
        refused(run, *PUBLIC, *options, says="--config: it and --name belong together")
    refused(run, *STORE, says="p.toml: cannot be read")


def test_config_check_says_where_a_range_is_from(run: Run, scored: None, head: Path) -> None:
    models = "".join(
        f'[models.m-{name}]\npolicy = "local"\nreward = "{name}"\naccount = "prefs"\n'
        'mechanism = { kind = "privbon", n = 2, scale = 10.0 }\n'
        for name in ("other", "armo", "ours")
    )
    ours = '[rewards.ours]\nkind = "head"\ncertificate = "head.json"\n'
    Path("p.toml").write_text(CONFIG + ours + models + '[ledger]\nurl = "sqlite:///other.db"\n')
    assert run(*STORE)[0] == 0
    code, out, _ = run("config", "check", "p.toml", "--no-probe", "--json")
    assert code == 0
    facts = {model["reward"]: model for model in json.loads(out)["models"]}
    assert {name: model["range_from"] for name, model in facts.items()} == {"other": "operator", "armo": "public", "ours": "certificate"}
    assert "range 0.0,5.0 typed by the operator" in facts["other"]["guarantee"]
    assert "range 0.0,1.0 from scores of a public reward model" in facts["armo"]["guarantee"]
    assert "of the certificate" in facts["ours"]["guarantee"]
    Path("p.toml").write_text(Path("p.toml").read_text().replace('range_from = "public"', 'range_from = "me"'))
    code, _, error = run("config", "check", "p.toml", "--no-probe")
    assert code != 0
    assert "range_from: 'me' is not one of operator, public" in error


# Raw scores of a protected head


RICH = ("account", "create", "rich", "--epsilon", 100, "--delta", 1e-3, "--rule", "basic", "--dataset", "prefs", "--also", "prefs")
PAYING = ("--account", "prefs", "--epsilon", 1, "--out", "range.json")
NOISY = ("reward", "range", "texts.jsonl", "--head", "head.json", *PAYING)


@pytest.fixture
def head(run: Run) -> Path:
    """head.json, an account that pays for one range, and public texts."""
    pairs = [{"prompt": f"p{i}", "chosen": f"good good {i}", "rejected": f"bad {i}"} for i in range(40)]
    Path("prefs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    fit(run, "head.json")
    assert run("account", "create", "prefs", "--epsilon", 1.5, "--delta", 1e-4, "--rule", "basic", "--delta-per-query", 1e-6)[0] == 0
    responses = [{"text": f"{word} {i}"} for i in range(10) for word in ("good", "bad", "plain")]
    Path("texts.jsonl").write_text("".join(json.dumps({"prompt": f"q{i}", "responses": responses}) + "\n" for i in range(3)))
    return Path("head.json")


def fit(run: Run, out: str, *options: object) -> None:
    features = '{"kind": "hashed-ngrams", "bits": 8}'
    common = ("reward", "fit", "prefs.jsonl", "--features", features, "--lambda", 10, "--workers", 1, "--output", "clip")
    assert run(*common, "--out", out, *options)[0] == 0


def released(run: Run, *options: object) -> Any:
    code, out, error = run(*NOISY, *options, "--json")
    assert (code, error) == (0, ""), error
    return json.loads(out)


def test_ends_are_noisy_paid_and_written(run: Run, head: Path) -> None:
    facts = released(run)
    low, high = facts["range"]
    assert low < high
    assert json.loads(Path("range.json").read_text()) == {name: value for name, value in facts.items() if name != "out"}
    certificate = json.loads(head.read_text())
    assert facts["movement"] == pytest.approx(0.4002)
    assert (facts["relation"], facts["records_per_person"], facts["head"]) == ("replace", 1, certificate["mac"])
    assert 0.99 < facts["epsilon"] <= 1
    ledger = Ledger("sqlite:///privalign.db")
    account = ledger.account("prefs")
    assert account.settled_queries == 2  # each end is a release
    assert 1 < account.spent[0] < 1.5
    ledger.close()
    raw = np.sort(HeadReward.load(head).raw("q0", ["good 0", "bad 0", "plain 0"])[0])
    for text in (*map(repr, raw.tolist()), *(f"{score:.6g}" for score in raw)):
        assert text not in Path("range.json").read_text()


def test_run_again_it_is_free_and_the_same(run: Run, head: Path) -> None:
    first = released(run)
    assert released(run) == first  # a second payment would not fit
    for other in (("--out", "second.json"), ("--coverage", 0.9), ("--epsilon", 0.9), ("--delta", 2e-6)):
        refused(run, *NOISY, *other, says="budget exhausted", code=3)
    before = Path("range.json").read_text()
    Path("range.json").write_text(before.replace("0", "1", 1))
    refused(run, *NOISY, says="--out: range.json was paid and written before and is no longer there")
    Path("range.json").unlink()
    refused(run, *NOISY, says="--out: range.json was paid and written before and is no longer there")
    Path("range.json").write_text(before)
    assert released(run) == first
    Path("texts.jsonl").write_text(Path("texts.jsonl").read_text().replace("plain 1", "plain 11"))
    refused(run, *NOISY, says="budget exhausted", code=3)


def test_another_place_is_another_draw(run: Run, head: Path) -> None:
    """Six draws of ends, rounded to steps of about a quarter of their noise: all equal with probability below 1e-4."""
    assert run(*RICH)[0] == 0
    ranges = [tuple(released(run, "--account", "rich", "--out", f"range-{number}.json")["range"]) for number in range(6)]
    assert len(set(ranges)) > 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--scale", 1), "--epsilon: give either it, for both ends together, or --scale"),
        (("--epsilon", 0), "--epsilon: 0.0 is not a finite number above 0"),
        (("--delta", 1), "--delta: 1.0 is not strictly between 0 and 1"),
        (("--reward", "x"), "--reward: belongs to --public"),
        (("--config", "p.toml"), "--config: belongs to --public"),
        (("--replace",), "--replace: belongs to --public"),
        (("--account", "nosuch"), "'nosuch'"),
        (("--account", "strange"), "--account: strange protects data set strange, not prefs"),
        (("--ledger", "sqlite:///typo.db"), "typo.db"),
        (("--out", "texts.jsonl"), "--out: texts.jsonl is the file to read"),
        (("--out", "privalign.db"), "--out: privalign.db is a database"),
        (("--out", "nowhere/range.json"), "--out: nowhere cannot be written to"),
        (("--head", "ensemble.json"), "--head: a certificate of kind 'ensemble' bounds no movement of raw scores"),
        (("--head", "flipped.json"), "relation"),
    ],
)
def test_what_cannot_be_paid_or_written_is_refused_before_it_is_paid(run: Run, head: Path, options: tuple[object, ...], says: str) -> None:
    fit(run, "ensemble.json", "--shards", 3)
    fit(run, "flipped.json", "--relation", "flip")
    assert run("account", "create", "strange", "--epsilon", 9, "--delta", 1e-4)[0] == 0
    refused(run, *NOISY, *options, says=says)
    assert json.loads(run("account", "show", "prefs", "--json")[1])["spent"]["epsilon"] == 0


def test_what_is_missing_is_named(run: Run, head: Path) -> None:
    for missing, says in {"--account": "--account: missing", "--epsilon": "--epsilon: give either", "--out": "--out: missing"}.items():
        place = PAYING.index(missing)
        refused(run, *NOISY[:5], *PAYING[:place], *PAYING[place + 2 :], says=says)
    code, out, _ = run(*NOISY[:5], "--account", "prefs", "--scale", 20, "--out", "range.json")
    assert code == 0
    assert "privalign reward fit PREFS --output clip --range=" in out


def test_a_released_heads_scores_are_public_already(run: Run, head: Path) -> None:
    assert run(*RICH)[0] == 0
    fit(run, "released.json", "--release-epsilon", 1, "--release-delta", 1e-6, "--account", "rich")
    refused(run, *NOISY, "--head", "released.json", says="--head: was released, so that its scores are public")


KILLED = """
import os, signal, sys
from importlib import import_module
from privalign.cli import main
module, owner, name, when = sys.argv.pop(1).split()
sys.argv[0] = "privalign"
place = import_module(module)
place = place if owner == "-" else getattr(place, owner)
inner = getattr(place, name)
def killed(*arguments, **named):
    if when == "after":
        inner(*arguments, **named)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(place, name, killed)
main()
"""


@pytest.mark.parametrize(
    ("place", "left"),
    [
        ("privalign.aligner.payment - _keep before", 0),
        ("privalign.aligner.payment - _keep after", 1),  # drawn, not paid
        ("privalign.ledger Ledger reserve after", 1),  # debited, not settled
        ("privalign.ledger Ledger settle after", 1),  # paid, nothing written
        ("privalign.aligner.paid_range - put before", 1),
        ("privalign.aligner.payment - _remove before", 1),  # drawn twice over: the same draw
    ],
)
def test_killed_anywhere_ends_are_paid_once_and_never_lost(run: Run, head: Path, tmp_path: Path, place: str, left: int) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, place, *map(str, NOISY)], capture_output=True, check=False)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, b""), killed.stderr
    drafts = list(tmp_path.glob(".*.draft"))
    assert len(drafts) == left
    assert [draft.stat().st_mode & 0o777 for draft in drafts] == [0o600] * left
    drawn = json.loads(drafts[0].read_bytes())["range"] if drafts else None
    assert drawn in (None, released(run)["range"])  # a second payment would not fit
    released(run)
    assert not list(tmp_path.glob(".*draft"))
    account = json.loads(run("account", "show", "prefs", "--json")[1])
    assert account["queries"]["settled"] + account["queries"]["open"] == 2
    assert account["spent"]["epsilon"] <= 1.5
    assert run("account", "verify", "prefs")[0] == 0


def test_a_damaged_draw_is_not_paid(run: Run, head: Path, tmp_path: Path) -> None:
    place = "privalign.aligner.payment - _keep after"
    subprocess.run([sys.executable, "-c", KILLED, place, *map(str, NOISY)], capture_output=True, check=False)
    (draft,) = tmp_path.glob(".*.draft")
    document = json.loads(draft.read_text())
    for damaged in (draft.read_text()[:-8], json.dumps({**document, "scale": 1e-9}), json.dumps({**document, "range": [1.0, 0.0]}), "[]"):
        draft.write_text(damaged)
        refused(run, *NOISY, says="the kept draw is damaged")
    assert json.loads(run("account", "show", "prefs", "--json")[1])["spent"]["epsilon"] == 0
