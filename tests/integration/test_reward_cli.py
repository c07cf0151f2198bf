"""`privalign reward` end to end: fit, show, range, releases against an account, and what is refused without a trace."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from privalign.preferences.pairs import PreferencePair, write_pairs
from privalign.rewards.head import HeadReward

COMMAND = [sys.executable, "-c", "from privalign.cli import main; main()"]
SMALL = '{"kind": "hashed-ngrams", "bits": 8}'
Run = Callable[..., tuple[int, str, str]]


def preferences(count: int, people: int | None = None, seed: int = 0) -> list[PreferencePair]:
    """Whoever says "good" more often is preferred."""
    chance = np.random.default_rng(seed)
    pairs = []
    for number in range(count):
        texts = sorted(
            (" ".join(chance.choice(["good", "bad", "plain", "long", "short"], 8)) + f" {side}" for side in "ab"),
            key=lambda text: text.count("good"),
        )
        annotator = None if people is None else f"person {number % people}"
        pairs.append(PreferencePair(f"prompt {number}", texts[1], texts[0], annotator))
    return pairs


@pytest.fixture
def prefs(tmp_path: Path) -> Path:
    write_pairs(tmp_path / "prefs.jsonl.gz", preferences(300))
    return tmp_path / "prefs.jsonl.gz"


def fit(run: Run, prefs: Path, *options: object, out: str = "head.json") -> Any:
    code, printed, error = run("reward", "fit", prefs, "--features", SMALL, "--out", out, "--workers", 1, "--json", *options)
    assert (code, error) == (0, "")
    return json.loads(printed)


def refused(run: Run, *arguments: object, says: str, code: int = 2) -> None:
    """Refused with one line, and nothing new is written."""
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    got, out, error = run(*arguments)
    after = {
        path: path.read_bytes() for path in Path().rglob("*") if path.is_file() and "secret" not in path.name and ".db" not in path.name
    }
    assert (got, out, error.count("\n")) == (code, "", 1), error
    assert says in error
    assert set(after) <= set(before)


def test_fit_prints_the_certificate_that_it_writes_and_show_explains_it(run: Run, prefs: Path) -> None:
    printed = fit(run, prefs, "--lambda", 10)
    assert printed == json.loads(Path("head.json").read_text())
    assert (printed["relation"], printed["records_per_person"], printed["output"], printed["range"]) == (
        "replace",
        1,
        "sigmoid",
        [0.0, 1.0],
    )
    assert 0.1 < printed["sensitivity"] < 0.1001  # R/4 · (4 + 2τ)/Λ
    code, shown, error = run("reward", "show", "head.json", "--json")
    assert (code, error) == (0, "")
    document = json.loads(shown)
    words = " ".join(document.pop("explanation"))
    assert document == printed
    assert repr(printed["sensitivity"]) in words
    assert "exchanging one person's record for another of the same person moves no score by more than" in words
    assert "exchanging a record for one of another person changes the records of two" in words
    reward = HeadReward.load(Path("head.json"))
    scores = reward.score("any", ["good good good", "bad bad bad"])
    assert scores[0] > scores[1]


def test_nothing_printed_depends_on_the_preferences(run: Run, prefs: Path, tmp_path: Path) -> None:
    write_pairs(tmp_path / "other.jsonl.gz", preferences(40, seed=5))
    documents = [fit(run, file, "--lambda", 10, "--dataset", "prefs") for file in (prefs, tmp_path / "other.jsonl.gz")]
    for document in documents:
        del document["mac"]
    assert documents[0] == documents[1]
    for file in (prefs, tmp_path / "other.jsonl.gz"):
        command = ("reward", "fit", file, "--features", SMALL, "--lambda", 10, "--out", "head.json", "--workers", 1, "--dataset", "prefs")
        code, out, error = run(*command)
        assert (code, error) == (0, "")
        before, _, after = out.partition("mac ")  # an HMAC under the installation's key tells nothing to who has not the key
        documents.append([before, after[after.index("Scores lie") :]])
    assert documents[2] == documents[3]


def test_the_certificate_names_the_data_set(run: Run, prefs: Path, tmp_path: Path) -> None:
    assert fit(run, prefs, "--lambda", 10)["dataset"] == "prefs"  # of the file's name
    assert fit(run, prefs, "--lambda", 10, "--dataset", "survey-2026")["dataset"] == "survey-2026"
    assert "The data set is survey-2026: other accounts refuse it." in run("reward", "show", "head.json")[1].replace("\n", " ")
    odd = prefs.rename(tmp_path / "our prefs.jsonl.gz")
    common = ("reward", "fit", odd, "--features", SMALL, "--lambda", 10, "--out", "other.json")
    refused(run, *common, says="--dataset: 'our prefs' cannot be a name")
    refused(run, *common, "--dataset", "two words", says="--dataset: 'two words' cannot be a name")


def test_a_release_is_of_the_data_set_of_its_account(run: Run, prefs: Path) -> None:
    budget = ("--epsilon", 3, "--delta", 1e-5, "--rule", "basic", "--delta-per-query", 1e-6)
    assert run("account", "create", "paying", *budget, "--dataset", "survey-2026")[0] == 0
    release = (*RELEASE[:-1], "paying")
    common = ("reward", "fit", prefs, "--features", SMALL, "--workers", 1, "--out", "head.json", *release)
    refused(run, *common, "--dataset", "prefs", says="--dataset: prefs is not the data set of account paying: survey-2026")
    assert fit(run, prefs, *release)["dataset"] == "survey-2026"
    assert fit(run, prefs, *release, "--dataset", "survey-2026")["dataset"] == "survey-2026"  # the same release again
    assert json.loads(run("account", "show", "paying", "--json")[1])["queries"]["settled"] == 1


def test_diagnostics_go_to_a_file_of_the_operator_only(run: Run, prefs: Path) -> None:
    printed = fit(run, prefs, "--lambda", 10, "--diagnostics", "facts.json")
    facts = json.loads(Path("facts.json").read_text())
    assert next(iter(facts)) == "notice"
    assert facts["notice"].startswith("not private")
    assert facts["records_read"] == facts["records_kept"] == 300
    assert Path("facts.json").stat().st_mode & 0o777 == 0o600
    assert "accuracy" not in json.dumps(printed)


def test_diagnostics_go_through_a_device_and_leave_it_as_it_is(run: Run, prefs: Path) -> None:
    master, slave = os.openpty()
    os.mkfifo("pipe", 0o640)
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    for device, end in ((Path(os.ttyname(slave)), master), (Path("pipe"), reader)):
        before = device.stat()
        fit(run, prefs, "--lambda", 10, "--diagnostics", device)
        assert json.loads(os.read(end, 4096))["notice"].startswith("not private")
        after = device.stat()
        assert (after.st_ino, after.st_mode, after.st_uid) == (before.st_ino, before.st_mode, before.st_uid)
    for number in (master, slave, reader):
        os.close(number)


def test_weights_do_not_take_the_place_of_a_device(run: Run, prefs: Path) -> None:
    os.mkfifo("head.safetensors", 0o640)
    before = Path("head.safetensors").stat()
    command = ("reward", "fit", prefs, "--features", SMALL, "--lambda", 10, "--out", "head.json")
    refused(run, *command, says="head.safetensors is there and not")
    assert Path("head.safetensors").stat() == before


def test_records_of_a_person_are_enforced_or_dropped(run: Run, tmp_path: Path) -> None:
    write_pairs(tmp_path / "p.jsonl.gz", preferences(90, people=20))
    common = ("reward", "fit", "p.jsonl.gz", "--features", SMALL, "--lambda", 10, "--out", "head.json", "--workers", 1)
    refused(run, *common, says="--records-per-person: somebody has more than 1")
    refused(run, *common, "--records-per-person", 4, says="somebody has more than 4")
    assert fit(run, tmp_path / "p.jsonl.gz", "--lambda", 10, "--records-per-person", 5)["records_per_person"] == 5
    clipped = fit(run, tmp_path / "p.jsonl.gz", "--lambda", 10, "--clip-records", 2, "--diagnostics", "facts.json")
    assert clipped["records_per_person"] == 2
    assert json.loads(Path("facts.json").read_text())["records_kept"] == 40


def test_the_order_of_lines_and_the_number_of_workers_do_not_matter(run: Run, tmp_path: Path) -> None:
    pairs = preferences(90, people=20)
    write_pairs(tmp_path / "p.jsonl.gz", pairs)
    write_pairs(tmp_path / "q.jsonl.gz", pairs[::-1])
    fit(run, tmp_path / "p.jsonl.gz", "--lambda", 10, "--clip-records", 2, "--tolerance", 1e-8)
    fit(run, tmp_path / "q.jsonl.gz", "--lambda", 10, "--clip-records", 2, "--tolerance", 1e-8, "--workers", 2, out="other.json")
    one, other = (load(Path(name).read_bytes())["weights"] for name in ("head.safetensors", "other.safetensors"))
    assert np.linalg.norm(one - other) <= 2e-9


def test_lambda_is_chosen_on_public_preferences_only(run: Run, prefs: Path, tmp_path: Path) -> None:
    write_pairs(tmp_path / "public.jsonl.gz", preferences(200, seed=9))
    printed = fit(run, prefs, "--public", "public.jsonl.gz")
    assert printed["public"]["regularisation"] == printed["regularisation"]
    assert printed["public"]["accuracy"] > 0.6
    assert printed["public"]["private_accuracy"] > 0.5
    common = ("reward", "fit", prefs, "--features", SMALL, "--out", "new.json")
    (tmp_path / "copy.jsonl.gz").write_bytes(prefs.read_bytes())
    (tmp_path / "copy.jsonl").write_bytes(gzip.decompress(prefs.read_bytes()))
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress((tmp_path / "copy.jsonl").read_bytes(), compresslevel=1, mtime=1))
    turned = [PreferencePair(pair.prompt, pair.rejected, pair.chosen, "ann") for pair in preferences(300)[-1:]]
    write_pairs(tmp_path / "overlap.jsonl.gz", [*preferences(200, seed=9), *turned])
    for name in ("copy.jsonl.gz", "copy.jsonl", "packed.jsonl.gz", "overlap.jsonl.gz"):
        refused(run, *common, "--public", name, says=f"--public: {name} holds pairs of the private preferences")
    refused(run, *common, says="--lambda: give either it, or --public")
    refused(run, *common, "--lambda", 3, "--ledger", "sqlite:///other.db", says="--account: missing; without it nothing is charged")
    refused(run, *common, "--lambda", 3, "--public", "public.jsonl.gz", says="--lambda: give either")


@pytest.mark.parametrize("by", ["pair", "person"])
def test_an_ensemble_of_disjoint_shards(run: Run, tmp_path: Path, by: str) -> None:
    write_pairs(tmp_path / "p.jsonl.gz", preferences(300, people=300))
    one = fit(run, tmp_path / "p.jsonl.gz", "--lambda", 10)
    printed = fit(run, tmp_path / "p.jsonl.gz", "--lambda", 10, "--shards", 5, "--shard-by", by)
    assert (printed["kind"], printed["shards"]) == ("ensemble", 5)
    assert one["sensitivity"] / 5 < printed["sensitivity"] < one["sensitivity"] / 5 * 1.003
    reward = HeadReward.load(Path("head.json"))
    scores = reward.score("any", ["good good good", "bad bad bad"])
    assert scores[0] > scores[1]
    code, shown, _ = run("reward", "show", "head.json")
    assert code == 0
    assert "mean of 5" in shown


def test_a_release_is_paid_once_before_anything_is_written(run: Run, prefs: Path) -> None:
    assert run("account", "create", "prefs", "--epsilon", 3, "--delta", 1e-5, "--rule", "basic", "--delta-per-query", 1e-6)[0] == 0
    release = ("--lambda", 10, "--release-epsilon", 1, "--release-delta", 1e-6, "--account", "prefs")
    printed = fit(run, prefs, *release)
    assert printed["released"]["account"] == "prefs"
    assert printed["sensitivity"] == 1.0  # of the range: for whoever does not know that the scores are public
    reward = HeadReward.load(Path("head.json"))
    assert reward.sensitivity.public
    noise = load(Path("head.safetensors").read_bytes())["weights"]
    assert 0.5 < noise.std() / printed["released"]["scale"] < 2
    account = json.loads(run("account", "show", "prefs", "--json")[1])
    assert account["queries"]["settled"] == 1
    assert 1 - 1e-6 <= account["spent"]["epsilon"] <= 1
    assert account["spent"]["delta"] == pytest.approx(1e-6)
    again = fit(run, prefs, *release, out="second.json")  # another release is another debit and other noise
    assert again["released"] == printed["released"]
    assert (load(Path("second.safetensors").read_bytes())["weights"] != noise).any()
    fit(run, prefs, *release, out="third.json")
    common = ("reward", "fit", prefs, "--features", SMALL, "--workers", 1, "--out", "fourth.json")
    refused(run, *common, *release, says="budget exhausted", code=3)
    refused(run, *common, *release[:-2], says="--release-epsilon: it, --release-delta and --account")
    refused(run, *common, *release, "--shards", 3, says="--shards: a released head is one head")
    refused(run, *common, *release, "--relation", "flip", says="--account: prefs protects 1 records a person under replace")
    refused(run, *common, *release[:3], 0, *release[4:], says="--release-epsilon: 0.0 is not")
    words = run("reward", "show", "head.json")[1]
    assert "every query is free" in " ".join(words.split())


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ("folder.json", "--out: folder.json is there and not a file"),
        ("half.json", "--out: half.safetensors is there and not a file"),
        ("nowhere/head.json", "--out: nowhere is not a folder"),
        ("/proc/head.json", "--out: /proc cannot be written to"),
        ("h" * 250 + ".json", "--out: . cannot be written to (File name too long)"),
    ],
)
def test_what_cannot_be_written_is_not_paid(run: Run, prefs: Path, out: str, says: str) -> None:
    Path("folder.json").mkdir()
    Path("half.safetensors").mkdir()
    assert run("account", "create", "prefs", "--epsilon", 3, "--delta", 1e-5, "--rule", "basic", "--delta-per-query", 1e-6)[0] == 0
    release = ("--lambda", 10, "--release-epsilon", 1, "--release-delta", 1e-6, "--account", "prefs")
    refused(run, "reward", "fit", prefs, "--features", SMALL, "--workers", 1, "--out", out, *release, says=says)
    assert json.loads(run("account", "show", "prefs", "--json")[1])["spent"]["epsilon"] == 0


def test_a_place_that_goes_away_during_the_fit_is_not_paid(run: Run, prefs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from privalign.preferences import bradley_terry

    assert run("account", "create", "prefs", "--epsilon", 3, "--delta", 1e-5, "--rule", "basic", "--delta-per-query", 1e-6)[0] == 0
    minimisers = bradley_terry.minimisers

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        Path("head.json").mkdir()
        return minimisers(*arguments, **options)

    monkeypatch.setattr(bradley_terry, "minimisers", meanwhile)
    release = ("--lambda", 10, "--release-epsilon", 1, "--release-delta", 1e-6, "--account", "prefs")
    refused(
        run, "reward", "fit", prefs, "--features", SMALL, "--workers", 1, "--out", "head.json", *release, says="--out: head.json is there"
    )
    assert json.loads(run("account", "show", "prefs", "--json")[1])["spent"]["epsilon"] == 0


RELEASE = ("--lambda", 10, "--release-epsilon", 1, "--release-delta", 1e-6, "--account", "prefs")
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
        ("privalign.preferences.bradley_terry Head save after", 1),  # written, the draw still there
    ],
)
def test_killed_anywhere_a_release_is_paid_once_and_never_lost(run: Run, prefs: Path, tmp_path: Path, place: str, left: int) -> None:
    assert run("account", "create", "prefs", "--epsilon", 1.5, "--delta", 1e-5, "--rule", "basic", "--delta-per-query", 1e-6)[0] == 0
    command = ["reward", "fit", prefs, "--features", SMALL, "--out", "head.json", "--workers", 1, *RELEASE]
    killed = subprocess.run([sys.executable, "-c", KILLED, place, *map(str, command)], capture_output=True, check=False)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, b""), killed.stderr
    drafts = list(tmp_path.glob(".*.draft"))
    assert len(drafts) == left
    assert [draft.stat().st_mode & 0o777 for draft in drafts] == [0o600] * left
    drawn = drafts[0].read_bytes() if drafts else None
    fit(run, prefs, *RELEASE)  # a second payment would not fit
    written = Path("head.safetensors").read_bytes()
    assert drawn in (None, written)
    HeadReward.load(Path("head.json"))
    assert not list(tmp_path.glob(".*draft*"))
    account = json.loads(run("account", "show", "prefs", "--json")[1])
    assert account["queries"]["settled"] + account["queries"]["open"] == 1
    assert account["spent"]["epsilon"] <= 1
    assert run("account", "verify", "prefs")[0] == 0


def test_a_release_run_again_is_free_and_the_same(run: Run, prefs: Path, tmp_path: Path) -> None:
    assert run("account", "create", "prefs", "--epsilon", 1.5, "--delta", 1e-5, "--rule", "basic", "--delta-per-query", 1e-6)[0] == 0
    first = fit(run, prefs, *RELEASE)
    written = Path("head.safetensors").read_bytes()
    assert fit(run, prefs, *RELEASE) == first
    assert Path("head.safetensors").read_bytes() == written
    common = ("reward", "fit", prefs, "--features", SMALL, "--workers", 1)
    for other in (("--out", "second.json"), ("--out", "head.json", "--norm", 2), ("--out", "head.json", "--clip-records", 1)):
        people = tmp_path / "people.jsonl.gz"
        write_pairs(people, preferences(300, people=300))
        source = people if "--clip-records" in other else prefs
        refused(run, "reward", "fit", source, *common[3:], *other, *RELEASE, says="budget exhausted", code=3)
        assert Path("head.safetensors").read_bytes() == written
    Path("head.safetensors").write_bytes(b"something else")
    refused(run, *common, "--out", "head.json", *RELEASE, says="--out: head.json was paid and written before")
    account = json.loads(run("account", "show", "prefs", "--json")[1])
    assert account["queries"]["settled"] == 1


def test_a_damaged_draw_is_not_paid(run: Run, prefs: Path, tmp_path: Path) -> None:
    assert run("account", "create", "prefs", "--epsilon", 1.5, "--delta", 1e-5, "--rule", "basic", "--delta-per-query", 1e-6)[0] == 0
    command = ["reward", "fit", prefs, "--features", SMALL, "--out", "head.json", "--workers", 1, *RELEASE]
    place = "privalign.aligner.payment - _keep after"
    subprocess.run([sys.executable, "-c", KILLED, place, *map(str, command)], capture_output=True, check=False)
    (draft,) = tmp_path.glob(".*.draft")
    draft.write_bytes(draft.read_bytes()[:-8])
    refused(run, *command, says="the kept draw is damaged")
    assert json.loads(run("account", "show", "prefs", "--json")[1])["spent"]["epsilon"] == 0


def test_a_second_draw_is_never_written_even_when_the_ledger_forgot_the_answer(
    run: Run, prefs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privalign.ledger import Ledger

    assert run("account", "create", "prefs", "--epsilon", 9, "--delta", 1e-5, "--rule", "basic", "--delta-per-query", 1e-6)[0] == 0
    fit(run, prefs, *RELEASE)
    written = Path("head.safetensors").read_bytes()
    monkeypatch.setattr(Ledger.__init__, "__kwdefaults__", Ledger.__init__.__kwdefaults__ | {"retain": 1e-6})
    fit(run, prefs, *RELEASE)
    assert Path("head.safetensors").read_bytes() == written
    Path("head.safetensors").unlink()
    common = ("reward", "fit", prefs, "--features", SMALL, "--workers", 1, "--out", "head.json")
    refused(run, *common, *RELEASE, says="is no longer there")
    assert json.loads(run("account", "show", "prefs", "--json")[1])["queries"]["settled"] == 1


def test_noise_that_no_float_holds_is_refused_before_the_fit(run: Run, prefs: Path) -> None:
    assert run("account", "create", "prefs", "--epsilon", 3, "--delta", 1e-5, "--rule", "basic", "--delta-per-query", 1e-6)[0] == 0
    common = ("reward", "fit", "none.jsonl", "--features", SMALL, "--workers", 1, "--out", "head.json")
    refused(run, *common, "--lambda", 1e304, *RELEASE[2:], says="too small for a grid")


def test_missing_safetensors_is_told_before_the_fit(run: Run, prefs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    code, out, error = run("reward", "fit", "none.jsonl", "--lambda", 10, "--out", "head.json")
    assert (code, out, "safetensors is not installed" in error) == (2, "", True), error


LINE = json.dumps({"prompt": "p", "chosen": "c", "rejected": "r"})
TRUNCATED = gzip.compress((LINE + "\n").encode() * 1000)[:-20]


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        (b"", (), "no preference pair"),
        (LINE.replace('"r"', '"c"').encode(), (), "line 1: 'chosen' and 'rejected' are the same"),
        (b"\xff\xfe" + LINE.encode(), (), "not UTF-8"),
        (LINE.encode(), ("--records-per-person", 2), "annotator: missing in record 1"),
        (LINE.encode(), ("--clip-records", 2), "annotator: missing in record 1"),
        (LINE.encode(), ("--shards", 2, "--shard-by", "person"), "annotator: missing"),
        (LINE.encode(), ("--lambda", 0), "--lambda: 0.0 is not a finite number above 0"),
        (LINE.encode(), ("--lambda", "nan"), "--lambda: nan"),
        (LINE.encode(), ("--norm", -1), "--norm: -1.0"),
        (LINE.encode(), ("--tolerance", 1e-30), "--tolerance: the solve does not reach"),
        (LINE.encode(), ("--relation", "swap"), "--relation: 'swap' is not one of"),
        (LINE.encode(), ("--shard-by", "day"), "--shard-by: 'day' is not one of"),
        (LINE.encode(), ("--output", "tanh"), "--output: 'tanh' is not one of"),
        (LINE.encode(), ("--range", "3,1"), "range: 3,1 is empty"),
        (LINE.encode(), ("--features", "{"), "--features: neither a kind"),
        (LINE.encode(), ("--features", "learned"), "features"),
        (LINE.encode(), ("--features", '{"kind": "hashed-ngrams", "words": 3}'), "no setting 'words'"),
        (LINE.encode(), ("--features", '{"kind": "hashed-ngrams", "length": NaN}'), "length nan is not"),
        (LINE.encode(), ("--out", "nowhere/head.json"), "--out: nowhere is not a folder"),
        (LINE.encode(), ("--out", "head.bin"), "--out: head.bin does not end in .json"),
        (LINE.encode(), ("--diagnostics", "nowhere/facts.json"), "--diagnostics: nowhere is not a folder"),
        (LINE.encode(), ("--diagnostics", "prefs.jsonl"), "--diagnostics: prefs.jsonl is a file to read"),
        (LINE.encode(), ("--diagnostics", "head.json"), "--diagnostics: head.json is where --out puts the head"),
        (LINE.encode(), ("--diagnostics", "./head.safetensors"), "--diagnostics: head.safetensors is where --out puts the head"),
        (LINE.encode(), ("--diagnostics", "."), "--diagnostics: . is a folder"),
        (f'{LINE}\n{LINE[:-1]}, "annotator": 1}}'.encode(), (), "annotator: missing before record 2"),
        (f'{LINE[:-1]}, "annotator": 1}}\n{LINE}'.encode(), (), "annotator: missing in record 2"),
        (
            f'{LINE[:-1]}, "annotator": "Ann"}}\n{LINE[:-1]}, "annotator": "ann "}}'.encode(),
            ("--clip-records", 2),
            "line 2: annotator 'ann ' is one person with 'Ann' of line 1; spell each name in one way",
        ),
        (LINE.encode(), ("--account", "a"), "--release-epsilon: it, --release-delta and --account"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(run: Run, content: bytes, options: Sequence[object], says: str) -> None:
    Path("prefs.jsonl").write_bytes(content)
    arguments = {"--features": SMALL, "--lambda": 1, "--out": "head.json", "--workers": 1} | dict(
        zip(options[::2], options[1::2], strict=True)
    )
    refused(run, "reward", "fit", "prefs.jsonl", *(part for pair in arguments.items() for part in pair), says=says)


def test_a_bad_line_is_found_with_several_workers_too(run: Run) -> None:
    Path("prefs.jsonl").write_text((LINE + "\n") * 5000 + "{")
    refused(run, "reward", "fit", "prefs.jsonl", "--lambda", 1, "--features", SMALL, "--out", "head.json", says="line 5001: not JSON")


def test_tampered_weights_and_certificates_are_refused(run: Run, prefs: Path) -> None:
    fit(run, prefs, "--lambda", 10)
    weights = load(Path("head.safetensors").read_bytes())["weights"]
    original = Path("head.safetensors").read_bytes()
    Path("head.safetensors").write_bytes(save({"weights": weights + 1}))
    refused(run, "reward", "show", "head.json", says="signature")
    Path("head.safetensors").write_bytes(original)
    document = json.loads(Path("head.json").read_text())
    Path("head.json").write_text(json.dumps(document | {"sensitivity": 1e-9}))
    refused(run, "reward", "show", "head.json", says="signature")


def size_of_group(leader: int) -> int:
    """The processes of a process group."""
    count = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it may have ended meanwhile
            count += int(file.read_text().rpartition(")")[2].split()[2]) == leader
    return count


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("send", [os.kill, os.killpg])  # a terminal's Ctrl-C goes to the workers as well
def test_an_interrupted_run_leaves_nothing_and_starts_again(run: Run, tmp_path: Path, send: Callable[[int, int], None]) -> None:
    write_pairs(tmp_path / "p.jsonl.gz", preferences(30_000))
    command = [*COMMAND, "reward", "fit", "p.jsonl.gz", "--lambda", "10", "--out", "head.json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 30
    while size_of_group(process.pid) < 5 and time.monotonic() < deadline:  # two workers, and what starts and watches them
        time.sleep(0.01)
    time.sleep(0.3)
    send(process.pid, signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert (out, error) == ("", "privalign: interrupted\n")
    assert not list(tmp_path.glob("*head*"))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert fit(run, tmp_path / "p.jsonl.gz", "--lambda", 10)["kind"] == "head"
