"""Finds the folder for files that are kept in memory, and what is free there."""

import os
import tempfile
from pathlib import Path

LEAST_BYTES = 8 << 20
"""With less free, the memory file system is full: processes that write there are ended by the system."""


def memory_file_system() -> Path:
    """Return Linux's shared memory mount, or the temporary folder if there is none."""
    return Path("/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir())


def free_memory() -> int:
    """Return how many bytes are free in the memory file system."""
    there = os.statvfs(memory_file_system())
    return there.f_bavail * there.f_frsize
