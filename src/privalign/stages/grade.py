"""`grade`: adds `is_correct`, 1 or 0 or a gold score in [0, 1]; null where it cannot be told, which is never a 0."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from privalign.candidates.shards import Shards
from privalign.errors import InvalidFile, InvalidInput, setting
from privalign.policies.completions import UpstreamFailed
from privalign.policies.protocol import Policy
from privalign.stages.engine import Advance, MakeShard, in_order, policy_opened
from privalign.stages.judge import CRITERION, judge_messages, judged_score
from privalign.stages.letters import letter_of
from privalign.stages.mathematics import Verifier
from privalign.stages.score import prompt_runs
from privalign.stages.settings import GradeSettings
from privalign.stages.tasks import ALPHABET
from privalign.types import Request

if TYPE_CHECKING:
    import pyarrow as pa

COLUMN = "is_correct"
REFUSED = (400, 413, 422)  # what a judge answers to one request that is too long for it; anything else is the stage's failure
Grades = list[float | None]


def manifest_settings(settings: GradeSettings, source: Shards, policy: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the grades depend on."""
    return {"source": source.id, **settings.manifest(), **({} if policy is None else {"policy": dict(policy)})}


@dataclass(frozen=True, slots=True)
class GradeJob:
    """Grades the candidates of a shard."""

    settings: GradeSettings
    source: Shards
    make_judge: Callable[[], Policy] | None = None

    def check(self) -> None:
        """Refuses a folder that lacks what this kind needs, and a right answer that no candidate could be found equal to.

        Raises:
            InvalidInput: graded already, no such reward column of numbers, or prompts without a right answer.
            InvalidFile: a right answer that cannot be read; names the prompt.
        """
        table = self.source.table(0)  # says what is missing, so before the import
        from pyarrow import types

        if COLUMN in table.column_names:
            raise InvalidInput(setting("from"), f"{self.source.path} is graded already; give the folder that `score` or `collect` wrote")
        reward = self.settings.reward
        if reward is not None and not (reward in table.column_names and types.is_floating(table.schema.field(reward).type)):
            raise InvalidInput("reward", f"{self.source.path} has no column '{reward}' of scores; score it with that reward first")
        golds = table.column("gt_answer")
        if self.settings.kind in ("math", "letter"):
            if golds.null_count == len(golds):
                raise InvalidInput("kind", f"{self.settings.kind} needs prompts with a gt_answer, {self.source.path} has none; use a judge")
            self._check_golds()

    def _check_golds(self) -> None:
        """Every right answer, before the first candidate is graded."""
        can_be: Callable[[str], bool]
        with contextlib.ExitStack() as stack:
            if self.settings.kind == "letter":
                offered = ALPHABET[: self.settings.choices]
                can_be, what = set(offered).__contains__, f"is none of {', '.join(offered)}; mend it in the prompts, or give more --choices"
            else:
                can_be = stack.enter_context(Verifier(self.settings.timeout)).can_read
                what = "cannot be read as a number or an expression in LaTeX; mend it in the prompts, or leave it out"
            known: set[str] = set()
            for file, prompt, gold in self._golds():
                if gold not in known and not (gold.strip() and can_be(gold.strip())):
                    shown = gold if len(gold) <= 60 else f"{gold[:60]}…"
                    raise InvalidFile(str(file), None, f"prompt_id {prompt}: gt_answer {shown!r} {what}")
                known.add(gold)

    def _golds(self) -> Iterator[tuple[Path, int, str]]:
        for number in range(self.source.shards):
            table = self.source.table(number)
            golds, prompts = table.column("gt_answer"), table.column("prompt_id")
            for _, rows in prompt_runs(table):
                gold = golds[rows.start].as_py()
                if gold is not None:
                    yield self.source.file(number), prompts[rows.start].as_py(), gold

    def units(self, number: int) -> int:
        """How many prompts a shard holds."""
        return len(prompt_runs(self.source.table(number)))

    @contextlib.contextmanager
    def opened(self) -> Iterator[MakeShard]:
        """Verifiers or judge, built; grades shards by number."""
        kinds = {"math": self._math, "letter": self._letter, "reward": self._reward, "judge": self._judge}
        with kinds[self.settings.kind]() as grades:

            def make(number: int, advance: Advance) -> pa.Table:
                import pyarrow as pa

                table = self.source.table(number)
                return table.append_column(COLUMN, pa.array(grades(table, advance), pa.float64()))

            yield make

    @contextlib.contextmanager
    def _math(self) -> Iterator[Callable[[pa.Table, Advance], Grades]]:
        """Each thread of the pool waits for a child of its own."""
        with contextlib.ExitStack() as stack:
            free: SimpleQueue[Verifier] = SimpleQueue()
            for _ in range(self.settings.workers):
                free.put(stack.enter_context(Verifier(self.settings.timeout)))
            pool = stack.enter_context(ThreadPoolExecutor(self.settings.workers))
            stack.callback(pool.shutdown, cancel_futures=True)

            def prompt_grades(gold: str | None, texts: list[str]) -> Grades:
                if gold is None:
                    return [None] * len(texts)
                verifier = free.get()
                try:
                    return [_number(verifier.is_right(gold, text)) for text in texts]
                finally:
                    free.put(verifier)

            def grades(table: pa.Table, advance: Advance) -> Grades:
                golds, texts = table.column("gt_answer").to_pylist(), table.column("text").to_pylist()
                runs = [rows for _, rows in prompt_runs(table)]
                found: Grades = []
                for graded in pool.map(lambda rows: prompt_grades(golds[rows.start], [texts[row] for row in rows]), runs):
                    found += graded
                    advance(1)
                return found

            yield grades

    @contextlib.contextmanager
    def _letter(self) -> Iterator[Callable[[pa.Table, Advance], Grades]]:
        def grades(table: pa.Table, advance: Advance) -> Grades:
            advance(len(prompt_runs(table)))
            pairs = zip(table.column("gt_answer").to_pylist(), table.column("text").to_pylist(), strict=True)
            return [None if gold is None else self._letter_grade(gold.strip(), text) for gold, text in pairs]

        yield grades

    def _letter_grade(self, gold: str, text: str) -> float | None:
        letter = letter_of(text, self.settings.choices)
        return None if letter is None else float(letter == gold)

    @contextlib.contextmanager
    def _reward(self) -> Iterator[Callable[[pa.Table, Advance], Grades]]:
        """(clip(r) − LO)/(HI − LO)."""
        assert self.settings.range is not None
        low, high = self.settings.range

        def grades(table: pa.Table, advance: Advance) -> Grades:
            advance(len(prompt_runs(table)))
            values = table.column(self.settings.reward).to_pylist()
            return [None if value is None else float((np.clip(value, low, high) - low) / (high - low)) for value in values]

        yield grades

    @contextlib.contextmanager
    def _judge(self) -> Iterator[Callable[[pa.Table, Advance], Grades]]:
        assert self.make_judge is not None
        with policy_opened(self.make_judge) as (runner, policy):

            def grades(table: pa.Table, advance: Advance) -> Grades:
                names = ("prompt_id", "prompt", "text", "gt_answer")
                rows = list(zip(*(table.column(name).to_pylist() for name in names), strict=True))
                last = {prompt_id: place for place, (prompt_id, *_) in enumerate(rows)}

                refusals: list[UpstreamFailed] = []

                async def judged(place: int) -> float | None:
                    prompt_id, prompt, text, reference = rows[place]
                    try:
                        (answer,) = await policy.draw(self._judgement(prompt, text, reference), 1)
                    except UpstreamFailed as refusal:
                        if refusal.status not in REFUSED:
                            raise
                        refusals.append(refusal)
                        return None
                    finally:
                        if place == last[prompt_id]:
                            advance(1)
                    return judged_score(answer.text)

                calls = [partial(judged, place) for place in range(len(rows))]
                found = runner.run(in_order(calls, self.settings.concurrency))
                if len(refusals) == len(rows):
                    raise refusals[0]  # it is not the candidates: a parameter, say
                return found

            yield grades

    def _judgement(self, prompt: str, text: str, reference: str | None) -> Request:
        settings = self.settings
        parameters: dict[str, Any] = {"temperature": settings.temperature, "max_tokens": settings.max_tokens}
        if settings.seed is not None:
            parameters["seed"] = settings.seed
        return Request(judge_messages(prompt, text, reference, settings.criterion or CRITERION), parameters)


def _number(right: bool | None) -> float | None:
    return None if right is None else float(right)
