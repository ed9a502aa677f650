"""The ``disk`` transport on one node: stores what the ranks there wrote in a versioned folder, and fetches versions from it.

Ranks write to the memory file system as always, so that the learner is not held up by the disk; the mirror of their node stores
the files from there. The mirror of each node with engines brings a version to two sides of files in its own memory file system,
where engines map it. What always holds: a side's version is known, or all of it is read anew.
"""

import logging
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication, ShardRecord, WeightFile
from asyncrl.weights.disk.stored_file import BLOCK_BYTES, apply_blocks, changed_blocks, read_whole, write_blocks, write_whole
from asyncrl.weights.disk.stored_versions import Manifest, StoredFile, StoredVersions
from asyncrl.weights.shm.memory_file import MemoryFile, mapped, memory_path, remove_memory_files

logger = logging.getLogger(__name__)

WHOLE_EVERY = 16
"""A file is stored whole at least every so many versions: who joins late reads that one and the changes since."""
_WORTH_IT = 0.5
"""If more of the blocks than this have changed, the file is stored whole, which takes no time to compress."""


class _Before:
    """The file of a rank as it was stored last, and how many versions ago it was stored whole."""

    def __init__(self, version: PolicyVersion, content: np.ndarray) -> None:
        self.version, self.content, self.changes = version, content, 0


class _Side:
    """Files of one version on this node, by their number in the publication; their version is None while it is not known."""

    def __init__(self) -> None:
        self.files: dict[int, MemoryFile] = {}
        self.version: PolicyVersion | None = None


class DiskMirror:
    """The mirror of ``node``. Call :meth:`close` at the end, or its files outlive the process. Its methods may run in any thread.

    Args:
        run_id: names the files in memory; unique among the runs on this host.
        node: Ray's id of the node.
        folder: the versioned folder, which all nodes see under this path.
        delta: store the changed blocks of a file where that is less.
        directory: where the files in memory lie; by default the memory file system.
    """

    def __init__(self, run_id: str, node: str, folder: Path, delta: bool, directory: str | None = None) -> None:
        self._node, self._delta, self._versions = node, delta, StoredVersions(folder)
        self._stem = memory_path(run_id, f"disk-{node}", directory)
        self._before: dict[int, _Before] = {}
        self._sides = (_Side(), _Side())
        self._fetches = 0
        self._storing, self._fetching = threading.Lock(), threading.Lock()

    def store(self, publication: Publication) -> dict[int, StoredFile]:
        """Store those files of a publication that ranks on this node wrote; return them by their number in it."""
        with self._storing:
            began = time.monotonic()
            version, stored = publication.version, dict[int, StoredFile]()
            for number, file in enumerate(publication.files):
                if file.node == self._node:
                    shards = [shard for shard in publication.shards if shard.file == number]
                    stored[number] = self._store(version, number, file, shards)
            size, written = sum(file.size for file in stored.values()), sum(file.stored for file in stored.values())
            seconds = time.monotonic() - began
            logger.info("version %d: %d bytes stored for %d bytes of weights in %.3f s", version, written, size, seconds)
            return stored

    def _store(self, version: PolicyVersion, number: int, file: WeightFile, shards: Sequence[ShardRecord]) -> StoredFile:
        folder, memory = self._versions.new(version), mapped(file.path, file.size)
        now, before = np.frombuffer(memory, np.uint8), self._before.get(number)
        if before is not None and len(before.content) == len(now) and self._may_change(before, version):
            changed = changed_blocks(before.content, now)
            if len(changed) * BLOCK_BYTES <= _WORTH_IT * len(now):
                name = f"rank-{number:05d}.changes"
                (folder / name).unlink(missing_ok=True)
                stored = StoredFile(name, file.size, before.version, write_blocks(folder / name, memory, changed))
                for block in changed.tolist():
                    begin, end = block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES
                    before.content[begin:end] = now[begin:end]
                before.version, before.changes = version, before.changes + 1
                return stored
        name = f"rank-{number:05d}.safetensors"
        (folder / name).unlink(missing_ok=True)
        stored = StoredFile(name, file.size, None, write_whole(folder / name, memory, shards))
        if self._delta:
            self._before[number] = _Before(version, now.copy())
        return stored

    def _may_change(self, before: _Before, version: PolicyVersion) -> bool:
        """Whether ``version`` may be stored as changes of what was stored before it. That may be the same version, or one that
        nobody can read, if the mirror of another node died before it had stored its part."""
        return before.version < version and before.changes + 1 < WHOLE_EVERY and self._versions.is_whole(before.version)

    def complete(
        self, version: PolicyVersion, fingerprint: int, files: Sequence[StoredFile], read: Collection[PolicyVersion]
    ) -> None:
        """Make a version known whose files were all stored, and remove versions that nobody needs.

        Args:
            read: versions that are still being fetched.
        """
        self._versions.complete(Manifest(version, fingerprint, tuple(files)))
        self._versions.prune(read)

    def fetch_version(self, version: PolicyVersion, seconds: float) -> tuple[WeightFile, ...]:
        """Bring ``version`` to this node, and return its files here, in the order of the publication.

        Args:
            seconds: how long to wait until this node sees the version, which was stored on another.

        Raises:
            MemoryFull: the memory file system has no room for them.
            ComponentFailed: the version is not in the folder, or its bytes have changed.
        """
        with self._fetching:
            number = self._fetches % 2
            side = self._sides[number]
            known, side.version = side.version, None
            manifest = self._versions.wait_for(version, seconds)
            files = []
            for index, stored in enumerate(manifest.files):
                if index not in side.files:
                    side.files[index] = MemoryFile(f"{self._stem}-{number}-{index}")
                memory = side.files[index].memory(stored.size)
                for path, part in self._versions.chain(version, index, known):
                    (read_whole if part.base is None else apply_blocks)(path, memory)
                files.append(WeightFile(side.files[index].path, self._node, stored.size))
            side.version = version
            self._fetches += 1
            return tuple(files)

    def unseen(self, version: PolicyVersion, seconds: float) -> Path | None:
        """Return the versioned folder if this node sees no version there that is as new as ``version``; None if it does.

        Args:
            seconds: how long to wait until it does.
        """
        return None if self._versions.has(version, seconds) else self._versions.folder

    def close(self) -> None:
        """Remove the files in memory. Engines that still map them can read them until they unmap them."""
        for side in self._sides:
            for file in side.files.values():
                file.close()
            side.files.clear()

    @staticmethod
    def remove_left_behind(run_id: str) -> None:
        """Remove what the mirrors of a killed run have left behind in this node's memory file system."""
        remove_memory_files(run_id, "disk-")
