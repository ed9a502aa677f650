"""Locks a file for one process, with a deadline: the kernel waits for a lock without one."""

import fcntl
import time

_RETRY_S = 0.01


def lock_within(file: int, wait_s: float) -> None:
    """Lock an open file, once whoever has it locked lets go.

    Raises:
        BlockingIOError: another process has it locked for longer than ``wait_s`` seconds.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_RETRY_S)
