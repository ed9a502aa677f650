"""Weight files as objects in Ray's object store: put there in pieces on the node where they lie, and fetched on others.

What always holds: a piece is copied once into the store of its node, and once out of that of each other one; a node fetches few
pieces at a time, so that its store need not hold a version, and each in an order of its own, so that nodes have different pieces
first, and Ray fetches a piece from any node that has it; a fetch ends by its deadline, or soon after it is stopped.
"""

import random
import socket
import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, ObjectStoreFullError, OutOfDiskError

from asyncrl.core.errors import ComponentFailed, DeadlineExceeded
from asyncrl.core.files.memory_files import free_memory, memory_file_system
from asyncrl.core.ids import PolicyVersion
from asyncrl.run.publications.mirrored_transport import PiecesLost
from asyncrl.run.publications.transport import IN_STORE
from asyncrl.weights.shm.memory_file import MemoryFull, mapped

SMALLEST_BYTES, LARGEST_BYTES = 1 << 20, 16 << 20
"""The sizes of a piece, but for the last of a file. Smaller ones cost more calls, larger ones come later to other nodes."""
_PIECES = 64
"""As many pieces of a file are enough for nodes to feed each other."""
AT_ONCE = 4
"""Pieces that a node fetches at a time."""
_LOOK_S = 0.5
"""How often a fetch that waits looks whether it is to end."""


class StoreMemory:
    """The memory that a node's object store has got of the memory file system.

    It takes a page when it first writes there, and keeps it. If none is left then, the system ends Ray's processes on the node.

    Args:
        store: bytes of the store.
    """

    def __init__(self, store: int) -> None:
        self._store, self._taken, self._lock = store, 0, threading.Lock()

    def take(self, size: int) -> None:
        """Check that the store has or gets memory for ``size`` more bytes, beside as many of the version before.

        Raises:
            MemoryFull: the memory file system has too little left.
        """
        with self._lock:
            more = min(size, min(IN_STORE * size, self._store) - self._taken)
            free = free_memory()
            if more > free:
                raise MemoryFull(
                    f"{memory_file_system()} on {socket.gethostname()} has {free} bytes free, and Ray's object store, which lies "
                    f"there, needs {more} more for weights: make it larger (--shm-size for a container, else mount -o "
                    "remount,size=...), or set weights.kind to disk"
                )
            self._taken += max(0, more)


def piece_bytes(size: int) -> int:
    """Return the size of the pieces of a file of ``size`` bytes, but for the last."""
    return min(max(-(-size // _PIECES), SMALLEST_BYTES), LARGEST_BYTES)


def put_pieces(path: str, size: int) -> "list[ray.ObjectRef[np.ndarray]]":
    """Put the first ``size`` bytes of a file into the store of this node. They stay there while somebody has the references.

    Raises:
        ComponentFailed: the store has no room for them.
    """
    bytes_of_file, step = np.frombuffer(mapped(path, size), np.uint8), piece_bytes(size)
    try:
        return [ray.put(bytes_of_file[begin : begin + step]) for begin in range(0, size, step)]
    except (ObjectStoreFullError, OutOfDiskError) as error:  # neither there nor on the disk that Ray falls back to
        has = ray.get_runtime_context().get_node_id()
        raise ComponentFailed(
            f"Ray's object store on node {has[:8]} has no room for {size} bytes of weights; start Ray there with a larger "
            "--object-store-memory, or set weights.kind to disk"
        ) from error


class PieceFetch:
    """Fetches the pieces of one version. Used once.

    Args:
        pieces: those of each file that is wanted, by its number, in their order.
        memory: where the bytes of each file are to be, by its number.
        waiter: who fetches, for errors.
        seconds: the deadline, from now on.
        stop: is set if the fetch is to end early.
    """

    def __init__(
        self,
        version: PolicyVersion,
        pieces: "Mapping[int, Sequence[ray.ObjectRef[np.ndarray]]]",
        memory: Mapping[int, memoryview],
        waiter: str,
        seconds: float,
        stop: threading.Event,
    ) -> None:
        self._version, self._waiter, self._seconds, self._stop = version, waiter, seconds, stop
        self._ends = time.monotonic() + seconds
        self._wanted: list[tuple[ray.ObjectRef[np.ndarray], memoryview]] = []
        for number, whole in memory.items():
            step = piece_bytes(len(whole))
            self._wanted += [(piece, whole[place * step : (place + 1) * step]) for place, piece in enumerate(pieces[number])]
        random.shuffle(self._wanted)
        self._pending: dict[ray.ObjectRef[np.ndarray], memoryview] = {}

    def run(self) -> None:
        """Fetch all; returns early, without all of them, if the fetch is stopped.

        Raises:
            DeadlineExceeded: not all pieces have arrived in time.
            PiecesLost: the process that had put them died.
        """
        while (self._wanted or self._pending) and not self._stop.is_set():
            while self._wanted and len(self._pending) < AT_ONCE:
                piece, memory = self._wanted.pop()
                self._pending[piece] = memory
            if (left := self._ends - time.monotonic()) <= 0:
                self._raise_late()
            there, _ = ray.wait([*self._pending], timeout=min(left, _LOOK_S))
            for piece in there:
                self._take(piece, self._pending.pop(piece))

    def _take(self, piece: "ray.ObjectRef[np.ndarray]", memory: memoryview) -> None:
        try:
            memory[:] = ray.get(piece, timeout=max(0.0, self._ends - time.monotonic())).data
        except GetTimeoutError:
            self._pending[piece] = memory
            self._raise_late()
        except ObjectLostError as error:
            raise PiecesLost(f"{self._waiter}: version {self._version} of the weights is gone where it was written") from error

    def _raise_late(self) -> None:
        missing = len(self._wanted) + len(self._pending)
        owner = f"version {self._version} of the weights, of which {missing} pieces are missing"
        raise DeadlineExceeded(self._waiter, owner, self._seconds, "check the network, or raise deadlines.publish")
