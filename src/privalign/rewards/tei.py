"""Text Embeddings Inference: `/predict` and `/rerank`.

A list of two strings is one pair there, so every input is sent as its own list. Labels come sorted by score and are chosen
by name; ranks come sorted and are put back by index. Long inputs are cut silently by default: cutting is always turned off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from privalign.rewards.conversation import ChatTemplate, conversation, prompt_text
from privalign.rewards.remote import Call, chunks
from privalign.rewards.scores import UnusableScores, by_index, number, objects
from privalign.types import Request


@dataclass(frozen=True, slots=True)
class TeiPredict:
    """`POST /predict`: a sequence classifier.

    Args:
        model: a public name for the served model (the path takes none).
        activation: let the server apply sigmoid or softmax, or send raw scores.
        template: the reward model's chat template; the server adds its special tokens, so leave out of the template what the
            tokenizer adds. None: each input is the pair of prompt and answer.
        label: name of the class whose score is the reward; None for a model with one output.
    """

    model: str
    activation: bool = False
    template: ChatTemplate | None = None
    label: str | None = None

    @property
    def name(self) -> str:
        """A public name that says which model, with which settings."""
        return f"tei {self.model} {_activation(self.activation)}" + ("" if self.label is None else f" label={self.label}")

    def calls(self, request: Request, answers: Sequence[str], batch_size: int) -> list[Call]:
        """The calls that score all answers, in order."""
        return [
            Call(
                "/predict",
                {"inputs": [self._input(request, answer) for answer in batch], "truncate": False, "raw_scores": not self.activation},
                _predictions(len(batch), self.label),
            )
            for batch in chunks(answers, batch_size)
        ]

    def _input(self, request: Request, answer: str) -> list[str]:
        if self.template is None:
            return [prompt_text(request), answer]
        return [self.template.render(conversation(request, answer))]


@dataclass(frozen=True, slots=True)
class TeiRerank:
    """`POST /rerank`: a cross-encoder with one output that takes a prompt and an answer."""

    model: str
    activation: bool = False

    @property
    def name(self) -> str:
        """A public name that says which model, with which settings."""
        return f"tei-rerank {self.model} {_activation(self.activation)}"

    def calls(self, request: Request, answers: Sequence[str], batch_size: int) -> list[Call]:
        """The calls that score all answers, in order."""
        common = {"query": prompt_text(request), "truncate": False, "raw_scores": not self.activation}
        return [Call("/rerank", common | {"texts": list(batch)}, _ranks(len(batch))) for batch in chunks(answers, batch_size)]


def _activation(on: bool) -> str:
    return f"activation={'on' if on else 'off'}"


def _predictions(count: int, label: str | None) -> Callable[[Any], list[float]]:
    def read(answer: Any) -> list[float]:
        if not isinstance(answer, list) or len(answer) != count:
            raise UnusableScores
        return [_labelled(classes, label) for classes in answer]

    return read


def _labelled(classes: Any, label: str | None) -> float:
    if not isinstance(classes, list):
        raise UnusableScores
    wanted = [item for item in classes if label is None or item["label"] == label]
    if len(wanted) != 1:
        raise UnusableScores
    return number(wanted[0]["score"])


def _ranks(count: int) -> Callable[[Any], list[float]]:
    def read(answer: Any) -> list[float]:
        items = objects(answer, count)
        return by_index(items, [number(item["score"]) for item in items])

    return read
