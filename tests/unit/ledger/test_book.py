"""A journal record is canonical JSON and reads back as it was written."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from privalign.accounting.rules import Debit
from privalign.ledger.book import entry_of, hash_of, record_of
from privalign.ledger.terms import canonical

units = st.integers(-(2**62), 2**62)
notes = st.dictionaries(st.text(), st.text() | st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False))


@given(
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", fullmatch=True),
    seq=st.integers(1, 2**62),
    now=st.integers(0, 2**50),
    debit=st.builds(Debit, units, units, units, units),
    queries=st.integers(-9, 9),
    reservation=st.none() | st.integers(1, 2**62),
    note=notes,
)
def test_a_record_is_canonical(
    name: str, seq: int, now: int, debit: Debit, queries: int, reservation: int | None, note: dict[str, object]
) -> None:
    record = record_of(name, seq, now, "settle", debit, queries, reservation, note, "0" * 64)
    assert record == canonical(json.loads(record))
    entry = entry_of(record, hash_of(record))
    assert (entry.account, entry.seq, entry.kind, entry.debit, entry.queries) == (name, seq, "settle", debit, queries)
    assert (entry.reservation, entry.note, entry.previous) == (reservation, note, "0" * 64)
