"""Writes the files that a user names on the command line."""

from pathlib import Path

import msgspec

from asyncrl.core.files.file_errors import naming
from asyncrl.core.files.whole_file import write_whole

_NOT_REPLACED = ("/dev", "/proc")
"""Where files lead to what is open already, such as ``/dev/stdout``."""


def write_file(file: Path, content: bytes) -> None:
    """Write ``content`` to ``file``: whole or not at all where it is a regular file or none, else as it comes.

    Raises:
        OSError: the disk refuses; what was there before is still there.
    """
    is_open = any(file.absolute().is_relative_to(place) for place in _NOT_REPLACED)
    if is_open or (file.exists() and not file.is_file()):
        with naming(file):
            file.write_bytes(content)
    else:
        write_whole(file.resolve(), content)  # of a link, what it leads to


def write_json(file: Path, value: object) -> None:
    """Write a value as JSON that people can read; raises what :func:`write_file` raises."""
    write_file(file, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
