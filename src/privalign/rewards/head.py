"""Scores from a linear head on public features, bound to the certificate of their sensitivity."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from privalign.errors import InvalidFile, InvalidInput, MissingDependency
from privalign.preferences.features import CharacterCrosses
from privalign.secret import installation_key
from privalign.sensitivity import Certificate, Sensitivity, load_certificate


class HeadReward:
    """clip(w·φ(prompt, answer)) to the certificate's range.

    Args:
        weights: shape (dimension of the certified features,). certificate: of kind "head".

    Formal guarantee: the one of the certificate that `sensitivity` states, for scores as computed in floats.

    Raises:
        InvalidInput: the certificate is not one of a head, or does not fit the weights' shape.
    """

    def __init__(self, weights: NDArray[np.float64], certificate: Certificate) -> None:
        if certificate.kind != "head" or certificate.output != "clip" or certificate.feature_norm is None or certificate.features is None:
            raise InvalidInput("certificate", f"is of kind '{certificate.kind}', not of a head whose scores are clipped")
        self._features = CharacterCrosses.from_description(certificate.features)
        if weights.shape != (self._features.dimension,) or weights.dtype != np.float64:
            raise InvalidInput(
                "weights", f"{weights.dtype} of shape {weights.shape} where the certificate needs float64 of ({self._features.dimension},)"
            )
        self._weights = weights
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
        key = installation_key()
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
        rows = self._features.rows([prompt] * len(answers), answers, self._norm)
        scores: NDArray[np.float64] = np.clip(rows @ self._weights, self.certificate.range.low, self.certificate.range.high)
        return scores
