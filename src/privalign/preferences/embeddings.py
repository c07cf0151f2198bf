"""Embeddings of (prompt, answer) by a frozen language model: transformers or llama.cpp.

Texts are embedded one at a time, never in padded batches: the float result of a batch depends on its other texts, so that one
person's record would move the features of others, which no certificate covers. The model must not be tuned on the preferences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from privalign.errors import BackendFailed, InvalidInput, MissingDependency
from privalign.preferences.features import clipped

Floats = NDArray[np.float64]
_POOLINGS: Final = ("last", "mean")


class _Embeddings:
    """What both back-ends share: a frozen model, described by its settings, that makes one dense vector a text."""

    kind: str

    @property
    def dimension(self) -> int:
        """The width of the model."""
        raise NotImplementedError

    def _embed(self, prompt: str, answer: str) -> Floats:
        raise NotImplementedError

    def rows(self, prompts: Sequence[str], answers: Sequence[str], norm: float) -> Any:
        """See `FeatureMap`."""
        from scipy.sparse import csr_array

        vectors = [self._embed(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]
        return clipped(csr_array(np.array(vectors, dtype=np.float64).reshape(len(vectors), self.dimension)), norm)

    def describe(self) -> dict[str, object]:
        """See `FeatureMap`."""
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]  # every subclass is a dataclass

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Self:
        """The map of a description.

        Raises:
            InvalidInput: a setting is missing, unknown or out of its range.
        """
        try:
            return cls(**{name: value for name, value in description.items() if name != "kind"})
        except TypeError:
            raise InvalidInput("features", f"{cls.kind} does not take these settings; see the manual") from None


@dataclass(frozen=True)
class TransformersEmbeddings(_Embeddings):
    """The last hidden layer of a transformers model on the conversation (prompt, answer), last token or mean over tokens.

    Args:
        model: a folder, or a name on the hub. pooling: "last" or "mean".
        longest: tokens read at most; of a longer text the last ones.

    With a chat template the text is a user and an assistant turn, else prompt and answer with an empty line between.
    """

    kind = "transformers"
    model: str
    pooling: str = "last"
    longest: int = 2048

    def __post_init__(self) -> None:
        _check(self.model, self.pooling, self.longest)

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        try:
            import transformers
        except ImportError:
            raise MissingDependency("transformers is not installed; get it with: pip install torch transformers jinja2") from None
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(self.model)
            model: Any = transformers.AutoModel.from_pretrained(self.model, dtype="float32")
        except (OSError, ValueError, RuntimeError, ImportError) as error:
            raise BackendFailed(
                f"transformers cannot load {self.model} ({type(error).__name__}); give a model with its tokenizer"
            ) from None
        return tokenizer, model.eval()

    @property
    def dimension(self) -> int:
        """The width of the hidden layer."""
        return int(self._loaded[1].config.hidden_size)

    def _embed(self, prompt: str, answer: str) -> Floats:
        import torch

        tokenizer, model = self._loaded
        if tokenizer.chat_template is None:
            tokens = tokenizer(f"{prompt}\n\n{answer}")["input_ids"]
        else:
            turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
            tokens = tokenizer(tokenizer.apply_chat_template(turns, tokenize=False), add_special_tokens=False)["input_ids"]
        if not tokens:
            return np.zeros(self.dimension)
        with torch.inference_mode():
            hidden = model(input_ids=torch.tensor([tokens[-self.longest :]])).last_hidden_state[0]
        vector: Floats = (hidden[-1] if self.pooling == "last" else hidden.mean(dim=0)).double().numpy()
        return vector


@dataclass(frozen=True)
class LlamaCppEmbeddings(_Embeddings):
    """The embedding that llama.cpp computes of prompt and answer with an empty line between, last token or mean over tokens.

    Args:
        model: a GGUF file. pooling: "last" or "mean". longest: tokens of context; a longer text is refused.
    """

    kind = "llamacpp"
    model: str
    pooling: str = "last"
    longest: int = 2048

    def __post_init__(self) -> None:
        _check(self.model, self.pooling, self.longest)

    @cached_property
    def _server(self) -> Any:
        try:
            import xllamacpp
        except ImportError:
            raise MissingDependency("xllamacpp is not installed; get it with: pip install 'privalign[llamacpp]'") from None
        params = xllamacpp.CommonParams()
        params.model.path = str(Path(self.model))
        params.embedding = True
        pooling = xllamacpp.llama_pooling_type
        params.pooling_type = pooling.LLAMA_POOLING_TYPE_LAST if self.pooling == "last" else pooling.LLAMA_POOLING_TYPE_MEAN
        params.n_parallel = 1
        params.n_ctx = params.n_batch = params.n_ubatch = self.longest
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.cache_ram_mib = 0
        params.warmup = False
        params.verbosity = -1
        try:
            return xllamacpp.Server(params)
        except RuntimeError:
            raise BackendFailed(f"llama.cpp cannot load {self.model}; give a GGUF file") from None

    @cached_property
    def dimension(self) -> int:
        """The width of the embedding."""
        return len(self._embed("", "a"))

    def _embed(self, prompt: str, answer: str) -> Floats:
        result = self._server.handle_embeddings({"input": f"{prompt}\n\n{answer}", "cache_prompt": False})
        try:
            return np.array(result["data"][0]["embedding"], dtype=np.float64)
        except (KeyError, IndexError, TypeError, ValueError):
            raise BackendFailed(
                "llama.cpp returned no embedding; is a text longer than the context, or the model not meant for it?"
            ) from None


def _check(model: object, pooling: object, longest: object) -> None:
    if not isinstance(model, str) or not model:
        raise InvalidInput("features", f"model {model!r} is not the name of a model")
    if pooling not in _POOLINGS:
        raise InvalidInput("features", f"pooling {pooling!r} is not one of {', '.join(_POOLINGS)}")
    if type(longest) is not int or longest < 1:
        raise InvalidInput("features", f"longest {longest!r} is not a whole number of at least 1")
