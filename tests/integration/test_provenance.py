"""Whose scores `select` believes: a head's certificate vouches for scores that its head made, and for no others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privalign.accounting.rules import Fsrc
from privalign.aligner import charged
from privalign.ledger import Ledger
from privalign.rewards.head import HeadReward
from privalign.secret import installation_key
from privalign.sensitivity import Certificate, Relation, RewardRange

Run = Callable[..., tuple[int, str, str]]
SMALL = '{"kind": "hashed-ngrams", "bits": 8}'
PRIVBON = ("--mechanism", "privbon", "--n", 4, "--scale", 0.5)
BEST = ("--mechanism", "bon", "--n", 4)
URL = "sqlite:///ledger.db"
PROMPTS = 5


@pytest.fixture
def heads(run: Run) -> None:
    """head.json, its ensemble ensemble.json, and released.json, paid by an account."""
    pairs = [{"prompt": f"p{i}", "chosen": f"good good {i}", "rejected": f"bad {i}"} for i in range(40)]
    Path("prefs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    run("account", "create", "paying", "--epsilon", 50, "--delta", 1e-2, "--ledger", URL)
    common = ("reward", "fit", "prefs.jsonl", "--features", SMALL, "--lambda", 10, "--workers", 1, "--json")
    release = ("--release-epsilon", 1, "--release-delta", 1e-6, "--account", "paying", "--ledger", URL)
    for out, options in {"head.json": (), "ensemble.json": ("--shards", 3), "released.json": release}.items():
        code, _, error = run(*common, "--out", out, *options)
        assert (code, error) == (0, "")


def texts(name: str = "texts.jsonl", prompts: int = PROMPTS, **columns: float) -> Path:
    """Candidates of which the last is the best by the heads, with these columns or without scores."""
    answers = ["bad", "bad bad", "plain", "good good good"]
    records = [{"prompt": f"q{i}", "responses": [{"text": f"{text} {i}", **columns} for text in answers]} for i in range(prompts)]
    Path(name).write_text("".join(json.dumps(record) + "\n" for record in records))
    return Path(name)


def collected() -> Path:
    """A folder of candidates, as `collect` leaves it, in two shards."""
    import pyarrow as pa

    from privalign.candidates.shards import to_parquet, working_on

    with working_on(Path("collected"), "collect", {}, prompts=4, shards=2, session={}) as folder:
        for number in range(2):
            rows = [
                {"prompt_id": prompt, "prompt": f"q{prompt}", "gt_answer": "", "text": f"{text} {prompt}"}
                for prompt in (2 * number, 2 * number + 1)
                for text in ("bad", "bad bad", "plain", "good good good")
            ]
            folder.write(number, to_parquet(pa.Table.from_pylist(rows)))
    return Path("collected")


def scored(run: Run, *names: str) -> Path:
    """What `score` exports of these heads; the first one is proxy_reward too."""
    collected()
    Path("back-ends.toml").write_text("".join(f'[rewards.{name}]\nkind = "head"\ncertificate = "{name}.json"\n' for name in names))
    options = [part for name in names for part in ("--reward", name)]
    code, _, error = run(
        "score", "--from", "collected", "--config", "back-ends.toml", *options, "--out", "scored", "--export", "scored.jsonl", "--json"
    )
    assert (code, error) == (0, "")
    return Path("scored.jsonl")


def select(run: Run, file: Path, *options: object) -> Any:
    code, out, error = run("select", file, *options, "--json")
    assert (code, error) == (0, ""), error
    return json.loads(out)


def refused(run: Run, *options: object) -> str:
    code, out, error = run("select", *options)
    assert (code, out, error.count("\n")) == (2, "", 1), error
    return error


@pytest.mark.parametrize("name", ["head", "ensemble", "released"])
def test_a_heads_certificate_beside_scores_of_any_origin_is_refused(run: Run, heads: None, name: str) -> None:
    """With the certificate of a released head the exact best answer came out as private, ε = 0, nothing spent."""
    file = texts(proxy_reward=0.5)
    for options in (BEST, PRIVBON):
        error = refused(run, file, *options, "--range", "0,1", "--certificate", f"{name}.json")
        assert f"--certificate: {name}.json is about scores that its head made, and texts.jsonl has no texts.jsonl.signed.json" in error
        assert f"give --head {name}.json" in error


def test_what_a_head_scored_is_signed_and_believed(run: Run, heads: None) -> None:
    file = scored(run, "head", "released")
    signed = json.loads(Path("scored.jsonl.signed.json").read_text())
    assert set(signed["columns"]) == {"proxy_reward", "head", "released"}
    certificate = ("--range", "0,1", "--certificate", "head.json")
    for column in ("proxy_reward", "head"):
        for where in (file, Path("scored/part-00001.parquet")):
            summary = select(run, where, *PRIVBON, *certificate, "--reward", column)
            assert (summary["private"], summary["sensitivity_source"]) == (True, "certificate")
    public = select(run, file, *BEST, "--range", "0,1", "--certificate", "released.json", "--reward", "released")
    assert (public["sensitivity_source"], public["epsilon"]) == ("released", 0.0)
    assert "was scored by another head" in refused(run, file, *PRIVBON, *certificate, "--reward", "released")
    assert "was scored by another head" in refused(run, file, *BEST, "--range", "0,1", "--certificate", "released.json")


def test_a_signature_is_of_the_file_the_column_and_the_certificate(run: Run, heads: None) -> None:
    file = scored(run, "head")
    options = (*PRIVBON, "--range", "0,1", "--certificate", "head.json")
    signature, content = Path("scored.jsonl.signed.json").read_text(), file.read_text()
    select(run, file, *options)
    file.write_text(content + content.splitlines()[0] + "\n")
    assert "its signature does not fit" in refused(run, file, *options)
    file.write_text(content)
    for old, new in (("false", "true"), ('"head":', '"other":'), ('"version": 1', '"version": 2'), ("{", "")):
        Path("scored.jsonl.signed.json").write_text(signature.replace(old, new, 1))
        assert "its signature does not fit" in refused(run, file, *options)
    Path("scored.jsonl.signed.json").write_text(signature)
    other = file.rename("other.jsonl")  # a copy is the same scores, and its signature goes with it
    assert "has no other.jsonl.signed.json" in refused(run, other, *options)
    Path("other.jsonl.signed.json").write_text(signature)
    select(run, other, *options)
    both = texts("both.jsonl", proxy_reward=0.1, mine=0.9)
    Path("both.jsonl.signed.json").write_text(signature)
    assert "its signature does not fit" in refused(run, both, *options)


def test_a_column_that_was_not_scored_by_the_head_is_refused(run: Run, heads: None) -> None:
    """Here the first column is: another one of the same file is of unknown origin."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    scored(run, "head")
    table = pq.read_table("collected/part-00000.parquet")
    pq.write_table(table.append_column("mine", pa.array([0.5] * len(table))), "collected/part-00000.parquet")
    pq.write_table(pq.read_table("collected/part-00001.parquet").append_column("mine", pa.array([0.5] * 8)), "collected/part-00001.parquet")
    code, _, error = run(
        "score", "--from", "collected", "--config", "back-ends.toml", "--reward", "head", "--out", "again", "--export", "again.jsonl"
    )
    assert (code, error) == (0, "")
    options = (*PRIVBON, "--range", "0,1", "--certificate", "head.json")
    assert "is signed for" in refused(run, Path("again.jsonl"), *options, "--reward", "mine")
    select(run, Path("again.jsonl"), *options)


def test_what_a_source_says_of_itself_is_not_signed(run: Run, heads: None) -> None:
    """The schema of a shard names the head to the process that made the shard, and to nobody else."""
    import pyarrow.parquet as pq

    from privalign.stages.score import scored_by

    scored(run, "head")
    for shard in ("part-00000.parquet", "part-00001.parquet"):
        forged = pq.read_table(f"scored/{shard}")
        forged = forged.rename_columns({"head": "mine"}).replace_schema_metadata(
            {name: value.replace(b'"head"', b'"mine"') for name, value in forged.schema.metadata.items()}
        )
        pq.write_table(forged, f"collected/{shard}")
        assert "mine" in scored_by(Path(f"collected/{shard}").read_bytes())
    options = ("--config", "back-ends.toml", "--reward", "head", "--out", "again", "--export", "again.jsonl")
    assert run("score", "--from", "collected", *options)[0] == 0
    assert list(json.loads(Path("again.jsonl.signed.json").read_text())["columns"]) == ["head"]


def test_a_shard_that_was_exchanged_takes_the_signature_from_the_export(run: Run, heads: None) -> None:
    import pyarrow.parquet as pq

    scored(run, "head")
    shard = pq.read_table("scored/part-00000.parquet")
    pq.write_table(shard.slice(0, 4), "scored/part-00000.parquet")
    again = (
        "score",
        "--from",
        "collected",
        "--config",
        "back-ends.toml",
        "--reward",
        "head",
        "--out",
        "scored",
        "--export",
        "scored.jsonl",
    )
    code, out, error = run(*again)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert "its signature does not fit" in error
    Path("scored/part-00000.parquet.signed.json").unlink()
    assert run(*again)[0] == 0
    assert not Path("scored.jsonl.signed.json").exists()  # the one of the file that stood there before


def test_signatures_and_scores_are_for_this_user_alone_and_hold_no_digest(run: Run, heads: None) -> None:
    import hashlib

    before = os.umask(0)
    try:
        scored(run, "head")
    finally:
        os.umask(before)
    written = [path for path in Path().glob("scored*") if path.is_file()] + list(Path("scored").glob("part-*"))
    assert len(written) == 6
    for path in written:
        assert path.stat().st_mode & 0o777 == 0o600, path
    for path in Path().rglob("*.signed.json"):
        content = path.with_name(path.name.removesuffix(".signed.json")).read_bytes()
        assert hashlib.sha256(content).hexdigest() not in path.read_text()


def test_a_file_that_is_exchanged_while_it_is_read_shows_nothing(run: Run, heads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    file = scored(run, "head")
    from privalign.aligner import file_scores as scores

    inner = scores.RecordedScores.of

    def exchanging(self: Any, pool: Any, positions: Any) -> Any:
        file.write_text(file.read_text().replace("plain", "Plain"))
        return inner(self, pool, positions)

    monkeypatch.setattr(scores.RecordedScores, "of", exchanging)
    out = ("--out", "answers.jsonl")
    assert "its signature does not fit" in refused(run, file, *PRIVBON, "--range", "0,1", "--certificate", "head.json", *out)
    assert not Path("answers.jsonl").exists()


def test_a_declared_certificate_and_a_declared_delta_stay_what_they_were(run: Run, heads: None) -> None:
    made = Certificate("declared", Relation.REPLACE, 1, RewardRange(0.0, 1.0), 0.1, reason="a test").signed(installation_key())
    Path("declared.json").write_text(json.dumps(made.to_json()))
    file = texts(proxy_reward=0.5)
    for options in (("--certificate", "declared.json"), ("--sensitivity", 0.1)):
        assert select(run, file, *PRIVBON, "--range", "0,1", *options)["sensitivity_source"] == "declared"
    assert select(run, file, *PRIVBON, "--range", "0,1")["sensitivity_source"] == "range"


# `select --head`


@pytest.mark.parametrize("name", ["head", "ensemble", "released"])
def test_a_head_scores_texts_itself(run: Run, heads: None, name: str) -> None:
    """The peak wins at little noise; whatever scores the file has are not looked at."""
    head = HeadReward.load(Path(f"{name}.json"))
    expected = [
        int(head.score(f"q{i}", [f"{t} {i}" for t in ("bad", "bad bad", "plain", "good good good")]).argmax()) for i in range(PROMPTS)
    ]
    for columns in ({}, {"proxy_reward": 0.5}):
        file = texts(**columns)
        results = select(run, file, *BEST, "--head", f"{name}.json")["results"]
        assert [answer["index"] for answer in results] == expected


def test_it_says_the_same_of_privacy_as_signed_scores_do(run: Run, heads: None) -> None:
    file = scored(run, "head")
    options = ("--mechanism", "privbon", "--n", 4, "--epsilon", 1)
    believed = select(run, file, *options, "--range", "0,1", "--certificate", "head.json")
    here = select(run, file, *options, "--head", "head.json")
    for document in (believed, here):
        assert {answer["privacy"]["epsilon"] for answer in document.pop("results")} == {document["epsilon"]}
    assert believed == here
    assert here["sensitivity_source"] == "certificate"
    assert select(run, file, *options, "--head", "head.json", "--range", "0,1")["epsilon"] == here["epsilon"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--certificate", "head.json"), "--certificate: belongs to scores that stand in FILE"),
        (("--sensitivity", "range"), "--sensitivity: belongs to scores that stand in FILE"),
        (("--reward", "head"), "--reward: belongs to scores that stand in FILE"),
        (("--range", "0,2"), "--range: 0,2 is not the range of head.json; leave it out, or give 0,1"),
    ],
)
def test_what_only_recorded_scores_need_is_refused_beside_it(run: Run, heads: None, options: tuple[object, ...], complaint: str) -> None:
    assert complaint in refused(run, texts(), *PRIVBON, "--head", "head.json", *options)


def test_changed_weights_are_refused(run: Run, heads: None) -> None:
    Path("head.safetensors").write_bytes(Path("released.safetensors").read_bytes())
    assert "its signature does not fit" in refused(run, texts(), *PRIVBON, "--head", "head.json")


def test_against_an_account_it_is_paid_and_replayed(run: Run, heads: None) -> None:
    ledger = Ledger(URL)
    ledger.create_account("prefs", Fsrc(1000.0, 1e-2, 1e-8))
    command = (texts(), *PRIVBON, "--head", "head.json", "--account", "prefs", "--ledger", URL)
    first = select(run, *command)
    assert first["spent"]["epsilon"] > 0
    again = select(run, *command)
    assert (again["spent"]["epsilon"], again["results"]) == (0, first["results"])
    code, _, _ = run("reward", "fit", "prefs.jsonl", "--features", SMALL, "--lambda", 11, "--workers", 1, "--out", "head.json")
    assert code == 0
    assert select(run, *command)["spent"]["epsilon"] > 0  # another head is another release
    assert ledger.account("prefs").settled_queries == 2 * PROMPTS
    ledger.close()


def test_a_budget_that_is_exhausted_touches_no_score(run: Run, heads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    Ledger(URL).create_account("small", Fsrc(1e-6, 1e-2, 1e-8), dataset="prefs")
    asked = []
    monkeypatch.setattr(HeadReward, "score", lambda *_: asked.append(1))
    code, out, error = run("select", texts(), *PRIVBON, "--head", "head.json", "--account", "small", "--ledger", URL, "--json")
    assert (code, error.count("\n")) == (3, 1)
    assert json.loads(out)["answered"] == 0
    assert not asked


WORKER = (
    "import sys, time\n"
    "from privalign.aligner import charged\nfrom privalign.cli import main\n"
    "from privalign.rewards.head import HeadReward\n"
    "charged.LEASE = 1.0\n"
    "inner = HeadReward.score\n"
    "def slow(self, prompt, answers):\n"
    "    time.sleep(0.03)\n"
    "    return inner(self, prompt, answers)\n"
    "HeadReward.score = slow\n"
    "main()\n"
)


def test_killed_in_mid_run_a_rerun_completes_and_pays_nothing_twice(run: Run, heads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charged, "LEASE", 1.0)
    ledger = Ledger(URL)
    ledger.create_account("prefs", Fsrc(1000.0, 1e-2, 1e-8))
    file = texts(prompts=24)
    command = [str(part) for part in (file, *PRIVBON, "--head", "head.json", "--account", "prefs", "--ledger", URL)]
    worker = subprocess.Popen([sys.executable, "-c", WORKER, "select", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while ledger.account("prefs").settled_queries < 5 and worker.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(worker.pid, signal.SIGKILL)
    assert worker.communicate() == (b"", b"")
    assert select(run, *command)["answered"] == 24
    kinds = [entry.kind for entry in ledger.journal("prefs")]
    assert kinds.count("settle") == 24
    assert kinds.count("expire") <= 1
    assert select(run, *command)["spent"]["epsilon"] == 0
    ledger.close()


# What a run says of other runs


def test_without_an_account_a_run_says_that_runs_add_up(run: Run, heads: None) -> None:
    file = texts(proxy_reward=0.5)
    assert "this run repeated included" in select(run, file, *PRIVBON, "--range", "0,1")["spent_is"]
    assert "spent_is" not in select(run, file, "--mechanism", "base", "--range", "0,1")  # nothing to add
    assert "spent_is" not in select(run, file, *BEST, "--range", "0,1")  # no guarantee to add up
    code, out, _ = run("select", file, *PRIVBON, "--head", "head.json")
    assert code == 0
    assert "this run repeated included" in " ".join(out.split())


@pytest.mark.parametrize("options", [("--sensitivity", 0.1), ("--sensitivity", "range")])
def test_against_an_account_its_relation_is_stated(run: Run, heads: None, options: tuple[object, ...]) -> None:
    Ledger(URL).create_account("prefs", Fsrc(1000.0, 1e-2, 1e-8), relation=Relation.FLIP, records_per_person=3)
    summary = select(run, texts(proxy_reward=0.5), *PRIVBON, "--range", "0,1", *options, "--account", "prefs", "--ledger", URL)
    assert (summary["relation"], summary["records_per_person"]) == ("flip", 3)
