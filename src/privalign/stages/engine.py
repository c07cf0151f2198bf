"""What runs a stage: a job makes one shard at a time, in this process, or on the workers of a Ray cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from privalign.candidates.shards import to_parquet

if TYPE_CHECKING:
    import pyarrow as pa

    from privalign.policies.protocol import Policy

T = TypeVar("T")
Advance = Callable[[int], None]  # so many more of the stage's units (prompts) are done
MakeShard = Callable[[int, Advance], "pa.Table"]


class Job(Protocol):
    """Everything that a worker needs, picklable: back-ends are descriptions, built where the work is done."""

    def opened(self) -> AbstractContextManager[MakeShard]:
        """Builds the back-ends; within the block, makes shards by number."""

    def units(self, number: int) -> int:
        """How many prompts a shard holds."""


class Engine(Protocol):
    """Makes the shards of these numbers, in any order, and hands over each as the content of a Parquet file."""

    @property
    def name(self) -> str:
        """What the manifest calls it."""

    def run(self, job: Job, numbers: Sequence[int], advance: Advance) -> Iterator[tuple[int, bytes]]:
        """Closing the iterator stops the work.

        Raises:
            BackendFailed: a back-end did not do its work; shards made before were handed over.
        """


class LocalEngine:
    """Shard by shard in this process."""

    name = "local"

    def run(self, job: Job, numbers: Sequence[int], advance: Advance) -> Iterator[tuple[int, bytes]]:
        """As `Engine`."""
        if not numbers:
            return
        with job.opened() as make:
            for number in numbers:
                yield number, to_parquet(make(number, advance))


@contextlib.asynccontextmanager
async def _entered(policy: Policy) -> AsyncIterator[Policy]:
    """The policy, with what it holds open (an engine, connections) closed at the end."""
    held: Any = policy
    async with contextlib.AsyncExitStack() as stack:
        if hasattr(held, "__aenter__"):
            await stack.enter_async_context(held)
        elif hasattr(held, "__enter__"):
            stack.enter_context(held)
        yield policy


@contextlib.contextmanager
def policy_opened(make: Callable[[], Policy]) -> Iterator[tuple[asyncio.Runner, Policy]]:
    """A policy built and entered, and one event loop for all shards, so that it keeps its connections between them."""
    with asyncio.Runner() as runner:
        context = _entered(make())
        policy = runner.run(context.__aenter__())
        try:
            yield runner, policy
        finally:
            runner.run(context.__aexit__(None, None, None))


async def in_order(calls: Sequence[Callable[[], Coroutine[Any, Any, T]]], concurrency: int) -> list[T]:
    """The results of all calls, in order, at most `concurrency` at a time; the first failure stops the others.

    Raises:
        What the first call that failed raised.
    """
    slots = asyncio.Semaphore(concurrency)

    async def one(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async with slots:
            return await call()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(call)) for call in calls]
    except BaseExceptionGroup as failures:
        failure: BaseException = failures
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
        raise failure from None
    return [task.result() for task in tasks]
