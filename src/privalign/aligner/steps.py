"""One run of a mechanism over scores that come in chunks."""

from __future__ import annotations

import contextlib

import numpy as np

from privalign.mechanisms.protocol import Draw, Mechanism, Rewards, Selection
from privalign.randomness import Randomness
from privalign.sensitivity import Sensitivity


class Steps:
    """Says how many scores are wanted and takes them, until there is a selection.

    How many depends on the mechanism's settings, the chunk and what the mechanism releases (whether it goes on), and on
    nothing else that the scores say.

    Attributes:
        selection: what the mechanism returned, once nothing is `wanted`.
    """

    selection: Selection

    def __init__(self, mechanism: Mechanism, sensitivity: Sensitivity, noise: Randomness, chunk: int) -> None:
        self._chunk = chunk
        self._run = mechanism.run(sensitivity, noise)
        self._unused: Rewards = np.empty(0)
        self._draw: Draw | None = None  # what the mechanism waits for
        self._send(None)

    @property
    def wanted(self) -> int:
        """Scores to come next, of fresh candidates; 0: there is a selection."""
        if self._draw is None:
            return 0
        now = min(max(self._draw.least, self._chunk), self._draw.most) - len(self._unused)
        return now + min(self._chunk, self._draw.ahead)

    def take(self, scores: Rewards) -> None:
        """The `wanted` scores, in the order of their candidates. Whatever the mechanism raises passes through."""
        self._unused = np.concatenate([self._unused, scores])
        while self._draw is not None and len(self._unused) >= self._draw.least:
            most = self._draw.most
            rewards, self._unused = self._unused[:most], self._unused[most:]
            self._send(rewards)

    def forget(self) -> None:
        """Lets go of all scores, those in the mechanism's own frame included; nothing is wanted afterwards."""
        self._unused, self._draw = np.empty(0), None
        with contextlib.suppress(BaseException):  # whatever a mechanism does when it is closed
            self._run.close()
        del self._run

    def _send(self, rewards: Rewards | None) -> None:
        try:
            self._draw = self._run.send(rewards)  # type: ignore[arg-type]  # the first send of a generator is None
        except StopIteration as stop:
            self.selection, self._draw = stop.value, None
