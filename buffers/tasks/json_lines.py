"""Reads a JSON-lines file of tasks once, as bytes; a row is decoded when it is drawn.

Each line that is not empty holds one row, a JSON object. Only line feeds end lines, because JSON text may contain all
other line separators of Unicode.
"""

import json
import re
from array import array
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.core.errors import RecipeError
from buffers.tasks.task_rows import NESTING, TOO_DEEP, RowHead, is_too_deep

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ROW = msgspec.json.Decoder(dict[str, Any])
_HALF = re.compile("[\ud800-\udfff]")


class JsonLines:
    """The rows of one file.

    Attributes:
        digest: digest of the file's bytes.

    Args:
        place: recipe key of the source, for errors.
        prompt_key, id_key: keys of the prompt and the id in a row.

    Raises:
        RecipeError: the file cannot be read, or is not a JSON-lines file.
    """

    def __init__(self, path: Path, place: str, prompt_key: str, id_key: str) -> None:
        self._path, self._prompt_key, self._id_key = path, prompt_key, id_key
        try:
            self._content = path.read_bytes()
        except OSError as error:
            raise RecipeError(place, f"cannot read {path} ({error.strerror})", "name a readable file") from error
        if self._content.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise RecipeError(place, f"{path} is UTF-16", "save it as UTF-8")
        if self._content[:64].removeprefix(BYTE_ORDER_MARK).lstrip().startswith(b"["):
            raise RecipeError(place, f"{path} is one JSON array", "write one object a line, e.g. with `jq -c '.[]'`")
        self.digest = blake2b(self._content, digest_size=16).hexdigest()
        self._starts, self._numbers = array("Q"), array("Q")

    def heads(self) -> Iterator[RowHead]:
        """Decode and check every row, in order. Call this before :meth:`row`."""
        content, encoder, scratch = self._content, msgspec.msgpack.Encoder(), bytearray()
        start, number = len(BYTE_ORDER_MARK) if content.startswith(BYTE_ORDER_MARK) else 0, 0
        while start < len(content):
            number += 1
            end = content.find(b"\n", start) % (len(content) + 1)  # -1 (no other line feed) becomes the end of the file
            line = content[start:end]
            if line.strip():
                self._starts.append(start)
                self._numbers.append(number)
                try:
                    row = _ROW.decode(line)
                    # Tickets carry the row as MessagePack, which has no integers of more than 64 bits.
                    encoder.encode_into(row, scratch)
                except RecursionError:
                    yield RowHead(None, None, f"is {TOO_DEEP}; flatten it")
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    yield RowHead(None, None, _why_not_decoded(line, error))
                except OverflowError:
                    yield RowHead(None, None, "holds an integer of more than 64 bits")
                else:
                    yield self._head(row, line)
            start = end + 1

    def where(self, position: int) -> str:
        """Return where the row is, for messages."""
        return f"{self._path}:{self.number(position)}"

    def number(self, position: int) -> int:
        """Return the row's line, counted from 1."""
        return self._numbers[position]

    def row(self, position: int) -> dict[str, Any]:
        """Decode the row."""
        start = self._starts[position]
        end = self._content.find(b"\n", start)
        return _ROW.decode(self._content[start:] if end < 0 else self._content[start:end])

    def _head(self, row: dict[str, Any], line: bytes) -> RowHead:
        # A row with few brackets cannot be nested too deep, so it is not searched.
        if line.count(b"[") + line.count(b"{") > NESTING and is_too_deep(row):
            named = f"(id {row[self._id_key]!r}) " if self._id_key in row else ""
            return RowHead(None, None, f"{named}is {TOO_DEEP}; flatten it")
        if self._prompt_key in row:
            return RowHead(row[self._prompt_key], row.get(self._id_key))
        return RowHead(None, None, f"has no {self._prompt_key!r}, only {', '.join(map(repr, row)) or 'an empty object'}")


def _why_not_decoded(line: bytes, error: Exception) -> str:
    """Say what is wrong with a line. For half of a surrogate pair, the decoder's own message would be misleading."""
    try:
        half = _HALF.search(json.dumps(json.loads(line), ensure_ascii=False))
    except (ValueError, RecursionError):
        half = None
    if half is None:
        return f"is not a JSON object ({error})"
    return f"holds {half.group()!r}, half of a surrogate pair, which is no character; write the character itself"
