"""Which studies belong to a run: `RUN/studies.json` says for each study of its recipe which request `RUN/studies/NAME.json` answers.

A request is a digest of all that a study depends on. What was made for a table that has since been removed, renamed or changed
stays on disk and is stale: no longer part of the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from privalign.errors import InvalidFile
from privalign.studies.study import read_study

STUDIES: Final = "studies"  # the folder of a run that holds them
LIST: Final = "studies.json"  # beside it
REQUEST: Final = "request"  # the setting of a study that says what it answers; one that was made by hand has none


def listing(requests: Mapping[str, str], notice: str) -> dict[str, Any]:
    """The content of `RUN/studies.json`: requests by the names of the studies."""
    return {"notice": notice, "studies": dict(requests)}


def stale(documents: Iterable[Path]) -> list[Path]:
    """Those of the documents that were made for a run and are no longer part of it."""
    return [path for path in documents if path.absolute().parent.name == STUDIES and _is_stale(path.absolute())]


def _is_stale(path: Path) -> bool:
    try:
        requests = json.loads((path.parent.parent / LIST).read_text(encoding="utf-8"))["studies"]
        request = read_study(path).settings.get(REQUEST)
        return request is not None and requests.get(path.stem) != request
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidFile):
        return False  # a run without a list, or no document: said elsewhere
