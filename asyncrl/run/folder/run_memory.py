"""What a run keeps in the memory file system of each node: weights on their way, and payload if there is no journal."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from asyncrl.core.files.memory_owners import MemoryOwner, abandoned_runs, remove_owner_file
from asyncrl.core.files.owned_memory import remove_abandoned_memory
from asyncrl.core.text import pluralize
from asyncrl.run.folder.buffer_folder import remove_payload_in_memory
from asyncrl.weights.disk.disk_mirror import DiskMirror
from asyncrl.weights.shm.memory_file import OF_RANKS, remove_memory_files
from asyncrl.weights.shm.mirrored_files import MirroredFiles

logger = logging.getLogger(__name__)


def free_memory_of(run_id: str) -> None:
    """Remove what a run that has ended, or was killed, has in this node's memory file system."""
    remove_memory_files(run_id, OF_RANKS)
    for keeper in (MirroredFiles, DiskMirror):
        keeper.remove_left_behind(run_id)
    remove_payload_in_memory(run_id)
    remove_owner_file(run_id)


@contextmanager
def memory_held(run_id: str) -> Iterator[None]:
    """Hold what run ``run_id`` will keep in this node's memory, after what killed runs have left there is removed."""
    sweep_memory()
    owner = MemoryOwner(run_id)
    try:
        yield
    finally:
        owner.close()


def sweep_memory() -> None:
    """Remove what runs and engines of which no process lives any more have left in this node's memory file system."""
    for run_id in abandoned_runs():
        free_memory_of(run_id)
        logger.warning("removed what run %s, which was killed, had left in memory", run_id)
    if queues := remove_abandoned_memory():
        logger.warning("removed %s that killed engines had left in memory", pluralize(len(queues), "queue"))
