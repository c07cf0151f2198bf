"""Private selection over a file of candidates: what is the same for all its prompts, one answer, and the summary of a run."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from privalign.accounting import costs
from privalign.aligner.file_scores import Scores
from privalign.candidates.pools import RecordedTexts
from privalign.errors import InvalidInput, setting
from privalign.events import Free
from privalign.mechanisms.driver import select_from_pool
from privalign.mechanisms.protocol import Mechanism, event_of
from privalign.policies.recorded import DrawOrder
from privalign.randomness import Randomness, SecureRandomness, SeededRandomness
from privalign.sensitivity import Sensitivity
from privalign.settings import NOISE_OPTIONS, Settings
from privalign.statements import SEEDED, SPENT_OF_RUN, unguarded


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
            raise InvalidInput(setting("draw"), f"{draw!r} is not one of {', '.join(DrawOrder)}") from None
        noise = SecureRandomness() if seed is None else SeededRandomness(seed)
        mechanism = settings.build()
        event = event_of(mechanism, settings.sensitivity)
        epsilon = costs.epsilon(event, settings.delta)
        if math.isinf(epsilon) and mechanism.name in NOISE_OPTIONS:
            raise InvalidInput(setting(NOISE_OPTIONS[mechanism.name][0]), "too small for any finite ε; give more noise")
        notice = None
        if not noise.private and not isinstance(event, Free):
            notice = SEEDED
        if math.isinf(epsilon):
            notice = unguarded(mechanism.name)
        return cls(
            mechanism,
            settings.sensitivity,
            order,
            noise,
            random.SystemRandom() if seed is None else random.Random(seed),
            epsilon=epsilon,
            delta=settings.delta if costs.count_releases(event) else 0.0,
            settings_delta=settings.delta,
            notice=notice,
        )

    @property
    def least_pool(self) -> int:
        """How many candidates a prompt must have."""
        return 1 if self.order is DrawOrder.WITH else self.mechanism.pool_size

    @property
    def privacy(self) -> dict[str, Any]:
        """The facts that go with every answer."""
        facts = {
            "mechanism": self.mechanism.name,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "account": None,
            **self.sensitivity.released,
        }
        return facts if self.notice is None else facts | {"epsilon": None, "private": False}

    def release(self, pool: RecordedTexts, scores: Scores) -> dict[str, Any]:
        """One query: the line of the answers' file."""
        positions = self.order.positions(len(pool.texts), self.mechanism.pool_size, self.draws)
        selection = select_from_pool(self.mechanism, self.sensitivity, self.noise, scores.of(pool, positions))
        index = positions[selection.index]
        return {
            "prompt": pool.prompt,
            "text": pool.texts[index],
            "index": index,
            "fallback": selection.fallback,
            "privacy": self.privacy,
        }

    def summary(self, prompts: int, answered: int) -> dict[str, Any]:
        """The document of a run without an account; from public settings and the number of prompts only."""
        facts = self.facts(prompts, answered, self._basic_sum(answered))
        if self.epsilon and self.notice is None:
            facts["spent_is"] = SPENT_OF_RUN
        return facts if self.notice is None else facts | {"notice": self.notice}

    def facts(self, prompts: int, answered: int, spent: Mapping[str, float | None]) -> dict[str, Any]:
        """What every summary states."""
        return {
            "prompts": prompts,
            "answered": answered,
            "refused": prompts - answered,
            "spent": spent,
            **self.privacy,
            "account": None,
            "private": self.notice is None,
            **self.settings,
            "draw": self.order.value,
            **self.sensitivity.stated(),
        }

    @property
    def settings(self) -> dict[str, Any]:
        """Those of the mechanism."""
        return dataclasses.asdict(cast(Any, self.mechanism))

    def _basic_sum(self, answered: int) -> dict[str, float | None]:
        return {
            name: costs.total(itertools.repeat(cost, answered)) if self.notice is None else None
            for name, cost in (("epsilon", self.epsilon), ("delta", self.delta))
        }
