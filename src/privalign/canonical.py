"""The one JSON text of a document, for digests, MACs and keys: what was signed or hashed once is never written otherwise."""

from __future__ import annotations

import json
from typing import Final, Literal

_ENCODERS: Final = {
    "strict": json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False),
    "spaced": json.JSONEncoder(sort_keys=True, allow_nan=False),
    "text": json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False),
}


def canonical(document: object, form: Literal["strict", "spaced", "text"] = "strict") -> str:
    """Sorted keys, always the same bytes.

    Args:
        form: "strict", without spaces, ASCII, no NaN; "spaced", the same with a space after each comma and colon, as the keys of paid
            releases and of charged selections have it; "text", without spaces, nothing escaped, for what users and models wrote.

    Raises:
        ValueError: a number is not finite, except in "text". TypeError: something that JSON has no form for.
    """
    return _ENCODERS[form].encode(document)
