"""Files of lines that are appended to while others read them, such as a run's events.

What always holds: a line is appended whole or, if the process is killed, torn at the end; the next goes on a line of its own.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from asyncrl.core.files.file_errors import naming


def append_line(path: Path, line: bytes) -> None:
    """Add a line to the file, which need not be there yet.

    Raises:
        OSError: the disk refuses.
    """
    with naming(path), path.open("a+b") as file:
        if size := file.seek(0, os.SEEK_END):
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(line + b"\n")


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of the file that are not empty, with their numbers from 1; none if it is not there."""
    content = path.read_bytes() if path.exists() else b""
    return ((number, line) for number, line in enumerate(content.split(b"\n"), 1) if line)


def last_lines(path: Path, most_bytes: int) -> list[bytes]:
    """Return the whole lines in the last ``most_bytes`` of the file, the first of which may lack its beginning."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
            return file.read().split(b"\n")[:-1]
    except OSError:
        return []
