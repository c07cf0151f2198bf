"""Scores from linear heads on public features, bound to the certificate of their sensitivity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from privalign.errors import InvalidFile, InvalidInput, MissingDependency
from privalign.preferences.features import feature_map
from privalign.secret import existing_key
from privalign.sensitivity import Certificate, Sensitivity, load_certificate

Floats = NDArray[np.float64]


class HeadReward:
    """w·φ(prompt, answer) brought to the certificate's range by clip or sigmoid; of an ensemble the mean of its heads.

    Args:
        weights: shape (dimension of the certified features,), or (shards, dimension). certificate: of kind "head" or "ensemble".

    Formal guarantee: the one of the certificate that `sensitivity` states, for scores as computed in floats. A head that was
    released with differential privacy says so in `sensitivity.source`: its scores are public.

    Raises:
        InvalidInput: the certificate is not one of a head, or does not fit the weights' shape.
    """

    def __init__(self, weights: Floats, certificate: Certificate) -> None:
        if certificate.kind == "declared" or certificate.feature_norm is None or certificate.features is None:
            raise InvalidInput("certificate", f"is of kind '{certificate.kind}' without features, not of a head that was fitted here")
        self._features = feature_map(certificate.features)
        heads = () if certificate.shards is None else (certificate.shards,)
        shape = (*heads, self._features.dimension)
        if weights.shape != shape or weights.dtype != np.float64:
            raise InvalidInput("weights", f"{weights.dtype} of shape {weights.shape} where the certificate needs float64 of {shape}")
        self._weights = weights.reshape(-1, self._features.dimension)
        self._norm = certificate.feature_norm
        self.certificate = certificate

    @classmethod
    def load(cls, path: Path) -> Self:
        """Loads what `Head.save` wrote: the certificate at `path` and the weights beside it.

        Raises:
            InvalidFile: unreadable, or certificate and weights are not those that this installation signed together.
        """
        try:
            from safetensors.numpy import load
        except ImportError:
            raise MissingDependency("safetensors is not installed; get it with: pip install 'privalign[heads]'") from None
        key = existing_key()
        certificate = load_certificate(path, key)
        try:
            content = path.with_suffix(".safetensors").read_bytes()
        except OSError as error:
            raise InvalidFile(str(path), None, f"the weights beside it cannot be read ({error.strerror}); fit the head again") from None
        if not certificate.is_signed_by(key, content):  # the bytes used are the bytes checked
            raise InvalidFile(str(path), None, "the weights beside it are not the ones it was signed for; fit the head again")
        return cls(load(content)["weights"], certificate)

    @property
    def sensitivity(self) -> Sensitivity:
        """Δ of the scores, for the certificate's relation and records per person."""
        return self.certificate.to_sensitivity()

    def score(self, prompt: str, answers: Sequence[str]) -> NDArray[np.float64]:
        """Scores in the public range, shape (len(answers),)."""
        raw = self.raw(prompt, answers)
        low, high, width = self.certificate.range.low, self.certificate.range.high, self.certificate.range.width
        if self.certificate.output == "sigmoid":
            from scipy.special import expit

            raw = low + width * expit(raw)
        scores: Floats = np.clip(raw, low, high)
        return np.array([math.fsum(column) / len(column) for column in scores.T])

    def raw(self, prompt: str, answers: Sequence[str]) -> Floats:
        """w·φ of every head, before it is clipped or squashed, shape (heads, len(answers)); no range bounds it."""
        rows = self._features.rows([prompt] * len(answers), answers, self._norm)
        return np.array([[_dot(row, weights) for row in _split(rows)] for weights in self._weights]).reshape(len(self._weights), -1)


def _split(rows: Any) -> list[tuple[NDArray[np.int32], Floats]]:
    """Columns and values of every row of a CSR array."""
    bounds = zip(rows.indptr[:-1], rows.indptr[1:], strict=True)
    return [(rows.indices[start:end], rows.data[start:end]) for start, end in bounds]


def _dot(row: tuple[NDArray[np.int32], Floats], weights: Floats) -> float:
    """w·φ, the exact sum of the rounded products, rounded once: its error does not grow with the number of features."""
    columns, values = row
    return math.fsum((values * weights[columns]).tolist())
