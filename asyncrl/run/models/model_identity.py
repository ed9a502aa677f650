"""Tells whether folders on two nodes hold the same model, without reading all of its weights.

What always holds: names, sizes and the whole of small files count, of large ones the header (if they are safetensors) and pages
spread over the file. Training changes every matrix nearly everywhere, so pages tell its versions apart, which names, sizes and
headers do not; times of files, which a copy or a download sets anew, do not count.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

WHOLE_BYTES = 32 << 20
"""Files up to this size are read whole: tokenizers, configurations, small models."""
PAGES, PAGE_BYTES = 256, 4096
"""How many pages of a larger file are read, evenly spread from its first byte to its last, and their size."""
_LENGTH_BYTES, _LONGEST_HEADER = 8, 100_000_000
"""A safetensors file begins with the length of its header, which the format limits."""


class ModelFile(msgspec.Struct, frozen=True):
    """A file of a model's folder: its path within the folder, its size in bytes, and a digest of what counts of its content."""

    name: str
    size: int
    digest: str


def model_files(folder: Path) -> tuple[ModelFile, ...]:
    """Return all files in ``folder`` and its folders, sorted by name; none if there is no such folder. Hidden ones are left out.

    Raises:
        OSError: a file cannot be read.
    """
    sizes = ((name, path, path.stat().st_size) for name, path in files_below(folder))
    return tuple(ModelFile(name, size, _digest(path, size)) for name, path, size in sizes)


def files_below(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield all files in ``folder`` and its folders, sorted, each after its path within the folder. Hidden ones are left out."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in name.parts):
            yield str(name), path


def _digest(path: Path, size: int) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb", buffering=0) as file:
        if size <= WHOLE_BYTES:
            digest.update(file.read(size))
        else:
            if path.suffix == ".safetensors":
                digest.update(_header(file))
            for page in range(PAGES):
                file.seek(page * (size - PAGE_BYTES) // (PAGES - 1))
                digest.update(file.read(PAGE_BYTES))
    return digest.hexdigest()


def _header(file: BinaryIO) -> bytes:
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    return file.read(min(length, _LONGEST_HEADER))
