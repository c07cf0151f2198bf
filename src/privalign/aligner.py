"""The one path from a prompt to a released answer: reserve, draw, score, select, settle, respond.

Order is what makes it private: the worst case is debited before the first score is read, a query is released only after
its debit is settled, and whatever goes wrong once a score may have been read leaves the debit spent. Errors after that
point are one generic line: why a scorer failed may depend on the protected data.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import hmac
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar, cast

import numpy as np

from privalign.accounting import costs
from privalign.errors import BackendFailed, BudgetBusy, BudgetExhausted, InvalidInput, LeaseExpired, PrivalignError
from privalign.events import Composed, Event, Free, RejectionRounds
from privalign.ledger import IdempotencyKey, KeyExhausted, Ledger, Pending, Replay, Reservation
from privalign.mechanisms.base import Base
from privalign.mechanisms.driver import select_from_pool
from privalign.mechanisms.privitp import PrivITP, PrivITPPhase2
from privalign.mechanisms.protocol import Mechanism, Selection, event_of
from privalign.policies.protocol import Policy
from privalign.randomness import Randomness, SecureRandomness
from privalign.rewards.protocol import Reward, ScorerUntouched
from privalign.types import Candidate, Release, Request, total_usage

T = TypeVar("T")
FAILURES_IN_A_ROW = 3  # of a scorer that answers probes, after which queries wait
LONG_FOR_SCORES = 10.0  # seconds after which it is the scorer's fault that a client left
UNLIKELY = -9999.0  # OpenAI's log-probability of what is next to impossible; JSON has no −∞


class ScoringFailed(BackendFailed):
    """Scoring or selection failed after a score may have been read. The query stays charged; do not retry."""

    def __init__(self) -> None:
        super().__init__("the answer could not be selected; the query stays charged, so do not retry it automatically")


class Admission(StrEnum):
    """How a request was let in, before anything is drawn for it."""

    RESERVED = "reserved"  # its worst case is debited
    REPLAYED = "replayed"  # it was answered before
    BASE = "base"  # the budget does not hold it, and the base policy answers


@dataclass(frozen=True, slots=True)
class Performance:
    """Settings of speed alone: none of them changes what is released or what it costs.

    Args:
        chunk: phase-2 candidates drawn and scored at a time; the first chunk together with phase 1, so that a query that
            stops within it takes one batch. The clock tells the halting time to a multiple of this.
        padding: seconds that the selection step takes per started 4,096 candidates, at least; the next multiple where
            it takes longer. 0 for offline work.
        lease: seconds after which a reservation whose owner is gone counts as spent; renewed while the owner lives.
        poll: seconds between looks at a request that another process is answering under the same idempotency key.
    """

    chunk: int = 8
    padding: float = 0.02
    lease: float = 120.0
    poll: float = 0.05


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What clients ask for by name: a policy and a reward, a rule of selection, and the account that pays.

    Args:
        on_exhausted: "refuse", or "base": answer from the base policy, free and labelled.
        delta: δ of phase 1 in the ε that a release states (accounts charge by their own rule).
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

    def __post_init__(self) -> None:
        if self.on_exhausted not in ("refuse", "base"):
            raise InvalidInput("on_exhausted", f"{self.on_exhausted!r} is neither 'refuse' nor 'base'")
        if self.reuse_threshold and not isinstance(self.mechanism, PrivITP):
            raise InvalidInput("reuse_threshold", f"{self.mechanism.name} has no threshold; only privitp has one")


class Aligner:
    """Answers requests for one served model.

    Args:
        noise: secure noise; seeded noise is refused, since its releases may not charge an account.
        prompt_key: a secret of the installation, for naming prompts in the memory of thresholds.
        probe_first: the scorer must answer a public text before the first reservation, not only after a failure. For
            processes that begin anew with every request: what they know of a dead scorer dies with them.

    Formal guarantee: everything that leaves `answer` for all requests to all aligners of one account, their timing to
    the multiple that `Performance` states included, has the guarantee of the account, under the assumptions that the
    account and the reward's sensitivity state.
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
        self._ledger = ledger
        self._model = model
        self._noise = noise or SecureRandomness()
        if not self._noise.private:
            raise InvalidInput("seed", "seeded noise is not private and may not charge an account; leave the seed out")
        if model.reuse_threshold and not prompt_key:
            raise InvalidInput("reuse_threshold", "needs the installation key to name prompts by")
        self._scorer_suspect = probe_first  # then the scorer must answer a public text before anything is reserved
        self._failures = 0  # of the scorer, in a row
        self._closed_until = 0.0
        self._trial = threading.Lock()
        self._unfinished: set[asyncio.Task[None]] = set()
        self._thresholds: OrderedDict[bytes, float] = OrderedDict()
        self._prompt_key = prompt_key
        self._noise.gaussian(0.0, 1.0, 2.0**-32)  # loads the sampler now, not within the first answer's padded time

    @property
    def model(self) -> ServedModel:
        """What is served."""
        return self._model

    def warm_up(self) -> None:
        """Prices a query and selects once among made-up scores, so that no client waits for what is loaded or computed once.

        Raises:
            InvalidInput: the account does not exist, or cannot pay for the mechanism.
        """
        mechanism, sensitivity = self._model.mechanism, self._model.reward.sensitivity
        worst = event_of(mechanism, sensitivity)
        costs.epsilon(worst, self._model.delta)
        self._ledger.account(self._model.account).rule.charge(worst)
        select_from_pool(mechanism, sensitivity, self._noise, [sensitivity.range.low] * mechanism.pool_size)

    async def answer(
        self,
        request: Request,
        *,
        n: int = 1,
        idempotency: IdempotencyKey | None = None,
        api_key: str | None = None,
        admitted: asyncio.Future[Admission] | None = None,
    ) -> list[Release]:
        """`n` private answers to one request, reserved and charged together.

        Args:
            admitted: is told how the request was let in, before candidates are drawn; untouched where it is refused.

        A caller that cancels pays once where the scorer may have been touched, else nothing; what the policy draws is cancelled.

        Raises:
            BudgetExhausted, BudgetBusy: nothing was charged. IdempotencyConflict: the key was used otherwise.
            ScoringFailed: the query stays charged. BackendFailed: nothing was charged.
        """
        if n < 1:
            raise InvalidInput("n", f"{n} is below 1")
        request.after(1)  # refuses a seed that is no whole number before anything is reserved
        mechanism = self._mechanism(request)
        events = [event_of(mechanism, self._model.reward.sensitivity)] * n
        try:
            outcome = await self._reserve(events, idempotency, api_key)
        except (BudgetBusy, KeyExhausted):
            raise
        except BudgetExhausted:
            if self._model.on_exhausted == "base":
                _tell(admitted, Admission.BASE)
                return await self._from_base_policy(request, n)
            raise
        if isinstance(outcome, Replay):
            _tell(admitted, Admission.REPLAYED)
            return [Release.from_json(stored) for stored in cast(list[dict[str, Any]], outcome.release["answers"])]
        _tell(admitted, Admission.RESERVED)
        return await self._answer_reserved(outcome, request, mechanism, events)

    def answer_blocking(
        self, request: Request, *, n: int = 1, idempotency: IdempotencyKey | None = None, api_key: str | None = None
    ) -> list[Release]:
        """`answer` for code that is not asynchronous; not from inside a running event loop."""
        return asyncio.run(self.answer(request, n=n, idempotency=idempotency, api_key=api_key))

    async def _reserve(self, events: list[Event], idempotency: IdempotencyKey | None, api_key: str | None) -> Reservation | Replay:
        """Debits the worst case, or finds the stored answer; waits while another process answers under the same key.

        A lease at most, by this process's own clock: the ledger's may have been ahead when the other began.
        """
        patience = time.monotonic() + 2 * self._model.performance.lease
        while True:
            left = threading.Event()
            reserving = asyncio.create_task(_on_ledger(self._reserve_unless, left, events, idempotency, api_key))
            try:
                outcome = await asyncio.shield(reserving)
            except asyncio.CancelledError:  # the thread goes on, and may outlast this loop: what it reserves would stay spent, for nothing
                left.set()
                giving_back = asyncio.create_task(self._give_back(reserving))
                self._unfinished.add(giving_back)  # the event loop itself holds it only weakly
                giving_back.add_done_callback(self._unfinished.discard)
                await asyncio.shield(giving_back)
                raise
            assert outcome is not None
            if not isinstance(outcome, Pending):
                return outcome
            if time.monotonic() > patience:
                raise BackendFailed("the same request is still being answered elsewhere; ask again later, or under a new idempotency key")
            await asyncio.sleep(self._model.performance.poll)

    def _reserve_unless(
        self, left: threading.Event, events: list[Event], idempotency: IdempotencyKey | None, api_key: str | None
    ) -> Reservation | Replay | Pending | None:
        """Reserves, unless whoever asks has left: then None, and nothing stays reserved."""
        if left.is_set():
            return None
        model = self._model
        outcome = self._ledger.reserve(
            model.account, events, lease=model.performance.lease, idempotency=idempotency, api_key=api_key, model=model.name
        )
        if left.is_set() and isinstance(outcome, Reservation):
            self._end(outcome, False)
            return None
        return outcome

    async def _give_back(self, reserving: asyncio.Task[Reservation | Replay | Pending | None]) -> None:
        with contextlib.suppress(PrivalignError):
            outcome = await reserving
            if isinstance(outcome, Reservation):
                await _on_ledger(self._end, outcome, False)

    async def _answer_reserved(
        self, reservation: Reservation, request: Request, mechanism: Mechanism, events: list[Event]
    ) -> list[Release]:
        """Draws, scores, selects and settles under a reservation that is kept alive meanwhile."""
        renewal = asyncio.create_task(self._keep_alive(reservation))
        queries = [
            _Query(self._model, mechanism, request.after(number * mechanism.pool_size), self._noise) for number in range(len(events))
        ]
        error: BaseException | None = None
        try:
            async with self._admitted():
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(query.run()) for query in queries]
                chosen = [task.result() for task in tasks]
            releases = [self._release(query, *choice, mechanism) for query, choice in zip(queries, chosen, strict=True)]
            stored = {"answers": [release.to_json() for release in releases]}
            await _on_ledger(self._ledger.settle, reservation, self._realised(chosen), stored)
        except BaseException as failure:
            touched = any(query.touched for query in queries)
            if any(query.scorer_failed for query in queries):
                self._scorer_suspect, self._failures = True, self._failures + 1
                if self._failures >= FAILURES_IN_A_ROW:
                    self._closed_until = time.monotonic() + min(2.0 ** (self._failures - FAILURES_IN_A_ROW), 60.0)
            await asyncio.shield(_on_ledger(self._end, reservation, touched))
            error = _outward(failure, touched)
        finally:
            renewal.cancel()
        if error is not None:
            for query in queries:
                query.forget()
            raise error  # here, where no other exception is its context: that one's frames may hold scores
        if self._model.reuse_threshold:
            self._remember(request, chosen[0][1].realised)
        return releases

    @contextlib.asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        """Lets a query through to the scorer. After a failure only one at a time, once the scorer answers a public text;
        after several in a row, though it answers those, only after a pause that doubles.

        Raises:
            BackendFailed: not now; no protected data was touched.
        """
        if not self._scorer_suspect:
            yield
            return
        if time.monotonic() < self._closed_until or not self._trial.acquire(blocking=False):
            raise BackendFailed("the reward model failed a moment ago and is being tried again; nothing was charged, retry later")
        try:
            await self._model.reward.probe()
            failures = self._failures
            yield
            if self._failures == failures:
                self._scorer_suspect, self._failures = False, 0
        finally:
            self._trial.release()

    def _realised(self, chosen: list[tuple[Candidate, Selection]]) -> list[Event]:
        """The outcomes to settle by; nothing to tell where the rewards are public."""
        release = self._model.reward.sensitivity.release
        return [selection.realised if release is None else Free(release) for _, selection in chosen]

    async def _keep_alive(self, reservation: Reservation) -> None:
        while True:
            await asyncio.sleep(self._model.performance.lease / 3)
            with contextlib.suppress(PrivalignError):  # tried again in a third of the lease; settling tells the rest
                await _on_ledger(self._ledger.renew, reservation)

    def _end(self, reservation: Reservation, touched: bool) -> None:
        """Closes a reservation that will not be answered: spent where the scorer may have been touched, else given back."""
        with contextlib.suppress(PrivalignError):  # then it stays open until its lease ends, and is spent: the safe side
            if touched:
                self._ledger.forfeit(reservation)
            else:
                self._ledger.void(reservation)

    async def _from_base_policy(self, request: Request, n: int) -> list[Release]:
        """Answers that never met the reward: free, and labelled as the base policy's."""
        candidates = [_written(candidate) for candidate in await self._model.policy.draw(request, n)]
        return [_released(candidate, index, False, Base.name, 0.0, 0.0, [candidate]) for index, candidate in enumerate(candidates)]

    def _release(self, query: _Query, candidate: Candidate, selection: Selection, mechanism: Mechanism) -> Release:
        worst = event_of(mechanism, self._model.reward.sensitivity)
        epsilon = costs.epsilon(worst, self._model.delta)
        delta = self._model.delta if costs.count_releases(worst) else 0.0
        release = _released(candidate, selection.index, selection.fallback, mechanism.name, epsilon, delta, query.candidates)
        head = self._model.reward.sensitivity.release
        return release if head is None else replace(release, head=head.stated())

    def _mechanism(self, request: Request) -> Mechanism:
        """The served mechanism, or its phase 2 alone where the request's λ̃ was released before."""
        rule = self._model.mechanism
        if self._model.reuse_threshold and isinstance(rule, PrivITP):
            threshold = self._thresholds.get(self._prompt_name(request))
            if threshold is not None:
                return PrivITPPhase2(rule, threshold)
        return rule

    def _prompt_name(self, request: Request) -> bytes:
        model = self._model
        parts = (model.account, model.reward.name, repr(model.reward.sensitivity), repr(model.mechanism), model.policy.name)
        message = hashlib.sha256("\0".join(parts).encode()).digest() + request.canonical()
        return hmac.digest(self._prompt_key, message, "sha256")

    def _remember(self, request: Request, realised: Event) -> None:
        parts = realised.events if isinstance(realised, Composed) else (realised,)
        for part in parts:
            if isinstance(part, RejectionRounds) and part.threshold is not None:
                self._thresholds[self._prompt_name(request)] = part.threshold
        while len(self._thresholds) > MOST_THRESHOLDS:
            self._thresholds.popitem(last=False)


MOST_THRESHOLDS = 10_000  # remembered per aligner; forgetting one costs phase 1 again


class _Query:
    """One selection: drives the mechanism's generator over candidates that are drawn and scored in chunks."""

    def __init__(self, model: ServedModel, mechanism: Mechanism, request: Request, noise: Randomness) -> None:
        self._model = model
        self._mechanism = mechanism
        self._request = request
        self._noise = noise
        self.candidates: list[Candidate] = []  # all that were drawn
        self._scores: list[float] = []
        self.touched = False  # whether the scorer may have read protected data for this query
        self.scorer_failed = False

    async def run(self) -> tuple[Candidate, Selection]:
        """The chosen candidate."""
        run = self._mechanism.run(self._model.reward.sensitivity, self._noise)
        used, spent_on_selection = 0, 0.0
        answer: list[float] | None = None
        while True:
            started = time.perf_counter()
            try:
                request = run.send(answer)  # type: ignore[arg-type]  # the first send of a generator is None
            except StopIteration as stop:
                selection: Selection = stop.value
                break
            finally:
                spent_on_selection += time.perf_counter() - started
            await self._provide(used + request.count)
            answer = self._scores[used : used + request.count]
            used += request.count
        await self._pad(spent_on_selection)
        if selection.index >= len(self.candidates):  # a fallback, or the base policy: released unscored
            self.candidates += await self._draw(1)
        return self.candidates[selection.index], selection

    def forget(self) -> None:
        """Lets go of scores: what is raised afterwards leads a debugger here."""
        self._scores.clear()

    async def _provide(self, count: int) -> None:
        """Makes sure that `count` scored candidates exist; draws whole chunks, the first one ahead of time."""
        if count <= len(self._scores):
            return
        most = self._mechanism.pool_size
        if isinstance(self._mechanism, PrivITP | PrivITPPhase2):
            most -= 1  # the last one is the fallback, which is drawn only when it is needed and never scored
            phase_1 = self._mechanism.n if isinstance(self._mechanism, PrivITP) else 0
            chunk = self._model.performance.chunk
            count = phase_1 + chunk * max(1, -(-(count - phase_1) // chunk))
        wanted = min(count, most) - len(self._scores)
        fresh = await self._draw(wanted)
        began = time.monotonic()
        before, self.touched = self.touched, True  # from here on only the scorer's own word can say that it saw nothing
        try:
            scores = np.asarray(await self._model.reward.score(self._request, fresh))
        except ScorerUntouched as refusal:
            self.touched = before
            self.scorer_failed = not refusal.of_request  # what one client sent says nothing about the scorer
            raise
        except asyncio.CancelledError:  # clients leave, which is no fault of the scorer's
            self.scorer_failed = time.monotonic() - began >= LONG_FOR_SCORES
            raise
        except BaseException:
            self.scorer_failed = True
            raise
        if scores.shape != (wanted,) or scores.dtype.kind not in "fiu" or not np.isfinite(scores).all():
            self.scorer_failed = True
            raise ScoringFailed
        self.candidates += fresh
        self._scores += scores.tolist()

    async def _draw(self, count: int) -> list[Candidate]:
        """The next candidates: a seeded request goes on where it was."""
        fresh = await self._model.policy.draw(self._request.after(len(self.candidates)), count)
        if len(fresh) != count:
            raise BackendFailed(f"the policy returned {len(fresh)} candidates where {count} were asked for")
        return [_written(candidate) for candidate in fresh]

    async def _pad(self, spent: float) -> None:
        """Sleeps until the selection step has taken a public multiple of a duration that depends on n alone."""
        unit = self._model.performance.padding * -(-self._mechanism.pool_size // 4096)
        if unit > 0:
            await asyncio.sleep(unit * max(1, -(-spent // unit)) - spent)


def _tell(admitted: asyncio.Future[Admission] | None, how: Admission) -> None:
    if admitted is not None and not admitted.done():
        admitted.set_result(how)


def _outward(failure: BaseException, touched: bool) -> BaseException:
    """What the caller may know of a failure: everything before the scorer was touched, one generic line after."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    if isinstance(failure, asyncio.CancelledError | KeyboardInterrupt | SystemExit | LeaseExpired):
        return failure
    return ScoringFailed() if touched else failure


def _written(candidate: Candidate) -> Candidate:
    """The candidate as it can be scored, stored and sent, whatever its model wrote: what is paid for must not be lost to an encoder."""
    return replace(
        candidate,
        text=_as_json(candidate.text),
        finish_reason=_as_json(candidate.finish_reason),
        tool_calls=tuple(_as_json(call) for call in candidate.tool_calls),
    )


def _as_json(value: Any) -> Any:
    """A JSON value with no half surrogate pair and no number that is not finite."""
    match value:
        case str():
            return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case float():
            return value if math.isfinite(value) else UNLIKELY if value == -math.inf else None
        case Mapping():
            return {_as_json(name): _as_json(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_as_json(inner) for inner in value]
    return value


def _released(
    candidate: Candidate, index: int, fallback: bool, mechanism: str, epsilon: float, delta: float, drawn: list[Candidate]
) -> Release:
    return Release(
        text=candidate.text,
        index=index,
        fallback=fallback,
        mechanism=mechanism,
        epsilon=epsilon,
        delta=delta,
        finish_reason=candidate.finish_reason,
        tool_calls=candidate.tool_calls,
        logprobs=None if candidate.logprobs is None else _as_json(candidate.logprobs),
        usage=total_usage(drawn),
        own_usage=candidate.usage,
        drawn=len(drawn),
    )


async def _on_ledger(act: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Runs a ledger call on threads of its own: behind slow scorers, leases would run out before they are renewed."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_ledger_threads(os.getpid()), functools.partial(act, *arguments, **options))


@functools.lru_cache(maxsize=1)
def _ledger_threads(process: int) -> ThreadPoolExecutor:
    """Threads do not survive a fork, so they belong to a process."""
    return ThreadPoolExecutor(8, f"privalign-ledger-{process}")
