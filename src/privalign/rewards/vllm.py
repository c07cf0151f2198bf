"""vLLM's pooling servers: `/classify`, `/score` and `/pooling`.

vLLM never cuts a long input unless asked to; it answers 400. Its activation is a trap: sigmoid by default for one label,
softmax for several, so it is always stated. Classes are told apart by their index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from privalign.rewards.conversation import ChatTemplate, conversation, prompt_text
from privalign.rewards.remote import Call, chunks
from privalign.rewards.scores import by_index, entry, number, objects
from privalign.types import Request

_ONLY = "its only model"


@dataclass(frozen=True, slots=True)
class VllmClassify:
    """`POST /classify`: a sequence classifier.

    Args:
        model: the served name; None: the only one.
        activation: let the server apply the model's activation (sigmoid or softmax), or send raw scores.
        template: the reward model's chat template: texts travel in batches. None: messages, one conversation a call, and the
            server's template.
        label: index of the class whose score is the reward; None for a model with one output.
    """

    model: str | None
    activation: bool = False
    template: ChatTemplate | None = None
    label: int | None = None

    @property
    def name(self) -> str:
        """A public name that says which model, with which settings."""
        return f"vllm-classify {self.model or _ONLY} {_settings(self.activation, self.label)}"

    def calls(self, request: Request, answers: Sequence[str], batch_size: int) -> list[Call]:
        """The calls that score all answers, in order."""
        settings = _named(self.model) | {"use_activation": self.activation}
        return _text_calls("/classify", settings, self.template, request, answers, batch_size, _reader("probs", self.label))


@dataclass(frozen=True, slots=True)
class VllmPooling:
    """`POST /pooling` with the task `classify`: as `VllmClassify`, for servers without that path."""

    model: str | None
    activation: bool = False
    template: ChatTemplate | None = None
    label: int | None = None

    @property
    def name(self) -> str:
        """A public name that says which model, with which settings."""
        return f"vllm-pooling {self.model or _ONLY} {_settings(self.activation, self.label)}"

    def calls(self, request: Request, answers: Sequence[str], batch_size: int) -> list[Call]:
        """The calls that score all answers, in order."""
        own = {"task": "classify", "encoding_format": "float", "use_activation": self.activation}
        settings = _named(self.model) | own
        return _text_calls("/pooling", settings, self.template, request, answers, batch_size, _reader("data", self.label))


@dataclass(frozen=True, slots=True)
class VllmScore:
    """`POST /score`: a cross-encoder that takes a prompt and an answer.

    The prompt is a lone user turn as it is; of a longer conversation all turns with their roles.
    """

    model: str | None
    activation: bool = False

    @property
    def name(self) -> str:
        """A public name that says which model, with which settings."""
        return f"vllm-score {self.model or _ONLY} {_settings(self.activation, None)}"

    def calls(self, request: Request, answers: Sequence[str], batch_size: int) -> list[Call]:
        """The calls that score all answers, in order."""
        # text_1 and text_2 are the names that every version takes; newer ones also call them queries and documents
        common = _named(self.model) | {"use_activation": self.activation, "text_1": prompt_text(request)}
        return [Call("/score", common | {"text_2": list(batch)}, _scores(len(batch))) for batch in chunks(answers, batch_size)]


def _named(model: str | None) -> dict[str, Any]:
    return {} if model is None else {"model": model}


def _settings(activation: bool, label: int | None) -> str:
    return f"activation={'on' if activation else 'off'}" + ("" if label is None else f" label={label}")


def _text_calls(
    path: str,
    settings: dict[str, Any],
    template: ChatTemplate | None,
    request: Request,
    answers: Sequence[str],
    batch_size: int,
    reader: Callable[[int], Callable[[Any], list[float]]],
) -> list[Call]:
    conversations = [conversation(request, answer) for answer in answers]
    if template is None:
        return [Call(path, settings | {"messages": messages}, reader(1)) for messages in conversations]
    texts = [template.render(messages) for messages in conversations]
    settings = settings | {"add_special_tokens": False}  # the template has written them
    return [Call(path, settings | {"input": list(batch)}, reader(len(batch))) for batch in chunks(texts, batch_size)]


def _reader(field: str, label: int | None) -> Callable[[int], Callable[[Any], list[float]]]:
    def of_count(count: int) -> Callable[[Any], list[float]]:
        def read(answer: Any) -> list[float]:
            items = objects(answer["data"], count)
            return by_index(items, [entry(item[field], label) for item in items])

        return read

    return of_count


def _scores(count: int) -> Callable[[Any], list[float]]:
    def read(answer: Any) -> list[float]:
        items = objects(answer["data"], count)
        return by_index(items, [number(item["score"]) for item in items])

    return read
