"""Writes a file so that a reader finds either all of it or none."""

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``, in place of what is there.

    Raises:
        OSError: the disk refuses; nothing is left of the attempt.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error  # nobody knows the draft
