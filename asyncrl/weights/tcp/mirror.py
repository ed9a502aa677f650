"""The mirror of one node: it has the weights of the newest publications on this node, and hands them on to other nodes.

On a node where the learner writes, it serves what the ranks wrote. On any other, it fetches the files of a publication once, into
the node's memory file system, where all engines of the node map them; chunks that it has checked are served at once, so that a
tree of mirrors passes a publication on while it arrives. Engines go on sampling meanwhile. What always holds: two publications
are there side by side; a third overwrites the older one, and until then whoever asked for that one must have ended or be gone; if
that one still arrives, its fetch is ended first. What did not arrive whole is overwritten first.
"""

import threading
from collections.abc import Mapping, Sequence
from functools import partial

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.network.tls import TlsKeys
from asyncrl.core.publication import WeightFile
from asyncrl.weights.shm.memory_file import MemoryFile, memory_path, remove_memory_files
from asyncrl.weights.tcp.chunk_fetch import ChunkFetch, FetchedFile
from asyncrl.weights.tcp.chunk_server import ChunkServer
from asyncrl.weights.tcp.chunk_wire import Address
from asyncrl.weights.tcp.held_files import HeldFile, HeldFiles

_NONE = PolicyVersion(-1)
"""The version of a side that has none as a whole."""


class _Side:
    """Files of one version on this node, by their number in the publication, and the version that is there or arrives.

    Attributes:
        version: the version.
        fetching: held by whoever writes to the files. Who waits for it has stopped that fetch, which takes as long as its
            sources may be silent.
        fetch: the last fetch of a version to this side.
    """

    def __init__(self, stem: str) -> None:
        self._stem = stem
        self.files: dict[int, MemoryFile] = {}
        self.version = _NONE
        self.fetching = threading.Lock()
        self.fetch: ChunkFetch | None = None

    def file(self, number: int) -> MemoryFile:
        if number not in self.files:
            self.files[number] = MemoryFile(f"{self._stem}-{number}")
        return self.files[number]


class Mirror:
    """The mirror of ``node``. Call :meth:`close` at the end, or its files outlive the process. Its methods may run in any thread.

    Args:
        run_id: names the files; unique among the runs on this host.
        node: Ray's id of the node.
        secret: the run's secret, which mirrors show to one another.
        host: the address at which other nodes reach this one.
        directory: where the files lie; by default the memory file system.
        tls: the run's keys if its connections are encrypted.
    """

    def __init__(
        self, run_id: str, node: str, secret: bytes, host: str, directory: str | None = None, tls: TlsKeys | None = None
    ) -> None:
        self._node, self._secret, self._tls = node, secret, tls
        stem = memory_path(run_id, f"mirror-{node}", directory)
        self._held = HeldFiles()
        self._server = ChunkServer(self._held, secret, host, tls)
        self._sides = (_Side(f"{stem}-even"), _Side(f"{stem}-odd"))
        self._lock = threading.Lock()

    @property
    def address(self) -> Address:
        """Where other mirrors fetch from this one."""
        return self._server.address

    def serve(self, version: PolicyVersion, files: Sequence[WeightFile]) -> None:
        """Hand out the files of ``version`` that the learner's ranks on this node wrote, and what else of it is fetched here."""
        with self._lock:
            if not self._held.has(version):
                self._held.hold(version, self._written_here(files))

    def _written_here(self, files: Sequence[WeightFile]) -> list[HeldFile]:
        return [HeldFile(file.path, file.size if file.node == self._node else 0, whole=True) for file in files]

    def fetch_files(
        self,
        version: PolicyVersion,
        files: Sequence[WeightFile],
        sources: Mapping[str, Sequence[Address]],
        seconds: float,
    ) -> tuple[WeightFile, ...]:
        """Bring the files of ``version`` to this node, and return them as they lie here, in the same order.

        Args:
            sources: for each node that files lie on, the mirrors to fetch them from, the preferred one first.
            seconds: the deadline.

        Raises:
            MemoryFull: the memory file system has no room for them.
            DeadlineExceeded: they did not arrive in time.
            ComponentFailed: no source has them, their bytes arrive wrong again and again, or two newer versions were asked for.
        """
        with self._lock:
            side = min(self._sides, key=lambda side: side.version)
            side.version = version
            if side.fetch is not None:
                side.fetch.stop(_overtaken(version))
        try:
            with side.fetching:
                return self._fetch_to_side(side, version, files, sources, seconds)
        except BaseException:
            with self._lock:
                if side.version == version:
                    side.version = _NONE
                self._held.forget(version)
                if any(file.node == self._node for file in files):  # other nodes still fetch these
                    self._held.hold(version, self._written_here(files))
            raise

    def _fetch_to_side(
        self,
        side: _Side,
        version: PolicyVersion,
        files: Sequence[WeightFile],
        sources: Mapping[str, Sequence[Address]],
        seconds: float,
    ) -> tuple[WeightFile, ...]:
        local: list[WeightFile] = []
        held: list[HeldFile] = []
        fetched: list[FetchedFile] = []
        for number, file in enumerate(files):
            if file.node == self._node:
                local.append(file)
                held.append(HeldFile(file.path, file.size, whole=True))
                continue
            mirrored = side.file(number)
            memory = mirrored.memory(file.size)
            mine = HeldFile(mirrored.path, file.size, whole=False)
            local.append(WeightFile(mirrored.path, self._node, file.size))
            held.append(mine)
            fetched.append(FetchedFile(number, memory, sources[file.node], partial(self._held.arrived, mine)))
        fetch = ChunkFetch(version, fetched, self._secret, f"the mirror of weights at {self.address}", seconds, self._tls)
        with self._lock:
            if side.version > version:
                raise _overtaken(side.version)
            side.fetch = fetch
            self._held.hold(version, held)
        fetch.run()
        return tuple(local)

    def close(self) -> None:
        """Stop serving, and remove the files. Engines that still map them can read them until they unmap them."""
        self._held.close()
        self._server.close()
        for side in self._sides:
            for file in side.files.values():
                file.close()
            side.files.clear()

    @staticmethod
    def remove_left_behind(run_id: str) -> None:
        """Remove what the mirrors of a killed run have left behind in this node's memory file system."""
        remove_memory_files(run_id, "mirror-")


def _overtaken(version: PolicyVersion) -> ComponentFailed:
    return ComponentFailed(f"version {version} of the weights takes the place of one that two others have overtaken")
