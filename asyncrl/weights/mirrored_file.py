"""A file in the memory file system into which bytes are received through a mapping.

What always holds: a mapped file has all its memory, because touching a page that the memory file system has no room for would end
the process.
"""

import errno
import mmap
import os
from pathlib import Path

from asyncrl.weights.shared_memory import MemoryFull


class MirroredFile:
    """The file at ``path``, empty at first. Call :meth:`close` at the end, or it outlives the process."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self._mapping: mmap.mmap | None = None

    def memory(self, size: int) -> memoryview:
        """Return the first ``size`` bytes of the file, to be written.

        Raises:
            MemoryFull: the memory file system has no room for them.
        """
        if size == 0:
            return memoryview(bytearray())
        there = os.fstat(self._descriptor).st_size
        if self._mapping is None or there < size:
            self._grow(there, size)
            self._mapping = mmap.mmap(self._descriptor, max(there, size))  # an older mapping ends with its last view
        return memoryview(self._mapping)[:size]

    def _grow(self, there: int, size: int) -> None:
        if size <= there:
            return
        try:
            os.posix_fallocate(self._descriptor, there, size - there)
        except OSError as error:
            os.ftruncate(self._descriptor, there)
            if error.errno != errno.ENOSPC:
                raise
            folder = os.statvfs(os.path.dirname(self.path))
            total, free = folder.f_blocks * folder.f_frsize, folder.f_bavail * folder.f_frsize
            raise MemoryFull(
                f"{self.path}: no room for {size} bytes of weights; its file system has {total} bytes, {free} of them free. Two "
                "versions must fit at once: make it larger (--shm-size for a container, else mount -o remount,size=...), or "
                "remove what a killed run left there"
            ) from error

    def close(self) -> None:
        """Remove the file. Who maps it can read it until it is unmapped. Does nothing the second time."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            Path(self.path).unlink(missing_ok=True)
            self._descriptor, self._mapping = -1, None
