"""Weight files of other nodes as they lie on this one: fetched once into its memory file system, where all its engines map them.

What always holds: two publications are there side by side; a third overwrites the older one, and until then whoever asked for
that one must have ended or be gone; if that one still arrives, its fetch is stopped first. What did not arrive whole is
overwritten first.
"""

import threading
from collections.abc import Callable, Mapping, Sequence

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import WeightFile
from asyncrl.weights.shm.memory_file import MemoryFile, memory_path, remove_memory_files

_NONE = PolicyVersion(-1)
"""The version of a side that has none as a whole."""


class _Side:
    """Files of one version on this node, by their number in the publication, and the version that is there or arrives.

    Attributes:
        version: the version.
        filling: held by whoever writes to the files.
        stop: set to end the last fetch to this side.
    """

    def __init__(self, stem: str) -> None:
        self._stem = stem
        self.files: dict[int, MemoryFile] = {}
        self.version = _NONE
        self.filling = threading.Lock()
        self.stop = threading.Event()

    def file(self, number: int) -> MemoryFile:
        if number not in self.files:
            self.files[number] = MemoryFile(f"{self._stem}-{number}")
        return self.files[number]


class MirroredFiles:
    """The files of ``node``. Call :meth:`close` at the end, or they outlive the process. Its methods may run in any thread.

    Args:
        run_id: names the files; unique among the runs on this host.
        node: Ray's id of the node.
        directory: where the files lie; by default the memory file system.
    """

    def __init__(self, run_id: str, node: str, directory: str | None = None) -> None:
        self._node = node
        stem = memory_path(run_id, f"mirror-{node}", directory)
        self._sides = (_Side(f"{stem}-even"), _Side(f"{stem}-odd"))
        self._lock = threading.Lock()

    def fill(
        self,
        version: PolicyVersion,
        files: Sequence[WeightFile],
        fetch: Callable[[Mapping[int, memoryview], threading.Event], None],
    ) -> tuple[WeightFile, ...]:
        """Bring the files of ``version`` to this node, and return them as they lie here, in the same order.

        Args:
            fetch: fills the memory of each file that lies elsewhere, by its number; it is to end soon after the event is set,
                whether or not by an error.

        Raises:
            MemoryFull: the memory file system has no room for them.
            ComponentFailed: it was given up, because two newer versions were asked for.
        """
        with self._lock:
            side = min(self._sides, key=lambda side: side.version)
            side.version = version
            side.stop.set()
            stop = side.stop = threading.Event()
        try:
            with side.filling:
                _check(version, stop)
                here: list[WeightFile] = []
                memory: dict[int, memoryview] = {}
                for number, file in enumerate(files):
                    if file.node == self._node:
                        here.append(file)
                        continue
                    mirrored = side.file(number)
                    memory[number] = mirrored.memory(file.size)
                    here.append(WeightFile(mirrored.path, self._node, file.size))
                fetch(memory, stop)
                _check(version, stop)
                return tuple(here)
        except BaseException:
            with self._lock:
                if side.version == version:
                    side.version = _NONE
            raise

    def close(self) -> None:
        """Remove the files. Engines that still map them can read them until they unmap them."""
        for side in self._sides:
            side.stop.set()
            for file in side.files.values():
                file.close()
            side.files.clear()

    @staticmethod
    def remove_left_behind(run_id: str) -> None:
        """Remove what a killed run has left behind of these in this node's memory file system."""
        remove_memory_files(run_id, "mirror-")


def _check(version: PolicyVersion, stop: threading.Event) -> None:
    if stop.is_set():
        raise ComponentFailed(f"version {version} of the weights was given up: two others have overtaken it, or the run ends")
