"""Bytes that are signed or hashed are these, word for word: another form would forget what was paid and signed."""

from __future__ import annotations

import math

import pytest

from privalign.canonical import canonical

DOCUMENT = {"b": [1, 2.5, None, True], "a": {"ü": "“x”", "": "\ud800"}}


def test_every_form_has_its_bytes() -> None:
    assert canonical(DOCUMENT) == '{"a":{"":"\\ud800","\\u00fc":"\\u201cx\\u201d"},"b":[1,2.5,null,true]}'
    assert canonical(DOCUMENT, "spaced") == '{"a": {"": "\\ud800", "\\u00fc": "\\u201cx\\u201d"}, "b": [1, 2.5, null, true]}'
    assert canonical(DOCUMENT, "text") == '{"a":{"":"\ud800","ü":"“x”"},"b":[1,2.5,null,true]}'


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_signed_or_paid_is_finite(number: float) -> None:
    with pytest.raises(ValueError, match="Out of range"):
        canonical([number])
    with pytest.raises(ValueError, match="Out of range"):
        canonical([number], "spaced")
