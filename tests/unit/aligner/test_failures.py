"""What takes the place of a failure."""

from __future__ import annotations

import asyncio

import pytest

from privalign.aligner import ScoringFailed
from privalign.aligner.failures import outward
from privalign.errors import BackendFailed, InvalidRewards, LeaseExpired, bare


def failed(kind: type[BaseException], *arguments: object) -> BaseException:
    """An error with a traceback, a cause and a context."""
    try:
        try:
            raise KeyError("a score")
        except KeyError as cause:
            raise kind(*arguments) from cause
    except BaseException as error:
        return error


def leads_nowhere(error: BaseException) -> bool:
    return (error.__traceback__, error.__cause__, error.__context__) == (None, None, None)


KINDS = [BackendFailed, InvalidRewards, LeaseExpired, ValueError, ArithmeticError, OverflowError, KeyboardInterrupt, SystemExit]


@pytest.mark.parametrize("kind", [*KINDS, asyncio.CancelledError])
def test_before_the_scorer_is_touched_a_failure_is_what_it_is(kind: type[BaseException]) -> None:
    error = failed(kind, "0.75")
    assert outward(error, touched=False) is error
    assert outward(BaseExceptionGroup("several", [BaseExceptionGroup("inner", [error]), ValueError()]), touched=False) is error


@pytest.mark.parametrize(
    ("kind", "becomes"),
    [
        (asyncio.CancelledError, asyncio.CancelledError),
        (KeyboardInterrupt, KeyboardInterrupt),
        (SystemExit, SystemExit),
        (LeaseExpired, LeaseExpired),
        (BackendFailed, ScoringFailed),
        (ValueError, ScoringFailed),
    ],
)
@pytest.mark.parametrize("grouped", [False, True])
def test_afterwards_nothing_is_left_of_it(kind: type[BaseException], becomes: type[BaseException], grouped: bool) -> None:
    error = failed(kind, "0.75")
    seen = outward(BaseExceptionGroup("", [error]) if grouped else error, touched=True)
    assert type(seen) is becomes
    assert leads_nowhere(seen)
    assert ("0.75" in str(seen)) == (kind is LeaseExpired)  # the ledger's own words


@pytest.mark.parametrize("kind", KINDS)
def test_a_bare_error_leads_nowhere_and_says_only_what_we_wrote(kind: type[BaseException]) -> None:
    seen = bare(failed(kind, "0.75"))
    assert leads_nowhere(seen)
    assert ("0.75" in str(seen)) == (kind in (BackendFailed, InvalidRewards, LeaseExpired))


@pytest.mark.parametrize(("code", "becomes"), [(143, 143), (130, 130), (0.75, 1), ("0.75", 1), (None, 1), (2, 1)])
def test_a_process_that_a_signal_ends_ends_with_its_code(code: object, becomes: int) -> None:
    seen = outward(failed(SystemExit, code), touched=True)
    assert isinstance(seen, SystemExit)
    assert seen.code == becomes
