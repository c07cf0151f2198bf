"""The memory of released thresholds: a request that comes again need not pay for phase 1 again."""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict

from privalign.aligner.model import ServedModel
from privalign.errors import InvalidInput
from privalign.events import Composed, Event, RejectionRounds
from privalign.mechanisms.privitp import PrivITP, PrivITPPhase2
from privalign.mechanisms.protocol import Mechanism
from privalign.types import Request

MOST = 10_000  # remembered per model; forgetting one costs phase 1 again


class Thresholds:
    """λ̃ by request, as released; empty for ever where the model does not reuse them.

    Args:
        key: a secret of the installation: requests are kept as their names under it, never as text.

    Raises:
        InvalidInput: the model reuses thresholds and there is no key.
    """

    def __init__(self, model: ServedModel, key: bytes) -> None:
        if model.reuse_threshold and not key:
            raise InvalidInput("reuse_threshold", "needs the installation key to name prompts by")
        self._model = model
        self._key = key
        self._known: OrderedDict[bytes, float] = OrderedDict()

    def mechanism(self, request: Request) -> Mechanism:
        """The served mechanism, or its phase 2 alone where the request's λ̃ was released before."""
        rule = self._model.mechanism
        if self._model.reuse_threshold and isinstance(rule, PrivITP):
            threshold = self._known.get(self._name(request))
            if threshold is not None:
                return PrivITPPhase2(rule, threshold)
        return rule

    def remember(self, request: Request, realised: Event) -> None:
        """Keeps the λ̃ that answering the request released, where there is one."""
        if not self._model.reuse_threshold:
            return
        parts = realised.events if isinstance(realised, Composed) else (realised,)
        for part in parts:
            if isinstance(part, RejectionRounds) and part.threshold is not None:
                self._known[self._name(request)] = part.threshold
        while len(self._known) > MOST:
            self._known.popitem(last=False)

    def _name(self, request: Request) -> bytes:
        model = self._model
        parts = (model.account, model.reward.name, repr(model.reward.sensitivity), repr(model.mechanism), model.policy.name)
        message = hashlib.sha256("\0".join(parts).encode()).digest() + request.canonical()
        return hmac.digest(self._key, message, "sha256")
