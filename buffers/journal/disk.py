"""File operations: appends that happen completely or not at all, and freeing disk space inside a file.

A full disk is an expected state: an append then raises :class:`DiskFull`, leaves the file as it was, and may be tried again.
"""

import ctypes
import errno
import os
from collections.abc import Sequence
from pathlib import Path

from asyncrl.core.errors import AsyncRLError
from asyncrl.core.files.file_errors import naming

PAGE = 4096
"""Bytes in the units in which file systems allocate space."""

_FULL = {errno.ENOSPC, errno.EDQUOT}
_PARTS_PER_CALL = os.sysconf("SC_IOV_MAX")
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class DiskFull(AsyncRLError):
    """The disk has no room for an append; the file is unchanged.

    Args:
        folder: the folder on that disk.
        wanted: bytes that were to be written.
        free: free bytes on the disk.
    """

    def __init__(self, folder: Path, wanted: int, free: int) -> None:
        self.folder, self.wanted, self.free = folder, wanted, free
        super().__init__(
            f"{folder} is full: {wanted:,} bytes wanted, {free:,} free; make room there (or raise its quota); nothing was lost"
        )


def disk_full(error: OSError, folder: Path, wanted: int) -> DiskFull | None:
    """Return ``DiskFull`` if ``error`` says that the disk or quota of ``folder`` is full; otherwise None."""
    if error.errno not in _FULL:
        return None
    space = os.statvfs(folder)
    return DiskFull(folder, wanted, space.f_bavail * space.f_frsize)


def append_whole(file: int, parts: Sequence[bytes], end: int, *, folder: Path, fsync: bool) -> int:
    """Write ``parts``, one after the other, at ``end``, the file's end, and return the new end.

    This takes one system call, unless there are more than 1,024 parts or the disk takes only some of them.

    Raises:
        DiskFull: the file was cut back to ``end``.
        OSError: there is another problem with the disk; the file was cut back to ``end``.
    """
    wanted = sum(map(len, parts))
    try:
        if len(parts) > _PARTS_PER_CALL or os.pwritev(file, parts, end) < wanted:
            _write_all(file, parts, end)
        if fsync:
            os.fdatasync(file)
    except OSError as error:
        with naming(folder):
            os.ftruncate(file, end)
            if full := disk_full(error, folder, wanted):
                raise full from error
            raise
    return end + wanted


def _write_all(file: int, parts: Sequence[bytes], offset: int) -> None:
    waiting: list[bytes | memoryview] = [part for part in parts if part]
    waiting.reverse()
    while waiting:
        written = os.pwritev(file, waiting[: -_PARTS_PER_CALL - 1 : -1], offset)
        offset += written
        while waiting and written >= len(waiting[-1]):
            written -= len(waiting.pop())
        if written:
            waiting[-1] = memoryview(waiting[-1])[written:]


def punch_hole(file: int, start: int, end: int) -> bool:
    """Free the disk space of bytes ``[start, end)``, which then read as zeros; False if the file system cannot do that.

    A full disk may have no room to record the hole; then the space is freed when the whole file is removed.
    """
    if _libc.fallocate(file, _PUNCH_HOLE | _KEEP_SIZE, start, end - start) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EOPNOTSUPP, errno.ENOSYS):
        return False
    if code in _FULL:
        return True
    raise OSError(code, os.strerror(code))
