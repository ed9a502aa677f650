"""The mirror of the ``ray`` transport on one node."""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import ray

from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import WeightFile
from asyncrl.run.publications.ray_pieces import PieceFetch, StoreMemory, put_pieces
from asyncrl.run.publications.transport import read_stores
from asyncrl.weights.shm.mirrored_files import MirroredFiles

if TYPE_CHECKING:
    import numpy as np

    Pieces = Mapping[int, Sequence[ray.ObjectRef[np.ndarray]]]

logger = logging.getLogger(__name__)


class RayMirror(MirroredFiles):
    """The mirror of ``node``, which this process is on; its methods may run in any thread.

    Args:
        run_id: unique among the runs on this host.
    """

    def __init__(self, run_id: str, node: str) -> None:
        super().__init__(run_id, node)
        self._store = StoreMemory(read_stores()[node].size)

    def put(self, version: PolicyVersion, files: Sequence[WeightFile]) -> "dict[int, list[ray.ObjectRef[np.ndarray]]]":
        """Put the files of ``version`` that ranks on this node wrote into its object store; return their pieces, by number.

        Raises:
            MemoryFull: the memory file system has too little for the store.
            ComponentFailed: the store has no room for them.
        """
        began, here = time.monotonic(), {number: file for number, file in enumerate(files) if file.node == self._node}
        self._store.take(sum(file.size for file in here.values()))
        put = {number: put_pieces(file.path, file.size) for number, file in here.items()}
        logger.info("version %d: %d files put into the object store in %.3f s", version, len(put), time.monotonic() - began)
        return put

    def fetch_files(
        self,
        version: PolicyVersion,
        files: Sequence[WeightFile],
        pieces: "Pieces",
        seconds: float,
    ) -> tuple[WeightFile, ...]:
        """Bring the files of ``version`` to this node, and return them as they lie here, in the same order.

        Args:
            pieces: of the files that lie on other nodes, by their number.
            seconds: the deadline.

        Raises:
            MemoryFull: the memory file system has no room for them, or too little for the store.
            DeadlineExceeded: they did not arrive in time.
            PiecesLost: the process that had put them died.
            ComponentFailed: two newer versions were asked for.
        """
        began = time.monotonic()
        waiter = f"the mirror of weights at {ray.util.get_node_ip_address()}"
        fetch = partial(self._fetch, version, pieces, waiter, seconds)
        here = self.fill(version, files, fetch)
        logger.info("version %d: fetched in %.3f s", version, time.monotonic() - began)
        return here

    def _fetch(
        self,
        version: PolicyVersion,
        pieces: "Pieces",
        waiter: str,
        seconds: float,
        memory: Mapping[int, memoryview],
        stop: threading.Event,
    ) -> None:
        self._store.take(sum(map(len, memory.values())))
        PieceFetch(version, pieces, memory, waiter, seconds, stop).run()
