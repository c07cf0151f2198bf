"""SGLang's reward servers: the native `/classify`, and `/v1/classify`.

`/v1/classify` always applies softmax, and writes [1.0] where a model has one output or where it failed: it serves models
with two or more classes only. The native path returns raw scores in `embedding`, without an index: each input is named
by a random id, and answers are matched by it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from privalign.errors import InvalidInput
from privalign.rewards.conversation import ChatTemplate, conversation
from privalign.rewards.remote import Call, chunks
from privalign.rewards.scores import UnusableScores, by_index, entry, objects
from privalign.types import Request


@dataclass(frozen=True, slots=True)
class SglangClassify:
    """The native `POST /classify`: raw scores.

    Args:
        model: a public name for the served model (the path takes none).
        template: the reward model's chat template; SGLang applies none here. The server adds its special tokens, so leave out
            of the template what the tokenizer adds.
        label: index of the output that is the reward; None for a model with one output.
    """

    model: str
    template: ChatTemplate
    label: int | None = None

    @property
    def name(self) -> str:
        """A public name that says which model, with which settings."""
        return f"sglang {self.model}" + ("" if self.label is None else f" label={self.label}")

    def calls(self, request: Request, answers: Sequence[str], batch_size: int) -> list[Call]:
        """The calls that score all answers, in order."""
        texts = [self.template.render(conversation(request, answer)) for answer in answers]
        calls = []
        for batch in chunks(texts, batch_size):
            names = [secrets.token_hex(16) for _ in batch]
            calls.append(Call("/classify", {"text": list(batch), "rid": names}, _by_name(names, self.label)))
        return calls


@dataclass(frozen=True, slots=True)
class SglangV1Classify:
    """`POST /v1/classify`: the softmax probability of class `label` of a model with two or more classes."""

    model: str
    template: ChatTemplate
    label: int

    def __post_init__(self) -> None:
        if self.label < 0:
            raise InvalidInput("label", f"{self.label} is below 0; give the index of a class")

    @property
    def name(self) -> str:
        """A public name that says which model, with which settings."""
        return f"sglang-classify {self.model} softmax label={self.label}"

    def calls(self, request: Request, answers: Sequence[str], batch_size: int) -> list[Call]:
        """The calls that score all answers, in order."""
        texts = [self.template.render(conversation(request, answer)) for answer in answers]
        return [
            Call("/v1/classify", {"model": self.model, "input": list(batch)}, _probabilities(len(batch), self.label))
            for batch in chunks(texts, batch_size)
        ]


def _by_name(names: list[str], label: int | None) -> Callable[[Any], list[float]]:
    def read(answer: Any) -> list[float]:
        items = objects(answer, len(names))
        found = {item["meta_info"]["id"]: entry(item["embedding"], label) for item in items}
        return [found[name] for name in names]  # a name that is missing, or there twice, leaves another one out

    return read


def _probabilities(count: int, label: int) -> Callable[[Any], list[float]]:
    def read(answer: Any) -> list[float]:
        items = objects(answer["data"], count)
        if any(len(item["probs"]) < 2 for item in items):  # the [1.0] that stands for a failure, or for a single output
            raise UnusableScores
        return by_index(items, [entry(item["probs"], label) for item in items])

    return read
