"""A reward model in this process: transformers sequence classification, on CPU or CUDA."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from privalign.errors import BackendFailed, InvalidInput, MissingDependency
from privalign.rewards.conversation import ChatTemplate, conversation
from privalign.rewards.protocol import ScorerUntouched
from privalign.rewards.scores import AffineMap, FailClosedReward, UnusableScores, entry
from privalign.sensitivity import Sensitivity
from privalign.types import Candidate, Request

if TYPE_CHECKING:
    import torch

ACTIVATIONS = ("none", "sigmoid", "softmax")
OUTPUTS = ("logits", "score")


@dataclass(frozen=True, slots=True)
class Reading:
    """How a score is read from what the model returns.

    Args:
        output: the field with the scores: "logits", or "score" for models that bring their own code and call it so.
        label: index of the class whose score is the reward; None for a model with one output.
        activation: "none", "sigmoid" (each class by itself) or "softmax" (over the classes).

    Raises:
        InvalidInput: an argument is none of these.
    """

    output: str = "logits"
    label: int | None = None
    activation: str = "none"

    def __post_init__(self) -> None:
        if self.output not in OUTPUTS:
            raise InvalidInput("output", f"{self.output!r} is none of {', '.join(OUTPUTS)}")
        if self.activation not in ACTIVATIONS:
            raise InvalidInput("activation", f"{self.activation!r} is none of {', '.join(ACTIVATIONS)}")
        if self.activation == "softmax" and self.label is None:
            raise InvalidInput("label", "softmax over one class is always 1; give the index of a class, or take the sigmoid")

    def of(self, returned: Any, rows: int) -> list[float]:
        """One score for each of `rows` sequences.

        Raises:
            UnusableScores: the model returned something else.
        """
        scores = getattr(returned, self.output).float()
        if scores.ndim == 1:
            scores = scores[:, None]
        if scores.ndim != 2 or scores.shape[0] != rows:
            raise UnusableScores
        if self.activation == "sigmoid":
            scores = scores.sigmoid()
        elif self.activation == "softmax":
            scores = scores.softmax(dim=-1)
        return [entry(row, self.label) for row in scores.tolist()]

    def __str__(self) -> str:
        return f"activation={self.activation}" + ("" if self.label is None else f" label={self.label}")


class TransformersReward(FailClosedReward):
    """A loaded sequence classification model and its tokenizer.

    Args:
        model, tokenizer: as transformers loads them. name: a public name for them.
        template: the reward model's chat template; None takes the tokenizer's.
        batch_size: sequences a forward pass, padded on the right. It changes scores by rounding only (about 1e-6 in float32).
        max_tokens: longer inputs are refused, never cut; None takes the model's own limit.

    One forward pass at a time, in a thread.

    Raises:
        InvalidInput: neither the tokenizer nor the caller has a chat template.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str,
        sensitivity: Sensitivity,
        mapping: AffineMap | None = None,
        reading: Reading | None = None,
        template: ChatTemplate | None = None,
        batch_size: int = 8,
        max_tokens: int | None = None,
    ) -> None:
        reading = reading or Reading()
        super().__init__(f"transformers {name} {reading}", sensitivity, mapping or AffineMap())
        if template is None and not tokenizer.chat_template:
            raise InvalidInput("template", f"the tokenizer of {name} has no chat template; give the one it was trained with")
        if batch_size < 1:
            raise InvalidInput("batch_size", f"{batch_size} is below 1")
        self._model = model.eval()
        self._text_config = model.config.get_text_config()
        self._tokenizer = tokenizer
        self._reading = reading
        self._template = template
        self._batch_size = batch_size
        self._pad = self._text_config.pad_token_id if self._text_config.pad_token_id is not None else tokenizer.pad_token_id
        limits = (max_tokens, getattr(self._text_config, "max_position_embeddings", None), tokenizer.model_max_length)
        self._max_tokens = min(limit for limit in limits if limit is not None)
        self._one_at_a_time = threading.Lock()

    @classmethod
    def load(
        cls,
        model: str,
        *,
        sensitivity: Sensitivity,
        revision: str | None = None,
        trust_remote_code: bool = False,
        device: str = "cpu",
        dtype: str = "float32",
        mapping: AffineMap | None = None,
        reading: Reading | None = None,
        template: ChatTemplate | None = None,
        batch_size: int = 8,
        max_tokens: int | None = None,
    ) -> Self:
        """Loads a model by its id or folder. OpenAssistant's and ArmoRM's architectures are known; others may bring their own code.

        Raises:
            MissingDependency: torch or transformers is not installed. BackendFailed: the model cannot be loaded.
            InvalidInput: its files lack weights that the architecture needs: it is not a trained reward model; or it has several outputs
            and none is chosen, or one that it lacks.
        """
        try:
            import torch
            from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedConfig

            from privalign.rewards.architectures import PUBLISHED
        except ImportError:
            raise MissingDependency("torch or transformers is missing; get them with: pip install 'privalign[transformers]'") from None
        if not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise InvalidInput("dtype", f"{dtype!r} is none of torch's; give one like bfloat16 or float32")
        source = {"revision": revision, "trust_remote_code": trust_remote_code}
        try:
            settings, _ = PreTrainedConfig.get_config_dict(model, revision=revision)
            named = [PUBLISHED[name] for name in settings.get("architectures") or () if name in PUBLISHED]
            architecture = named[0] if named else AutoModelForSequenceClassification
            tokenizer = AutoTokenizer.from_pretrained(model, **source)
            loaded, report = architecture.from_pretrained(model, dtype=getattr(torch, dtype), output_loading_info=True, **source)
        except (OSError, ValueError, RuntimeError, AttributeError, ImportError) as error:
            raise BackendFailed(f"transformers cannot load {model}; give the id or folder of a sequence classification model") from error
        if report["missing_keys"]:  # transformers would fill them with random numbers and warn
            raise InvalidInput("model", f"{model} has no weights for {min(report['missing_keys'])}; give a trained reward model")
        # the config of other architectures says nothing of their outputs
        if type(loaded).__module__.startswith("transformers.models") and (reading or Reading()).output == "logits":
            _check_label(model, loaded.config.num_labels, (reading or Reading()).label)
        public = Path(model).name if Path(model).is_dir() else model
        return cls(
            loaded.to(device),
            tokenizer,
            name=public if revision is None else f"{public}@{revision}",
            sensitivity=sensitivity,
            mapping=mapping,
            reading=reading,
            template=template,
            batch_size=batch_size,
            max_tokens=max_tokens,
        )

    async def _raw(self, request: Request, candidates: Sequence[Candidate]) -> list[float]:
        return await asyncio.to_thread(self._scores, request, [candidate.scored_text for candidate in candidates])

    def _scores(self, request: Request, answers: Sequence[str]) -> list[float]:
        rows = [self._tokens(conversation(request, answer)) for answer in answers]
        pad = self._pad
        if pad is None:  # models find a sequence's end by its last token that is no padding, so no sequence may end in it
            ends = {row[-1] for row in rows}
            pad = next(token for token in count() if token not in ends)
        scores: list[float] = []
        with self._one_at_a_time:
            self._text_config.pad_token_id = pad
            for start in range(0, len(rows), self._batch_size):
                scores += self._forward(rows[start : start + self._batch_size], pad)
        return scores

    def _tokens(self, messages: list[dict[str, Any]]) -> list[int]:
        """A conversation as tokens. Nothing of the reward model is used, so a refusal leaves it untouched."""
        try:
            text = self._template.render(messages) if self._template else self._tokenizer.apply_chat_template(messages, tokenize=False)
            tokens: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids  # the template has written them
        except ScorerUntouched:
            raise
        except Exception:
            raise ScorerUntouched("the reward model's chat template cannot write this conversation; nothing was scored", 422) from None
        if not 0 < len(tokens) <= self._max_tokens:
            raise ScorerUntouched(f"an input is longer than the reward model's {self._max_tokens} tokens; nothing was scored", 413)
        return tokens

    def _forward(self, rows: Sequence[Sequence[int]], pad: int) -> list[float]:
        import torch

        width = max(map(len, rows))
        ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        device: torch.device = self._model.device
        with torch.inference_mode():
            return self._reading.of(self._model(input_ids=ids.to(device), attention_mask=mask.to(device)), len(rows))


def _check_label(model: str, outputs: int, label: int | None) -> None:
    """How many outputs a model has is public; found out only by scoring, it would be one more score that cannot be used."""
    if label is None and outputs > 1:
        raise InvalidInput("label", f"missing; {model} has {outputs} outputs, give the index of the one that is the reward")
    if label is not None and label >= outputs:
        raise InvalidInput("label", f"{label} is no output of {model}, which has {outputs}, counted from 0")
