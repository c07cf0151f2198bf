"""What every policy looks like: a request in, candidates out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from privalign.types import Candidate, Request


class Policy(Protocol):
    """Draws candidates from the base policy. Nothing that it does may depend on the protected data."""

    @property
    def name(self) -> str:
        """A public name that says which policy, and with which settings."""

    async def draw(self, request: Request, count: int) -> list[Candidate]:
        """`count` fresh, independent candidates.

        Raises:
            BackendFailed: it cannot. No protected data has been touched.
        """


def default_parameters(policy: Policy) -> Mapping[str, Any]:
    """Sampling parameters that a policy takes for requests that leave them open, where it says so by an attribute `parameters`."""
    return getattr(policy, "parameters", {})
