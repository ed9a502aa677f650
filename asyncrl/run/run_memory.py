"""What a run keeps in the memory file system of each node: weights on their way, and payload if there is no journal."""

from asyncrl.run.buffer_folder import remove_payload_in_memory
from asyncrl.weights.disk_mirror import DiskMirror
from asyncrl.weights.memory_file import OF_RANKS, remove_memory_files
from asyncrl.weights.mirror import Mirror


def free_memory_of(run_id: str) -> None:
    """Remove what a run that has ended, or was killed, has in this node's memory file system."""
    remove_memory_files(run_id, OF_RANKS)
    for keeper in (Mirror, DiskMirror):
        keeper.remove_left_behind(run_id)
    remove_payload_in_memory(run_id)
