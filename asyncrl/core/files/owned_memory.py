"""Shared memory whose name says that it is of asyncrl, and whose lock says whether the process that made it lives.

What always holds: who makes such memory holds a shared lock on its file as long as it has it open, which the kernel gives back
however the process ends; and a name is only removed by who made the memory, or by who holds that lock alone.
"""

import fcntl
import os
import secrets
import time
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from asyncrl.core.files.memory_files import memory_file_system
from asyncrl.core.files.memory_owners import locked_alone

BEGINNING = "asyncrl-queue-"
YOUNG_S = 60.0
"""Memory that was made less than so many seconds ago is left alone: it may not be locked yet."""


class OwnedMemory(SharedMemory):
    """Shared memory that is given a name of ours where it is made without one."""

    def __init__(self, name: str | None = None, create: bool = False, size: int = 0) -> None:
        super().__init__(name or f"{BEGINNING}{secrets.token_hex(8)}", create, size)
        if create:
            opened: Any = self
            fcntl.flock(opened._fd, fcntl.LOCK_SH)


def remove_abandoned_memory() -> list[str]:
    """Remove this user's shared memory that no living process has made; returns the names."""
    removed = []
    for path in sorted(memory_file_system().glob(f"{BEGINNING}*")):
        with locked_alone(path) as lock:
            if lock is not None and time.time() - os.fstat(lock).st_mtime > YOUNG_S:
                path.unlink(missing_ok=True)
                removed.append(path.name)
    return removed
