"""How records lie in a file: a header, then frames, each checked by itself, so that damage is found and what is whole is told.

A frame is a mark, the record's size, and the CRC-32 of size and record. The mark lets a reader find whole records behind damaged
ones, which is what tells a torn end from a hole in the history.
"""

import struct
import zlib

import msgspec

from asyncrl.core.errors import AsyncRLError

FORMAT = 4
"""Version of the format; a file of another one is refused."""

_MARK = b"\xa7RL\x1e"
_SIZE, _SIZES = struct.Struct("<I"), struct.Struct("<II")
_FRAME = 12
"""Bytes of a frame before its record."""


class Header(msgspec.Struct, frozen=True, array_like=True):
    """The first record of a file.

    Attributes:
        position: how many records of the journal came before this file.
        identity: what the journal is the journal of; None if nobody has said so yet.
    """

    position: int
    identity: bytes | None


class Damage(msgspec.Struct, frozen=True):
    """Where a file stops being readable.

    Attributes:
        offset: of the first byte that is in no whole frame.
        records_behind: whether there is a whole frame behind it.
    """

    offset: int
    records_behind: bool


class UnknownFormat(AsyncRLError):
    """A journal was written by another version of this program."""


def pack(record: bytes) -> bytes:
    """What goes before ``record`` in a file.

    Raises:
        ValueError: it is too large to be one record.
    """
    if len(record) >= 1 << 32:
        raise ValueError(f"a record of {len(record):,} bytes; a journal's records are smaller than 4 GiB")
    size = _SIZE.pack(len(record))
    return _MARK + size + _SIZE.pack(zlib.crc32(record, zlib.crc32(size)))


def pack_header(header: Header) -> bytes:
    """The first frame of a file, whole."""
    record = bytes([FORMAT]) + msgspec.msgpack.encode(header)
    return pack(record) + record


def read(data: bytes) -> tuple[Header | None, list[bytes], Damage | None]:
    """The header (None if not even that is whole), the records behind it, and the damage that ends them, if any does.

    Raises:
        UnknownFormat: the header is whole, and of another format.
    """
    records: list[bytes] = []
    offset = 0
    while offset < len(data):
        record = _record_at(data, offset)
        if record is None:
            break
        records.append(record)
        offset += _FRAME + len(record)
    damage = Damage(offset, _any_record(data, offset + 1)) if offset < len(data) or not records else None
    return (_unpack_header(records[0]), records[1:], damage) if records else (None, [], damage)


def _unpack_header(record: bytes) -> Header:
    if record[:1] != bytes([FORMAT]):
        raise UnknownFormat(
            f"a journal of format {record[:1].hex()}, not {FORMAT:02x}; resume with the version of asyncrl that wrote it"
        )
    return msgspec.msgpack.decode(record[1:], type=Header)


def _record_at(data: bytes, offset: int) -> bytes | None:
    start = offset + _FRAME
    if start > len(data) or data[offset : offset + 4] != _MARK:
        return None
    size, checksum = _SIZES.unpack_from(data, offset + 4)
    record = data[start : start + size]
    # Size is checked along with the record, so that neither a run of zeros nor a torn size passes for a record.
    if len(record) < size or zlib.crc32(record, zlib.crc32(data[offset + 4 : offset + 8])) != checksum:
        return None
    return record


def _any_record(data: bytes, offset: int) -> bool:
    while (offset := data.find(_MARK, offset)) >= 0:
        if _record_at(data, offset) is not None:
            return True
        offset += 1
    return False
