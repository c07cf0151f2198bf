"""Files of candidates as records, one prompt at a time, as parsed and unchecked.

Formats, told apart by content and not by name: JSONL, one JSON array, either of them in gzip, and Parquet. A JSON record is
`{"prompt": str, "responses": [{"text": str, "proxy_reward": float}]}`; other keys are not looked at. Parquet has one row per
candidate with the columns `prompt_id, prompt, text, proxy_reward`, the rows of one prompt next to each other.
No message says what a reward is, or which response it belongs to.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import json
import stat
import zlib
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from privalign.errors import InvalidFile, MissingDependency

MOST_BYTES = 1 << 28  # of one record: a file without line ends, or a small archive that unpacks to a huge line, is refused
_CHUNK = 1 << 16
_LONGEST_TOKEN = 16  # more than `-Infinity` or an escape: an error this near to the end of a buffer may be a cut token
_ROWS = 256


@dataclass(frozen=True, slots=True)
class Place:
    """Where in which file: a line number, words for formats without lines, or the file as a whole."""

    path: Path
    where: int | str | None = None

    def flaw(self, message: str) -> InvalidFile:
        if isinstance(self.where, str):
            return InvalidFile(str(self.path), None, f"{self.where}: {message}")
        return InvalidFile(str(self.path), self.where, message)


def records(path: Path, reward: str | None) -> Iterator[tuple[Place, Any]]:
    """The records as parsed, unchecked, each with its place; of Parquet with this column, None: without scores."""
    whole = Place(path)
    with _reading(whole):
        regular = stat.S_ISREG(path.stat().st_mode)
        if not regular:
            raise whole.flaw("not a regular file; it is read twice, so give a file on disk")
        file = path.open("rb")
    with file:
        with _reading(whole):
            magic = file.read(4)
            file.seek(0)
        if not magic:
            raise whole.flaw("empty; give JSONL, a JSON array or Parquet of scored candidates")
        if magic == b"PAR1":
            yield from _rows(path, file, reward)
        elif magic.startswith(b"\x1f\x8b"):
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield from _documents(path, cast(IO[bytes], unpacked))
        else:
            yield from _documents(path, file)


@contextlib.contextmanager
def _reading(place: Place) -> Iterator[None]:
    """Turns what reading can raise into one line about the place."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise place.flaw("the gzip data are damaged or cut off; copy the file again") from None
    except UnicodeDecodeError:
        raise place.flaw("not UTF-8 text; give JSONL or a JSON array in UTF-8 (plain or gzip), or Parquet") from None
    except OSError as error:
        raise place.flaw(f"cannot be read ({error.strerror}); give a file of scored candidates") from None


def _documents(path: Path, stream: IO[bytes]) -> Iterator[tuple[Place, Any]]:
    with _reading(Place(path, 1)):
        if stream.read(3) != b"\xef\xbb\xbf":
            stream.seek(0)
        first = stream.read(1)
        while first.isspace():
            first = stream.read(1)
        stream.seek(0)
    yield from _array(path, stream) if first == b"[" else _lines(path, stream)


def _lines(path: Path, stream: IO[bytes]) -> Iterator[tuple[Place, Any]]:
    number = 0
    while True:
        number += 1
        place = Place(path, number)
        with _reading(place):
            line = stream.readline(MOST_BYTES + 1)
            if len(line) > MOST_BYTES:
                raise place.flaw(f"longer than {MOST_BYTES >> 20} MiB; give one record a line")
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        if not line:
            return
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            raise place.flaw(f"not JSON ({error.msg}, column {error.colno}); give one record a line, or one JSON array") from None
        except (ValueError, RecursionError):  # a whole number with thousands of digits; brackets in brackets in …
            raise place.flaw("JSON that cannot be read here; give one record a line, or one JSON array") from None
        yield place, record


def _array(path: Path, stream: IO[bytes]) -> Iterator[tuple[Place, Any]]:
    elements = _Elements(path, stream)
    elements.skip_past("[")
    if elements.peek() != "]":
        yield elements.place, elements.read()
        while elements.peek() == ",":
            elements.skip_past(",")
            elements.number += 1
            yield elements.place, elements.read()
    elements.skip_past("]")
    if elements.peek():
        raise elements.place.flaw("something follows the end of the JSON array; remove it")


class _Elements:
    """A cursor in the text of a JSON array. The text is read as it is needed and dropped behind the cursor."""

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self.number = 1
        self._path = path
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._buffer = ""
        self._at = 0

    @property
    def place(self) -> Place:
        return Place(self._path, f"record {self.number}")

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            while self._at < len(self._buffer):
                if not self._buffer[self._at].isspace():
                    return self._buffer[self._at]
                self._at += 1
            if not self._more():
                return ""

    def skip_past(self, character: str) -> None:
        if self.peek() != character:
            raise self.place.flaw("not JSON, or cut off; give a complete array of records")
        self._at += 1

    def read(self) -> Any:
        """The JSON value at the cursor; an object is read whole, a bare number may be cut (it is no record either way)."""
        self.peek()
        while True:
            try:
                value, self._at = json.JSONDecoder().raw_decode(self._buffer, self._at)
                return value
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated string") or error.pos >= len(self._buffer) - _LONGEST_TOKEN
                if not (cut and self._more()):
                    raise self.place.flaw(f"not JSON ({error.msg}), or cut off; give a complete array of records") from None
            except (ValueError, RecursionError):
                raise self.place.flaw("JSON that cannot be read here; give a complete array of records") from None

    def _more(self) -> bool:
        """Reads on: as much again as is not used yet, so that a long record is parsed a logarithmic number of times."""
        rest = self._buffer[self._at :]
        if len(rest) > MOST_BYTES:
            raise self.place.flaw(f"longer than {MOST_BYTES >> 20} MiB; give an array of records")
        with _reading(self.place):
            fresh = self._stream.read(max(_CHUNK, len(rest)))
            self._buffer, self._at = rest + self._decoder.decode(fresh, final=not fresh), 0
        return bool(fresh)


def _rows(path: Path, file: IO[bytes], reward: str | None) -> Iterator[tuple[Place, Any]]:
    """Parquet rows, gathered into one record a prompt; a record's place is that of its first row."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingDependency("Parquet files need pyarrow; get it with: pip install 'privalign[parquet]'") from None

    scored = [] if reward is None else [reward]
    columns = ["prompt_id", "prompt", "text", *scored]
    place = Place(path)
    met: set[Hashable] = set()
    record: dict[str, Any] | None = None
    row = 0
    try:
        table = pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
        for column in columns:
            if column not in table.schema_arrow.names:
                raise place.flaw(f"column '{column}' is missing; give one row per candidate with {', '.join(columns)}")
        for group in range(table.num_row_groups):
            for batch in table.iter_batches(_ROWS, row_groups=[group], columns=columns, use_threads=False):
                for prompt_id, prompt, text, *scores in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
                    row += 1
                    here = Place(path, f"row group {group + 1}, row {row}")
                    if record is None or prompt_id != record["prompt_id"]:
                        if record is not None:
                            yield place, record
                        place, record = here, {"prompt_id": prompt_id, "prompt": prompt, "responses": []}
                        if not isinstance(prompt_id, int | str):
                            raise here.flaw("the prompt_id is neither a whole number nor text; give every prompt its own")
                        if prompt_id in met:
                            raise here.flaw("a prompt_id comes back after another one; sort the rows by prompt_id")
                        met.add(prompt_id)
                    if prompt != record["prompt"]:
                        raise here.flaw("two prompts share a prompt_id; give every prompt its own")
                    record["responses"].append({"text": text, **dict(zip(scored, scores, strict=True))})
    except InvalidFile:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError):  # what pyarrow says may quote a value
        raise Place(path, f"after row {row}" if row else None).flaw("damaged or cut off Parquet; write the file again") from None
    if record is not None:
        yield place, record
