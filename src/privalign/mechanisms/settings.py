"""Checks that all mechanisms make of their settings, once, when they are made."""

from __future__ import annotations

from privalign.errors import InvalidInput

MOST_CANDIDATES = 1_000_000


def candidates(field: str, count: int) -> int:
    """`count` where it is a whole number from 1 to 10⁶.

    Raises:
        InvalidInput: it is not; `field` names it.
    """
    if not (isinstance(count, int) and 1 <= count <= MOST_CANDIDATES):
        raise InvalidInput(field, f"{count} is not a whole number from 1 to {MOST_CANDIDATES:,}")
    return count
