"""Command lines of tests."""

from __future__ import annotations

from collections.abc import Iterable


def overriding(arguments: Iterable[object], *repeatable: str) -> list[object]:
    """The arguments with the last of each option alone, in its place: the command line takes every option once.

    Args:
        repeatable: options that may be given several times.
    """
    options: dict[str, list[object]] = {}
    kept: list[list[object]] = []
    for word in arguments:
        if str(word).startswith("--") and word not in repeatable:
            name = str(word).partition("=")[0]
            if name in options:
                kept.remove(options[name])
            options[name] = [word]
            kept.append(options[name])
        elif kept and str(kept[-1][0]).startswith("--") and len(kept[-1]) == 1 and not str(word).startswith("--"):
            kept[-1].append(word)
        else:
            kept.append([word])
    return [word for group in kept for word in group]
