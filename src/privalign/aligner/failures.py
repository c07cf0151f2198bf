"""What the caller may know of a failure: everything before the scorer was touched, one generic line after."""

from __future__ import annotations

import asyncio

from privalign.errors import BackendFailed, LeaseExpired

ENDED_BY_SIGNAL = range(129, 193)  # exit codes


class ScoringFailed(BackendFailed):
    """Scoring or selection failed after a score may have been read. The query stays charged; do not retry."""

    def __init__(self) -> None:
        super().__init__("the answer could not be selected; the query stays charged, so do not retry it automatically")


def outward(failure: BaseException, touched: bool) -> BaseException:
    """What to raise in place of a failure, outside its handler.

    Once the scorer may have been touched it is a new exception, of no other arguments: the frames of the old one's
    traceback, its causes and its arguments may hold scores.
    """
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    if not touched:
        return failure
    match failure:
        case asyncio.CancelledError():
            return asyncio.CancelledError()
        case KeyboardInterrupt():
            return KeyboardInterrupt()
        case SystemExit():
            return SystemExit(failure.code if failure.code in ENDED_BY_SIGNAL else 1)
        case LeaseExpired():  # the ledger's own words
            return LeaseExpired(str(failure))
    return ScoringFailed()
