"""The mirror of the ``disk`` transport on one node, as a Ray actor."""

from pathlib import Path

import ray

from asyncrl.core.files.memory_owners import MemoryOwner
from asyncrl.run.host.process_output import route_output
from asyncrl.run.host.ray_calls import this_node
from asyncrl.weights.disk.disk_mirror import DiskMirror


class DiskMirrorActor(DiskMirror):
    """The mirror of the node that Ray started it on; its methods run side by side in threads.

    Args:
        run_id: unique among the runs on this host.
        before: the id of the killed run that this one resumes, whose files in memory are removed.
        folder: the versioned folder.
        delta: store changed blocks where that is less.
    """

    def __init__(self, run_id: str, before: str | None, folder: Path, delta: bool, log_file: Path) -> None:
        route_output(log_file)
        if before is not None:
            self.remove_left_behind(before)
        self._memory = MemoryOwner(run_id)
        super().__init__(run_id, this_node(), folder, delta)

    def close(self) -> None:
        """Remove the files in memory."""
        super().close()
        self._memory.close()


RemoteDiskMirror = ray.remote(DiskMirrorActor)
