"""The formats of files that outlive the program that wrote them. Each file holds the number of its format.

What always holds: a file of another format than its reader's is refused before anything else in it is looked at.
"""

from pathlib import Path

import msgspec

from asyncrl.core.errors import AsyncRLError


class UnknownFormat(AsyncRLError):
    """A file was written by a version of asyncrl that wrote it in another way than this one reads it.

    Args:
        problem: what was found and what can be read, as what follows the file's name.
    """

    def __init__(self, file: Path, problem: str) -> None:
        self.file, self.problem = file, problem
        super().__init__(f"{file} {problem}; resume it with the asyncrl that wrote it")


class _Format(msgspec.Struct):
    format: int = 1


def check_json_format(content: bytes, file: Path, read: int) -> None:
    """Check that a JSON object has the format that its reader reads. One without the field ``format`` has format 1.

    Raises:
        UnknownFormat: it has another.
        ValueError, RecursionError: ``content`` is no JSON object.
    """
    check_format(msgspec.json.decode(content, type=_Format).format, file, read)


def check_format(found: int, file: Path, read: int) -> None:
    """Raise ``UnknownFormat`` if the format that was ``found`` in ``file`` is not the one that this version can ``read``."""
    if found != read:
        raise UnknownFormat(file, f"has format {found}, and this version of asyncrl reads format {read}")
