"""The ``shm`` transport: learner ranks write their shards into the memory file system, and engines on the same host map them.

Each rank owns two files and alternates between them. So a publication stays readable while the next one is written, and the one
after that overwrites it; while an engine or another node still reads it, a third file is written instead. The files are reused,
because touching fresh pages costs more than the copy itself. They are written through mappings, which takes a third of the time
of system calls; once a file has all its memory, a GPU writes it through a pinned mapping, without a copy in between; and a GPU's
engine reads it through one.
"""

import glob
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from asyncrl.core.ids import PolicyVersion
from asyncrl.core.memory_files import memory_file_system
from asyncrl.core.publication import Publication, Shard, ShardRecord, WeightFile
from asyncrl.device.pinning import PinnedFiles
from asyncrl.weights.coverage import by_tensor, check_coverage
from asyncrl.weights.fingerprint import FingerprintSum
from asyncrl.weights.memory_file import MemoryFile
from asyncrl.weights.transport import CPU, Transport

_ALIGNMENT = 64
"""Every shard begins at a multiple of this many bytes: a cache line, and enough for any dtype to be viewed in place."""
_LARGE_SHARD = 1 << 20
"""With fewer bytes to add up, another thread is not worth its start."""
_NONE = PolicyVersion(-1)
"""The version of a file that none lies in as a whole."""


class SharedMemory(Transport):
    """The ``shm`` transport. Call :meth:`close` at the end, or the files outlive the process.

    Args:
        run_id: names the files; unique among the runs on this host.
        rank: number of the learner's rank; each rank writes to files of its own.
        directory: where the files lie; engines must see it under the same path.
        files: the mappings through which a device writes.
        mapped_from: the type of the device that writes through mappings.
        node: Ray's id of the node that the files lie on.
    """

    def __init__(
        self,
        run_id: str,
        rank: int,
        directory: str | None = None,
        files: PinnedFiles | None = None,
        mapped_from: str = "cuda",
        node: str = "",
    ) -> None:
        self._node = node
        self._mappings, self._mapped_from = files or PinnedFiles(), mapped_from
        stem = Path(directory or memory_file_system()) / f"asyncrl-{run_id}-rank{rank}"
        self._stem = str(stem)
        self._places: list[_Place] = []

    def write(self, version: PolicyVersion, shards: Iterable[Shard], read: Collection[PolicyVersion] = ()) -> Publication:
        """Write this rank's part of ``version``, over one that nobody reads any more. Tensors may be on any device.

        Args:
            version: newer than the last, whose part is never overwritten.
            read: older versions that somebody may still read.

        Raises:
            MemoryFull: the memory file system has no room for it.
        """
        place = self._free_place(read)
        records: list[ShardRecord] = []
        proof = _Proof()
        there, end = place.file.size, 0
        for shard in shards:
            proof.add(shard)
            offset = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = offset + shard.tensor.nbytes
            pinned = shard.tensor.device.type == self._mapped_from and offset < end <= there
            memory = self._mappings.bytes_of(place.file.path) if pinned else _as_tensor(place.file.memory(end))
            flat = memory[offset:end].view(shard.tensor.dtype)
            flat.view(shard.tensor.shape).copy_(shard.tensor.detach(), non_blocking=True)
            records.append(
                ShardRecord(
                    name=shard.name,
                    shape=tuple(shard.shape),
                    start=tuple(shard.start),
                    extent=tuple(shard.tensor.shape),
                    dtype=str(shard.tensor.dtype).removeprefix("torch."),
                    file=0,
                    offset=offset,
                )
            )
        total = proof.total()
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()  # not for a broadcast of the last version
        place.version = version
        file = WeightFile(place.file.path, self._node, end)
        return Publication(version=version, files=(file,), shards=tuple(records), fingerprint=total)

    def _free_place(self, read: Collection[PolicyVersion]) -> "_Place":
        """Return a place whose version may be overwritten, a new one if there is none."""
        newest = max((place.version for place in self._places), default=_NONE)
        for place in sorted(self._places, key=lambda place: place.version):
            if place.version == _NONE or (place.version != newest and place.version not in read):
                place.version = _NONE  # until it is whole
                return place
        self._places.append(_Place(MemoryFile(f"{self._stem}-{len(self._places)}")))
        return self._places[-1]

    def close(self) -> None:
        """Remove the files. Engines that still map them can read them until they unmap them. Does nothing the second time."""
        self._mappings.close()
        for place in self._places:
            place.file.close()
        self._places = []

    @staticmethod
    def read(
        publication: Publication, device: torch.device = CPU, mappings: PinnedFiles | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the name and the whole of each published tensor, in the order in which the shards name them.

        On the CPU, a tensor that one shard holds is a view of the mapped file: read or copy it before the publication is
        overwritten. Writing to it changes this process's copy only. On a GPU, a tensor's content may still be on its way: what
        is launched afterwards sees it.

        Args:
            device: where the tensors are to be.
            mappings: keeps the files mapped and pinned for a GPU.

        Raises:
            WeightMismatch: a tensor is not covered exactly once.
        """
        files = _mapped(publication) if mappings is None else [mappings.bytes_of(file.path) for file in publication.files]
        for name, records in by_tensor(publication.shards).items():
            check_coverage(name, records)
            if len(records) == 1:
                yield name, _view(files, records[0]).to(device, non_blocking=True)
                continue
            whole = torch.empty(records[0].shape, dtype=getattr(torch, records[0].dtype), device=device)
            for record in records:
                window = tuple(slice(start, start + extent) for start, extent in zip(record.start, record.extent, strict=True))
                whole[window].copy_(_view(files, record), non_blocking=True)
            yield name, whole

    @staticmethod
    def read_shards(publication: Publication) -> Iterator[Shard]:
        """Yield every shard where it lies, without a copy: the tensors are views of the mapped files.

        Raises:
            WeightMismatch: a tensor is not covered exactly once.
        """
        files = _mapped(publication)
        for name, records in by_tensor(publication.shards).items():
            check_coverage(name, records)
            for record in records:
                yield Shard(name, record.shape, record.start, _view(files, record))

    @staticmethod
    def remove_left_behind(run_id: str) -> None:
        """Remove what the ranks of a killed run have left behind in the memory file system."""
        for path in memory_file_system().glob(f"asyncrl-{glob.escape(run_id)}-rank*"):
            path.unlink(missing_ok=True)


class _Proof:
    """The fingerprint of shards; that of large ones on a CPU is computed in a thread, while they are copied."""

    def __init__(self) -> None:
        self._here, self._beside = FingerprintSum(), FingerprintSum()
        self._thread: ThreadPoolExecutor | None = None
        self._under_way: Future[None] | None = None

    def add(self, shard: Shard) -> None:
        if shard.tensor.device.type != "cpu" or shard.tensor.nbytes < _LARGE_SHARD:
            self._here.add(shard)
            return
        self._wait()  # no more than one tensor, which may have been made for this, waits for its turn
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "fingerprint")
        self._under_way = self._thread.submit(self._beside.add, shard)

    def _wait(self) -> None:
        if self._under_way is not None:
            self._under_way.result()

    def total(self) -> int:
        self._wait()
        if self._thread is not None:
            self._thread.shutdown()
        return (self._here.total() + self._beside.total()) % 2**64


class _Place:
    """One of a rank's files, and the version that lies in it as a whole."""

    def __init__(self, file: MemoryFile) -> None:
        self.file, self.version = file, _NONE


def _as_tensor(memory: memoryview) -> torch.Tensor:
    """uint8 [size of ``memory``], without a copy; torch refuses memory of no bytes."""
    return torch.frombuffer(memory, dtype=torch.uint8) if memory else torch.empty(0, dtype=torch.uint8)


def _mapped(publication: Publication) -> list[torch.Tensor]:
    """The bytes of each file, uint8 [size]; writing to them changes this process's copy only."""
    return [torch.from_file(file.path, shared=False, size=file.size, dtype=torch.uint8) for file in publication.files]


def _view(files: Sequence[torch.Tensor], record: ShardRecord) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, record.dtype)
    size = dtype.itemsize
    for extent in record.extent:
        size *= extent
    return files[record.file][record.offset : record.offset + size].view(dtype).view(record.extent)
