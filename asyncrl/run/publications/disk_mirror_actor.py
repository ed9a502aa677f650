"""The ``disk`` transport of one node as a Ray actor: see :mod:`asyncrl.weights.disk.disk_mirror`."""

from collections.abc import Collection, Sequence
from pathlib import Path

import ray

from asyncrl.core.files.memory_owners import MemoryOwner
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication, WeightFile
from asyncrl.run.host.process_output import route_output
from asyncrl.run.host.ray_calls import this_node
from asyncrl.weights.disk.disk_mirror import DiskMirror, of_node
from asyncrl.weights.disk.stored_versions import StoredFile


class DiskMirrorActor:
    """The mirror of the node that Ray started it on; its methods are those of :class:`DiskMirror`.

    Args:
        run_id: unique among the runs on this host.
        before: the id of the killed run that this one resumes, whose files in memory are removed.
        folder: the versioned folder.
        delta: store changed blocks where that is less.
    """

    def __init__(self, run_id: str, before: str | None, folder: Path, delta: bool, log_file: Path) -> None:
        route_output(log_file)
        if before is not None:
            DiskMirror.remove_left_behind(before)
        self._memory = MemoryOwner(run_id)
        self._node = this_node()
        self._mirror = DiskMirror(run_id, self._node, folder, delta)

    def store(self, publication: Publication) -> dict[int, StoredFile]:
        """Store those files of a publication that were written on this node."""
        return self._mirror.store(publication.version, *of_node(publication, self._node))

    def complete(
        self, version: PolicyVersion, fingerprint: int, files: Sequence[StoredFile], read: Collection[PolicyVersion]
    ) -> None:
        """See :meth:`DiskMirror.complete`."""
        self._mirror.complete(version, fingerprint, files, read)

    def fetch(self, version: PolicyVersion, seconds: float) -> tuple[WeightFile, ...]:
        """See :meth:`DiskMirror.fetch`."""
        return self._mirror.fetch(version, seconds)

    def unseen(self, version: PolicyVersion, seconds: float) -> Path | None:
        """See :meth:`DiskMirror.unseen`."""
        return self._mirror.unseen(version, seconds)

    def close(self) -> None:
        """See :meth:`DiskMirror.close`."""
        self._mirror.close()
        self._memory.close()


RemoteDiskMirror = ray.remote(DiskMirrorActor)
