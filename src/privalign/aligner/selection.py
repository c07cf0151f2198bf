"""Private selection over a file of candidates: what is the same for all its prompts, one pass over the file, and the sum of it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from privalign import statements
from privalign.accounting import costs
from privalign.aligner.file_scores import Scores
from privalign.candidates.pools import RecordedTexts
from privalign.errors import BudgetExhausted, InvalidInput
from privalign.mechanisms.driver import select_from_pool
from privalign.mechanisms.protocol import Mechanism, event_of
from privalign.policies.recorded import DrawOrder
from privalign.randomness import Randomness, SecureRandomness, SeededRandomness
from privalign.sensitivity import Sensitivity
from privalign.settings import NOISE_OPTIONS, Settings

Track = Callable[[Iterable[RecordedTexts], int | None, str], Iterable[RecordedTexts]]  # prompts, how many there are, what is done


@dataclass(frozen=True, slots=True)
class Selector:
    """Everything that is the same for all prompts of one run.

    `epsilon` and `delta` are the worst case of one query, `settings_delta` is δ of phase 1 as set; `notice` says why the
    run is not private, None where it is.
    """

    mechanism: Mechanism
    sensitivity: Sensitivity
    order: DrawOrder
    noise: Randomness
    draws: random.Random
    epsilon: float
    delta: float
    settings_delta: float
    notice: str | None

    @classmethod
    def of(cls, settings: Settings, draw: str, seed: int | None) -> Selector:
        """Builds and prices the mechanism.

        Raises:
            InvalidInput: a setting is missing or out of range.
        """
        try:
            order = DrawOrder(draw)
        except ValueError:
            raise InvalidInput("draw", f"{draw!r} is not one of {', '.join(DrawOrder)}") from None
        noise = SecureRandomness() if seed is None else SeededRandomness(seed)
        mechanism = settings.build()
        event = event_of(mechanism, settings.sensitivity)
        epsilon = costs.epsilon(event, settings.delta)
        if math.isinf(epsilon) and mechanism.name in NOISE_OPTIONS:
            raise InvalidInput(NOISE_OPTIONS[mechanism.name][0], "too small for any finite ε; give more noise")
        return cls(
            mechanism,
            settings.sensitivity,
            order,
            noise,
            random.SystemRandom() if seed is None else random.Random(seed),
            epsilon=epsilon,
            delta=settings.delta if costs.count_releases(event) else 0.0,
            settings_delta=settings.delta,
            notice=statements.not_private(mechanism.name, event, epsilon, seeded=not noise.private),
        )

    @property
    def least_pool(self) -> int:
        """How many candidates a prompt must have."""
        return 1 if self.order is DrawOrder.WITH else self.mechanism.pool_size

    @property
    def privacy(self) -> dict[str, Any]:
        """The facts that go with every answer that no account pays for."""
        facts = {
            "mechanism": self.mechanism.name,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "account": None,
            **self.sensitivity.released,
        }
        return facts if self.notice is None else facts | {"epsilon": None, "private": False}

    def summary(self, prompts: int, answered: int, spent: dict[str, float | None]) -> dict[str, Any]:
        """The document of a run; from public settings, the number of prompts and what was paid only."""
        facts = {
            "prompts": prompts,
            "answered": answered,
            "refused": prompts - answered,
            "spent": spent,
            **self.privacy,
            "private": self.notice is None,
            **dataclasses.asdict(cast(Any, self.mechanism)),
            "draw": self.order.value,
            **self.sensitivity.stated(),
        }
        return facts if self.notice is None else facts | {"notice": self.notice}


class Run(Protocol):
    """Who answers for the prompts of one file, in their order."""

    @property
    def exhausted(self) -> BudgetExhausted | None:
        """Why prompts are refused; None while none is."""

    def answer(self, pool: RecordedTexts) -> dict[str, Any]:
        """One query: the line of the answers' file, or that it was refused."""

    def summary(self, prompts: int, answered: int) -> dict[str, Any]:
        """The document of the run."""


@dataclass(frozen=True, slots=True)
class Uncharged:
    """A run that no account pays for, and that nothing remembers."""

    selector: Selector
    scores: Scores

    @property
    def exhausted(self) -> BudgetExhausted | None:
        return None

    def answer(self, pool: RecordedTexts) -> dict[str, Any]:
        selector = self.selector
        positions = selector.order.positions(len(pool.texts), selector.mechanism.pool_size, selector.draws)
        selection = select_from_pool(selector.mechanism, selector.sensitivity, selector.noise, self.scores.of(pool, positions))
        index = positions[selection.index]
        return {
            "prompt": pool.prompt,
            "text": pool.texts[index],
            "index": index,
            "fallback": selection.fallback,
            "privacy": selector.privacy,
        }

    def summary(self, prompts: int, answered: int) -> dict[str, Any]:
        private = self.selector.notice is None
        spent = {
            name: costs.total(itertools.repeat(cost, answered)) if private else None
            for name, cost in (("epsilon", self.selector.epsilon), ("delta", self.selector.delta))
        }
        facts = self.selector.summary(prompts, answered, spent)
        return facts | {"spent_is": statements.SPENT_OF_RUN} if self.selector.epsilon and private else facts


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run over a file came to; `exhausted` says why some prompts were refused, None where none was."""

    summary: dict[str, Any]
    exhausted: BudgetExhausted | None


def select_from_file(
    selector: Selector,
    scores: Scores,
    run: Callable[[], contextlib.AbstractContextManager[Run]],
    write: Callable[[dict[str, Any]], object],
    track: Track = lambda pools, _count, _what: pools,
) -> Outcome:
    """One answer for every prompt of a file. All of it is read and checked before `run` is opened, and so before anything is paid.

    Args:
        run: opens what answers, once. write: is given every line of the answers, in the order of the file; none of them may be shown
            before this has ended. track: goes through prompts and may tell how far it is.

    Raises:
        InvalidFile: the file cannot be read, or was exchanged meanwhile. InvalidInput: the certificate is not about these scores.
    """
    scores.check()
    with contextlib.closing(scores.pools(selector.least_pool)) as pools:
        checked = sum(1 for _ in track(pools, None, "checking"))
    total = answered = 0  # counted anew: what is charged is what is released, even if the file grew in between
    with run() as opened, contextlib.closing(scores.pools(selector.least_pool)) as pools:
        for pool in track(pools, checked, "selecting"):
            answer = opened.answer(pool)
            total += 1
            answered += "refused" not in answer
            write(answer)
        scores.check()  # of a file that was exchanged meanwhile nothing is shown
        return Outcome(opened.summary(total, answered), opened.exhausted)
