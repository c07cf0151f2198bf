"""The command line: wiring only.

Exit codes: 0 done; 2 bad input; 3 budget exhausted or busy; 4 a back-end failed; 5 a check failed; 130 interrupted; 141 nobody
reads stdout any more; 1 a bug.
"""

from __future__ import annotations

import contextlib
import functools
import io
import signal
import sys
import warnings
from typing import Annotated, Any, NoReturn

import typer

from privalign.cli import account, demo, deployment, evaluate, key, ledger, price, report, reward, select, serve, simulate, stages, studies
from privalign.cli.declared import declare
from privalign.cli.spelling import Group
from privalign.errors import BackendFailed, BudgetExhausted, CheckFailed, PrivalignError

app = typer.Typer(
    cls=Group,
    name="privalign",
    help="Differentially private inference-time alignment.",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(price.epsilon)
app.command()(price.calibrate)
app.command()(select.select)
app.command()(demo.demo)
app.command()(simulate.simulate)
app.command()(stages.collect)
app.command()(stages.score)
app.command()(stages.grade)
app.command()(evaluate.evaluate)
app.command()(report.report)
app.command()(deployment.init)
app.command()(deployment.ask)
app.command()(serve.serve)
app.add_typer(deployment.app, name="config")
app.add_typer(studies.app, name="study")
app.add_typer(account.app, name="account")
app.add_typer(key.app, name="key")
app.add_typer(ledger.app, name="ledger")
app.add_typer(reward.app, name="reward")
declare(app)

INTERRUPTED, UNREAD = 130, 141

# the command-line parser's base exception, by way of a public name: its module is not public
ParserError: type[Exception] = typer.BadParameter.__mro__[2]


@app.callback()
def without_command(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False
) -> None:
    if version:
        from privalign import __version__

        typer.echo(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@functools.cache
def command() -> Any:
    """The tree of all commands. To build it takes longer than most commands: once for a process that runs several."""
    return typer.main.get_command(app)


def main() -> NoReturn:
    """Runs the command line and exits with the code of the contract; an error is one line on stderr."""
    if sys.stdout is None:  # closed before the start: what is paid for would be lost
        _fail("stdout: is closed, so that no answer could be shown; leave it open, or send it to /dev/null", code=2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # an answer that is paid must not be lost to a narrow encoding
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # numpy's, in settings that are refused a moment later
    with contextlib.suppress(ValueError):  # only the main thread may
        signal.signal(signal.SIGTERM, _terminated)  # unwinds, so that nothing half-written stays
    try:
        code = command()(standalone_mode=False)
    except SystemExit as stop:
        sys.exit(UNREAD if stop.code == 1 else stop.code)  # the parser's 1 is a closed pipe, as of `| head`
    except ParserError as error:
        _fail(_usage(error), code=2)
    except (typer.Abort, KeyboardInterrupt):
        _fail("interrupted", code=INTERRUPTED)
    except BudgetExhausted as error:
        _fail(str(error), code=3)
    except BackendFailed as error:
        _fail(str(error), code=4)
    except CheckFailed as error:
        _fail(*error.messages, code=5)
    except PrivalignError as error:
        _fail(str(error), code=2)
    except ArithmeticError:
        _fail("settings: too extreme for floating-point numbers; give milder ones", code=2)
    except UnicodeEncodeError:
        _fail("settings: a name or text that is not Unicode cannot be used here; rename it", code=2)
    except OSError as error:
        _fail(f"{error.filename or 'output'}: {error.strerror}; give it room and access", code=2)
    if code == INTERRUPTED:  # the parser has caught it already
        _fail("interrupted", code=INTERRUPTED)
    sys.exit(code)


def _usage(error: Any) -> str:
    """What the parser found wrong, with what the option or argument is for, where it is about one."""
    parameter: Any = getattr(error, "param", None)
    if getattr(parameter, "help", None) is None:
        where = "privalign" if error.ctx is None else error.ctx.command_path
        return f"{error.format_message().rstrip('.')}; see `{where} --help`"
    name = parameter.metavar if parameter.param_type_name == "argument" else parameter.opts[0]
    return f"{name}: {error.message.rstrip('.') or 'missing'}; give it: {parameter.help}"


def _terminated(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def _fail(*messages: str, code: int) -> NoReturn:
    for message in messages:
        typer.echo("privalign: " + " ".join(message.split()), err=True)
    sys.exit(code)
