"""What holds for every command: help, usage errors in one line, one JSON document without colours, never a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import privalign
from privalign import cli
from privalign.secret import make_installation_key
from privalign.settings import MECHANISMS, TAKERS

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
    command = cli.command() if group is None else group
    yield path, command
    for name in command.list_commands(None) if hasattr(command, "commands") else ():
        yield from commands(command.get_command(None, name), (*path, name))


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
    "ledger moved",
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
    make_installation_key()


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


# What a command asks for, beyond what its parser does: the options that its errors call missing

HALF = [
    ["epsilon", "privbon"],
    ["epsilon", "privitp"],
    ["epsilon", "privitp", "--sigma-x", 1],
    ["epsilon", "privbon", "--scale", 1, "--queries", 3],
    ["epsilon", "privbon", "--scale", 1, "--total-delta", 1e-6],
    ["epsilon", "privitp", "--sigma-x", 1, "--sigma-z", 1, "--halt", 1],
    ["calibrate", "privbon"],
    ["select", "pool.jsonl", "--mechanism", "privbon"],
    ["select", "pool.jsonl", "--mechanism", "privbon", "--range", "0,1"],
    ["select", "pool.jsonl", "--mechanism", "privitp", "--range", "0,1"],
    ["evaluate", "pool.jsonl", "--mechanisms", "bon", "--n-grid", 2],
    ["evaluate", "pool.jsonl", "--mechanisms", "privbon-gaussian", "--n-grid", 2, "--range", "0,1"],
    ["evaluate", "pool.jsonl", "--mechanisms", "privitp", "--n-grid", 2, "--range", "0,1"],
    *(["study", study, "pool.jsonl"] for study in ("composition", "matched", "ablation", "win-rate", "overhead", "budget")),
    *(["study", study, "pool.jsonl", "--range", "0,1"] for study in ("composition", "ablation", "win-rate", "overhead")),
    ["study", "ablation", "pool.jsonl", "--range", "0,1", "--parameter", "beta"],
    ["study", "ablation", "pool.jsonl", "--range", "0,1", "--parameter", "n", "--sigmas", "1"],
    ["account", "create", "prefs"],
    ["account", "create", "prefs", "--epsilon", 8],
    ["account", "create", "prefs", "--epsilon", 8, "--delta", 1e-6, "--scale", 1],
    ["account", "create", "prefs", "--epsilon", 8, "--delta", 1e-6, "--mechanism", "privbon"],
    ["account", "create", "prefs", "--epsilon", 8, "--delta", 1e-6, "--mechanism", "privitp", "--sigma-x", 1],
    ["account", "create", "prefs", "--epsilon", 8, "--delta", 1e-6, "--for-model", "aligned"],
    ["account", "raise", "prefs"],
    ["account", "raise", "prefs", "--epsilon", 9],
    ["key", "create", "--share", 0.5],
    ["key", "create", "--account", "prefs"],
    ["reward", "fit", "pool.jsonl"],
    ["reward", "fit", "pool.jsonl", "--out", "head.json"],
    ["reward", "fit", "pool.jsonl", "--out", "head.json", "--lambda", 9, "--release-epsilon", 1],
    ["reward", "range", "pool.jsonl"],
    ["reward", "range", "pool.jsonl", "--public", "--config", "file.toml"],
    ["reward", "range", "pool.jsonl", "--account", "prefs"],
    ["reward", "range", "pool.jsonl", "--head", "head.json"],
    ["reward", "range", "pool.jsonl", "--head", "head.json", "--account", "prefs"],
    ["reward", "range", "pool.jsonl", "--head", "head.json", "--account", "prefs", "--out", "range.json"],
    ["simulate"],
    ["simulate", "--model", "gaussian"],
    ["simulate", "--model", "gaussian", "--prompts", 2],
    ["simulate", "--model", "gaussian", "--prompts", 2, "--candidates", 2],
    ["collect"],
    ["collect", "--recipe", "recipe.toml"],
    ["collect", "--run", "run"],
    ["collect", "--n", 2],
    ["collect", "--n", 2, "--policy", "p"],
    ["collect", "--n", 2, "--policy", "p", "--task", "gsm8k"],
    ["score"],
    ["score", "--reward", "r"],
    ["score", "--reward", "r", "--config", "file.toml"],
    ["grade"],
    ["grade", "--kind", "reward"],
    ["grade", "--kind", "reward", "--reward", "r"],
    ["grade", "--kind", "judge"],
    ["grade", "--kind", "judge", "--policy", "p"],
    ["grade", "--kind", "math"],
    ["study", "all"],
    ["study", "all", "--recipe", "r.toml"],
    ["report", "study.json"],
]


@pytest.mark.parametrize("arguments", HALF, ids=lambda arguments: " ".join(map(str, arguments)))
def test_what_is_asked_for_is_marked_as_required(arguments: list[object]) -> None:
    """Whatever option an error calls missing, the help of the command marks: by itself, or with what it depends on."""
    (path,) = [path for path in LEAVES if path == tuple(arguments[: len(path)])]
    run("simulate", "--model", "gaussian", "--prompts", 2, "--candidates", 4, "--out", "pool.jsonl")
    run("init", "file.toml", "--independent")
    error = one_line(arguments, 2)
    options = {name: parameter for parameter in LEAVES[path].params for name in parameter.opts}
    asked = [options[name] for name in re.findall(r"--[a-z0-9-]+", error.partition(": ")[2]) if name in options]
    assert any(parameter.required or "  [required" in parameter.help for parameter in asked), error


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_help_marks_what_is_required(path: tuple[str, ...]) -> None:
    out = " ".join(run(*path, "--help")[1].split())
    required = [parameter for parameter in LEAVES[path].params if parameter.required]
    assert out.count("[required]") == len(required)


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_takes_json(path: tuple[str, ...]) -> None:
    assert "--json" in {name for parameter in LEAVES[path].params for name in parameter.opts}


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_an_option_that_is_given_twice_is_refused(path: tuple[str, ...]) -> None:
    """Before anything else is looked at: the last of them would count, and nobody could see which was meant."""
    assert one_line([*path, "--json", "--json"], 2) == "privalign: --json: given twice, and only one of them could count; give it once\n"


def test_what_may_be_given_twice_is_taken() -> None:
    assert "given twice" not in one_line(["score", "--reward", "a", "--reward", "b"], 2)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [(["versionn"], ""), (["accont"], " (is it 'account'?)"), (["study", "compositon"], " (is it 'composition'?)"), (["key", "x"], "")],
)
def test_of_commands_that_do_not_exist_near_ones_are_named(arguments: list[object], meant: str) -> None:
    group = " ".join(["privalign", *map(str, arguments[:-1])])
    assert one_line(arguments, 2) == f"privalign: {arguments[-1]}: no such command{meant}; see `{group} --help`\n"


def test_help_is_asked_for_in_one_letter_too() -> None:
    for path in ((), ("study",), ("epsilon",)):
        assert run(*path, "-h") == run(*path, "--help")


def test_the_package_runs_as_a_module(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["privalign", "--version"])
    with pytest.raises(SystemExit) as exit:
        runpy.run_module("privalign", run_name="__main__")
    assert (exit.value.code, capsys.readouterr().out) == (0, f"{privalign.__version__}\n")


def test_nothing_is_done_where_stdout_is_closed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["privalign", "init", "unwritten.toml"])
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as exit:
        cli.main()
    assert (exit.value.code, capsys.readouterr().err[:24]) == (2, "privalign: stdout: is cl")
    assert not Path("unwritten.toml").exists()


def test_shells_can_complete_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_PRIVALIGN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "privalign cal")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert run()[1].split() == ["calibrate"]


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
        if parameter.param_type_name == "option" and parameter.type_descriptor.annotation in (int, float)
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


# Options of another mechanism

VALUES_OF = {"scale": 1, "epsilon": 1, "sigma-x": 1, "sigma-z": 1, "threshold": 0.5, "orders": "2"}
OWN = {"privbon": ["--scale", 1], "privbon-gaussian": ["--scale", 1], "privitp": ["--sigma-x", 1, "--sigma-z", 1]}
TAKING = {
    "epsilon": lambda mechanism: ["epsilon", mechanism, *OWN.get(mechanism, [])],
    "calibrate": lambda mechanism: ["calibrate", mechanism, "--epsilon", 1],
    "select": lambda mechanism: ["select", "pool.jsonl", "--range", "0,1", "--mechanism", mechanism, *OWN.get(mechanism, [])],
    "account create": lambda mechanism: (
        ["account", "create", "prefs", "--epsilon", 8, "--delta", 1e-6, "--mechanism", mechanism, *OWN.get(mechanism, [])]
    ),
}


@pytest.mark.parametrize("command", TAKING)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_an_option_of_another_mechanism_is_refused(command: str, mechanism: str) -> None:
    """Ignored, it would leave its user with another guarantee than the one that was asked for."""
    run("simulate", "--model", "gaussian", "--prompts", 2, "--candidates", 40, "--out", "pool.jsonl")
    if command == "calibrate" and mechanism not in OWN:
        assert "--epsilon: " in one_line([command, mechanism, "--epsilon", 1], 2)
        return
    given = {name for parameter in LEAVES[tuple(command.split())].params for name in parameter.opts}
    for name, value in VALUES_OF.items():
        takers = TAKERS[name.replace("-", "_")]
        if f"--{name}" not in given or mechanism in takers or (command == "account create" and name == "epsilon"):
            continue
        error = one_line([*TAKING[command](mechanism), f"--{name}", value], 2)
        assert error.startswith(f"privalign: --{name}: ")
        assert mechanism in error
        assert takers[0] in error
    assert not Path("privalign.db").exists()


def test_a_line_of_from_with_an_option_of_another_mechanism_is_refused() -> None:
    Path("options.jsonl").write_text('{"scale": 1}\n{"scale": 1, "sigma_x": 0.1}\n')
    assert "options.jsonl, line 2: --sigma-x: not a setting of privbon" in one_line(["epsilon", "privbon", "--from", "options.jsonl"], 2)


@pytest.mark.parametrize("options", [["--ledger", "sqlite:///other.db"], ["--again", 1]], ids=["ledger", "again"])
def test_what_only_an_account_uses_is_refused_without_one(options: list[object]) -> None:
    run("simulate", "--model", "gaussian", "--prompts", 2, "--candidates", 4, "--out", "pool.jsonl")
    select = ["select", "pool.jsonl", "--range", "0,1", "--mechanism", "privbon", "--n", 4, "--scale", 1]
    assert "--account: missing; without it nothing is charged" in one_line([*select, *options], 2)


@pytest.mark.parametrize("path", [path for path in ALL if path not in LEAVES and path], ids=" ".join)
def test_a_group_without_a_command_says_where_to_look(path: tuple[str, ...]) -> None:
    assert f"see `privalign {' '.join(path)} --help`" in one_line([*path], 2)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["score", "--from", "co", "--config", "file.toml", "--out", "sc", "--reward", "r", "--reward", "r"], "--reward"),
        (["grade", "--from", "co", "--kind", "math", "--out", "gr", "--workers", 0], "--workers"),
        (["grade", "--from", "co", "--kind", "math", "--out", "gr", "--timeout", "nan"], "--timeout"),
        (["collect", "--task", "gsm8k", "--policy", "local", "--config", "file.toml", "--out", "co", "--n", 0], "--n"),
        (["calibrate", "privbon", "--epsilon", -1], "--epsilon"),
        (["epsilon", "privbon", "--scale", -1], "--scale"),
        (["epsilon", "privitp", "--sigma-x", 0, "--sigma-z", 1], "--sigma-x"),
        (["epsilon", "privbon", "--scale", 1, "--n", 10**7], "--n"),
        (["epsilon", "privbon", "--scale", 1, "--range", "1,0"], "--range"),
        (["epsilon", "privbon", "--scale", 1, "--sensitivity", 0], "--sensitivity"),
    ],
    ids=lambda part: part if isinstance(part, str) else part[0],
)
def test_a_wrong_value_is_told_by_its_option(arguments: list[object], option: str) -> None:
    """Also where it is the library that finds it wrong, which has names of its own."""
    run("init", "file.toml", "--independent")
    assert one_line(arguments, 2).startswith(f"privalign: {option}: ")


# Terminals, pipes and names that nobody expects


def test_nobody_reads_on_is_no_bug(tmp_path: Path) -> None:
    """The reader of a pipe that goes away, as `head` does, is neither a traceback nor the exit code of a bug."""
    run("simulate", "--model", "gaussian", "--prompts", 200, "--candidates", 4, "--out", "pool.jsonl")
    select = "select pool.jsonl --mechanism privbon --n 4 --scale 1 --range 0,1"
    process = subprocess.Popen(
        [sys.executable, "-c", "from privalign.cli import main; main()", *select.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 141
    process.stderr.close()


@pytest.mark.parametrize("columns", ["0", "1", "40", "-3", "wide"])
def test_no_figure_vanishes_in_a_narrow_terminal(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run("account", "create", "prefs", "--epsilon", 8, "--delta", 1e-6)
    monkeypatch.setenv("COLUMNS", columns)
    words = run("account", "list")[1].split()
    assert {"account", "rule", "spent", "remaining", "queries", "prefs", "renyi", "1e-06"} <= set(words)
    assert words.count("8.0") == 2


NAMELESS = [
    ["simulate", "--model", "gaussian", "--prompts", 2, "--candidates", 4, "--out", "\udcff.jsonl"],
    ["account", "create", "prefs", "--epsilon", 8, "--delta", 1e-6, "--ledger", "sqlite:///\udcff.db"],
    ["account", "create", "\udcff", "--epsilon", 8, "--delta", 1e-6],
    ["select", "\udcff.jsonl", "--mechanism", "bon", "--range", "0,1"],
    ["config", "check", "\udcff.toml"],
]


@pytest.mark.parametrize("arguments", NAMELESS, ids=range(len(NAMELESS)))
def test_a_name_that_is_no_unicode_is_one_line(arguments: list[object]) -> None:
    one_line(arguments, 2)


def test_warnings_of_libraries_are_not_shown() -> None:
    run("simulate", "--model", "gaussian", "--prompts", 2, "--candidates", 4, "--out", "pool.jsonl")
    one_line(["study", "budget", "pool.jsonl", "--range", "0,1", "--n", 4, "--simulated", 5, "--sigmas", 1e-308], 2)


@pytest.mark.parametrize(
    "arguments",
    [
        ["select", "pool.jsonl", "--mechanism", "privbon", "--n", 4, "--scale", 1, "--range", "0,1", "--out"],
        ["evaluate", "pool.jsonl", "--mechanisms", "bon", "--n-grid", 2, "--range", "0,1", "--out"],
        ["simulate", "--model", "gaussian", "--prompts", 2, "--candidates", 4, "--out"],
        ["account", "export", "prefs", "--out"],
        ["reward", "fit", "pool.jsonl", "--lambda", 9, "--out", "head.json", "--diagnostics"],
    ],
    ids=lambda arguments: " ".join(map(str, arguments[:2])),
)
def test_no_output_takes_the_place_of_a_ledger(arguments: list[object]) -> None:
    run("simulate", "--model", "gaussian", "--prompts", 2, "--candidates", 4, "--out", "pool.jsonl")
    run("account", "create", "prefs", "--epsilon", 8, "--delta", 1e-6)
    before = Path("privalign.db").read_bytes()
    assert f"{arguments[-1]}: privalign.db is a database" in one_line([*arguments, "privalign.db"], 2)
    assert Path("privalign.db").read_bytes() == before


OUTPUTS = [
    ["select", "pool.jsonl", "--mechanism", "privbon", "--n", 4, "--scale", 1, "--range", "0,1", "--out"],
    ["evaluate", "pool.jsonl", "--mechanisms", "bon", "--n-grid", 2, "--range", "0,1", "--out"],
    ["study", "budget", "pool.jsonl", "--range", "0,1", "--n", 4, "--simulated", 5, "--out"],
    ["simulate", "--model", "gaussian", "--prompts", 2, "--candidates", 4, "--out"],
    ["account", "export", "prefs", "--out"],
    ["reward", "fit", "prefs.jsonl", "--lambda", 9, "--workers", 1, "--out"],
    ["report", "study.json", "--out"],
    ["demo", "--out"],
    ["init"],
]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes and terminals with names")
@pytest.mark.parametrize("device", ["pipe", "terminal"])
@pytest.mark.parametrize("arguments", OUTPUTS, ids=lambda arguments: " ".join(map(str, arguments[:2])))
def test_no_output_takes_the_place_of_a_device(arguments: list[object], device: str) -> None:
    run("simulate", "--model", "gaussian", "--prompts", 2, "--candidates", 4, "--out", "pool.jsonl")
    run("account", "create", "prefs", "--epsilon", 8, "--delta", 1e-6)
    run("evaluate", "pool.jsonl", "--mechanisms", "bon", "--n-grid", 2, "--range", "0,1", "--out", "study.json")
    Path("prefs.jsonl").write_text('{"prompt": "p", "chosen": "c", "rejected": "r"}\n')
    master, terminal = os.openpty()
    try:
        if device == "pipe":
            os.mkfifo("device.json", 0o640)
        else:
            Path("device.json").symlink_to(os.ttyname(terminal))
        before = Path("device.json").lstat(), Path("device.json").stat(), sorted(Path().iterdir())
        one_line([*arguments, "device.json"], 2)
        after = Path("device.json").lstat(), Path("device.json").stat(), sorted(Path().iterdir())
        for was, now in zip(before[:2], after[:2], strict=True):
            assert (was.st_ino, was.st_mode, was.st_uid) == (now.st_ino, now.st_mode, now.st_uid)
        assert set(after[2]) - set(before[2]) <= {Path("secret")}
    finally:
        os.close(master)
        os.close(terminal)


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
    file.write_text('{"scale": 1}\n{"mechanism": "privbon", "scale": 1}\n{"mechanism": "base", "n": 2}\n')
    error = one_line(["epsilon", "privbon", "--from", file, "--json"], 2)
    assert "options.jsonl, line 3: mechanism: 'base' where the command names privbon" in error
    file.write_text('\ufeff{"scale": 1}\n\n{"scale": 2, "n": 3}\n{"scale": 3, "range": [0, 2], "sensitivity": "range"}\n')
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
