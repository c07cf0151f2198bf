"""What holds for every command: help, usage errors in one line, one JSON document without colours, never a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import privalign
from privalign import cli

ESCAPE = "\x1b"


def run(*arguments: object) -> tuple[int, str, str]:
    """Runs the command line in this process. Anything but an exit is a traceback for the user."""
    out, error = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        patch.setattr(sys, "argv", ["privalign", *map(str, arguments)])
        try:
            cli.main()
        except SystemExit as exit:
            return int(exit.code or 0), out.getvalue(), error.getvalue()
    raise AssertionError("the command line did not exit")


def one_line(arguments: list[object], *codes: int) -> str:
    """The error of a command that must fail with one of the codes: one line on stderr, nothing on stdout."""
    code, out, error = run(*arguments)
    assert code in codes
    assert out == ""
    assert error.count("\n") == 1
    assert error.startswith("privalign: ")
    assert "Traceback" not in error
    return error


def one_document(out: str) -> Any:
    """The one JSON document on stdout."""
    assert out.endswith("\n")
    assert out.count("\n") == 1
    assert ESCAPE not in out

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(out, parse_constant=refuse)


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its path, groups included."""
    command = typer.main.get_command(cli.app) if group is None else group
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


ALL = dict(commands())
LEAVES = {path: command for path, command in ALL.items() if not hasattr(command, "commands")}
CONTRACT = {
    "demo",
    "ask",
    "select",
    "account create",
    "account list",
    "account show",
    "account journal",
    "account verify",
    "account raise",
    "account export",
    "key create",
    "key list",
    "key revoke",
    "epsilon",
    "calibrate",
    "reward fit",
    "reward show",
    "reward range",
    "init",
    "config check",
    "serve",
    "simulate",
    "collect",
    "score",
    "grade",
    "evaluate",
    "report",
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVALIGN_SECRET_FILE", str(tmp_path / "key" / "secret"))


def test_the_commands_of_the_contract_are_there() -> None:
    assert {" ".join(path) for path in LEAVES} >= CONTRACT


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_has_help(path: tuple[str, ...]) -> None:
    code, out, error = run(*path, "--help")
    assert (code, error) == (0, "")
    assert out.startswith("Usage: ")
    assert " ".join(("privalign", *path)) in out
    assert ESCAPE not in out
    for parameter in ALL[path].params:
        if parameter.param_type_name == "option":
            assert parameter.opts[0] in out


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_takes_json(path: tuple[str, ...]) -> None:
    assert "--json" in {name for parameter in LEAVES[path].params for name in parameter.opts}


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_option_says_what_it_is(path: tuple[str, ...]) -> None:
    for parameter in LEAVES[path].params:
        assert getattr(parameter, "help", None), parameter.name


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_an_unknown_option_is_one_line(path: tuple[str, ...]) -> None:
    assert "--no-such-option" in one_line([*path, "--no-such-option"], 2)


@pytest.mark.parametrize("path", [path for path in ALL if path not in LEAVES], ids=" ".join)
def test_an_unknown_command_is_one_line(path: tuple[str, ...]) -> None:
    assert "nosuch" in one_line([*path, "nosuch"], 2)


@pytest.mark.parametrize("path", [path for path, command in LEAVES.items() if any(p.required for p in command.params)], ids=" ".join)
def test_what_is_missing_is_one_line(path: tuple[str, ...]) -> None:
    one_line([*path, "--json"], 2)


@pytest.mark.parametrize(
    ("path", "option"),
    [
        (path, parameter.opts[0])
        for path, command in LEAVES.items()
        for parameter in command.params
        if parameter.param_type_name == "option" and parameter.bare_type in (int, float)
    ],
    ids=lambda part: part if isinstance(part, str) else " ".join(part),
)
def test_an_option_that_is_no_number_is_named(path: tuple[str, ...], option: str) -> None:
    given = [f"x{place}" for place, parameter in enumerate(LEAVES[path].params) if parameter.param_type_name == "argument"]
    assert option in one_line([*path, *given, option, "many"], 2)


GOOD: list[list[object]] = [
    ["epsilon", "privbon", "--scale", 1],
    ["epsilon", "privbon-gaussian", "--scale", 1],
    ["epsilon", "base"],
    ["epsilon", "bon"],
    ["epsilon", "itp"],
    ["epsilon", "privitp", "--n", 2, "--sigma-x", 1, "--sigma-z", 1, "--threshold", 0.5, "--halt", "fallback"],
    ["epsilon", "privbon", "--scale", 1, "--queries", 10, "--total-delta", 1e-6],
    ["calibrate", "privbon", "--epsilon", 0.5],
    ["account", "create", "prefs", "--epsilon", 8, "--delta", 1e-6],
    ["account", "list"],
    ["account", "show", "prefs"],
    ["account", "journal", "prefs"],
    ["account", "verify", "prefs"],
    ["account", "raise", "prefs", "--epsilon", 9, "--reason", "r"],
    ["account", "export", "prefs"],
    ["key", "create"],
    ["key", "list"],
    ["init", "file.toml"],
    ["simulate", "--model", "gaussian", "--prompts", 3, "--candidates", 6, "--out", "pool.jsonl"],
    ["evaluate", "pool.jsonl", "--range", "0,1", "--mechanisms", "bon,privbon", "--scale", 0.1, "--n-grid", "2", "--out", "study.json"],
    ["report", "study.json", "--out", "report"],
]


def test_json_is_one_document_without_colours() -> None:
    """Also where a terminal that loves colours is promised."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS"):
            patch.setenv(name, "1")
        for arguments in GOOD:
            code, out, _ = run(*arguments, "--json")
            assert code == 0, arguments
            assert isinstance(one_document(out), dict)
        key = one_document(run("key", "list", "--json")[1])["keys"][0]["id"]
        assert one_document(run("key", "revoke", key, "--json")[1])["id"] == key


def test_without_json_there_is_something_to_read() -> None:
    for arguments in GOOD:
        code, out, error = run(*arguments)
        assert (code, error) == (0, ""), arguments
        assert len(out) > 10


def test_the_version_is_the_packages() -> None:
    assert run("--version") == (0, f"{privalign.__version__}\n", "")


def test_an_error_is_one_line_in_a_real_process_too() -> None:
    command = [sys.executable, "-c", "from privalign.cli import main; main()"]
    for arguments, code in ((["epsilon", "privbon", "--scale", "nan"], 2), (["nosuch"], 2), (["account", "show", "a"], 2)):
        outcome = subprocess.run([*command, *arguments], capture_output=True, text=True)
        assert (outcome.returncode, outcome.stdout) == (code, "")
        assert outcome.stderr.count("\n") == 1


# Values that nobody would type

ODD = [
    "",
    " ",
    "nan",
    "inf",
    "-inf",
    "-1",
    "0",
    "1e400",
    "1e-400",
    "9" * 5000,
    "0x10",
    "1_000",
    "１",
    "--",
    "\x1b[31m",
    "½",
    "a\nb",
    "\udcff",
]
NUMBERS = st.one_of(
    st.sampled_from(ODD),
    st.floats().map(repr),
    st.integers(min_value=-(2**70), max_value=2**70).map(str),
    st.text(st.characters(exclude_characters="\0"), max_size=5),
)
PAIRS = st.one_of(NUMBERS, st.tuples(NUMBERS, NUMBERS).map(",".join), st.lists(NUMBERS, max_size=4).map(",".join))
FUZZ = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def options(**values: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    """Some of the options, each with a value, as `--name=value` so that a value may begin with a dash."""
    return st.fixed_dictionaries({}, optional=dict(values)).map(
        lambda chosen: [f"--{name.replace('_', '-')}={value}" for name, value in chosen.items()]
    )


def acceptable(code: int, out: str, error: str) -> None:
    """Either a document and silence, or one line that says what is wrong."""
    if code == 0:
        assert error == ""
        one_document(out)
    else:
        assert code == 2
        assert out == ""
        assert error.count("\n") == 1
        assert error.startswith("privalign: ")
        assert ESCAPE not in error


@FUZZ
@given(
    st.sampled_from(["privbon", "privbon-gaussian", "bon", "base", "itp", "PRIVBON", ""]),
    options(
        scale=NUMBERS,
        n=NUMBERS,
        n2=NUMBERS,
        range=PAIRS,
        sensitivity=NUMBERS,
        epsilon=NUMBERS,
        delta=NUMBERS,
        beta=NUMBERS,
        threshold=NUMBERS,
        orders=PAIRS,
        halt=NUMBERS,
    ),
)
def test_epsilon_takes_any_value(mechanism: str, chosen: list[str]) -> None:
    acceptable(*run("epsilon", mechanism, *chosen, "--json"))


@FUZZ
@given(NUMBERS, options(n=NUMBERS, range=PAIRS, sensitivity=NUMBERS, delta=NUMBERS, certificate=NUMBERS))
def test_calibrate_takes_any_value(epsilon: str, chosen: list[str]) -> None:
    acceptable(*run("calibrate", "privbon", f"--epsilon={epsilon}", *chosen, "--json"))


@settings(FUZZ, max_examples=25)
@given(
    options(n=NUMBERS, n2=NUMBERS, beta=NUMBERS, sigma_z=NUMBERS, tail=NUMBERS, threshold=NUMBERS, halt=NUMBERS, orders=PAIRS),
)
def test_epsilon_of_privitp_takes_any_value(chosen: list[str]) -> None:
    small = ["--n=2", "--n2=2", "--sigma-x=1", "--sigma-z=1", "--threshold=0.5"]
    acceptable(*run("epsilon", "privitp", *small, *chosen, "--json"))


@FUZZ
@given(
    st.text(st.characters(exclude_characters="\0"), max_size=8).filter(lambda name: not name.startswith("-")),
    NUMBERS,
    NUMBERS,
    options(
        rule=st.sampled_from(["basic", "fsrc", "two-counter", "renyi", "x"]),
        order=NUMBERS,
        rho=NUMBERS,
        delta_per_query=NUMBERS,
        relation=st.sampled_from(["replace", "flip", "x", ""]),
        records_per_person=NUMBERS,
        reason=NUMBERS,
    ).map(lambda chosen: [option for option in chosen if not option.startswith("--reason")]),
)
def test_account_create_takes_any_value(name: str, epsilon: str, delta: str, chosen: list[str]) -> None:
    acceptable(*run("account", "create", name, f"--epsilon={epsilon}", f"--delta={delta}", *chosen, "--json"))


@settings(FUZZ, max_examples=60)
@given(
    options(
        role=st.sampled_from(["client", "officer", "x"]), models=PAIRS, expires=NUMBERS, account=NUMBERS, share=NUMBERS, queries=NUMBERS
    )
)
def test_key_create_takes_any_value(chosen: list[str]) -> None:
    acceptable(*run("key", "create", *chosen, "--json"))


# --from

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(10**400), max_value=10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["range", "fallback", "0,1", "nosuch.json", "1", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=4,
)


@settings(FUZZ, max_examples=150)
@given(
    st.dictionaries(
        st.sampled_from(
            ["scale", "n", "range", "sensitivity", "epsilon", "delta", "queries", "total_delta", "certificate", "mechanism", "x"]
        ),
        VALUES,
        max_size=4,
    )
)
def test_a_line_of_from_takes_any_value(tmp_path: Path, line: dict[str, Any]) -> None:
    file = tmp_path / "options.jsonl"
    file.write_text(json.dumps({"scale": 1.0, "n": 4} | line) + "\n")
    code, out, error = run("epsilon", "privbon", "--from", file, "--json")
    acceptable(code, out, error)
    if code == 2:
        assert "options.jsonl, line 1: " in error or "nosuch.json" in error or "mechanism" in error


def test_from_prints_one_document_a_line_in_order(tmp_path: Path) -> None:
    file = tmp_path / "options.jsonl"
    file.write_text('\ufeff{"scale": 1}\n\n{"scale": 2, "n": 3}\n{"mechanism": "base", "n": 2}\n')
    code, out, error = run("epsilon", "privbon", "--n", 5, "--from", file, "--json")
    assert (code, error) == (0, "") or "adds no noise" in error
    file.write_text('{"scale": 1}\n\n{"scale": 2, "n": 3}\n{"scale": 3, "range": [0, 2], "sensitivity": "range"}\n')
    code, out, error = run("epsilon", "privbon", "--n", 5, "--from", file, "--json")
    assert (code, error) == (0, "")
    documents = [json.loads(line) for line in out.splitlines()]
    assert [(each["scale"], each["n"]) for each in documents] == [(1, 5), (2, 3), (3, 5)]
    assert documents[2]["range"] == [0, 2]
    alone = one_document(run("epsilon", "privbon", "--scale", 2, "--n", 3, "--json")[1])
    assert documents[1] == alone
    file.write_text('{"epsilon": 0.5}\n{"epsilon": 1.0, "n": 3}\n')
    code, out, error = run("calibrate", "privbon", "--from", file)
    assert (code, error) == (0, "")
    assert [json.loads(line)["n"] for line in out.splitlines()] == [16, 3]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ('{"scale": -1}', "scale"),
        ('{"scale": "1"}', "--scale"),
        ('{"scale": true}', "--scale"),
        ('{"scale": 1, "nosuch": 2}', "nosuch"),
        ('{"scale": 1, "n": 1.5}', "--n"),
        ('{"scale": 1, "range": [1, 0]}', "range"),
        ('{"scale": 1, "range": [0, 1' + "0" * 400 + "]}", "--range"),
        ('{"scale": 1' + "0" * 400 + "}", "--scale"),
        ('{"scale": NaN}', "--scale"),
        ('{"scale": 1, "seed": 1}', "seed"),
        ("[1]", "JSON object"),
        ("nonsense", "JSON object"),
        ("[" * 100_000, "JSON object"),
        ('{"n": ' + "9" * 5_000 + "}", "JSON object"),
    ],
    ids=range(14),
)
@pytest.mark.parametrize("place", [1, 3])
def test_a_bad_line_of_from_is_named_and_nothing_is_printed(tmp_path: Path, line: str, names: str, place: int) -> None:
    file = tmp_path / "options.jsonl"
    lines = ['{"scale": 1}'] * 4
    lines[place - 1] = line
    file.write_text("\n".join(lines) + "\n")
    error = one_line(["epsilon", "privbon", "--from", file, "--json"], 2)
    assert f"options.jsonl, line {place}: " in error
    assert names in error
    assert len(error) < 500


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe"])
def test_a_from_file_that_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "options.jsonl").write_bytes(content)
    assert "options.jsonl" in one_line(["epsilon", "privbon", "--from", "options.jsonl"], 2)
    assert "nosuch.jsonl" in one_line(["epsilon", "privbon", "--from", "nosuch.jsonl"], 2)
