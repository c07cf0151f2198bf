"""The installation key: one, for its user alone, and never a second by a slip."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from privalign.errors import InvalidFile
from privalign.secret import existing_key, installation_key, make_installation_key, make_named_key, secret_path


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "keys" / "secret"
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(file))
    return file


@pytest.fixture
def default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PRIVALIGN_SECRET_FILE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "privalign" / "secret"


def test_by_default_it_is_made_on_first_use(default: Path) -> None:
    assert secret_path() == default
    with pytest.raises(InvalidFile, match="no installation key"):
        existing_key()
    make_named_key()
    assert not default.exists()
    assert installation_key() == installation_key() == existing_key()
    assert stat.S_IMODE(default.stat().st_mode) == 0o600


def test_where_the_variable_names_no_file_none_is_made(named: Path) -> None:
    """A new key would fit no certificate, end every session and answer paid requests anew."""
    for use in (installation_key, existing_key):
        with pytest.raises(InvalidFile, match="no installation key") as error:
            use()
        assert "PRIVALIGN_SECRET_FILE" in str(error.value)
        assert "\n" not in str(error.value)
    assert not named.parent.exists()
    make_named_key()
    assert installation_key() == existing_key()
    assert stat.S_IMODE(named.stat().st_mode) == 0o600


def test_makers_at_once_agree_on_one(named: Path) -> None:
    with ThreadPoolExecutor(8) as crowd:
        assert len(set(crowd.map(lambda _: make_installation_key(), range(8)))) == 1
    assert [path.name for path in named.parent.iterdir()] == ["secret"]


@pytest.mark.parametrize(("content", "problem"), [("xyz", "not hexadecimal"), ("ab" * 31, "too short"), ("", "too short")])
def test_what_is_no_key_is_refused(named: Path, content: str, problem: str) -> None:
    named.parent.mkdir()
    named.write_text(content)
    with pytest.raises(InvalidFile, match=problem):
        installation_key()
