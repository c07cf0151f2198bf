"""The values that travel between rooms. `Release` may leave the process; `Diagnostics` may not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """One answer drawn from the base policy. Public as long as nobody says which one was selected, or why."""

    text: str
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """What one query releases: the text of the chosen candidate and the public facts about its price.

    `index` is the position of the candidate in the order in which candidates were drawn, `fallback` whether every
    phase-2 candidate was rejected. `epsilon` is the worst case of one query, a valid upper bound; None means that the
    mechanism has no guarantee.
    """

    text: str
    index: int
    fallback: bool
    mechanism: str
    epsilon: float | None
    delta: float


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """What only the operator may see: computed from rewards or from protected data. Not private."""

    facts: Mapping[str, object] = field(default_factory=dict)
