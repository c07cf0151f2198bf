"""Which figures each kind of study gets, as its file says. A kind that is not here gets its table alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from privalign.simulation.panels import PANELS
from privalign.studies.panels import Panel
from privalign.studies.registry import KINDS

PLANS: Final[Mapping[str, tuple[Panel, ...]]] = {
    **{document: panels for kind in KINDS.values() for document, panels in kind.panels.items()},
    **PANELS,
}
