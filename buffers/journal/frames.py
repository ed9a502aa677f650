"""The file format of the journal: a header, then frames with one record each and its checksum, so that damage is noticed.

A frame begins with a mark, the record's size, and the CRC-32 of size and record. The mark lets a reader find whole
records after damaged ones, and so tell a torn end from a gap in the history.
"""

import struct
import zlib
from pathlib import Path

import msgspec

from asyncrl.core.files.file_formats import check_format

FORMAT = 7
"""The format of these frames and of the records and snapshots in them; files of another are refused.

It was 6 until an episode could have several trajectories, and 5 until tasks whose prompts are too long were left out.
"""

_MARK = b"\xa7RL\x1e"
_SIZE, _SIZES = struct.Struct("<I"), struct.Struct("<II")
_FRAME = 12
"""Bytes of a frame before its record."""


class Header(msgspec.Struct, frozen=True, array_like=True):
    """The first record of a file.

    Attributes:
        position: number of records in the journal before this file.
        identity: which run the journal belongs to; None if that is not known.
    """

    position: int
    identity: bytes | None


class Damage(msgspec.Struct, frozen=True):
    """The place where a file stops being readable.

    Attributes:
        offset: offset of the first byte that is not in a whole frame.
        records_behind: whether there is a whole frame after it.
    """

    offset: int
    records_behind: bool


def pack(record: bytes) -> bytes:
    """Return the bytes that come before ``record`` in a file.

    Raises:
        ValueError: the record is too large.
    """
    if len(record) >= 1 << 32:
        raise ValueError(f"the record has {len(record):,} bytes, but a journal's records must be smaller than 4 GiB")
    size = _SIZE.pack(len(record))
    return _MARK + size + _SIZE.pack(zlib.crc32(record, zlib.crc32(size)))


def pack_header(header: Header) -> bytes:
    """Return the first frame of a file."""
    record = bytes([FORMAT]) + msgspec.msgpack.encode(header)
    return pack(record) + record


def read(data: bytes, file: Path) -> tuple[Header | None, list[bytes], Damage | None]:
    """Read what ``file`` holds: its header (None if it is damaged), the records after it, and the damage where they end, if any.

    Raises:
        UnknownFormat: the header has another format.
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
    return (_unpack_header(records[0], file), records[1:], damage) if records else (None, [], damage)


def _unpack_header(record: bytes, file: Path) -> Header:
    check_format(int.from_bytes(record[:1]), file, FORMAT)
    return msgspec.msgpack.decode(record[1:], type=Header)


def _record_at(data: bytes, offset: int) -> bytes | None:
    start = offset + _FRAME
    if start > len(data) or data[offset : offset + 4] != _MARK:
        return None
    size, checksum = _SIZES.unpack_from(data, offset + 4)
    record = data[start : start + size]
    # The checksum covers the size, too, so that neither zeros nor a torn size are taken for a record.
    if len(record) < size or zlib.crc32(record, zlib.crc32(data[offset + 4 : offset + 8])) != checksum:
        return None
    return record


def _any_record(data: bytes, offset: int) -> bool:
    while (offset := data.find(_MARK, offset)) >= 0:
        if _record_at(data, offset) is not None:
            return True
        offset += 1
    return False
