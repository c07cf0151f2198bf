"""What the value of a setting may be, typed as text or parsed from a file."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privalign.options import Kind, choice, flag, real, several, text, whole
from privalign.options.kinds import LARGEST

KINDS = [
    whole(),
    whole(0),
    real(),
    real(above=0),
    text(),
    choice("a", "b"),
    choice("a", "b", "c"),
    flag(),
    several(whole()),
    several(text()),
]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20), lambda inner: st.lists(inner, max_size=3), max_leaves=4
)


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (whole(), 3, 3),
        (whole(), "3", 3),
        (whole(), 3.0, 3),
        (whole(0), 0, 0),
        (whole(), 2**60 + 1, 2**60 + 1),
        (real(), "1e-3", 0.001),
        (real(), 2, 2.0),
        (text(), "word", "word"),
        (choice("a", "b"), "b", "b"),
        (flag(), False, False),
        (several(whole()), "1, 2,2,", (1, 2)),
        (several(whole()), 5, (5,)),
        (several(real()), [0.5, 1], (0.5, 1.0)),
        (several(whole(), none=True), [], ()),
    ],
)
def test_what_is_read(kind: Kind, value: Any, read: Any) -> None:
    found = kind.read(value)
    assert (found, type(found)) == (read, type(read))


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (whole(), 0, "0 is not a whole number of at least 1"),
        (whole(), 1.5, "1.5 is not a whole number of at least 1"),
        (whole(), True, "True is not a whole number of at least 1"),
        (whole(0), -1, "-1 is not a whole number of at least 0"),
        (whole(), 2**63, "too large to be meant"),
        (whole(), 10**400, "too large to be meant"),
        (real(), "x", "'x' is not a finite number"),
        (real(), math.inf, "inf is not a finite number"),
        (real(), 10**400, "is not a finite number"),
        (real(above=0), 0, "0.0 is not a finite number above 0"),
        (text(), 3, "3 is not a word"),
        (choice("a", "b"), "c", "'c' is neither a nor b"),
        (choice("a", "b", "c"), [], r"\[\] is not one of a, b, c"),
        (flag(), 1, "1 is not true or false"),
        (several(whole()), "", "empty; give at least one value"),
        (several(whole()), "1,x", "'x' is not a whole number of at least 1"),
        (text(), ["x" * 100], r"\.\.\. is not a word"),
    ],
)
def test_what_is_refused(kind: Kind, value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        kind.read(value)


@given(st.sampled_from(KINDS), ANYTHING)
def test_anything_is_read_or_refused_in_one_line(kind: Kind, value: Any) -> None:
    try:
        read = kind.read(value)
    except ValueError as refusal:
        told = str(refusal)
        read = None
    else:
        told = ""
    assert len(told.splitlines()) <= 1
    assert len(told) < 150
    if told:
        return
    assert kind.read(read) == read  # what was read is of the kind
    if isinstance(read, int) and not isinstance(read, bool):
        assert read <= LARGEST


def test_a_number_with_more_digits_than_python_writes_is_refused() -> None:
    with pytest.raises(ValueError, match="a number with thousands of digits is not a finite number"):
        real().read(10**5000)
