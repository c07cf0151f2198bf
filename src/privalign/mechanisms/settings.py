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


MOST_APART = 2.0**400  # between a scale and a range: far from where floats over- or underflow in any step of a mechanism


def within_floats(field: str, value: float, width: float) -> None:
    """Refuses, from public settings, a scale at which floats would end somewhere on the way from scores to a selection.

    Args:
        value: a scale > 0. width: R > 0, in the same unit.

    Raises:
        InvalidInput: they are more than 2^400 apart; `field` names the scale.
    """
    if not (1 / MOST_APART < width < MOST_APART and width / MOST_APART < value < width * MOST_APART):
        raise InvalidInput(field, f"{value} is too far from the width {width:g} of the range for floats to tell both; give milder settings")
