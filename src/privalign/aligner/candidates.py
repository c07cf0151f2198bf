"""Candidates that can be selected from, and the release of one of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from privalign.aligner.answers import Fault, as_json, usable
from privalign.errors import BackendFailed, PrivalignError
from privalign.policies.protocol import Policy
from privalign.types import Candidate, Release, Request, total_usage

REDRAWS = 2  # times that what cannot be used is drawn again
_FAR = 2**20  # seeds from those of the first draw to those of the next: no other candidate of the request has them


class NothingToSelect(BackendFailed):
    """None of the candidates that the policy drew can be used, so that nothing is scored.

    Args:
        faults: what is wrong with each of them.

    Attributes:
        param: what the request could ask otherwise; None: it is the policy.
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.param: str | None = None
        message = "the base model gave no answer that can be used"
        if Fault.DISOBEDIENT in faults:
            self.param, message = "tool_choice", "the base model does not keep it; leave it out, or ask a model with tools"
        elif all(fault is Fault.CUT for fault in faults):
            self.param, message = "max_tokens", "the base model says nothing within so many tokens; raise it"
        super().__init__(message)


async def drawn(policy: Policy, request: Request, count: int, before: Sequence[Candidate] = ()) -> list[Candidate]:
    """Exactly `count` candidates that can be used.

    What cannot be used is drawn again, at most twice. If it still cannot be, copies of others take its places, in turn: of this draw,
    or else of those drawn `before`. Which ones depends on what the policy says alone, never on a score.

    Raises:
        NothingToSelect: there is none that can be used. BackendFailed: the policy failed, or returned another number of them.
    """
    found: dict[int, Candidate] = {}
    faults: list[Fault] = []
    for attempt in range(1 + REDRAWS):
        missing = [place for place in range(count) if place not in found]
        if not missing:
            break
        try:
            answers = await _asked(policy, request.after(attempt * _FAR), len(missing))
        except PrivalignError:
            if attempt == 0:
                raise
            break
        for place, answer in zip(missing, (usable(answer, request) for answer in answers), strict=True):
            if isinstance(answer, Fault):
                faults.append(answer)
            else:
                found[place] = answer
    others = [found[place] for place in sorted(found)] or before
    if not others:
        raise NothingToSelect(faults)
    copies = itertools.cycle(replace(other, usage=None) for other in others)  # which took no tokens of their own
    return [found[place] if place in found else next(copies) for place in range(count)]


async def _asked(policy: Policy, request: Request, count: int) -> list[Candidate]:
    fresh = await policy.draw(request, count)
    if len(fresh) != count:
        raise BackendFailed(f"the policy returned {len(fresh)} candidates where {count} were asked for")
    return fresh


def released(
    candidate: Candidate, index: int, fallback: bool, mechanism: str, epsilon: float, delta: float, drawn: Sequence[Candidate]
) -> Release:
    """What leaves of the chosen candidate; `drawn` are all candidates of its query."""
    return Release(
        text=candidate.text,
        index=index,
        fallback=fallback,
        mechanism=mechanism,
        epsilon=epsilon,
        delta=delta,
        finish_reason=candidate.finish_reason,
        tool_calls=candidate.tool_calls,
        logprobs=None if candidate.logprobs is None else as_json(candidate.logprobs),
        usage=total_usage(drawn),
        own_usage=candidate.usage,
        drawn=len(drawn),
        reasoning=candidate.reasoning,
    )
