"""A file in the memory file system that this process writes through a mapping, and other processes read.

What always holds: a mapped file has all its memory, because touching a page that the memory file system has no room for would end
the process; a full memory file system is an error to report.
"""

import errno
import glob
import mmap
import os
import socket
from pathlib import Path

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.files.memory_files import memory_file_system

OF_RANKS = "rank"
"""What the names of the learner's files begin with; here, so that who removes them need not import torch."""


class MemoryFull(ComponentFailed):
    """The memory file system cannot hold the publication."""


class MemoryFile:
    """A new file at ``path``, in place of one that is there. Call :meth:`close` at the end, or it outlives the process."""

    def __init__(self, path: str) -> None:
        self.path = path
        # That of a process that died may still be mapped; to truncate it would end the processes that read it.
        Path(path).unlink(missing_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._mapping: mmap.mmap | None = None
        self.size = 0

    def memory(self, size: int) -> memoryview:
        """Return the first ``size`` bytes of the file, to be written. The file grows if need be, and never shrinks.

        Raises:
            MemoryFull: the memory file system has no room for them.
        """
        if size == 0:
            return memoryview(bytearray())
        if self._mapping is None or self.size < size:
            self._grow(size)
            self._mapping = mmap.mmap(self._descriptor, self.size)  # an older mapping ends with its last view
        return memoryview(self._mapping)[:size]

    def _grow(self, size: int) -> None:
        try:
            os.posix_fallocate(self._descriptor, self.size, size - self.size)
        except OSError as error:
            os.ftruncate(self._descriptor, self.size)
            if error.errno != errno.ENOSPC:
                raise
            folder = os.statvfs(os.path.dirname(self.path))
            total, free = folder.f_blocks * folder.f_frsize, folder.f_bavail * folder.f_frsize
            there = f"{self.path} on {socket.gethostname()}"
            raise MemoryFull(
                f"{there}: no room for {size - self.size} bytes of weights after {self.size} bytes already there; its file "
                f"system has {total} bytes, {free} of them free. Two versions must fit at once, and a third while a slow engine "
                "still reads: make it larger (--shm-size for a container, else mount -o remount,size=...), or remove what a "
                "killed run left there"
            ) from error
        self.size = size

    def close(self) -> None:
        """Remove the file. A process that maps it can read it until it unmaps it. Does nothing the second time."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            Path(self.path).unlink(missing_ok=True)
            self._descriptor, self._mapping = -1, None


def mapped(path: str, size: int) -> memoryview:
    """Return the first ``size`` bytes of a file, mapped to be read."""
    if size == 0:
        return memoryview(b"")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return memoryview(mmap.mmap(descriptor, size, prot=mmap.PROT_READ))
    finally:
        os.close(descriptor)


def memory_path(run_id: str, name: str, directory: str | None = None) -> str:
    """Return the path of a run's memory file, in the memory file system or in ``directory``.

    Args:
        run_id: unique among the runs on this host.
    """
    return os.path.join(directory or memory_file_system(), f"asyncrl-{run_id}-{name}")


def remove_memory_files(run_id: str, beginning: str) -> None:
    """Remove the memory files of a killed run on this node whose names have this beginning."""
    for path in glob.glob(memory_path(glob.escape(run_id), f"{beginning}*")):
        Path(path).unlink(missing_ok=True)
