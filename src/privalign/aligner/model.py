"""What is served: a policy, a reward, a rule of selection, an account, and settings of speed."""

from __future__ import annotations

from dataclasses import dataclass, field

from privalign.errors import InvalidInput
from privalign.mechanisms.privitp import PrivITP
from privalign.mechanisms.protocol import Mechanism
from privalign.policies.protocol import Policy, default_parameters
from privalign.rewards.protocol import Reward
from privalign.types import Request


@dataclass(frozen=True, slots=True)
class Performance:
    """Settings of speed alone: none of them changes what is released or what it costs.

    Args:
        chunk: candidates that are drawn and scored at a time where more may be needed; the first chunk together with what
            is needed at once, so that a query that stops within it takes one batch. The clock and the back-ends learn the
            halting time to a multiple of this.
        padding: seconds after the scores of a batch at which what was computed from them leaves; None: as measured on
            this machine (`clock`). 0: at once, for offline work that nobody can time.
        lease: seconds after which a reservation whose owner is gone counts as spent; renewed while the owner lives.
        poll: seconds between looks at a request that another process is answering under the same idempotency key.
    """

    chunk: int = 8
    padding: float | None = None
    lease: float = 120.0
    poll: float = 0.05


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What clients ask for by name: a policy and a reward, a rule of selection, and the account that pays.

    Args:
        on_exhausted: "refuse", or "base": answer from the base policy, free and labelled.
        delta: δ of phase 1 in the ε that a release states (accounts charge by their own rule).
        max_tokens: of one candidate. A request for more is refused; one that leaves it open gets what the policy takes by itself, and no
            more than this. None: as many as the policy allows.
        reuse_threshold: reuse the released λ̃ of a repeated identical request, which then costs phase 2 only.
    """

    name: str
    policy: Policy
    reward: Reward
    mechanism: Mechanism
    account: str
    on_exhausted: str = "refuse"
    delta: float = 1e-6
    reuse_threshold: bool = False
    performance: Performance = field(default_factory=Performance)
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.on_exhausted not in ("refuse", "base"):
            raise InvalidInput("on_exhausted", f"{self.on_exhausted!r} is neither 'refuse' nor 'base'")
        if self.reuse_threshold and not isinstance(self.mechanism, PrivITP):
            raise InvalidInput("reuse_threshold", f"{self.mechanism.name} has no threshold; only privitp has one")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidInput("max_tokens", f"{self.max_tokens} is below 1")

    def limited(self, request: Request) -> Request:
        """The request with its limit of tokens.

        Raises:
            InvalidInput: it asks for more than `max_tokens`.
        """
        if self.max_tokens is None:
            return request
        for name in _LIMITS:
            asked = request.parameters.get(name)
            if isinstance(asked, int) and asked > self.max_tokens:
                raise InvalidInput(name, f"{asked} is above {self.max_tokens}, the most tokens of an answer of {self.name}; ask for fewer")
        own = default_parameters(self.policy)
        least = min([self.max_tokens, *(own[name] for name in _LIMITS if isinstance(own.get(name), int))])
        return request.with_defaults({"max_tokens": least})


_LIMITS = ("max_tokens", "max_completion_tokens")
