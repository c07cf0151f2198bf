"""What the rewards are that a command meets: protected or public. Said here, once, for every command; one that is not said anything
of does not start.

Nothing that is computed exactly from protected rewards leaves a command: no figure of them stands on stdout or stderr, nor in any file
that others may read. A command that treats its input's rewards as public says so in its help.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import typer

from privalign.cli.spelling import Command


class Rewards(StrEnum):
    """Of which kind the rewards are that a command reads, computes, or finds traces of in a ledger."""

    NONE = "none"
    PUBLIC = "public"
    PROTECTED = "protected"


REWARDS: Final = {
    "epsilon": Rewards.NONE,
    "calibrate": Rewards.NONE,
    "init": Rewards.NONE,
    "collect": Rewards.NONE,
    "select": Rewards.PROTECTED,
    "ask": Rewards.PROTECTED,
    "serve": Rewards.PROTECTED,
    "config check": Rewards.PROTECTED,
    "score": Rewards.PROTECTED,
    "grade": Rewards.PROTECTED,
    "account create": Rewards.PROTECTED,
    "account list": Rewards.PROTECTED,
    "account show": Rewards.PROTECTED,
    "account journal": Rewards.PROTECTED,
    "account verify": Rewards.PROTECTED,
    "account raise": Rewards.PROTECTED,
    "account export": Rewards.PROTECTED,
    "ledger moved": Rewards.PROTECTED,
    "key create": Rewards.PROTECTED,
    "key list": Rewards.PROTECTED,
    "key revoke": Rewards.PROTECTED,
    "reward fit": Rewards.PROTECTED,
    "reward show": Rewards.PROTECTED,
    "reward range": Rewards.PROTECTED,  # with --public they are not
    "demo": Rewards.PUBLIC,
    "simulate": Rewards.PUBLIC,
    "evaluate": Rewards.PUBLIC,
    "report": Rewards.PUBLIC,
    "study": Rewards.PUBLIC,  # every one of them
}
_SAID: Final = {
    Rewards.NONE: None,
    Rewards.PUBLIC: "Rewards are treated as public: what comes out is computed exactly from them, and is no private release.",
    Rewards.PROTECTED: "Rewards are protected: no figure of them is shown, and files that hold them are for this user alone.",
}


def rewards_of(*path: str) -> Rewards:
    """The kind of rewards of a command, or of all those of its group.

    Raises:
        KeyError: nothing is said of it.
    """
    name = " ".join(path)
    return REWARDS[name] if name in REWARDS or len(path) == 1 else REWARDS[path[0]]


def declare(app: typer.Typer, path: tuple[str, ...] = ()) -> None:
    """Puts what is said of a command's rewards at the end of its help, and has its errors spelled as options.

    Raises:
        KeyError: nothing is said of a command.
    """
    for command in app.registered_commands:
        name = command.name or command.callback.__name__.replace("_", "-")  # type: ignore[union-attr]
        command.cls = Command
        command.epilog = _SAID[rewards_of(*path, name)]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        declare(group.typer_instance, (*path, str(group.name)))
