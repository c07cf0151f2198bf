"""Embeddings of (prompt, answer) by a frozen language model: transformers or llama.cpp.

Texts are embedded one at a time, never in padded batches: the float result of a batch depends on its other texts, so that one
person's record would move the features of others, which no certificate covers. The model must not be tuned on the preferences.

A description, and so a certificate, names the model by place and by content: a digest of its public files. A model of another
content is refused before it embeds anything.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from privalign.errors import BackendFailed, InvalidInput, MissingDependency
from privalign.preferences.features import clipped

Floats = NDArray[np.float64]
_POOLINGS: Final = ("last", "mean")
_SMALL_FILES: Final = (  # of a transformers model: configuration and tokenizer
    "config.json",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template*",
    "*.model",
)
_PART: Final = re.compile(r"-\d{5}-of-(\d{5})\.gguf")


class _Embeddings:
    """What both back-ends share: a frozen model, described by its settings, that makes one dense vector a text."""

    kind: str
    model: str
    pooling: str
    longest: int
    digest: str | None

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise InvalidInput("features", f"model {self.model!r} is not the name of a model")
        if self.pooling not in _POOLINGS:
            raise InvalidInput("features", f"pooling {self.pooling!r} is not one of {', '.join(_POOLINGS)}")
        if type(self.longest) is not int or self.longest < 1:
            raise InvalidInput("features", f"longest {self.longest!r} is not a whole number of at least 1")
        if self.digest is not None and not (isinstance(self.digest, str) and re.fullmatch("[0-9a-f]{64}", self.digest)):
            raise InvalidInput("features", "digest is not a SHA-256 in hexadecimal; leave it out to take the model as it is")

    def _content(self) -> str:
        """SHA-256 of the model's files, in hexadecimal."""
        raise NotImplementedError

    @cached_property
    def _found(self) -> str:
        try:
            return self._content()
        except OSError:
            raise BackendFailed(f"cannot load {self.model}: its files cannot be read; give a model that is there") from None

    def _check_content(self) -> None:
        """Refuses a model that is not the one of the description."""
        if self.digest is not None and self._found != self.digest:
            raise InvalidInput("features", f"{self.model} is not the model that they were made with; restore it, or fit the head again")

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
        self._check_content()
        settings = asdict(self)  # type: ignore[call-overload]  # every subclass is a dataclass
        return {"kind": self.kind, **settings, "digest": self._found}

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
        longest: tokens of a text; a longer one is refused, and so is one that is longer than the model's positions.
        digest: of the files, as `describe` states it; None: whatever is there. SHA-256 over the output of sha256sum for the weights
            (*.safetensors; without any, *.bin), the configuration and the files of the tokenizer, sorted by name.

    With a chat template the text is a user and an assistant turn, else prompt and answer with an empty line between.
    """

    kind = "transformers"
    model: str
    pooling: str = "last"
    longest: int = 2048
    digest: str | None = None

    def _content(self) -> str:
        folder = self._folder()
        weights = list(folder.glob("*.safetensors")) or list(folder.glob("*.bin"))
        files = {file.name: file for file in [*weights, *(file for pattern in _SMALL_FILES for file in folder.glob(pattern))]}
        if not weights or "config.json" not in files:
            raise FileNotFoundError
        lines = (f"{_file_digest(files[name])}  {name}\n" for name in sorted(files) if files[name].is_file())
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def _folder(self) -> Path:
        """Where the files are; those of a hub's model in its cache, once it was loaded."""
        if Path(self.model).is_dir():
            return Path(self.model)
        from transformers.utils.hub import cached_file

        return Path(str(cached_file(self.model, "config.json"))).parent

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        try:
            import transformers
            from safetensors import SafetensorError
        except ImportError:
            raise MissingDependency("transformers is not installed; get it with: pip install torch transformers jinja2") from None
        if Path(self.model).is_dir():
            self._check_content()
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(self.model)
            model: Any = transformers.AutoModel.from_pretrained(self.model, dtype="float32")
        except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
            raise BackendFailed(
                f"transformers cannot load {self.model} ({type(error).__name__}); give a model with its tokenizer"
            ) from None
        self._check_content()  # now that the files of a hub's model are here
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
        if len(tokens) > min(self.longest, getattr(model.config, "max_position_embeddings", None) or self.longest):
            raise BackendFailed("a text is longer than the model reads; raise 'longest' if the model allows it, or leave such texts out")
        with torch.inference_mode():
            hidden = model(input_ids=torch.tensor([tokens])).last_hidden_state[0]
        vector: Floats = (hidden[-1] if self.pooling == "last" else hidden.mean(dim=0)).double().numpy()
        return vector


@dataclass(frozen=True)
class LlamaCppEmbeddings(_Embeddings):
    """The embedding that llama.cpp computes of prompt and answer with an empty line between, last token or mean over tokens.

    Args:
        model: a GGUF file. pooling: "last" or "mean". longest: tokens of context; a longer text is refused.
        digest: SHA-256 of the file, or of all its parts one after the other; None: whatever is there.
    """

    kind = "llamacpp"
    model: str
    pooling: str = "last"
    longest: int = 2048
    digest: str | None = None

    def _content(self) -> str:
        file = Path(self.model)
        part = _PART.search(file.name)
        if part is None:
            return _file_digest(file)
        whole = hashlib.sha256()
        for number in range(1, int(part[1]) + 1):
            with file.with_name(file.name.replace(part[0], f"-{number:05d}-of-{part[1]}.gguf")).open("rb") as stream:
                for block in iter(lambda: stream.read(1 << 20), b""):
                    whole.update(block)
        return whole.hexdigest()

    @cached_property
    def _server(self) -> Any:
        self._check_content()
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


def _file_digest(file: Path) -> str:
    status = file.stat()
    return _digest_of(file.resolve(), (status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=1024)
def _digest_of(file: Path, _state: tuple[int, int]) -> str:
    """Of one file, once for as long as it stays as it is: models have gigabytes, and several heads may share one."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
