"""The one path, joined: a request is admitted, answered by queries, and settled."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, cast

from privalign.accounting import costs
from privalign.aligner.admission import Admission, How
from privalign.aligner.async_ledger import AsyncLedger
from privalign.aligner.breaker import Breaker
from privalign.aligner.candidates import drawn, released
from privalign.aligner.clock import Clock, Deadline
from privalign.aligner.failures import outward
from privalign.aligner.model import ServedModel
from privalign.aligner.query import Query
from privalign.aligner.thresholds import Thresholds
from privalign.errors import BudgetBusy, BudgetExhausted, InvalidInput
from privalign.events import Event, Free
from privalign.ledger import IdempotencyKey, KeyExhausted, Ledger, Replay, Reservation
from privalign.mechanisms.base import Base
from privalign.mechanisms.driver import select_from_pool
from privalign.mechanisms.protocol import Mechanism, Selection, event_of
from privalign.randomness import Randomness, SecureRandomness
from privalign.types import Candidate, Release, Request


class Aligner:
    """Answers requests for one served model.

    Args:
        noise: secure noise; seeded noise is refused, since its releases may not charge an account.
        prompt_key: a secret of the installation, for naming prompts in the memory of thresholds.
        probe_first: the scorer must answer a public text before the first reservation, not only after a failure. For
            processes that begin anew with every request: what they know of a dead scorer dies with them.

    Formal guarantee: everything that leaves `answer` for all requests to all aligners of one account, the moments at
    which it leaves included, has the guarantee of the account, under the assumptions that the account and the reward's
    sensitivity state. Selection leaves at a public deadline. The call to the scorer takes as long as it takes, which may
    depend on texts, load and its caches, and must not depend on scores: docs/time.md.
    """

    def __init__(
        self,
        ledger: Ledger,
        model: ServedModel,
        noise: Randomness | None = None,
        prompt_key: bytes = b"",
        *,
        probe_first: bool = False,
    ) -> None:
        self._noise = noise or SecureRandomness()
        if not self._noise.private:
            raise InvalidInput("seed", "seeded noise is not private and may not charge an account; leave the seed out")
        self._model = model
        self._accounts = ledger
        self._ledger = AsyncLedger(ledger, model)
        self._breaker = Breaker(model.reward.probe, suspect=probe_first)
        self._thresholds = Thresholds(model, prompt_key)
        self._clock = Clock(model, self._noise)

    async def __aenter__(self) -> Self:
        """Opens what the policy keeps open between draws; on the way out policy and reward are closed."""
        if isinstance(self._model.policy, contextlib.AbstractAsyncContextManager):
            await self._model.policy.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            await self._model.policy.aclose()
        finally:
            await self._model.reward.aclose()

    @property
    def model(self) -> ServedModel:
        """What is served."""
        return self._model

    def warm_up(self) -> Deadline:
        """Prices a query, selects once among made-up scores and measures the deadline of selection, which it returns, so that no
        client waits for what is loaded or computed once.

        Raises:
            InvalidInput: the account does not exist, or cannot pay for the mechanism.
        """
        mechanism, sensitivity = self._model.mechanism, self._model.reward.sensitivity
        worst = event_of(mechanism, sensitivity)
        costs.epsilon(worst, self._model.delta)
        self._accounts.account(self._model.account).rule.charge(worst)
        select_from_pool(mechanism, sensitivity, self._noise, [sensitivity.range.low] * mechanism.pool_size)
        return self._clock.deadline()

    async def admit(
        self, request: Request, *, n: int = 1, idempotency: IdempotencyKey | None = None, api_key: str | None = None
    ) -> Admission:
        """Reserves `n` private answers to one request together, or finds what answers them for nothing.

        Raises:
            BudgetExhausted, BudgetBusy: nothing was charged. IdempotencyConflict: the key was used otherwise.
            InvalidInput: a seed that is no whole number, or more tokens than the model answers with.
            BackendFailed: the same request is being answered elsewhere.
        """
        if n < 1:
            raise InvalidInput("n", f"{n} is below 1")
        request = self._model.limited(request)
        request.after(1)  # refuses a seed that is no whole number before anything is reserved
        await self._clock.ready()
        mechanism = self._thresholds.mechanism(request)
        events = [event_of(mechanism, self._model.reward.sensitivity)] * n
        try:
            outcome = await self._ledger.reserve(events, idempotency, api_key)
        except (BudgetBusy, KeyExhausted):
            raise
        except BudgetExhausted:
            if self._model.on_exhausted != "base":
                raise
            return Admission(How.BASE, functools.partial(self._from_base_policy, request, n))
        if isinstance(outcome, Replay):
            return Admission(How.REPLAYED, functools.partial(_replayed, outcome))
        return Admission(
            How.RESERVED,
            functools.partial(self._answer_reserved, outcome, request, mechanism, n),
            functools.partial(self._ledger.abandon, outcome),
        )

    async def answer(
        self, request: Request, *, n: int = 1, idempotency: IdempotencyKey | None = None, api_key: str | None = None
    ) -> list[Release]:
        """`n` private answers to one request: `admit` and `Admission.answer` in one."""
        admission = await self.admit(request, n=n, idempotency=idempotency, api_key=api_key)
        return await admission.answer()

    def answer_blocking(
        self, request: Request, *, n: int = 1, idempotency: IdempotencyKey | None = None, api_key: str | None = None
    ) -> list[Release]:
        """`answer` for code that is not asynchronous; not from inside a running event loop."""
        return asyncio.run(self.answer(request, n=n, idempotency=idempotency, api_key=api_key))

    def ask(self, prompt: str) -> Release:
        """One private answer to a prompt, for code that is not asynchronous.

        Raises:
            BudgetExhausted, BudgetBusy: nothing was charged. BackendFailed: policy or reward did not do its work.
        """
        (release,) = self.answer_blocking(Request.of_prompt(prompt))
        return release

    async def _answer_reserved(self, reservation: Reservation, request: Request, mechanism: Mechanism, n: int) -> list[Release]:
        """Draws, scores, selects and settles under a reservation that is kept alive meanwhile."""
        queries: list[Query] = []
        async with self._ledger.kept(reservation):
            try:
                characters = len(request.canonical()) if self._clock.here else 0  # once: that of a large one takes long
                for number in range(n):
                    later = request.after(number * mechanism.pool_size)
                    queries.append(Query(self._model, mechanism, later, self._noise, self._clock, characters))
                return await self._settled(reservation, request, mechanism, queries)
            except BaseException as failure:
                touched = any(query.touched for query in queries)
                error = outward(failure, touched)
            if any(query.scorer_failed for query in queries):
                self._breaker.failed()
            await self._ledger.end(reservation, touched=touched)
            raise error  # here, where no other exception is its context: that one's frames may hold what was chosen

    async def _settled(self, reservation: Reservation, request: Request, mechanism: Mechanism, queries: Sequence[Query]) -> list[Release]:
        async with self._breaker.passage():
            chosen = await _together(queries)
        releases = [self._release(query, *choice, mechanism) for query, choice in zip(queries, chosen, strict=True)]
        await self._ledger.settle(reservation, self._realised(chosen), {"answers": [release.to_json() for release in releases]})
        self._thresholds.remember(request, chosen[0][1].realised)
        return releases

    def _release(self, query: Query, candidate: Candidate, selection: Selection, mechanism: Mechanism) -> Release:
        worst = event_of(mechanism, self._model.reward.sensitivity)
        epsilon = costs.epsilon(worst, self._model.delta)
        delta = self._model.delta if costs.count_releases(worst) else 0.0
        release = released(candidate, selection.index, selection.fallback, mechanism.name, epsilon, delta, query.candidates)
        head = self._model.reward.sensitivity.release
        return release if head is None else replace(release, head=head.stated())

    def _realised(self, chosen: Sequence[tuple[Candidate, Selection]]) -> list[Event]:
        """The outcomes to settle by; nothing to tell where the rewards are public."""
        release = self._model.reward.sensitivity.release
        return [selection.realised if release is None else Free(release) for _, selection in chosen]

    async def _from_base_policy(self, request: Request, n: int) -> list[Release]:
        """Answers that never met the reward: free, and labelled as the base policy's."""
        candidates = await drawn(self._model.policy, request, n)
        return [released(candidate, index, False, Base.name, 0.0, 0.0, [candidate]) for index, candidate in enumerate(candidates)]


async def _together(queries: Sequence[Query]) -> list[tuple[Candidate, Selection]]:
    """What all of them choose; the first failure cancels the others. Nothing is scored before all have drawn what they score first."""
    async with asyncio.TaskGroup() as group:
        for query in queries:
            group.create_task(query.draw())
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(query.run()) for query in queries]
    return [task.result() for task in tasks]


async def _replayed(stored: Replay) -> list[Release]:
    return [Release.from_json(answer) for answer in cast(list[dict[str, Any]], stored.release["answers"])]
