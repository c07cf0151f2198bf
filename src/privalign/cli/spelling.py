"""How the command line reads what was typed, for all commands: errors about settings name options, nothing is given twice in silence."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Any

from typer.core import TyperCommand, TyperGroup

from privalign.errors import InvalidInput, setting


def as_option(name: str) -> str:
    """A setting's name as it is typed."""
    return "--" + name.replace("_", "-")


def spell_as_options(error: InvalidInput, names: Collection[str]) -> None:
    """Spells every setting in the error as an option; a field that bears one of the names is a setting."""
    if error.field.replace("-", "_") in names:
        error.rename(setting(error.field))
    error.spell(as_option)


class Group(TyperGroup):
    """Commands; one that does not exist is taken for a near one, where there is a near one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), 1, cutoff=0.75)
            meant = f" (is it '{near[0]}'?)" if near else ""
            raise InvalidInput(args[0], f"no such command{meant}; see `{ctx.command_path} --help`")
        return super().resolve_command(ctx, args)


class Command(TyperCommand):
    """A command that spells what is found wrong with its settings as options, and takes each of them once."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            _, _, given = self.make_parser(ctx).parse_args(args=list(args))
            for parameter in given:
                if parameter.param_type_name == "option" and not parameter.multiple and given.count(parameter) > 1:
                    raise InvalidInput(max(parameter.opts, key=len), "given twice, and only one of them could count; give it once")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InvalidInput as error:
            spell_as_options(error, {str(parameter.name) for parameter in self.params if parameter.param_type_name == "option"})
            raise
