"""Annotators: all records name one, or none does, in whatever order they come; and what a digest of content sees."""

from __future__ import annotations

import pytest

from privalign.errors import InvalidInput
from privalign.preferences.differences import content_digest, with_annotators
from privalign.preferences.pairs import PreferencePair

NAMED, UNNAMED = PreferencePair("p", "a", "b", "ann"), PreferencePair("p", "a", "b")


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        ([UNNAMED, NAMED], "annotator: missing before record 2"),
        ([UNNAMED, UNNAMED, NAMED, UNNAMED], "annotator: missing before record 3"),
        ([NAMED, UNNAMED], "annotator: missing in record 2"),
        ([NAMED, NAMED, UNNAMED, NAMED], "annotator: missing in record 3"),
    ],
)
def test_some_names_are_refused_in_any_order(pairs: list[PreferencePair], says: str) -> None:
    checked, _ = with_annotators(pairs, required=False)
    with pytest.raises(InvalidInput, match=f"{says}.*; name all of them or none"):
        list(checked)


def test_all_names_or_none_pass() -> None:
    for pair, named in ((NAMED, True), (UNNAMED, False)):
        checked, told = with_annotators([pair] * 3, required=False)
        assert (list(checked), told) == ([pair] * 3, named)
    assert with_annotators([], required=False)[1] is False


def test_required_names_are_missed_from_the_first_record_on() -> None:
    checked, named = with_annotators([UNNAMED, NAMED], required=True)
    assert named
    with pytest.raises(InvalidInput, match="missing in record 1; name the person of every record"):
        list(checked)


def test_content_is_the_prompt_and_both_answers_without_their_order() -> None:
    digest = content_digest(NAMED, b"k")
    assert digest == content_digest(PreferencePair("p", "b", "a", "bob"), b"k")
    others = [PreferencePair("q", "a", "b"), PreferencePair("p", "a", "c")]
    assert digest not in {content_digest(other, b"k") for other in others} | {content_digest(NAMED, b"l")}
