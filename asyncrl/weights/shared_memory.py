"""The ``shm`` transport: learner ranks write their shards into the memory file system, and engines on the same host map them.

Each rank owns two files and alternates between them. So a publication stays readable while the next one is written, and the one
after that overwrites it; by then every engine has acknowledged the later version, as the publish protocol demands. The files are
reused, because touching fresh pages costs more than the copy itself. They are written with system calls, not through a mapping:
a full memory file system is then an error to report, while a mapping would kill the process. Only once a file has all its memory,
a GPU writes it through a pinned mapping, without a copy in between; and a GPU's engine reads it through one.
"""

import errno
import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from asyncrl.core.errors import AsyncRLError
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.memory_files import memory_file_system
from asyncrl.core.publication import Publication, Shard, ShardRecord, WeightFile
from asyncrl.device.pinning import PinnedFiles
from asyncrl.weights.coverage import by_tensor, check_coverage
from asyncrl.weights.fingerprint import FingerprintSum
from asyncrl.weights.transport import CPU, Transport

_ALIGNMENT = 64
"""Every shard begins at a multiple of this many bytes: a cache line, and enough for any dtype to be viewed in place."""


class MemoryFull(AsyncRLError):
    """The memory file system cannot hold the publication."""


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
        self._paths = tuple(f"{stem}-{side}" for side in ("even", "odd"))
        self._files: list[int] = []
        try:
            for path in self._paths:
                self._files.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600))
        except OSError:
            self.close()
            raise
        self._side = 0

    def write(self, version: PolicyVersion, shards: Iterable[Shard]) -> Publication:
        """Write this rank's part of ``version`` over that of the version before the last. Tensors may be on any device.

        Raises:
            MemoryFull: the memory file system has no room for it.
        """
        path, file = self._paths[self._side], self._files[self._side]
        records: list[ShardRecord] = []
        fingerprints = FingerprintSum()
        there, end = os.fstat(file).st_size, 0
        for shard in shards:
            offset = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = offset + shard.tensor.nbytes
            if shard.tensor.device.type == self._mapped_from and offset < end <= there:
                flat = self._mappings.bytes_of(path)[offset:end]
                flat.view(shard.tensor.dtype).view(shard.tensor.shape).copy_(shard.tensor.detach(), non_blocking=True)
            else:
                self._write_at(path, file, offset, shard)
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
            fingerprints.add(shard)
        total = fingerprints.total()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if os.fstat(file).st_size < end:  # a trailing shard of no elements
            os.ftruncate(file, end)
        self._side = 1 - self._side
        return Publication(version=version, files=(WeightFile(path, self._node, end),), shards=tuple(records), fingerprint=total)

    def _write_at(self, path: str, file: int, offset: int, shard: Shard) -> None:
        content = shard.tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        remaining = content.numpy().data
        try:
            while remaining:
                written = os.pwrite(file, remaining, offset)
                remaining, offset = remaining[written:], offset + written
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            folder = os.statvfs(os.path.dirname(path))
            size, free = folder.f_blocks * folder.f_frsize, folder.f_bavail * folder.f_frsize
            raise MemoryFull(
                f"{path}: no room for {len(remaining)} more bytes of {shard.name} after {offset} bytes already written; its file "
                f"system has {size} bytes, {free} of them free. Two versions must fit at once: make it larger (--shm-size for a "
                "container, else mount -o remount,size=...), or remove what a killed run left there"
            ) from error

    def close(self) -> None:
        """Remove the files. Engines that still map them can read them until they unmap them. Does nothing the second time."""
        self._mappings.close()
        for file, path in zip(self._files, self._paths, strict=False):
            os.close(file)
            Path(path).unlink(missing_ok=True)
        self._files = []

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
        if mappings is None:
            files = [torch.from_file(file.path, shared=False, size=file.size, dtype=torch.uint8) for file in publication.files]
        else:
            files = [mappings.bytes_of(file.path) for file in publication.files]
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
    def remove_left_behind(run_id: str) -> None:
        """Remove what the ranks of a killed run have left behind in the memory file system."""
        for path in memory_file_system().glob(f"asyncrl-{glob.escape(run_id)}-rank*"):
            path.unlink(missing_ok=True)


def _view(files: Sequence[torch.Tensor], record: ShardRecord) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, record.dtype)
    size = dtype.itemsize
    for extent in record.extent:
        size *= extent
    return files[record.file][record.offset : record.offset + size].view(dtype).view(record.extent)
