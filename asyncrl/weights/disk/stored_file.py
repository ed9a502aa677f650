"""One rank's weight file in a folder: whole as safetensors, or as the blocks that changed since an earlier version.

What always holds: the data of a safetensors file are the bytes of the rank's file, gaps between shards included; a file is on
disk (fsync) before anybody gets its name; what is read is compared with the checksums that were written with it.
"""

import json
import math
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.files.file_errors import naming
from asyncrl.core.publication import ShardRecord

BLOCK_BYTES = 4096
"""Blocks are compared and sent whole. Smaller ones would find more that is unchanged, and cost more to name."""
_CHECKED_BYTES = 1 << 20
"""Each stretch of so many bytes has a checksum, computed while they are in the core's cache."""
_COMPRESSION = 1
"""The fastest level of zlib: weights hardly get smaller with higher ones."""
_HEADER_ALIGNMENT = 64
_TYPES = {
    "bfloat16": ("BF16", 2),
    "float16": ("F16", 2),
    "float32": ("F32", 4),
    "float64": ("F64", 8),
    "int8": ("I8", 1),
    "int16": ("I16", 2),
    "int32": ("I32", 4),
    "int64": ("I64", 8),
    "uint8": ("U8", 1),
    "bool": ("BOOL", 1),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
}
"""Names of torch's types in safetensors, and the bytes of an element."""
_LENGTH = struct.Struct("<Q")


class Blocks(msgspec.Struct, frozen=True, array_like=True):
    """The changed blocks of a file: its size, their numbers (uint32), and their bytes, compressed by zlib with its checksum."""

    size: int
    numbers: bytes
    content: bytes


def write_whole(path: Path, memory: memoryview, shards: Sequence[ShardRecord]) -> int:
    """Write the bytes of a rank's file as safetensors; return how many bytes were written.

    Args:
        path: a new file.
        memory: the rank's file.
        shards: what lies in it.
    """
    checksums = [zlib.crc32(part) for part in _stretches(memory)]
    entries: dict[str, object] = {"__metadata__": {"crc32": json.dumps(checksums), "crc32_bytes": str(_CHECKED_BYTES)}}
    end = 0
    for shard in sorted(shards, key=lambda shard: shard.offset):
        if shard.offset > end:  # safetensors allows no gaps
            entries[f"gap at {end}"] = {"dtype": "U8", "shape": [shard.offset - end], "data_offsets": [end, shard.offset]}
        dtype, itemsize = _TYPES[shard.dtype]
        end = shard.offset + itemsize * math.prod(shard.extent)
        entries[_name(shard)] = {"dtype": dtype, "shape": list(shard.extent), "data_offsets": [shard.offset, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-(_LENGTH.size + len(header)) % _HEADER_ALIGNMENT)
    _write(path, [_LENGTH.pack(len(header)), header, memory])
    return _LENGTH.size + len(header) + len(memory)


def read_whole(path: Path, memory: memoryview) -> None:
    """Read what :func:`write_whole` wrote into ``memory``, which is as long as the rank's file was.

    Raises:
        ComponentFailed: the file is not whole, or its bytes changed.
    """
    with path.open("rb", buffering=0) as file:
        header = json.loads(file.read(*_LENGTH.unpack(file.read(_LENGTH.size))))["__metadata__"]
        checksums = json.loads(header["crc32"])
        for part, checksum in zip(_stretches(memory), checksums, strict=True):
            if file.readinto(part) != len(part) or zlib.crc32(part) != checksum:
                raise ComponentFailed(f"{path}: its bytes are not those that were written; its disk or network is faulty")


def write_blocks(path: Path, memory: memoryview, numbers: np.ndarray) -> int:
    """Write the blocks of a rank's file with these numbers; return how many bytes were written."""
    squeezed, compressor = bytearray(), zlib.compressobj(_COMPRESSION)
    for number in numbers.tolist():
        squeezed += compressor.compress(memory[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES])
    squeezed += compressor.flush()
    content = msgspec.msgpack.encode(Blocks(len(memory), numbers.astype("<u4").tobytes(), bytes(squeezed)))
    _write(path, [content])
    return len(content)


def apply_blocks(path: Path, memory: memoryview) -> None:
    """Write the blocks that :func:`write_blocks` wrote over those in ``memory``, which holds the version before.

    Raises:
        ComponentFailed: the file is not whole, or its bytes changed.
    """
    try:
        blocks = msgspec.msgpack.decode(path.read_bytes(), type=Blocks)
        content = memoryview(zlib.decompress(blocks.content))
    except (msgspec.DecodeError, zlib.error) as error:
        raise ComponentFailed(f"{path}: its bytes are not those that were written ({error}); its disk is faulty") from error
    if blocks.size != len(memory):
        raise ComponentFailed(f"{path}: it changes a file of {blocks.size} bytes, and this one has {len(memory)}")
    begin = 0
    for number in np.frombuffer(blocks.numbers, "<u4").tolist():
        target = memory[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]
        target[:] = content[begin : begin + len(target)]
        begin += len(target)


def changed_blocks(before: np.ndarray, now: np.ndarray) -> np.ndarray:
    """Return the numbers of the blocks in which two byte arrays of one length differ."""
    whole = len(now) // BLOCK_BYTES * BLOCK_BYTES
    # Compared as words of 8 bytes, and a stretch at a time, so that what is compared stays in the core's cache.
    found = []
    for begin in range(0, whole, _CHECKED_BYTES):
        end = min(begin + _CHECKED_BYTES, whole)
        different = before[begin:end].view(np.uint64) != now[begin:end].view(np.uint64)
        found.append(np.flatnonzero(different.reshape(-1, BLOCK_BYTES // 8).any(1)) + begin // BLOCK_BYTES)
    if not np.array_equal(before[whole:], now[whole:]):
        found.append(np.array([whole // BLOCK_BYTES]))
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _write(path: Path, parts: Sequence[bytes | memoryview]) -> None:
    with naming(path), path.open("xb", buffering=0) as file:
        for part in parts:
            left = memoryview(part)
            while left:
                left = left[file.write(left) :]
        os.fsync(file.fileno())


def _stretches(memory: memoryview) -> Iterator[memoryview]:
    for begin in range(0, len(memory), _CHECKED_BYTES):
        yield memory[begin : begin + _CHECKED_BYTES]


def _name(shard: ShardRecord) -> str:
    """The Hugging Face name, with the rectangle behind it if that is not the whole tensor."""
    if shard.extent == shard.shape:
        return shard.name
    ranges = (f"{begin}:{begin + size}" for begin, size in zip(shard.start, shard.extent, strict=True))
    return f"{shard.name}[{','.join(ranges)}]"
