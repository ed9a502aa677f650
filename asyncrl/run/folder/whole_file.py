"""Writes a file so that a reader finds either all of it or none."""

import os
from pathlib import Path

from asyncrl.core.files.file_errors import naming


def write_whole(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``, in place of what is there.

    Raises:
        OSError: the disk refuses; nothing is left of the attempt.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path):
            draft.write_bytes(content)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
