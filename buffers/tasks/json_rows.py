"""Reads a JSON file of tasks once, as bytes: one object a line, or one array of objects. A row is decoded when it is drawn.

In JSON lines, each line that is not empty holds one row. Only line feeds end lines, because JSON text may contain all other line
separators of Unicode.
"""

import json
import re
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.buffers.tasks.plain_values import NESTING, TOO_DEEP, fitting, is_too_deep
from asyncrl.buffers.tasks.task_columns import Columns
from asyncrl.buffers.tasks.task_rows import Row
from asyncrl.core.errors import RecipeError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ROW = msgspec.json.Decoder(dict[str, Any])
_HALF = re.compile("[\ud800-\udfff]")


class JsonRows(ABC):
    """The rows of one file.

    Attributes:
        digest: digest of the file's bytes.
        whole: rows come with all their columns.
        long_integers: columns in which integers of more than 64 bits were found, which are given as texts.

    Args:
        content: the file's bytes.
        place: recipe key of the source, for errors.

    Raises:
        RecipeError: it is not such a file.
    """

    whole = True

    def __init__(self, path: Path, content: bytes, columns: Columns, place: str) -> None:
        self._path, self._content, self._columns, self._place = path, content, columns, place
        self.digest = blake2b(content, digest_size=16).hexdigest()
        self.long_integers: dict[str, None] = {}
        self._names: dict[str, None] = {}
        self._missing = {path for _, path in columns.paths()}
        self._long: set[int] = set()

    @abstractmethod
    def _pieces(self) -> Iterator[bytes]:
        """Yield the text of each row."""

    @abstractmethod
    def _piece(self, position: int) -> bytes:
        """Return the text of a row."""

    @abstractmethod
    def number(self, position: int) -> int:
        """Return the row's number in the file."""

    @abstractmethod
    def where(self, position: int) -> str:
        """Return where the row is, for messages."""

    def rows(self) -> Iterator[Row]:
        """Decode and check every row, in order. Call this before :meth:`row`."""
        encoder, scratch = msgspec.msgpack.Encoder(), bytearray()
        for position, piece in enumerate(self._pieces()):
            try:
                row = _ROW.decode(piece)
                # A row with few brackets cannot be nested too deep, so it is not searched.
                if piece.count(b"[") + piece.count(b"{") > NESTING and is_too_deep(row):
                    named = f"(id {self._columns.own_id(row)!r}) " if self._columns.own_id(row) is not None else ""
                    yield Row({}, f"{named}is {TOO_DEEP}; flatten it")
                    continue
                try:
                    encoder.encode_into(row, scratch)
                except OverflowError:
                    self._long.add(position)
                    own, row = row, fitting(row)
                    self.long_integers |= {name: None for name, value in row.items() if value != own[name]}
            except RecursionError:
                yield Row({}, f"is {TOO_DEEP}; flatten it")
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                yield Row({}, _why_not_decoded(piece, error))
            else:
                self._names.update(dict.fromkeys(row))
                if self._missing:
                    self._missing -= {path for path in self._missing if self._columns.has(row, path)}
                yield Row(row)

    def row(self, position: int) -> dict[str, Any]:
        """Decode the row."""
        row = _ROW.decode(self._piece(position))
        if position in self._long:
            row = fitting(row)
        return row

    def has(self, path: str) -> bool:
        """Whether a row has a column that the recipe names, or has any column. Known after :meth:`rows`."""
        return path not in self._missing if path in {own for _, own in self._columns.paths()} else path in self._names

    def names(self) -> list[str]:
        """Return the columns that rows have. Known after :meth:`rows`."""
        return list(self._names)


class JsonLines(JsonRows):
    """One row a line."""

    def __init__(self, path: Path, content: bytes, columns: Columns, place: str) -> None:
        super().__init__(path, content, columns, place)
        self._starts, self._numbers = array("Q"), array("Q")

    def _pieces(self) -> Iterator[bytes]:
        content = self._content
        start, number = len(BYTE_ORDER_MARK) if content.startswith(BYTE_ORDER_MARK) else 0, 0
        while start < len(content):
            number += 1
            end = content.find(b"\n", start) % (len(content) + 1)  # -1 (no other line feed) becomes the end of the file
            line = content[start:end]
            if line.strip():
                self._starts.append(start)
                self._numbers.append(number)
                yield line
            start = end + 1

    def _piece(self, position: int) -> bytes:
        start = self._starts[position]
        end = self._content.find(b"\n", start)
        return self._content[start:] if end < 0 else self._content[start:end]

    def number(self, position: int) -> int:
        """Return the row's line, counted from 1."""
        return self._numbers[position]

    def where(self, position: int) -> str:
        """Return where the row is, for messages."""
        return f"{self._path}:{self.number(position)}"


class JsonArray(JsonRows):
    """One array of rows."""

    def __init__(self, path: Path, content: bytes, columns: Columns, place: str) -> None:
        super().__init__(path, content, columns, place)
        try:
            self._raw = msgspec.json.decode(content.removeprefix(BYTE_ORDER_MARK), type=list[msgspec.Raw])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RecipeError(place, f"{path} begins as one JSON array, and is none ({error})", "correct it") from error

    def _pieces(self) -> Iterator[bytes]:
        return map(bytes, self._raw)

    def _piece(self, position: int) -> bytes:
        return bytes(self._raw[position])

    def number(self, position: int) -> int:
        """Return the row's place in the array, counted from 0."""
        return position

    def where(self, position: int) -> str:
        """Return where the row is, for messages."""
        return f"{self._path} row {position} (from 0)"


def read_json(path: Path, place: str, columns: Columns) -> JsonRows:
    """Read a JSON file, of lines or of one array.

    Raises:
        RecipeError: it cannot be read, or is neither.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RecipeError(place, f"cannot read {path} ({error.strerror})", "name a readable file") from error
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise RecipeError(place, f"{path} is UTF-16", "save it as UTF-8")
    if content.removeprefix(BYTE_ORDER_MARK).lstrip().startswith((b"{\n", b"{\r\n")):  # what rows on lines never do
        _refuse_object(content, path, place)
    is_array = content[:64].removeprefix(BYTE_ORDER_MARK).lstrip().startswith(b"[")
    return (JsonArray if is_array else JsonLines)(path, content, columns, place)


def _refuse_object(content: bytes, path: Path, place: str) -> None:
    """Refuse a file that is one JSON object on several lines, as which some data sets are published.

    Raises:
        RecipeError: it is one.
    """
    try:
        whole = _ROW.decode(content.removeprefix(BYTE_ORDER_MARK))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    lists = ", ".join(repr(name) for name, value in whole.items() if isinstance(value, list))
    where = f", whose rows may be those under {lists}" if lists else ""
    raise RecipeError(place, f"{path} is one JSON object{where}", "save its list of rows as a file of its own")


def _why_not_decoded(line: bytes, error: Exception) -> str:
    """Say what is wrong with a row. For half of a surrogate pair, and for what is not a number, the decoder would not say it."""
    unknown = list[str]()
    try:
        half = _HALF.search(json.dumps(json.loads(line, parse_constant=unknown.append), ensure_ascii=False))
    except (ValueError, RecursionError):
        half = None
    if half is None:
        named = f"it holds {unknown[0]}, which JSON does not have; write null" if unknown else error
        return f"is not a JSON object ({named})"
    return f"holds {half.group()!r}, half of a surrogate pair, which is no character; write the character itself"
