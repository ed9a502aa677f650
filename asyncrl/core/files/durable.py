"""Makes changes of the disk last, also through a power cut."""

import os
from pathlib import Path

from asyncrl.core.files.file_errors import naming


def sync(path: Path) -> None:
    """Wait until a file's content is on disk, or, of a folder, the names that were given or taken in it.

    Raises:
        OSError: there is no such file or folder, or the disk failed.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
