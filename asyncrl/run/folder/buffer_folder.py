"""Where the replay buffer of a run keeps its journal and the trajectories it holds.

With a journal both lie in the run folder, in ``buffer/journal`` (with ``buffer/journal.head`` beside it, which says how
far the journal has come) and ``buffer/payload/shard-0``..., and outlive the run's processes. Without one, trajectories
lie in the memory file system and are removed when the run ends.
"""

import shutil
from pathlib import Path

import msgspec

from asyncrl.core.files.memory_files import memory_file_system
from asyncrl.core.recipe.buffer import AppendOnlyJournalConfig, BufferConfig


class BufferFolder(msgspec.Struct, frozen=True):
    """Paths of one run's buffer.

    Attributes:
        journal: the folder of the journal; None where none is kept.
        payload: the folder that holds the shards' folders.
    """

    journal: Path | None
    payload: Path

    @classmethod
    def of(cls, buffer: BufferConfig, run: Path, run_id: str) -> "BufferFolder":
        """Return the paths of the run in folder ``run``, whose ``run_id`` is unique among the runs on this host."""
        if isinstance(buffer.journal, AppendOnlyJournalConfig):
            return cls(journal_of(run), run / "buffer" / "payload")
        return cls(None, _in_memory(run_id))

    def shard(self, index: int) -> Path:
        """Folder of one shard's trajectories."""
        return self.payload / f"shard-{index}"


def journal_of(run: Path) -> Path:
    """Folder of the journal of the run in folder ``run``, if it keeps one."""
    return run / "buffer" / "journal"


def remove_payload_in_memory(run_id: str) -> None:
    """Remove the trajectories that a run without a journal held on this host. Does nothing for other runs."""
    shutil.rmtree(_in_memory(run_id), ignore_errors=True)


def _in_memory(run_id: str) -> Path:
    return memory_file_system() / f"asyncrl-{run_id}-payload"
