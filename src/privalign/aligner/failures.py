"""What the caller may know of a failure: everything before the scorer was touched, one generic line after."""

from __future__ import annotations

import asyncio
from enum import Enum

from privalign.errors import BackendFailed, LeaseExpired, bare
from privalign.ledger import LedgerFailed


class Part(Enum):
    """What a query needs to be answered."""

    POLICY = "policy"
    REWARD = "reward model"
    LEDGER = "ledger"


class ScoringFailed(BackendFailed):
    """Scoring or selection failed after a score may have been read. The query stays charged; do not retry.

    Attributes:
        part: what failed, for the operator. Which part works at the time depends on nothing but what was released.
    """

    def __init__(self, part: Part = Part.REWARD) -> None:
        super().__init__("the answer could not be selected; the query stays charged, so do not retry it automatically")
        self.part = part


class ScorerPaused(BackendFailed):
    """The scorer failed before, and is left alone for a while or failed a public text. Nothing was charged."""

    def __init__(self, why: str = "the reward model failed a moment ago and is being tried again") -> None:
        super().__init__(f"{why}; nothing was charged, retry later")


def outward(failure: BaseException, touched: bool, part: Part = Part.REWARD) -> BaseException:
    """What to raise in place of a failure of a part, outside its handler.

    Once the scorer may have been touched nothing is left of the old one: the frames of its traceback, its causes and its
    arguments may hold scores.
    """
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    if not touched:
        return failure
    match failure:
        case asyncio.CancelledError():
            return asyncio.CancelledError()
        case KeyboardInterrupt() | SystemExit() | LeaseExpired():
            return bare(failure)
        case ScoringFailed():
            return ScoringFailed(failure.part)
        case LedgerFailed():
            return ScoringFailed(Part.LEDGER)
    return ScoringFailed(part)
