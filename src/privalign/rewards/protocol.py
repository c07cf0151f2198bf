"""What every reward back-end looks like: candidates in, scores out, with the sensitivity that the scores have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from numpy.typing import ArrayLike

from privalign.errors import BackendFailed
from privalign.sensitivity import Sensitivity
from privalign.types import Candidate, Request


class ScorerUntouched(BackendFailed):
    """The scorer provably computed nothing: the connection never opened, or it refused the request before scoring.

    The one failure of scoring after which a query costs nothing. Every other failure leaves it spent: a scorer that
    fails or not depending on the protected data has released something by failing.

    Args:
        status: the HTTP status of the refusal; None: there was no answer.
        retry_after: seconds after which the scorer asked to be tried again.
        cause: the type of what the transport raised before there was a connection.
    """

    def __init__(self, message: str, status: int | None = None, retry_after: float | None = None, cause: str | None = None) -> None:
        super().__init__(message)
        self.cause = cause
        self.status = status
        self.retry_after = retry_after

    @property
    def of_request(self) -> bool:
        """Whether the request was refused for what it is: too long, or nothing that the model can read."""
        return self.status in (413, 422)


class Reward(Protocol):
    """Scores candidates with a model of the protected data.

    How long scoring takes may depend on the texts, never on the scores. A reward that computes in this process, in so much time
    that this cannot be promised, says so with an attribute `in_process = True`: then scoring ends at the public deadline of the
    selection. One that does not say (a server, a large model) takes what it takes.
    """

    @property
    def name(self) -> str:
        """A public name that says which model, with which settings."""

    @property
    def sensitivity(self) -> Sensitivity:
        """Δ, its range, relation and source."""

    async def score(self, request: Request, candidates: Sequence[Candidate]) -> ArrayLike:
        """One raw score a candidate, in order, shape (len(candidates),).

        Raises:
            ScorerUntouched: nothing was computed. BackendFailed: anything else.
        """

    async def probe(self) -> None:
        """Scores a public text, to see whether the back-end works again. Touches no client's request.

        Raises:
            BackendFailed: it does not.
        """

    async def aclose(self) -> None:
        """Closes what it holds open; it scores no more."""


def scores_in_process(reward: Reward) -> bool:
    """Whether its scoring has to end at the public deadline."""
    return bool(getattr(reward, "in_process", False))
