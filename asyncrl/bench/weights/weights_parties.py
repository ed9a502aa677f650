"""The processes of ``asyncrl bench weights``: learner ranks, and an engine's reader.

Each process has an object of one of the classes below, and answers calls of its methods over a pipe. Ranks use one
thread; the reader uses as many as the machine has cores.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
import torch.distributed as dist

from asyncrl.core.architectures.architecture import Architecture
from asyncrl.core.errors import ProcessDied, WeightMismatch
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.parallel_layout import ParallelLayout
from asyncrl.core.publication import Publication, Shard
from asyncrl.learners.held_weights import held_weights
from asyncrl.learners.rank import RankPlace
from asyncrl.weights.disk.disk_mirror import DiskMirror
from asyncrl.weights.disk.stored_file import BLOCK_BYTES
from asyncrl.weights.fingerprint import Fingerprints
from asyncrl.weights.publication_merge import merge
from asyncrl.weights.shm.shared_tensors import SharedMemory
from asyncrl.weights.vllm.engine_shards import EngineLayout, parameters, targets
from asyncrl.weights.vllm.slice_reader import SliceReader

ANSWER_S = 300.0
"""How long a process may take for one call."""
LEARNER_NODE, ENGINE_NODE = "learner", "engines"


class Loaded(NamedTuple):
    """What the reader did with a publication: its fingerprint, seconds until all was loaded, and those of the swap in it."""

    fingerprint: int
    seconds: float
    pause: float


class Rank:
    """A learner rank with the shards that a real one of this layout publishes, filled with random numbers."""

    def __init__(self, run_id: str, rank: int, architecture: Architecture, layout: ParallelLayout) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(rank)
        self._shards = [
            Shard(held.rectangle.name, held.shape, held.rectangle.start, torch.randn(held.rectangle.extent, dtype=torch.bfloat16))
            for held in held_weights(architecture, RankPlace(rank=rank, layout=layout))
            if held.published
        ]
        self._copies: list[torch.Tensor] = []
        self._transport = SharedMemory(run_id, rank, node=LEARNER_NODE)

    def size(self) -> int:
        """Bytes of its shards."""
        return sum(shard.tensor.nbytes for shard in self._shards)

    def write(self, version: PolicyVersion) -> tuple[Publication, float]:
        """Write a version in which an element has changed; return also the seconds for which the learner is blocked."""
        self._shards[0].tensor.view(-1)[version % self._shards[0].tensor.numel()] += 1
        began = time.perf_counter()
        part = self._transport.write(version, self._shards)
        return part, time.perf_counter() - began

    def change_blocks(self, share: float) -> None:
        """Change one element of this share of the blocks of each tensor; tensors of less than a block stay as they are."""
        for shard in self._shards:
            flat = shard.tensor.view(-1)
            step = BLOCK_BYTES // flat.element_size()
            blocks = flat.numel() // step
            if share and blocks:
                flat[torch.randperm(blocks)[: round(share * blocks)] * step] += 1

    def memcpy(self, repetitions: int) -> float:
        """Return the median seconds of :meth:`copy`, but for the first."""
        self._copies = [torch.zeros_like(shard.tensor) for shard in self._shards]
        return _median_seconds(self.copy, repetitions)

    def copy(self) -> float:
        """Copy the shards to the memory that :meth:`memcpy` has touched, one tensor after the other, and return the seconds."""
        began = time.perf_counter()
        for target, shard in zip(self._copies, self._shards, strict=True):
            target.copy_(shard.tensor)
        return time.perf_counter() - began

    def fingerprint(self, repetitions: int) -> float:
        """Return the median seconds of computing the fingerprint of the shards."""

        def add_up() -> None:
            total = Fingerprints()
            for shard in self._shards:
                total.add(shard)

        return _median_seconds(add_up, repetitions)

    def close(self) -> None:
        """Remove its files."""
        self._transport.close()


class Reader:
    """What an engine of one worker does with a publication, without vLLM's packing: prove it, fill parameters beside those in
    use from its slices, swap."""

    def __init__(self, architecture: Architecture) -> None:
        torch.set_num_threads(os.cpu_count() or 1)
        layout = EngineLayout()
        shapes = parameters(architecture, layout, 0)
        self._in_use, self._next = (
            {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()} for _ in range(2)
        )
        self._slices = SliceReader(list(targets(architecture, layout, 0)))

    def load(self, publication: Publication) -> Loaded:
        """Load a publication."""
        began = time.perf_counter()
        reading = self._slices.read(publication)
        reading.fill(self._next)
        proven, ready = reading.total(), time.perf_counter()
        self._in_use, self._next = self._next, self._in_use
        return Loaded(proven, time.perf_counter() - began, time.perf_counter() - ready)

    def close(self) -> None:
        """Let go of the files."""
        self._slices.close()


class StoredTimes(NamedTuple):
    """What one version through a folder took: bytes on disk, seconds until it was stored there, and until it was fetched."""

    bytes: int
    store: float
    fetch: float


class Folder:
    """A node with all ranks, and a reader's mirror: versions go through a folder, as changed blocks where that is less."""

    def __init__(self, run_id: str, architecture: Architecture, layout: ParallelLayout, folder: Path) -> None:
        self._ranks = [Rank(f"{run_id}-disk", rank, architecture, layout) for rank in range(layout.ranks)]
        self._writer = DiskMirror(run_id, LEARNER_NODE, folder, delta=True)
        self._reader = DiskMirror(run_id, ENGINE_NODE, folder, delta=True)
        self._version = 0

    def publish(self, share: float) -> StoredTimes:
        """Change this share of the blocks, each in one element, and publish."""
        self._version += 1
        version = PolicyVersion(self._version)
        for rank in self._ranks:
            rank.change_blocks(share)
        publication = merge([rank.write(version)[0] for rank in self._ranks])
        began = time.perf_counter()
        stored = self._writer.store(publication)
        self._writer.complete(version, publication.fingerprint, [stored[number] for number in range(len(stored))], [])
        ready = time.perf_counter()
        files = self._reader.fetch_version(version, ANSWER_S)
        ended = time.perf_counter()
        total = Fingerprints()
        for shard in SharedMemory.read_shards(msgspec.structs.replace(publication, files=files)):
            total.add(shard)
        if total.total() != publication.fingerprint:
            raise WeightMismatch(f"version {version} is another one after it went through the folder")
        return StoredTimes(sum(file.stored for file in stored.values()), ready - began, ended - ready)

    def close(self) -> None:
        """Remove the files in memory."""
        for rank in self._ranks:
            rank.close()
        for mirror in (self._writer, self._reader):
            mirror.close()


class Broadcaster:
    """One of two processes between which gloo broadcasts one flat tensor of the model's size."""

    def __init__(self, meeting: Path, rank: int, size: int) -> None:
        torch.set_num_threads(1)
        self._meeting, self._rank = meeting, rank
        self._flat = torch.ones(size, dtype=torch.uint8)

    def broadcast(self) -> float:
        """Return the seconds of one broadcast, which both processes must call at the same time."""
        if not dist.is_initialized():
            dist.init_process_group("gloo", init_method=f"file://{self._meeting}", rank=self._rank, world_size=2)
        dist.barrier()
        began = time.perf_counter()
        dist.broadcast(self._flat, 0)
        return time.perf_counter() - began

    def close(self) -> None:
        """Leave the group."""
        if dist.is_initialized():
            dist.destroy_process_group()


class Party:
    """A process that serves an object, as its starter sees it."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection, self._name = connection, name

    def begin(self, method: str, *arguments: object) -> None:
        """Call a method; :meth:`end` waits for its result."""
        self._connection.send((method, arguments))

    def end(self) -> Any:
        """Return what the method returned, or raise what it raised.

        Raises:
            ProcessDied: the process is gone, or did not answer in time.
        """
        try:
            if not self._connection.poll(ANSWER_S):
                raise ProcessDied(f"{self._name} did not answer within {ANSWER_S:g} s")
            failed, answer = self._connection.recv()
        except EOFError as error:
            raise ProcessDied(
                f"{self._name} died; if the system killed it for lack of memory (see `dmesg`), free some"
            ) from error
        if failed:
            raise answer
        return answer

    def call(self, method: str, *arguments: object) -> Any:
        """Call a method and wait for its result."""
        self.begin(method, *arguments)
        return self.end()


@contextmanager
def started(make: Callable[..., object], *arguments: object) -> Iterator[Party]:
    """Run ``make(*arguments)`` in a new process, and serve what it makes until the context ends."""
    context, name = get_context("spawn"), make.__qualname__
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, make, arguments), name=name, daemon=True)
    process.start()
    theirs.close()
    party = Party(ours, name)
    try:
        party.end()  # it is made
        yield party
    finally:
        with ExitStack() as ending:
            ending.callback(process.kill)
            ending.callback(process.join, ANSWER_S)
            ours.close()


def _serve(connection: Connection, make: Callable[..., object], arguments: Sequence[object]) -> None:
    served: Any = None
    try:
        try:
            served = make(*arguments)
            connection.send((False, None))
            while True:
                method, values = connection.recv()
                connection.send((False, getattr(served, method)(*values)))
        except EOFError:  # the other side has ended
            return
        except Exception as error:  # noqa: BLE001 - raised on the other side
            connection.send((True, error))
    finally:
        if served is not None:
            served.close()


def _median_seconds(work: Callable[[], object], repetitions: int) -> float:
    """Return the median time of ``work``, but for the first call."""
    work()
    times = []
    for _ in range(repetitions):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)
