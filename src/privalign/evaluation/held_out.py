"""Choosing settings on one part of the prompts and reporting on the other; lifts, paired with the base policy prompt by prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from privalign.candidates.scored import ScoredPrompts
from privalign.errors import InvalidInput, setting
from privalign.evaluation.outcomes import Measuring, Outcomes, numbers
from privalign.mechanisms.protocol import Mechanism
from privalign.options import Option, real
from privalign.sensitivity import Sensitivity

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


def check_part(part: float, *, choosing: bool = True) -> None:
    """Refuses a part of the prompts that is not between none and all of them; none where something is chosen on it."""
    if not (0 < part < 1 or (part == 0 and not choosing)):
        raise InvalidInput(
            setting("held_out"), f"{part:g} is not strictly between 0 and 1; give the part of the prompts to choose settings on"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting(Measuring):
    """Settings of a study that chooses on a part of the prompts, `held_out` in [0, 1), and reports on the others; 0: nothing is chosen."""

    held_out: Annotated[float, Option(real(), "Part of the prompts to choose settings on. Default 0.5.")] = 0.5


@dataclass(frozen=True, slots=True)
class Measured:
    """Outcomes on the prompts that settings are chosen on (`tuning`) and on all others (`reporting`, and its rows)."""

    tuning: Outcomes
    reporting: Outcomes
    rows: tuple[dict[str, Any], ...]

    @classmethod
    def of(
        cls,
        blocks: Sequence[ScoredPrompts],
        mechanisms: Iterable[Mechanism],
        sensitivity: Sensitivity,
        settings: Splitting,
        progress: Callable[[int, int], None],
    ) -> Measured:
        """Measures mechanisms, those named twice once, on all prompts, and splits."""
        outcomes = settings.measure(blocks, list(dict.fromkeys(mechanisms)), sensitivity, progress)
        return cls.split(outcomes, settings.held_out, settings.seed)

    @classmethod
    def split(cls, outcomes: Outcomes, part: float, seed: int) -> Measured:
        """A random `part` of the prompts, in (0, 1), for tuning; at least one prompt on either side. 0: none, all report.

        Raises:
            InvalidInput: `part` is out of range, or there is only one prompt.
        """
        check_part(part, choosing=False)
        prompts = len(outcomes.base)
        if part == 0:
            return cls(outcomes.take(np.empty(0, np.int64)), outcomes, tuple(outcomes.rows()))
        if prompts < 2:
            raise InvalidInput(setting("held_out"), f"{prompts} prompt cannot be split in two; give a file with more")
        order = np.random.default_rng(seed).permutation(prompts)
        cut = min(max(1, round(part * prompts)), prompts - 1)
        reporting = outcomes.take(np.sort(order[cut:]))
        return cls(outcomes.take(np.sort(order[:cut])), reporting, tuple(reporting.rows()))

    def stated(self, sensitivity: Sensitivity, settings: Splitting, chosen: str) -> dict[str, Any]:
        """For the study's document; `chosen`: which settings come from the tuning prompts."""
        return {
            **settings.stated(sensitivity),
            "skipped": self.reporting.skipped,
            **(self._chosen(chosen) if self.tuning.base.size else {"prompts": len(self.reporting.base)}),
        }

    def _chosen(self, what: str) -> dict[str, Any]:
        return {
            "prompts_tuning": len(self.tuning.base),
            "prompts_reporting": len(self.reporting.base),
            "chosen_on_rewards": f"{what} from the rewards of the tuning prompts: not settings of a private release",
        }

    def position(self, mechanism: Mechanism) -> int:
        """Where a mechanism's rows are."""
        return self.reporting.mechanisms.index(mechanism)

    def best(self, mechanisms: Iterable[Mechanism]) -> Mechanism:
        """The one of the largest mean true reward on the tuning prompts; the first of equals; one that is not measured is the least."""
        return max(mechanisms, key=lambda mechanism: float(np.nan_to_num(self.tuning.true[self.position(mechanism)].mean(), nan=-np.inf)))

    def best_family(self, families: Mapping[float, Sequence[Mechanism]]) -> float:
        """The key whose mechanisms have the largest mean true reward on the tuning prompts, over those that are measured; the only one."""
        if len(families) == 1:
            return next(iter(families))
        worth = {key: np.nansum([self.tuning.true[self.position(each)].mean() for each in family]) for key, family in families.items()}
        return max(worth, key=lambda key: float(worth[key]))

    def row(self, mechanism: Mechanism) -> dict[str, Any]:
        """What it is worth on the reporting prompts: the keys of a comparison's rows, and the lift on the tuning prompts."""
        tuning = self._lifts(self.tuning, mechanism)
        return self.rows[self.position(mechanism)] | numbers({"tuning_lift_pp": 100 * tuning.mean() if tuning.size else math.nan})

    def _lifts(self, outcomes: Outcomes, mechanism: Mechanism) -> Floats:
        lifts: Floats = outcomes.true[self.position(mechanism)] - outcomes.base
        return lifts
