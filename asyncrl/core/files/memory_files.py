"""Finds the folder for files that are kept in memory."""

import os
import tempfile
from pathlib import Path


def memory_file_system() -> Path:
    """Return Linux's shared memory mount, or the temporary folder if there is none."""
    return Path("/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir())
