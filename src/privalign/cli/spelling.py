"""Errors about settings name the options that were typed: one boundary for all commands."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from typer.core import TyperCommand

from privalign.errors import InvalidInput, setting


def as_option(name: str) -> str:
    """A setting's name as it is typed."""
    return "--" + name.replace("_", "-")


def spell_as_options(error: InvalidInput, names: Collection[str]) -> None:
    """Spells every setting in the error as an option; a field that bears one of the names is a setting."""
    if error.field.replace("-", "_") in names:
        error.rename(setting(error.field))
    error.spell(as_option)


class Command(TyperCommand):
    """A command that spells what is found wrong with its settings as options."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InvalidInput as error:
            spell_as_options(error, {str(parameter.name) for parameter in self.params if parameter.param_type_name == "option"})
            raise
