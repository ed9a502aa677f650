"""Where files lie that live in memory."""

import os
import tempfile
from pathlib import Path


def memory_file_system() -> Path:
    """Linux's shared memory mount, or the temporary folder where there is none."""
    return Path("/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir())
