"""Publications in the memory of a node: learner ranks write their shards into its memory file system, and engines map them.

Each rank owns two files and alternates between them. So a publication stays readable while the next one is written, and the one
after that overwrites it; while an engine or another node still reads it, a third file is written instead. The files are reused,
because touching fresh pages costs more than the copy itself. They are written through mappings, which takes a third of the time
of system calls, and the fingerprints are computed in the same pass. Versions lie alike in a file, so what one has settled for a
shard is used again by those after it. Once a file has all its memory, a GPU writes it through a pinned mapping, without a copy in
between, and a GPU's engine reads it through one.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import NamedTuple

import torch

from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication, Shard, ShardRecord, WeightFile
from asyncrl.device.pinning import PinnedFiles
from asyncrl.weights.coverage import by_tensor, check_coverage
from asyncrl.weights.fingerprint import Fingerprints
from asyncrl.weights.shm.memory_file import OF_RANKS, MemoryFile, memory_path

_CPU = torch.device("cpu")
_ALIGNMENT = 64
"""Every shard begins at a multiple of this many bytes: a cache line, and enough for any dtype to be viewed in place."""
_NONE = PolicyVersion(-1)
"""The version of a file that none lies in as a whole."""


class SharedMemory:
    """The files that one rank writes its shards to. Call :meth:`close` at the end, or they outlive the process.

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
        self._stem = memory_path(run_id, f"{OF_RANKS}{rank}", directory)
        self._places: list[_Place] = []

    def reserve(self, shards: Iterable[Shard]) -> None:
        """Have the memory of two versions of these shards, and pin it, if a device writes through mappings: otherwise the first
        publications would, while training waits for them.

        Raises:
            MemoryFull: the memory file system has no room for it.
        """
        end = 0
        for shard in shards:
            if shard.tensor.device.type != self._mapped_from:
                return
            end = _aligned(end) + shard.tensor.nbytes
        for _ in range(2 if end else 0):
            file = self._new_place().file
            file.memory(end)
            self._mappings.bytes_of(file.path)

    def write(self, version: PolicyVersion, shards: Iterable[Shard], read: Collection[PolicyVersion] = ()) -> Publication:
        """Write this rank's part of ``version``, over one that nobody reads any more. Tensors may be on any device.

        Args:
            version: newer than the last, whose part is never overwritten.
            read: older versions that somebody may still read.

        Raises:
            MemoryFull: the memory file system has no room for it.
        """
        place = self._free_place(read)
        proof = Fingerprints()
        there, end, laid = place.file.size, 0, []
        for shard, before in zip(shards, chain(place.laid, repeat(None)), strict=False):
            offset = _aligned(end)
            end = offset + shard.tensor.nbytes
            if before is not None and before.is_of(shard, offset) and shard.tensor.device.type != self._mapped_from:
                here = before
            else:
                here = self._lay(place.file, shard, offset, there)
            proof.add(shard, here.memory)
            laid.append(here)
        place.laid = laid if place.file.size == there else []  # each growth has made a mapping, which would live as long as these
        fingerprints = tuple(proof.each())
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()  # not for a broadcast of the last version
        place.version = version
        file = WeightFile(place.file.path, self._node, end)
        return Publication(
            version=version,
            files=(file,),
            shards=tuple(here.record for here in laid),
            fingerprints=fingerprints,
            fingerprint=sum(fingerprints) % 2**64,
        )

    def _lay(self, file: MemoryFile, shard: Shard, offset: int, there: int) -> "_Laid":
        """Say where a shard lies whose first byte is at ``offset``, and have memory for it.

        Args:
            there: the size of the file before this version; a device writes no further through its mapping.
        """
        end = offset + shard.tensor.nbytes
        pinned = shard.tensor.device.type == self._mapped_from and offset < end <= there
        memory = self._mappings.bytes_of(file.path) if pinned else _as_tensor(file.memory(end))
        record = ShardRecord(
            name=shard.name,
            shape=tuple(shard.shape),
            start=tuple(shard.start),
            extent=tuple(shard.tensor.shape),
            dtype=str(shard.tensor.dtype).removeprefix("torch."),
            file=0,
            offset=offset,
        )
        return _Laid(record, memory[offset:end].view(shard.tensor.dtype).view(shard.tensor.shape))

    def _free_place(self, read: Collection[PolicyVersion]) -> "_Place":
        """Return a place whose version may be overwritten, a new one if there is none."""
        newest = max((place.version for place in self._places), default=_NONE)
        for place in sorted(self._places, key=lambda place: place.version):
            if place.version == _NONE or (place.version != newest and place.version not in read):
                place.version = _NONE  # until it is whole
                return place
        return self._new_place()

    def _new_place(self) -> "_Place":
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
        publication: Publication, device: torch.device = _CPU, mappings: PinnedFiles | None = None
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
        files = _mapped(publication, mappings)
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
    def read_shards(publication: Publication, mappings: PinnedFiles | None = None) -> list[Shard]:
        """Return every shard where it lies, without a copy: the tensors are views of the mapped files.

        Args:
            mappings: keeps the files mapped; otherwise they are mapped anew, and each page is looked up again.
        """
        files = _mapped(publication, mappings)
        return [Shard(record.name, record.shape, record.start, _view(files, record)) for record in publication.shards]


class _Laid(NamedTuple):
    """A shard in a file: what the publication says of it, and the memory, with the shard's dtype and shape."""

    record: ShardRecord
    memory: torch.Tensor

    def is_of(self, shard: Shard, offset: int) -> bool:
        """Whether a shard at this byte would lie just as this one."""
        record, tensor = self.record, shard.tensor
        return (
            record.offset == offset
            and record.name == shard.name
            and record.shape == shard.shape
            and record.start == shard.start
            and self.memory.shape == tensor.shape
            and self.memory.dtype == tensor.dtype
        )


class _Place:
    """One of a rank's files, the version that lies in it as a whole, and the shards of its last version."""

    def __init__(self, file: MemoryFile) -> None:
        self.file, self.version = file, _NONE
        self.laid: list[_Laid] = []


def _aligned(end: int) -> int:
    """The first byte from ``end`` on where a shard may begin."""
    return -(-end // _ALIGNMENT) * _ALIGNMENT


def _as_tensor(memory: memoryview) -> torch.Tensor:
    """uint8 [size of ``memory``], without a copy; torch refuses memory of no bytes."""
    return torch.frombuffer(memory, dtype=torch.uint8) if memory else torch.empty(0, dtype=torch.uint8)


def _mapped(publication: Publication, mappings: PinnedFiles | None) -> list[torch.Tensor]:
    """The bytes of each file, uint8 [its size, or more]; without ``mappings``, what is written to them stays in this process."""
    if mappings is None:
        return [torch.from_file(file.path, shared=False, size=file.size, dtype=torch.uint8) for file in publication.files]
    return [mappings.bytes_of(file.path) if file.size else torch.empty(0, dtype=torch.uint8) for file in publication.files]


def _view(files: Sequence[torch.Tensor], record: ShardRecord) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, record.dtype)
    size = dtype.itemsize
    for extent in record.extent:
        size *= extent
    return files[record.file][record.offset : record.offset + size].view(dtype).view(record.extent)
