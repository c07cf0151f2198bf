"""Scores from linear heads on public features, bound to the certificate of their sensitivity."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from privalign.errors import InvalidFile, InvalidInput, MissingDependency
from privalign.preferences.bounds import weight_norm
from privalign.preferences.features import feature_map
from privalign.rewards import sums
from privalign.secret import existing_key
from privalign.sensitivity import Certificate, Sensitivity, load_certificate

Floats = NDArray[np.float64]


class HeadReward:
    """w·φ(prompt, answer) brought to the certificate's range by clip or sigmoid; of an ensemble the mean of its heads.

    Args:
        weights: shape (dimension of the certified features,), or (shards, dimension). certificate: of kind "head" or "ensemble".

    Formal guarantee: the one of the certificate that `sensitivity` states, for scores as computed in floats. The work of scoring a
    text depends on the text, not on the weights: the sums are those of `rewards.sums`. A head that was released with differential
    privacy says so in `sensitivity.source`: its scores are public.

    Raises:
        InvalidInput: the certificate is not one of a head, or does not fit the weights' shape or length.
    """

    def __init__(self, weights: Floats, certificate: Certificate) -> None:
        if certificate.kind == "declared" or certificate.feature_norm is None or certificate.features is None:
            raise InvalidInput("certificate", f"is of kind '{certificate.kind}' without features, not of a head that was fitted here")
        self._features = feature_map(certificate.features)
        heads = () if certificate.shards is None else (certificate.shards,)
        shape = (*heads, self._features.dimension)
        if weights.shape != shape or weights.dtype != np.float64:
            raise InvalidInput("weights", f"{weights.dtype} of shape {weights.shape} where the certificate needs float64 of {shape}")
        each = weights.reshape(-1, self._features.dimension)
        length = float(np.linalg.norm(each, axis=1).max())
        reach = weight_norm(certificate.feature_norm, certificate.range, certificate.output)
        if certificate.released:  # public, and not projected
            reach = max(reach, 2 * length)
        if not length <= reach:
            raise InvalidInput("weights", "longer than any that are fitted, or not finite; restore the file, or fit the head again")
        self._weights, self._exponent = sums.scaled(each, reach)
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
            raw = low + width * sums.sigmoid(raw)
        scores: Floats = np.clip(raw, low, high)
        return scores[0] if len(scores) == 1 else np.clip(sums.means(scores, max(-low, high)), low, high)

    def raw(self, prompt: str, answers: Sequence[str]) -> Floats:
        """w·φ of every head, before it is clipped or squashed, shape (heads, len(answers)); no range bounds it."""
        rows = self._features.rows([prompt] * len(answers), answers, self._norm)
        values, exponent = sums.scaled(rows.data, self._norm)
        ends = rows.indptr.astype(np.int64)
        return np.stack(
            [sums.times_power(sums.sums(values * head[rows.indices], ends), self._exponent + exponent) for head in self._weights]
        )
