"""Answers in fields: JSON objects, and tags such as `<answer>`, as lines of the form `answer: B`."""

from __future__ import annotations

import json
import re

_ANSWER = (
    r"(?:(?:the|my|your|final|correct|right|best|chosen|selected|predicted|model|output)[ _-]?)*"
    r"(?:answers?|ans|option|choice|selection|selected|prediction|predicted|letter|solution|verdict|final|conclusion|label|result|response|output|pick)"
    r"(?:[ _-]?(?:letters?|choice|option|key|label|id|text))?"
)
_IS_ANSWER = re.compile(_ANSWER, re.IGNORECASE)
_PAIR = re.compile(
    r"""(?P<quote>["'])(?P<key>[A-Za-z][\w -]{0,40})(?P=quote)\s*:\s*"""
    r"""(?P<value>"(?:[^"\\]|\\.)*"|'[^'\n]*'(?=\s*[,}\n])|\[[^\][{}]*\]|[^\s"',{}\[\]][^,}\n]*)?[,}\s]*"""
)
_TAG = re.compile(rf"[<\[]\|?(?P<end>/?)(?P<name>{_ANSWER})\|?[>\]]", re.IGNORECASE)


def as_lines(text: str) -> str:
    """The text with its fields as lines. What an object says behind its answer explains it, and is left out."""
    return _TAG.sub(lambda tag: "\n" if tag["end"] else "\nanswer: ", _Pairs().lines(text))


class _Pairs:
    """The pairs of one text, one after the other."""

    def __init__(self) -> None:
        self._answered = False

    def lines(self, text: str) -> str:
        return _PAIR.sub(self._line, text)

    def _line(self, pair: re.Match[str]) -> str:
        value = _plain(pair["value"] or "")
        if _IS_ANSWER.fullmatch(pair["key"]):
            self._answered = self._answered or bool(value)
            return f"\nanswer: {value}\n"
        return "\n" if self._answered else f"\n{pair['key']}: {value}\n"


def _plain(value: str) -> str:
    """A value without its quotes and brackets; a list as its items with commas."""
    if value.startswith('"'):
        try:
            return str(json.loads(value, strict=False))
        except ValueError:  # LaTeX with single backslashes
            return value[1:-1].replace("\\n", "\n")
    return value.strip("[]").replace('"', "").replace("'", "").strip()
