"""Errors of the operating system about files: with the name of the file, in a sentence, and with a remedy."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncrl.core.errors import RecipeError

_REMEDIES = {
    errno.EIO: "the disk, or the connection to it, fails: see dmesg, and put the file on a sound one",
    errno.ESTALE: "the network drive has lost it: mount that anew",
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there, or raise the quota",
    errno.EROFS: "its file system is read-only: mount it writable, or name a folder elsewhere",
    errno.EACCES: "give yourself permission",
    errno.EPERM: "give yourself permission",
    errno.EMFILE: "allow this process more open files (ulimit -n 65536)",
    errno.ENFILE: "allow this machine more open files (sysctl fs.file-max)",
    errno.EFBIG: "allow this process larger files (ulimit -f unlimited), or name a folder on another file system",
    errno.ENAMETOOLONG: "name a folder with a shorter path",
}
_OF_WRITES = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}
_OF_DISKS = {*_OF_WRITES, errno.EIO, errno.ESTALE}


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Let an ``OSError`` that is raised in this context, and that names no file, name ``file``: reads and writes of what is open
    do not know its name."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(file)
        raise


def explained(error: OSError) -> str:
    """Return a sentence about the error: the file, what is wrong, and what can be done about it."""
    # Of a copy that the disk refuses, the first file is the one that was read.
    file = error.filename2 if error.filename2 is not None and error.errno in _OF_WRITES else error.filename
    name = f"{os.fsdecode(file)}: " if error.strerror and isinstance(file, str | bytes) else ""
    return f"{name}{cause_and_remedy(error)}"


def cause_and_remedy(error: OSError) -> str:
    """Return what is wrong and what can be done about it, for a sentence that names the file itself."""
    if not error.strerror:  # a text of our own, or of a library
        return str(error) or type(error).__name__
    remedy = _REMEDIES.get(error.errno or 0, "")
    return f"{error.strerror}{f'; {remedy}' if remedy else ''}"


@contextmanager
def refusing(doing: str, otherwise: str, key: str = "") -> Iterator[None]:
    """Have an ``OSError`` of this context refuse what a user asks for.

    Args:
        doing: what cannot be done, e.g. ``write 'runs/a/labels.json'``.
        otherwise: what can be done about it, unless the disk is full or fails.
        key: of the recipe, that is to blame.
    """
    try:
        yield
    except OSError as error:
        raise RecipeError(key, f"cannot {doing}: {error.strerror}", remedy_of(error, otherwise)) from error


def remedy_of(error: OSError, otherwise: str) -> str:
    """Return what can be done about an error: ``otherwise``, unless the disk is full or fails, which that would not help."""
    return _REMEDIES[error.errno] if error.errno in _OF_DISKS else otherwise
