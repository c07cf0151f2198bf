"""`select --account`: what is paid, when a rerun is free, what exhaustion looks like, and what survives SIGKILL."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_lines import overriding

from privalign import cli
from privalign.accounting.rules import Fsrc
from privalign.aligner import charged
from privalign.events import GumbelMax
from privalign.ledger import Ledger
from privalign.secret import make_installation_key, secret_path
from privalign.sensitivity import Certificate, Relation, RewardRange, Sensitivity

Run = Callable[..., tuple[int, str, str]]
URL = "sqlite:///ledger.db"
SCALE = 2.0
PRIVBON = ("--mechanism", "privbon", "--n", 4, "--scale", SCALE, "--range", "0,1")
PRIVITP = ("--mechanism", "privitp", "--n", 3, "--n2", 3, "--sigma-x", 1.0, "--sigma-z", 1.0, "--range", "0,1")
EVENT = GumbelMax(Sensitivity.of_range(RewardRange(0.0, 1.0)), SCALE, 4)
RULE = Fsrc(1000.0, 1e-2, 1e-8)  # adds up ε: exact sums can be told in advance
ONE = RULE.charge(EVENT)
PROMPTS = 6


def reward_of(prompt: int, place: int) -> float:
    """A reward that would be recognised anywhere."""
    return 0.1357 + prompt * 0.01234567 + place * 0.000789


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "scored.jsonl", PROMPTS)


def write(path: Path, prompts: int, size: int = 9) -> Path:
    with path.open("w") as out:
        for prompt in range(prompts):
            responses = [{"text": f"answer {prompt}.{place}", "proxy_reward": reward_of(prompt, place)} for place in range(size)]
            out.write(json.dumps({"prompt": f"prompt {prompt}", "responses": responses}) + "\n")
    return path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "key" / "secret"))
    make_installation_key()


@pytest.fixture
def ledger(home: None) -> Ledger:
    return account(RULE)


def account(rule: Any, name: str = "prefs", url: str = URL, **terms: Any) -> Ledger:
    ledger = Ledger(url)
    ledger.create_account(name, rule, **terms)
    return ledger


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `select` in this process."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["privalign", "select", *map(str, overriding(arguments))])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        captured = capsys.readouterr()
        return int(exit.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def select(run: Run) -> Callable[..., Any]:
    """The summary of a run that succeeds silently."""

    def select(file: Path, *options: object, account: str = "prefs", out: str = "out.jsonl", url: str = URL) -> Any:
        code, output, error = run(file, *options, "--account", account, "--ledger", url, "--out", out, "--json")
        assert (code, error) == (0, "")
        return json.loads(output)

    return select


@pytest.fixture
def refused(run: Run) -> Callable[..., str]:
    """The one line of a run that is bad input: nothing on stdout, no OUT, nothing paid."""

    def refused(file: Path, *options: object, url: str = URL) -> str:
        code, out, error = run(file, *options, "--ledger", url, "--out", "refused.jsonl")
        assert (code, out, error.count("\n")) == (2, "", 1)
        assert not Path("refused.jsonl").exists()
        return error

    return refused


def lines(path: str = "out.jsonl") -> list[Any]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_answers_are_this_users_alone_also_in_the_place_of_others(select: Any, file: Path, ledger: Ledger) -> None:
    Path("out.jsonl").touch(mode=0o644)
    Path("out.jsonl").chmod(0o644)
    select(file, *PRIVBON)
    assert stat.S_IMODE(Path("out.jsonl").stat().st_mode) == 0o600


def test_where_no_anchor_is_kept_it_is_said(run: Run, file: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """As beside a key that a service manager hands over read-only."""
    anchors, allowed = secret_path().parent / "anchors", os.access

    def access(path: Any, *mode: int, **how: Any) -> bool:  # as for another than the superuser
        return Path(path) != anchors and allowed(path, *mode, **how)

    monkeypatch.setattr("os.access", access)
    code, _, error = run(file, *PRIVBON, "--account", "prefs", "--ledger", URL, "--out", "out.jsonl", "--json")
    assert code == 0
    assert error.count("\n") == 1
    assert re.fullmatch(
        r"privalign: warning: .*anchors cannot be written .* no anchor is kept: a ledger that goes back is not found out\n", error
    )


# What is paid


@pytest.mark.parametrize("options", [PRIVBON, PRIVITP], ids=["privbon", "privitp"])
def test_every_answer_is_paid_and_the_summary_says_so(select: Any, file: Path, ledger: Ledger, options: tuple[object, ...]) -> None:
    summary = select(file, *options)
    answers = lines()
    assert [answer["prompt"] for answer in answers] == [f"prompt {number}" for number in range(PROMPTS)]
    for number, answer in enumerate(answers):
        assert set(answer) == {"prompt", "text", "index", "fallback", "privacy"}
        assert answer["text"] == f"answer {number}.{answer['index']}"
        assert set(answer["privacy"]) == {"mechanism", "epsilon", "delta", "account"}
        assert answer["privacy"]["account"] == "prefs"
        assert answer["privacy"]["epsilon"] == summary["epsilon"]
    assert (summary["prompts"], summary["answered"], summary["refused"]) == (PROMPTS, PROMPTS, 0)
    assert summary["account"] == "prefs"
    spent = ledger.account("prefs").spent
    assert summary["spent"] == {"epsilon": spent[0], "delta": spent[1]}
    if options is PRIVBON:
        assert ledger.account("prefs").debited == ONE * PROMPTS
    else:
        assert spent[1] == pytest.approx(1e-8 * PROMPTS)
    assert ledger.account("prefs").settled_queries == PROMPTS
    ledger.verify("prefs")


def test_spent_is_the_difference_of_this_run(select: Any, file: Path, tmp_path: Path, ledger: Ledger) -> None:
    first = select(file, *PRIVBON)
    second = select(write(tmp_path / "other.jsonl", 2), *PRIVBON)
    assert first["spent"]["epsilon"] == pytest.approx(3 * second["spent"]["epsilon"], rel=1e-9)
    assert second["spent"]["epsilon"] < ledger.account("prefs").spent[0]


def test_without_out_the_summary_has_the_results(run: Run, file: Path, ledger: Ledger) -> None:
    code, out, error = run(file, *PRIVBON, "--account", "prefs", "--ledger", URL, "--json")
    assert (code, error) == (0, "")
    assert len(json.loads(out)["results"]) == PROMPTS
    assert ledger.account("prefs").debited == ONE * PROMPTS


def test_the_base_policy_is_free(select: Any, file: Path, ledger: Ledger) -> None:
    summary = select(file, "--mechanism", "base", "--range", "0,1")
    assert summary["spent"] == {"epsilon": 0.0, "delta": 0.0}
    assert ledger.account("prefs").settled_queries == PROMPTS


def test_postgresql_pays_too(select: Any, file: Path, postgresql_url: str) -> None:
    ledger = account(RULE, url=postgresql_url)
    summary = select(file, *PRIVBON, url=postgresql_url)
    assert summary["answered"] == PROMPTS
    before = Path("out.jsonl").read_bytes()
    assert select(file, *PRIVBON, url=postgresql_url)["spent"]["epsilon"] == 0
    assert Path("out.jsonl").read_bytes() == before
    assert ledger.account("prefs").debited == ONE * PROMPTS
    ledger.close()


# Reruns


@pytest.mark.parametrize("draw", ["first", "without", "with"])
@pytest.mark.parametrize("options", [PRIVBON, PRIVITP], ids=["privbon", "privitp"])
def test_a_rerun_is_free_and_equal(select: Any, file: Path, ledger: Ledger, draw: str, options: tuple[object, ...]) -> None:
    select(file, *options, "--draw", draw)
    before, debited = Path("out.jsonl").read_bytes(), ledger.account("prefs").debited
    again = select(file, *options, "--draw", draw, out="again.jsonl")
    assert Path("again.jsonl").read_bytes() == before
    assert again["spent"] == {"epsilon": 0.0, "delta": 0.0}
    assert again["answered"] == PROMPTS
    assert ledger.account("prefs").debited == debited
    assert ledger.account("prefs").settled_queries == PROMPTS


def test_random_draws_differ_from_line_to_line(select: Any, tmp_path: Path, ledger: Ledger) -> None:
    """Replay comes from a key of the line, which must not make all lines draw alike."""
    for draw in ("with", "without"):
        select(write(tmp_path / "long.jsonl", 40), *PRIVBON, "--draw", draw)
        assert len({answer["index"] for answer in lines()}) > 4  # `first` would know four positions only


def test_a_copy_of_the_file_replays_and_a_changed_one_does_not(select: Any, file: Path, tmp_path: Path, ledger: Ledger) -> None:
    select(file, *PRIVBON)
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(file.read_bytes())
    assert select(copy, *PRIVBON)["spent"]["epsilon"] == 0
    copy.write_text(file.read_text().replace("answer 5.8", "another answer"))
    assert select(copy, *PRIVBON)["spent"]["epsilon"] > 0
    assert ledger.account("prefs").debited == ONE * (2 * PROMPTS)


OTHER_SETTINGS: dict[str, tuple[object, ...]] = {
    "scale": (*PRIVBON, "--scale", 3.0),
    "n": (*PRIVBON, "--n", 5),
    "mechanism": ("--mechanism", "privbon-gaussian", "--n", 4, "--scale", SCALE, "--range", "0,1"),
    "range": (*PRIVBON, "--range", "0,2"),
    "sensitivity": (*PRIVBON, "--sensitivity", 0.5),
    "draw": (*PRIVBON, "--draw", "without"),
    "delta": (*PRIVBON, "--delta", 1e-7),
}


@pytest.mark.parametrize("other", OTHER_SETTINGS)
def test_other_settings_do_not_replay(select: Any, file: Path, ledger: Ledger, other: str) -> None:
    select(file, *PRIVBON)
    assert select(file, *OTHER_SETTINGS[other])["spent"]["epsilon"] > 0
    assert ledger.account("prefs").settled_queries == 2 * PROMPTS


def test_another_reward_column_does_not_replay(select: Any, file: Path, tmp_path: Path, ledger: Ledger) -> None:
    both = tmp_path / "both.jsonl"
    both.write_text(file.read_text().replace('"proxy_reward"', '"other": 0.5, "proxy_reward"'))
    select(both, *PRIVBON)
    assert select(both, *PRIVBON, "--reward", "other")["spent"]["epsilon"] > 0


def test_another_account_ledger_or_installation_does_not_replay(
    select: Any, file: Path, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    select(file, *PRIVBON)
    ledger.create_account("others", RULE)
    assert select(file, *PRIVBON, account="others")["spent"]["epsilon"] > 0
    assert ledger.account("prefs").debited == ledger.account("others").debited == ONE * PROMPTS
    elsewhere = account(RULE, url="sqlite:///elsewhere.db")
    assert select(file, *PRIVBON, url="sqlite:///elsewhere.db")["spent"]["epsilon"] > 0
    elsewhere.close()
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "another"))
    make_installation_key()
    assert select(file, *PRIVBON)["spent"]["epsilon"] > 0  # who does not hold the key cannot name an answer
    assert ledger.account("prefs").debited == ONE * (2 * PROMPTS)


# Exhaustion


def test_exhaustion_refuses_the_rest(run: Run, file: Path) -> None:
    four = Fsrc(4.5 * ONE.epsilon * 1e-12, 1e-2, 1e-8)
    ledger = account(four)
    options = (*PRIVBON, "--account", "prefs", "--ledger", URL, "--out", "out.jsonl", "--json")
    code, out, error = run(file, *options)
    assert code == 3
    assert error.count("\n") == 1
    assert "budget exhausted" in error
    summary = json.loads(out)
    assert (summary["prompts"], summary["answered"], summary["refused"]) == (PROMPTS, 4, PROMPTS - 4)
    assert summary["spent"]["epsilon"] == pytest.approx(4 * ONE.epsilon * 1e-12)
    answers = lines()
    assert all("text" in answer for answer in answers[:4])
    assert answers[4:] == [{"prompt": f"prompt {number}", "refused": True} for number in (4, 5)]
    shown = ledger.account("prefs")
    assert shown.debited == ONE * 4
    assert shown.refused_queries == 1  # the rest is not even asked for
    # the same command again: paid answers come back free, the rest is refused again
    before = Path("out.jsonl").read_bytes()
    code, out, _ = run(file, *options)
    assert code == 3
    assert Path("out.jsonl").read_bytes() == before
    assert json.loads(out)["spent"]["epsilon"] == 0
    # a raise lets it go on where it stopped
    ledger.raise_budget("prefs", 100.0, "a test")
    code, out, error = run(file, *options)
    assert (code, error) == (0, "")
    assert lines()[:4] == answers[:4]
    assert json.loads(out)["spent"]["epsilon"] == pytest.approx(2 * ONE.epsilon * 1e-12)
    assert ledger.account("prefs").debited == ONE * PROMPTS
    ledger.close()


def test_nothing_fits(run: Run, file: Path) -> None:
    account(Fsrc(ONE.epsilon * 0.5e-12, 1e-2, 1e-8)).close()
    code, out, _ = run(file, *PRIVBON, "--account", "prefs", "--ledger", URL)
    assert code == 3
    assert out.count("refused\n") == PROMPTS


# Refusals


def test_what_no_account_may_pay_for_is_refused(refused: Any, file: Path, ledger: Ledger) -> None:
    for options in (("bon",), ("itp", "--n2", 3), ("itp-reuse",)):
        assert "mechanism" in refused(file, "--mechanism", *options, "--n", 3, "--range", "0,1", "--account", "prefs")
    assert "--seed" in refused(file, *PRIVBON, "--account", "prefs", "--seed", 1)
    assert "'nosuch'" in refused(file, *PRIVBON, "--account", "nosuch")
    assert "typo.db" in refused(file, *PRIVBON, "--account", "prefs", url="sqlite:///typo.db")
    assert not Path("typo.db").exists()
    assert ledger.account("prefs").length == 1  # nothing was journalled


def test_a_bad_file_is_refused_before_any_debit(refused: Any, file: Path, ledger: Ledger) -> None:
    with file.open("a") as out:
        out.write(json.dumps({"prompt": "p", "responses": [{"text": "t", "proxy_reward": None}] * 9}) + "\n")
    assert f"line {PROMPTS + 1}" in refused(file, *PRIVBON, "--account", "prefs")
    assert ledger.account("prefs").length == 1


def certificate(relation: Relation, records: int) -> Path:
    from privalign.secret import make_installation_key

    made = Certificate("declared", relation, records, RewardRange(0.0, 1.0), 0.1, reason="a test").signed(make_installation_key())
    path = Path(f"{relation.value}-{records}.json")
    path.write_text(json.dumps(made.to_json()))
    return path


@pytest.mark.parametrize(
    ("relation", "records", "names"),
    [(Relation.FLIP, 2, "relation"), (Relation.ADD_REMOVE, 2, "relation"), (Relation.REPLACE, 1, "records-per-person")],
)
def test_a_certificate_that_does_not_fit_the_account_is_refused(
    refused: Any, select: Any, file: Path, relation: Relation, records: int, names: str
) -> None:
    ledger = account(RULE, relation=Relation.REPLACE, records_per_person=2)
    options = (*PRIVBON, "--certificate", certificate(relation, records))
    assert names in refused(file, *options, "--account", "prefs")
    assert ledger.account("prefs").debited.epsilon == 0
    assert select(file, *PRIVBON, "--certificate", certificate(Relation.REPLACE, 2))["answered"] == PROMPTS
    assert 0 < ledger.account("prefs").debited.epsilon < PROMPTS * ONE.epsilon
    ledger.close()


# Crashes


WORKER = (
    "import sys, time\n"
    "from privalign.aligner import charged\nfrom privalign.cli import main\n"
    "from privalign.rewards.recorded import RecordedReward\n"
    "charged.LEASE = 1.0\n"
    "inner = RecordedReward.score\n"
    "async def slow(self, request, candidates):\n"
    "    time.sleep(0.03)\n"
    "    return await inner(self, request, candidates)\n"
    "RecordedReward.score = slow\n"
    "main()\n"
)


@pytest.mark.parametrize("options", [PRIVBON, PRIVITP], ids=["privbon", "privitp"])
def test_killed_in_mid_run_a_rerun_completes_and_pays_nothing_twice(
    select: Any, tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, options: tuple[object, ...]
) -> None:
    monkeypatch.setattr(charged, "LEASE", 1.0)
    prompts = 24
    file = write(tmp_path / "long.jsonl", prompts)
    command = [str(item) for item in (file, *options, "--draw", "without", "--account", "prefs", "--ledger", URL, "--out", "out.jsonl")]
    kills = 2
    for kill in range(1, kills + 1):
        worker = subprocess.Popen([sys.executable, "-c", WORKER, "select", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 60
        while ledger.account("prefs").settled_queries < 5 * kill and worker.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(worker.pid, signal.SIGKILL)
        output, error = worker.communicate()
        assert (worker.returncode, output, error) == (-signal.SIGKILL, b"", b"")
        assert not Path("out.jsonl").exists()
    summary = select(file, *options, "--draw", "without")
    assert summary["answered"] == prompts
    assert [answer["prompt"] for answer in lines()] == [f"prompt {number}" for number in range(prompts)]
    entries = list(ledger.journal("prefs"))
    assert sum(entry.kind == "settle" for entry in entries) == prompts  # every answer was paid once
    lost = sum(entry.kind == "expire" for entry in entries)
    assert lost <= kills  # beside them at most the one query in flight at each kill
    if options is PRIVBON:
        assert ledger.account("prefs").debited == ONE * (prompts + lost)
    assert ledger.verify("prefs").debited == ledger.account("prefs").debited
    before = Path("out.jsonl").read_bytes()
    assert select(file, *options, "--draw", "without")["spent"]["epsilon"] == 0
    assert Path("out.jsonl").read_bytes() == before


# Secrets


@pytest.mark.parametrize("way", ["answered", "exhausted"])
def test_rewards_are_nowhere(run: Run, file: Path, tmp_path: Path, way: str) -> None:
    budget = 1000.0 if way == "answered" else 3.5 * ONE.epsilon * 1e-12
    account(Fsrc(budget, 1e-2, 1e-8)).close()
    outputs = []
    for options in (PRIVBON, PRIVITP):
        for form in ([], ["--json"], ["--out", "out.jsonl"]):
            code, out, error = run(file, *options, "--account", "prefs", "--ledger", URL, *form)
            assert code == (0 if way == "answered" else 3)
            outputs += [out, error]
    everything = "".join(outputs).encode() + b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path != file)
    assert len(everything) > 10_000
    for prompt in range(PROMPTS):
        for place in range(9):
            reward = reward_of(prompt, place)
            for text in {repr(reward), f"{reward:.6g}", f"{reward:.7f}"}:
                assert text.encode() not in everything
    released = {answer["text"] for answer in lines() if "text" in answer}
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("ledger.db*"))
    for prompt in range(PROMPTS):
        for place in range(9):
            text = f"answer {prompt}.{place}"
            if text.encode() in stored:  # only what was released is stored for replay
                assert text in "".join(outputs) or text in released
