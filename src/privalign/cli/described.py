"""Options of the command line from described settings (`privalign.options`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from privalign.cli.spelling import as_option
from privalign.options import described, required


def parameters(settings: type) -> list[inspect.Parameter]:
    """An option for each setting: what has a default there need not be given, and arrives as None."""
    return [_parameter(name, settings) for name in described(settings)]


def signature_of(function: Callable[..., None]) -> list[inspect.Parameter]:
    """The options that a function declares."""
    return [_keyword(parameter) for parameter in inspect.signature(function, eval_str=True).parameters.values()]


def _parameter(name: str, settings: type) -> inspect.Parameter:
    option = described(settings)[name]
    shown: Any = typer.Option(as_option(name), help=option.help, metavar=option.metavar, show_default=False)
    typed: Any = option.kind.typed
    needed = name in required(settings)
    annotation: Any = Annotated[typed if needed else typed | None, shown]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=inspect.Parameter.empty if needed else None, annotation=annotation
    )


def _keyword(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
