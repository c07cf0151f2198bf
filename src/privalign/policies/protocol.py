"""What every policy looks like: a request in, candidates out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from privalign.types import Candidate, Request

PROBE: Final = replace(Request.of_prompt("Say hello."), parameters={"max_tokens": 1})


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

    async def probe(self) -> None:
        """One token for a public prompt, to see whether the back-end works.

        Raises:
            BackendFailed: it does not.
        """

    async def aclose(self) -> None:
        """Closes what it holds open; it draws no more."""


class BasePolicy(ABC):
    """What most policies share: a probe that draws, and nothing to close."""

    @abstractmethod
    async def draw(self, request: Request, count: int) -> list[Candidate]:
        """As `Policy.draw`."""

    async def probe(self) -> None:
        """As `Policy.probe`."""
        await self.draw(PROBE, 1)

    async def aclose(self) -> None:  # noqa: B027  # a default, not a gap
        """Nothing is open."""


def default_parameters(policy: Policy) -> Mapping[str, Any]:
    """Sampling parameters that a policy takes for requests that leave them open, where it says so by an attribute `parameters`."""
    return getattr(policy, "parameters", {})
