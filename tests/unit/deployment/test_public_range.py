"""The public range of a reward model: exact quantiles of public scores, and their place in a deployment file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from privalign.deployment.public_range import mapped, public_range, store_range
from privalign.errors import InvalidFile, InvalidInput

FILE = """# kept
[rewards.armo]
kind = "tei"
base_url = "http://127.0.0.1:9"
range = [0.0, 1.0]
sensitivity = "range"
"""


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    path = tmp_path / "scored.jsonl"
    responses = [{"text": str(n), "proxy_reward": float(n)} for n in range(101)]
    path.write_text(json.dumps({"prompt": "q", "responses": responses}) + "\n")
    return path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "p.toml"
    path.write_text(FILE)
    return path


def test_a_range_holds_the_asked_share_and_comes_to_one(scores: Path) -> None:
    low, high, stored, candidates = public_range(scores, 0.9, "proxy_reward")
    assert (low, high, candidates) == (pytest.approx(5.0), pytest.approx(95.0), 101)
    assert stored == mapped(low, high)
    assert (stored.scale * low + stored.offset, stored.scale * high + stored.offset) == pytest.approx((0.0, 1.0))


def test_scores_that_are_all_the_same_have_none(scores: Path) -> None:
    scores.write_text(json.dumps({"prompt": "q", "responses": [{"text": "a", "proxy_reward": 1.0}] * 2}) + "\n")
    with pytest.raises(InvalidInput, match="range: 1,1 is empty"):
        public_range(scores, 0.9, "proxy_reward")


def test_only_the_range_of_the_table_changes_and_the_file_keeps_its_mode_and_place(config: Path, tmp_path: Path) -> None:
    os.chmod(config, 0o640)
    link = tmp_path / "link.toml"
    link.symlink_to(config)
    store_range(link, "armo", mapped(-1.0, 3.0), replace=True)
    assert link.is_symlink()
    assert config.stat().st_mode & 0o777 == 0o640
    text = config.read_text()
    assert text.startswith("# kept\n")
    assert "scale = 0.25" in text
    before = config.stat().st_ino
    store_range(config, "armo", mapped(-1.0, 3.0))  # nothing to change
    assert config.stat().st_ino == before


def test_a_file_that_it_would_break_is_left_as_it_was(config: Path) -> None:
    config.write_text(FILE.replace('kind = "tei"', 'kind = "nosuch"'))
    before = config.read_bytes()
    with pytest.raises(InvalidInput, match="is left as it was") as fault:
        store_range(config, "armo", mapped(0.0, 2.0), replace=True)
    assert fault.value.field == "config"
    assert ".tmp" not in str(fault.value)
    assert config.read_bytes() == before
    assert [path.name for path in config.parent.iterdir()] == ["p.toml"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="cannot be read"):
        store_range(tmp_path / "none.toml", "armo", mapped(0.0, 2.0))
