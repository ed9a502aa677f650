"""Makes folders within folders, deeper than any path can name."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONG = "x" * 200


def nest(top: Path, levels: int, name: str = LONG) -> int:
    """Make ``levels`` folders within each other below ``top``, and return the deepest one as an open descriptor of this process.

    The caller may close it.
    """
    folder = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=folder)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
        os.close(folder)
        folder = below
    return folder


@contextmanager
def removed_for_sure() -> Iterator[Path]:
    """Make a folder that goes whatever happens: pytest's own removal fails on folders that are too deep."""
    folder = tempfile.mkdtemp()
    try:
        yield Path(folder)
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)
