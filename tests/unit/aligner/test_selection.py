"""Private selection over a file, from Python: what is read when, what is paid when, and what a rerun replays."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from privalign.accounting.rules import Basic
from privalign.aligner.charged import ChargedRun
from privalign.aligner.file_scores import RecordedScores
from privalign.aligner.selection import Run, Selector, Uncharged, select_from_file
from privalign.errors import InvalidFile, InvalidInput
from privalign.ledger import Ledger
from privalign.secret import installation_key, make_installation_key
from privalign.settings import parse

PRIVBON = {"mechanism": "privbon", "n": 3, "scale": 1.0, "range": "0,1"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "scored.jsonl"
    responses = [{"text": str(number), "proxy_reward": number / 4} for number in range(4)]
    path.write_text("".join(json.dumps({"prompt": f"p{number}", "responses": responses}) + "\n" for number in range(5)))
    return path


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "secret"))
    make_installation_key()
    with contextlib.closing(Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")) as opened:
        opened.create_account("prefs", Basic(1000.0, 1e-4, 1e-9))
        yield opened


def scores(file: Path) -> RecordedScores:
    return RecordedScores(file, "proxy_reward", None)


@contextlib.contextmanager
def uncharged(selector: Selector, file: Path) -> Iterator[Run]:
    yield Uncharged(selector, scores(file))


def test_every_prompt_gets_one_answer_in_order(file: Path) -> None:
    selector, lines = Selector.of(parse(PRIVBON), "first", None), list[dict[str, Any]]()
    outcome = select_from_file(selector, scores(file), lambda: uncharged(selector, file), lines.append)
    assert [line["prompt"] for line in lines] == [f"p{number}" for number in range(5)]
    assert all(line["text"] == str(line["index"]) for line in lines)
    assert outcome.exhausted is None
    assert (outcome.summary["answered"], outcome.summary["refused"]) == (5, 0)
    assert 5 * selector.epsilon <= outcome.summary["spent"]["epsilon"] < 5 * selector.epsilon * (1 + 1e-12)


def test_nothing_is_opened_before_the_whole_file_was_read(file: Path) -> None:
    with file.open("a") as stream:
        stream.write('{"prompt": "p", "responses": [{"text": "x", "proxy_reward": null}]}\n')
    selector = Selector.of(parse(PRIVBON), "with", None)
    with pytest.raises(InvalidFile, match="line 6"):
        select_from_file(selector, scores(file), lambda: pytest.fail("it was opened"), lambda _: None)


def test_what_goes_through_the_prompts_is_told_how_many_there_are(file: Path) -> None:
    selector, told = Selector.of(parse(PRIVBON), "first", None), list[tuple[int | None, str]]()

    def track(pools: Any, count: int | None, what: str) -> Any:
        told.append((count, what))
        return pools

    select_from_file(selector, scores(file), lambda: uncharged(selector, file), lambda _: None, track)
    assert told == [(None, "checking"), (5, "selecting")]


@pytest.mark.parametrize(
    ("given", "draw", "field"),
    [(PRIVBON, "last", "draw"), (PRIVBON | {"scale": 1e-300}, "first", "scale")],
)
def test_a_fault_names_the_setting(given: dict[str, Any], draw: str, field: str) -> None:
    with pytest.raises(InvalidInput) as fault:
        Selector.of(parse(given), draw, None)
    assert fault.value.field == field


def test_an_account_pays_once_and_a_rerun_replays(file: Path, ledger: Ledger) -> None:
    selector = Selector.of(parse(PRIVBON), "first", None)
    made: list[list[dict[str, Any]]] = []
    for again in (0, 0, 1):
        made.append([])
        run = partial(ChargedRun, ledger, "prefs", selector, scores(file), file, again)
        summary = select_from_file(selector, scores(file), run, made[-1].append).summary
        assert summary["account"] == "prefs"
        assert (summary["spent"]["epsilon"] > 0) is (len(made) != 2)
    assert made[0] == made[1]
    assert ledger.account("prefs").settled_queries == 10


def test_what_an_account_cannot_pay_is_refused_and_said(file: Path, ledger: Ledger) -> None:
    selector, lines = Selector.of(parse(PRIVBON), "first", None), list[dict[str, Any]]()
    ledger.create_account("poor", Basic(2.5 * selector.epsilon, 1e-4, 1e-9))
    outcome = select_from_file(selector, scores(file), partial(ChargedRun, ledger, "poor", selector, scores(file), file), lines.append)
    assert [line.get("refused", False) for line in lines] == [False, False, True, True, True]
    assert outcome.exhausted is not None
    assert outcome.exhausted.account == "poor"
    assert (outcome.summary["answered"], outcome.summary["refused"]) == (2, 3)


def test_keys_of_runs_are_those_of_earlier_versions(file: Path, ledger: Ledger) -> None:
    selector = Selector.of(parse(PRIVBON), "first", None)
    with ChargedRun(ledger, "prefs", selector, scores(file), file, 7) as run:
        key = run._key
    settings = {
        "mechanism": "privbon",
        **dataclasses.asdict(selector.mechanism),  # type: ignore[call-overload]
        **selector.sensitivity.stated(),
        "delta": 1e-6,
        "draw": "first",
        "reward": "proxy_reward",
        "account": "prefs",
        "again": 7,
    }
    body = json.dumps(settings, sort_keys=True, default=str).encode()  # as it was written first
    digest = hashlib.sha256(hashlib.sha256(file.read_bytes()).digest() + body).digest()
    assert key == hmac.digest(installation_key(), digest, "sha256")
