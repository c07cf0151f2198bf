"""What the log says of one request."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from starlette.types import Scope

NAME = "privalign.facts"


@dataclass(slots=True)
class Facts:
    """Filled in by those who learn it; all of it is public. `told`: its failure has its line in the log already."""

    id: str = field(default_factory=lambda: f"req_{secrets.token_hex(12)}")
    caller: str | None = None
    model: str | None = None
    outcome: str | None = None
    told: bool = False


def facts_of(scope: Scope) -> Facts:
    """The facts of a request; new ones where it did not pass the edge."""
    facts: Facts = scope.setdefault(NAME, Facts())
    return facts
