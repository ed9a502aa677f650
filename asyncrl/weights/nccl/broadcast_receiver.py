"""An engine worker's end of the ``nccl`` transport: takes publications from the learner's ranks, from all of them side by side.

What always holds: bytes arrive while the engine samples, in memory beside the weights in use, if every worker of the engine has
room for a whole publication; otherwise tensor by tensor, in the pause. All workers of an engine decide alike, since each rank
answers all of them alike. A failure ends the connections to all ranks, and leaves the engine with the weights that it had.
"""

import contextlib
import logging
import math
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch

from asyncrl.core.errors import ComponentFailed, DeadlineExceeded
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import LEFT_FREE, BroadcastAddress, Publication, ShardRecord
from asyncrl.weights.coverage import by_tensor, check_coverage
from asyncrl.weights.nccl.broadcast_wire import (
    REMEDY,
    WELCOME,
    Answer,
    BrokenConnection,
    Extent,
    Hello,
    Reply,
    Request,
    hear,
    introduction,
    pieces,
    receive,
    supervised,
    tell,
)
from asyncrl.weights.nccl.collective import Collective, Group, Nccl

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


class BroadcastReceiver:
    """Takes publications in worker number ``worker`` of ``workers`` of an engine. Used by one thread at a time.

    Args:
        engine: its name, which no other engine has, and which is the same in all its workers.
        device: where the bytes are to be.
        collective: what broadcasts.
        has_room: whether so many bytes more fit on the device.
    """

    def __init__(
        self,
        engine: str,
        worker: int,
        workers: int,
        device: torch.device,
        collective: Collective | None = None,
        has_room: Callable[[int, torch.device], bool] | None = None,
    ) -> None:
        self._hello, self._device = Hello(engine, worker, workers), device
        self._collective, self._has_room = collective or Nccl(), has_room or _has_room
        self._links: list[_Link] = []
        self._files: list[torch.Tensor] = []
        self._arrived: PolicyVersion | None = None

    def receive_publication(self, publication: Publication) -> bool:
        """Take a whole publication, beside the weights in use.

        Returns:
            False if not all workers of the engine have room for it; nothing was taken then.

        Raises:
            ComponentFailed: a rank is gone, or does not hold the version.
            DeadlineExceeded: it took longer than the ranks' deadline.
        """
        self._arrived = None
        sizes = [file.size for file in publication.files]
        have = [len(file) for file in self._files] == sizes
        with self._broken_at_failure():
            answers = self._ask(publication, [((0, size),) for size in sizes], have or self._has_room(sum(sizes), self._device))
            if Answer.LATER in answers:
                logger.info("version %d does not fit beside the weights in use: the engine pauses longer", publication.version)
                return False
            if not have:
                self._files = []  # before the new ones are allocated
                self._files = self._allocated(sizes)
            self._of_each(lambda link, file: link.receive(file), self._files)
        self._arrived = publication.version
        return True

    def read(self, publication: Publication) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the name and the whole of each published tensor, from what was received before, or else as it arrives.

        Raises:
            WeightMismatch: a tensor is not covered exactly once.
            ComponentFailed, DeadlineExceeded: as for :meth:`receive_publication`.
        """
        tensors = by_tensor(publication.shards)
        for name, records in tensors.items():
            check_coverage(name, records)
        if self._arrived == publication.version:
            for name, records in tensors.items():
                yield name, _assembled(records, [self._files[each.file][slice(*_extent(each))] for each in records])
            return
        wanted: list[list[Extent]] = [[] for _ in publication.files]
        for records in tensors.values():
            for record in records:
                wanted[record.file].append(_extent(record))
        with self._broken_at_failure():
            self._ask(publication, [tuple(each) for each in wanted], ready=True)
            for name, records in tensors.items():
                parts = self._allocated([_bytes(each) for each in records])
                for record, part in zip(records, parts, strict=True):
                    self._links[record.file].receive(part)
                yield name, _assembled(records, parts)

    def _allocated(self, sizes: Sequence[int]) -> list[torch.Tensor]:
        """Return memory that can be written on any stream: whatever used it before is done."""
        memory = [torch.empty(size, dtype=torch.uint8, device=self._device) for size in sizes]
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        return memory

    def _ask(self, publication: Publication, wanted: Sequence[tuple[Extent, ...]], ready: bool) -> list[Answer]:
        """Ask every rank for its part; join its group if there is none yet."""
        if [link.address for link in self._links] != list(publication.senders):
            self.close()
            self._links = [_Link(address, self._hello, self._collective, self._device) for address in publication.senders]
        requests = [Request(publication.version, extents, ready) for extents in wanted]
        return self._of_each(lambda link, request: link.ask(request), requests)

    def _of_each(self, work: Callable[["_Link", T], R], arguments: Sequence[T]) -> list[R]:
        """Call ``work`` for every link, side by side."""
        with ThreadPoolExecutor(len(self._links), "weights: broadcasts") as pool:
            return list(pool.map(work, self._links, arguments))

    @contextlib.contextmanager
    def _broken_at_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, BrokenConnection | OSError):
                raise ComponentFailed(f"a learner rank's broadcast did not arrive: {error}; {REMEDY}") from error
            raise

    def close(self) -> None:
        """Leave all groups. The next call of another method makes them anew."""
        self._arrived = None
        for link in self._links:
            link.close()
        self._links = []


class _Link:
    """The connection to one rank, and the group with it."""

    def __init__(self, address: BroadcastAddress, hello: Hello, collective: Collective, device: torch.device) -> None:
        self.address, self._hello = address, hello
        self._collective, self._device = collective, device
        self._waiter = f"worker {hello.worker} of engine {hello.engine}"
        self._owner = f"the learner rank at {address.host}:{address.port}"
        self._connection: socket.socket | None = None
        self._group: Group | None = None
        self._ends = 0.0

    def ask(self, request: Request) -> Answer:
        self._ends = time.monotonic() + self.address.seconds
        try:
            if self._connection is None:
                self._connection = self._connected()
            tell(self._connection, request)
            reply = hear(self._connection, Reply)
        except TimeoutError as late:
            raise DeadlineExceeded(self._waiter, f"{self._owner} to answer", self.address.seconds, REMEDY) from late
        if reply.answer is Answer.GONE:
            raise BrokenConnection(f"{self._owner} does not hold version {request.version} any more")
        if reply.token:
            join = partial(self._collective.join, reply.token, self._hello.worker + 1, self._hello.workers + 1, self._device)
            self._group = self._supervised(join, f"{self._owner} to make a group")
        return reply.answer

    def _connected(self) -> socket.socket:
        seconds = self.address.seconds
        connection = socket.create_connection((self.address.host, self.address.port), seconds)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(seconds)
            connection.sendall(introduction(self.address.secret))
            if receive(connection, len(WELCOME)) != WELCOME:
                raise BrokenConnection(f"{self._owner} does not speak as it should")
            tell(connection, self._hello)
        except BaseException:
            connection.close()
            raise
        return connection

    def receive(self, memory: torch.Tensor) -> None:
        group = self._group
        assert group is not None

        def take() -> None:
            for begin, end in pieces((0, len(memory))):
                group.receive(memory[begin:end])
            group.wait()

        self._supervised(take, f"{self._owner} to send")

    def _supervised(self, work: Callable[[], T], owner: str) -> T:
        assert self._connection is not None
        return supervised(work, [self._connection], max(0.0, self._ends - time.monotonic()), self._waiter, owner)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        group, self._group = self._group, None
        if group is not None:
            group.abort()


def _has_room(size: int, device: torch.device) -> bool:
    return size + LEFT_FREE <= torch.cuda.mem_get_info(device)[0]


def _bytes(record: ShardRecord) -> int:
    dtype: torch.dtype = getattr(torch, record.dtype)
    return math.prod(record.extent) * dtype.itemsize


def _extent(record: ShardRecord) -> Extent:
    return record.offset, record.offset + _bytes(record)


def _assembled(records: Sequence[ShardRecord], parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the tensor whose rectangles have these bytes, each uint8 [its bytes]; a view of them if there is one alone."""
    dtype: torch.dtype = getattr(torch, records[0].dtype)
    if len(records) == 1:
        return parts[0].view(dtype).view(records[0].shape)
    whole = torch.empty(records[0].shape, dtype=dtype, device=parts[0].device)
    for record, part in zip(records, parts, strict=True):
        window = tuple(slice(start, start + extent) for start, extent in zip(record.start, record.extent, strict=True))
        whole[window] = part.view(dtype).view(record.extent)
    return whole
