"""A folder of this user's alone, at a path that others can guess.

In ``/tmp`` and ``/dev/shm`` anybody may make a folder or a link of any name before we do. What always holds: a folder that is
opened here is no link, belongs to this user, and nobody else may write to it.
"""

import os
import stat
from pathlib import Path

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_own_folder(path: Path) -> int:
    """Make the folder if there is none, open it, and return its descriptor.

    Raises:
        OSError: it is a link or no folder, or somebody else could have laid something into it; says which.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.is_symlink():
        raise OSError(f"{path} is a link, and links are not followed there")
    folder = os.open(path, OPEN_FOLDER)
    found = os.fstat(folder)
    if found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return folder
    os.close(folder)
    if found.st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user (its number is {found.st_uid})")
    mode = stat.S_IMODE(found.st_mode)
    raise PermissionError(f"others may write to {path}, whose mode is {mode:o}, so what is in it may not be of our making")
