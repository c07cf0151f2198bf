"""What the caller may know of a failure: everything before the scorer was touched, one generic line after."""

from __future__ import annotations

import asyncio

from privalign.errors import BackendFailed, LeaseExpired, bare


class ScoringFailed(BackendFailed):
    """Scoring or selection failed after a score may have been read. The query stays charged; do not retry."""

    def __init__(self) -> None:
        super().__init__("the answer could not be selected; the query stays charged, so do not retry it automatically")


def outward(failure: BaseException, touched: bool) -> BaseException:
    """What to raise in place of a failure, outside its handler.

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
    return ScoringFailed()
