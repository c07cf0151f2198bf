"""Reading one table: what fits, what does not, and what an error says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privalign.deployment.tables import Table, resolve_secret
from privalign.errors import InvalidFile, InvalidInput
from privalign.sensitivity import RewardRange

FILE = Path("folder/deployment.toml")


def table(**values: Any) -> Table:
    return Table(FILE, "models.aligned", values)


GOOD: list[tuple[str, Callable[[Table], Any], Any, Any]] = [
    ("text", lambda t: t.text("key"), "x", "x"),
    ("choice", lambda t: t.choice("key", ("a", "b")), "b", "b"),
    ("number", lambda t: t.number("key"), 3, 3.0),
    ("whole", lambda t: t.whole("key"), 3, 3),
    ("index", lambda t: t.index("key"), 0, 0),
    ("duration", lambda t: t.duration("key"), 2, 2),
    ("flag", lambda t: t.flag("key"), False, False),
    ("names", lambda t: t.names("key"), ["a", "b"], ("a", "b")),
    ("path", lambda t: t.path("key"), "head.json", Path("folder/head.json")),
    ("absolute path", lambda t: t.path("key"), "/etc/head.json", Path("/etc/head.json")),
    ("mapping", lambda t: t.mapping("key"), {"a": 1}, {"a": 1}),
    ("range", lambda t: t.range("key"), [-1, 1.5], RewardRange(-1.0, 1.5)),
    ("secret", lambda t: t.secret("key"), "env:NAME", "env:NAME"),
    ("secret file", lambda t: t.secret("key"), "file:secret.txt", "file:folder/secret.txt"),
    ("absolute secret file", lambda t: t.secret("key"), "file:/run/secret", "file:/run/secret"),
]


@pytest.mark.parametrize(("read", "value", "expected"), [each[1:] for each in GOOD], ids=[each[0] for each in GOOD])
def test_what_fits_is_read(read: Callable[[Table], Any], value: Any, expected: Any) -> None:
    one = table(key=value)
    assert read(one) == expected
    assert type(read(one)) is type(expected)
    one.close()


HUGE = 10**400
BAD: list[tuple[str, Callable[[Table], Any], list[Any], str]] = [
    ("text", lambda t: t.text("key"), [3, True, "", ["a"], {}], "a string"),
    ("choice", lambda t: t.choice("key", ("a", "b")), ["c", 3, ["a"], {}], "one of a, b"),
    ("number", lambda t: t.number("key"), ["3", True, float("nan"), float("inf"), HUGE, [1]], "a finite number"),
    ("whole", lambda t: t.whole("key"), [0, -1, 1.0, True, "1"], "a whole number of at least 1"),
    ("index", lambda t: t.index("key"), [-1, 1.5, False], "a whole number of at least 0"),
    ("duration", lambda t: t.duration("key"), [0, -1.0, float("nan"), HUGE, "1", True], "a number of seconds of at least 0.001"),
    ("flag", lambda t: t.flag("key"), [1, "true", None], "true or false"),
    ("names", lambda t: t.names("key"), [[], ["a", 1], "a", {}], "a list of names"),
    ("path", lambda t: t.path("key"), [3, ""], "a string"),
    ("mapping", lambda t: t.mapping("key"), [3, "x", [1]], "a table"),
    ("range", lambda t: t.range("key"), [[0], [0, 1, 2], "0,1", [True, 1], [0, HUGE], [float("nan"), 1]], "a pair of numbers"),
]


@pytest.mark.parametrize(
    ("read", "value", "kind"),
    [(read, value, kind) for _, read, values, kind in BAD for value in values],
    ids=[f"{name}-{place}" for name, _, values, _ in BAD for place in range(len(values))],
)
def test_what_does_not_fit_is_named_with_table_key_and_value(read: Callable[[Table], Any], value: Any, kind: str) -> None:
    with pytest.raises(InvalidInput) as error:
        read(table(key=value))
    text = str(error.value)
    assert text.startswith("folder/deployment.toml: [models.aligned] key: ")
    assert kind in text
    assert repr(value)[:20] in text
    assert "\n" not in text


@pytest.mark.parametrize("value", [[1.0, 0.0], [0, 0]])
def test_a_range_that_is_empty_is_named(value: list[float]) -> None:
    with pytest.raises(InvalidInput, match=r"^folder/deployment.toml: \[models.aligned\] key: "):
        table(key=value).range("key")


@pytest.mark.parametrize(("read", "kind"), [(each[1], each[3]) for each in BAD], ids=[each[0] for each in BAD])
def test_what_is_missing_is_named_with_what_to_give(read: Callable[[Table], Any], kind: str) -> None:
    with pytest.raises(InvalidInput) as error:
        read(table())
    assert str(error.value).startswith(f"folder/deployment.toml: [models.aligned] key: missing; give {kind}")


def test_defaults_are_taken_where_the_key_is_absent() -> None:
    one = table()
    assert one.text("a", None) is None
    assert one.number("b", 1.5) == 1.5
    assert one.number("b", None) is None
    assert one.whole("c", 2) == 2
    assert one.flag("d", True) is True
    assert one.path("e", None) is None
    assert one.mapping("f", {}) == {}
    assert one.secret("g") is None
    assert one.is_word("h", "range")
    one.close()


def test_a_mistyped_key_is_refused_with_those_that_are_known() -> None:
    one = table(polcy="local", reward="armo")
    one.text("reward")
    one.text("policy", "x")
    with pytest.raises(InvalidInput, match=r"\[models.aligned\] polcy: no such key here \(is it 'policy'\?\); known are policy, reward$"):
        one.close()


def test_with_a_list_of_faults_reading_goes_on() -> None:
    faults: list[InvalidInput] = []
    one = Table(FILE, "models.aligned", {"n": "x", "key": "sk-12345", "sure": "yes", "pad": -1.0, "nn": 1, "needed": 3}, faults)
    assert one.whole("n", 16) == 16
    assert one.secret("key") is None
    one.confirm("sure", "it is")
    assert one.duration("pad", None) is None
    one.close()
    with pytest.raises(InvalidInput, match="needed: 3 is not a string"):
        one.text("needed")  # what follows depends on it
    assert [fault.field.rpartition(" ")[2] for fault in faults] == ["n", "key", "sure", "pad", "needed", "nn"]
    assert "sk-12345" not in " ".join(map(str, faults))


def test_inner_tables_are_closed_and_named_too() -> None:
    inner = table(shards={"by": "pair", "bye": 1}).table("shards")
    assert inner.choice("by", ("pair",)) == "pair"
    with pytest.raises(InvalidInput, match=r"\[models.aligned.shards\] bye: no such key"):
        inner.close()


@pytest.mark.parametrize("value", ["sk-1234567890", "env:", "file:", "ENV:NAME", 1234567890, ["sk-1234567890"], {"a": "sk-1234567890"}])
def test_a_secret_itself_is_refused_and_not_repeated(value: Any) -> None:
    with pytest.raises(InvalidInput) as error:
        table(api_key=value).secret("api_key")
    text = str(error.value)
    assert "[models.aligned] api_key" in text
    assert "env:NAME or file:PATH" in text
    assert "1234567890" not in text


def test_secrets_are_resolved_late(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert resolve_secret(None) is None
    monkeypatch.setenv("PRIVALIGN_TEST_SECRET", "s3cret")
    assert resolve_secret("env:PRIVALIGN_TEST_SECRET") == "s3cret"
    (tmp_path / "secret").write_text("s3cret\n")
    assert resolve_secret(f"file:{tmp_path / 'secret'}") == "s3cret"


def test_a_secret_that_is_not_there_is_named_by_its_reference(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PRIVALIGN_TEST_SECRET", raising=False)
    with pytest.raises(InvalidInput, match=r"^env:PRIVALIGN_TEST_SECRET: .*is not set"):
        resolve_secret("env:PRIVALIGN_TEST_SECRET")
    monkeypatch.setenv("PRIVALIGN_TEST_SECRET", "")
    with pytest.raises(InvalidInput, match="is not set"):
        resolve_secret("env:PRIVALIGN_TEST_SECRET")
    for path in (tmp_path / "nosuch", tmp_path):
        with pytest.raises(InvalidInput, match="cannot be read"):
            resolve_secret(f"file:{path}")
    (tmp_path / "bytes").write_bytes(b"\xff\xfes3cret")
    with pytest.raises(InvalidInput) as error:
        resolve_secret(f"file:{tmp_path / 'bytes'}")
    assert "s3cret" not in str(error.value)


def test_what_is_built_later_is_named_by_its_table() -> None:
    def make() -> int:
        raise InvalidInput("base_url", "is not a URL")

    with pytest.raises(InvalidInput, match=r"^folder/deployment.toml: \[models.aligned\]: base_url: is not a URL$"):
        table().located(make)()

    def read() -> int:
        raise InvalidFile("head.json", None, "cannot be read")

    with pytest.raises(InvalidFile, match=r"^head.json: cannot be read"):
        table().located(read)()
    assert table().located(lambda: 3)() == 3
