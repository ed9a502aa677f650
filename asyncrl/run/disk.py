"""Room on the run folder's disk: a full disk pauses a run, it does not end it."""

import os
from pathlib import Path

ROOM_BYTES = 64 << 20
"""What should be free at any time: MLflow, the logs and the journal all write to the run folder."""
POLL_S = 2.0
"""Nothing tells that a disk has room again, so it is asked this often."""


def free_bytes(folder: Path) -> int:
    """What an ordinary user may still write to the disk of ``folder``."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
