"""Where sockets go that processes of one machine find by their path: below ``$TMPDIR``, unless that is too long for them.

The kernel keeps at most 107 bytes of a socket's path, and batch systems set ``TMPDIR`` to paths that leave no room.
What always holds: only what needs sockets goes elsewhere; episodes have their folders where the user wants them.
"""

import os
import tempfile
from pathlib import Path

LONGEST = 107
"""Bytes of the longest path that a socket can have."""
_FOLDERS = ("/tmp", "/dev/shm")


def socket_folder(room: int) -> Path:
    """Return a folder for sockets.

    Args:
        room: bytes that the path of a socket has below the folder, with the slash before it.
    """
    usual = tempfile.gettempdir()
    for folder in (usual, *_FOLDERS):
        if len(os.fsencode(folder)) + room <= LONGEST and os.access(folder, os.W_OK | os.X_OK):
            return Path(folder)
    return Path(usual)
