"""Preference pairs from JSON Lines, read as a stream.

One object a line, in one of two forms:

- `prompt`, `chosen`, `rejected`: strings;
- `chosen`, `rejected`: whole conversations with the same beginning, as in HH-RLHF. The prompt is what both share up to and
  with the last "\\n\\nAssistant:"; the answers are what follows.

`annotator` (a string or a whole number) names the person; it is optional. Other keys are ignored. A person is a name, so that each must be
spelled in one way: names that differ in case, white space or Unicode form only are refused.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from privalign.errors import InvalidFile

TURN: Final = "\n\nAssistant:"


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """One record: to `prompt`, a person preferred the answer `chosen` to `rejected`. `annotator` names the person."""

    prompt: str
    chosen: str
    rejected: str
    annotator: str | None = None


def iterate_pairs(path: Path, progress: Callable[[float], None] | None = None) -> Iterator[PreferencePair]:
    """The pairs of a `.jsonl` or `.jsonl.gz` file of UTF-8 (a byte order mark and CRLF are fine), one after the other.

    Args:
        progress: called now and then with the share of the file that is read.

    Raises:
        InvalidFile: the file cannot be read or is empty, a line is not such an object, or it spells a person's name in another way than
            a line before; names file, line and remedy.
    """
    number = 0
    empty = True
    names = _Names(path)
    try:
        with path.open("rb") as raw, _text(path, raw) as file:
            size = max(1, os.fstat(raw.fileno()).st_size)
            for number, line in enumerate(file, 1):
                if progress is not None and number % 1024 == 0:
                    progress(raw.tell() / size)
                if line.strip():
                    pair = _parse(path, number, line)
                    names.meet(pair.annotator, number)
                    yield pair
                    empty = False
    except UnicodeDecodeError:
        raise InvalidFile(str(path), None, f"not UTF-8 text after line {number}; give JSON Lines, plain or .gz") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise InvalidFile(str(path), None, f"the gzip data break off or are damaged after line {number}; copy the file again") from None
    except OSError as error:
        raise InvalidFile(str(path), None, f"cannot be read ({error.strerror}); give a file of preference pairs") from None
    if empty:
        raise InvalidFile(str(path), None, "no preference pair in it; give one JSON object a line")


def read_pairs(path: Path) -> list[PreferencePair]:
    """All pairs of a file.

    Raises:
        InvalidFile: see `iterate_pairs`.
    """
    return list(iterate_pairs(path))


def write_pairs(path: Path, pairs: Iterable[PreferencePair]) -> None:
    """Writes a `.jsonl.gz` file; the same pairs give the same bytes."""
    lines = (json.dumps(_fields(pair), ensure_ascii=False) + "\n" for pair in pairs)
    path.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))


class _Names:
    """The names of a file so far, with the line of the first of each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[str, int] = {}  # by what all spellings of a name have in common
        self._spelled: dict[str, str] = {}  # only where that is not how the file spells it

    def meet(self, name: str | None, line: int) -> None:
        """Refuses a second spelling of a name: records of one person could not be counted.

        Raises:
            InvalidFile: names both spellings, in ASCII so that they look different, and both lines; for the operator.
        """
        if name is None:
            return
        common = _common_form(name)
        first = self._lines.setdefault(common, line)
        if first == line and common != name:
            self._spelled[common] = name
        known = self._spelled.get(common, common)
        if known != name:
            raise InvalidFile(
                str(self._path), line, f"annotator {name!a} is one person with {known!a} of line {first}; spell each name in one way"
            )


def _common_form(name: str) -> str:
    """What names have in common that differ in case, white space or Unicode form only."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return " ".join(folded.split())


def _fields(pair: PreferencePair) -> dict[str, str]:
    fields = {"prompt": pair.prompt, "chosen": pair.chosen, "rejected": pair.rejected}
    return fields if pair.annotator is None else fields | {"annotator": pair.annotator}


def _text(path: Path, raw: IO[bytes]) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(raw, "rt", encoding="utf-8-sig")
    return io.TextIOWrapper(raw, encoding="utf-8-sig")


def _parse(path: Path, number: int, line: str) -> PreferencePair:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise InvalidFile(str(path), number, "not JSON; give one object with prompt, chosen and rejected a line") from None
    if not isinstance(record, dict):
        raise InvalidFile(str(path), number, "not a JSON object; give one with prompt, chosen and rejected")
    for name in ("chosen", "rejected"):
        if not isinstance(record.get(name), str):
            raise InvalidFile(str(path), number, f"'{name}' is missing or not a string; give prompt, chosen and rejected")
    prompt, chosen, rejected = record.get("prompt"), record["chosen"], record["rejected"]
    if prompt is None:
        prompt, chosen, rejected = _split(path, number, chosen, rejected)
    elif not isinstance(prompt, str):
        raise InvalidFile(str(path), number, "'prompt' is not a string; give text, or leave it out where chosen and rejected begin with it")
    if chosen == rejected:
        raise InvalidFile(str(path), number, "'chosen' and 'rejected' are the same; leave the pair out")
    try:
        "".join((prompt, chosen, rejected)).encode()
    except UnicodeEncodeError:
        raise InvalidFile(
            str(path), number, "it holds half of a surrogate pair (\\ud800 to \\udfff), which is no text; repair it"
        ) from None
    return PreferencePair(prompt, chosen, rejected, _person(path, number, record.get("annotator")))


def _split(path: Path, number: int, chosen: str, rejected: str) -> tuple[str, str, str]:
    """Prompt and answers of two conversations with the same beginning."""
    end = chosen.rfind(TURN)
    while end >= 0 and not rejected.startswith(chosen[: end + len(TURN)]):
        end = chosen.rfind(TURN, 0, end)
    if end < 0:
        raise InvalidFile(str(path), number, f"'prompt' is missing, and the answers share no beginning up to {TURN!r}; give a prompt")
    end += len(TURN)
    return chosen[:end], chosen[end:].strip(), rejected[end:].strip()


def _person(path: Path, number: int, annotator: Any) -> str | None:
    if annotator is None or isinstance(annotator, str):
        return annotator or None
    if type(annotator) is int:
        return str(annotator)
    raise InvalidFile(str(path), number, "'annotator' is neither a string nor a whole number; give the person's id")
