"""The weight files that a node holds of the newest publications, and which of their chunks are there already.

What always holds: a chunk is handed out only after it was checked; of two versions that lie in the same files, only the newer is
held; whoever waits for a chunk that will never come gets that answer at once.
"""

import threading
import zlib
from collections.abc import Sequence

from asyncrl.core.ids import PolicyVersion
from asyncrl.weights.shm.memory_file import mapped
from asyncrl.weights.tcp.chunk_wire import CHUNK_BYTES, Answer


class HeldFile:
    """One weight file: what it is called here, and the checksums of the chunks that are there.

    Args:
        path: the file on this node.
        size: how many of its bytes belong to the publication.
        whole: all chunks are there; their checksums are computed when they are first asked for.
    """

    def __init__(self, path: str, size: int, *, whole: bool) -> None:
        self.path, self.size, self.whole = path, size, whole
        self.checksums: list[int | None] = [None] * -(-size // CHUNK_BYTES)
        self._mapped: memoryview | None = None

    def extent(self, chunk: int) -> tuple[int, int]:
        """First byte of a chunk, and the byte after its last."""
        return chunk * CHUNK_BYTES, min((chunk + 1) * CHUNK_BYTES, self.size)

    def checksum(self, chunk: int) -> int | None:
        """CRC-32 of a chunk; None if it is not there yet."""
        known = self.checksums[chunk]
        if known is None and self.whole:
            begin, end = self.extent(chunk)
            known = self.checksums[chunk] = zlib.crc32(self._bytes()[begin:end])
        return known

    def _bytes(self) -> memoryview:
        if self._mapped is None:
            self._mapped = mapped(self.path, self.size)
        return self._mapped


class HeldFiles:
    """What a chunk server may hand out. Used by the threads of the server and of a fetch."""

    def __init__(self) -> None:
        self._versions: dict[PolicyVersion, Sequence[HeldFile]] = {}
        self._gone: set[PolicyVersion] = set()
        self._changed = threading.Condition()
        self._closed = False

    def has(self, version: PolicyVersion) -> bool:
        """Whether ``version`` is handed out."""
        with self._changed:
            return version in self._versions

    def hold(self, version: PolicyVersion, files: Sequence[HeldFile]) -> None:
        """Begin to hand out ``version``. Versions that lay in the same files are gone from now on."""
        paths = {file.path for file in files}
        with self._changed:
            for old, others in list(self._versions.items()):
                if old != version and not paths.isdisjoint(file.path for file in others):
                    self._forget(old)
            self._versions[version] = files
            self._gone.discard(version)
            self._changed.notify_all()

    def forget(self, version: PolicyVersion) -> None:
        """Hand ``version`` out no more, because it did not arrive as a whole."""
        with self._changed:
            self._forget(version)
            self._changed.notify_all()

    def _forget(self, version: PolicyVersion) -> None:
        self._versions.pop(version, None)
        self._gone.add(version)

    def arrived(self, file: HeldFile, chunk: int, checksum: int) -> None:
        """Note that a chunk is there and has this checksum."""
        with self._changed:
            file.checksums[chunk] = checksum
            self._changed.notify_all()

    def find(self, version: PolicyVersion, number: int, chunk: int, seconds: float) -> tuple[Answer, HeldFile | None, int]:
        """Look for a chunk, and wait for it for at most ``seconds``.

        Returns:
            what to answer; and if that is ``CHUNK``, its file and checksum.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._known(version, number, chunk), seconds)
            files = self._versions.get(version)
            if files is None:
                return (Answer.GONE if self._is_gone(version) else Answer.WAITING), None, 0
            if number >= len(files) or chunk >= len(files[number].checksums):
                return Answer.GONE, None, 0
            file = files[number]
        checksum = file.checksum(chunk)  # outside of the lock: it may have to be computed
        return (Answer.WAITING, None, 0) if checksum is None else (Answer.CHUNK, file, checksum)

    def _known(self, version: PolicyVersion, number: int, chunk: int) -> bool:
        """Whether there is something else to answer than that the chunk has not arrived yet."""
        files = self._versions.get(version)
        if files is None:
            return self._is_gone(version)
        if number >= len(files) or chunk >= len(files[number].checksums):
            return True
        return files[number].whole or files[number].checksums[chunk] is not None

    def _is_gone(self, version: PolicyVersion) -> bool:
        """Whether a version that is not held will not come any more; one that is still to come is not."""
        return self._closed or version in self._gone

    def close(self) -> None:
        """Hand nothing out any more, and tell those who wait."""
        with self._changed:
            self._closed = True
            self._versions.clear()
            self._changed.notify_all()
