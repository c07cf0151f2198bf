"""The document that every study writes and the report draws: rows of one table with the settings behind them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from privalign.errors import InvalidFile

NOTICE: Final = "not a private release: computed from rewards that are treated as public"


@dataclass(frozen=True, slots=True)
class Study:
    """One study's result.

    Args:
        kind: which study: "comparison", "matched", "composition", …; the report chooses figure and table by it.
        title: one line for people.
        settings: everything that the rows depend on: files, seeds, versions, protocol.
        rows: records with the same keys; numbers in the units that the keys name (`_pp`: percentage points).
        seconds: wall time.
    """

    kind: str
    title: str
    settings: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    seconds: float
    notice: str = field(default=NOTICE)

    def to_json(self) -> dict[str, Any]:
        """The document, keys in a fixed order."""
        return {
            "study": self.kind,
            "title": self.title,
            "notice": self.notice,
            "rows": [dict(row) for row in self.rows],
            "settings": dict(self.settings),
            "seconds": self.seconds,
        }


def titled(study: Study, provenance: Mapping[str, Any]) -> str:
    """A comparison's title with the candidates that it is of, as `scored.provenance` tells them: others have settings to tell."""
    return f"{study.title} of {provenance['file']}" if study.kind == "comparison" and "file" in provenance else study.title


def versions() -> dict[str, str]:
    """Of the package and of what its numbers rest on, for a study's settings."""
    return {name: version(name) for name in ("privalign", "numpy", "numba", "scipy")}


def read_study(path: Path) -> Study:
    """A study's document from a file.

    Raises:
        InvalidFile: it cannot be read, or is not such a document.
    """
    remedy = "give a file that `privalign evaluate --out` or a study wrote"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return Study(document["study"], document["title"], document["settings"], document["rows"], document["seconds"], document["notice"])
    except OSError as error:
        raise InvalidFile(str(path), None, f"cannot be read ({error.strerror}); {remedy}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InvalidFile(str(path), None, f"not a study's document; {remedy}") from None
