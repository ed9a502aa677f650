"""Writes Megatron's checkpoint format: on each rank, one thread writes one file.

Megatron's own writer would fork a process that has threads (Ray's and torch's), and start a server process for the
results. This writer works on copies that are made when the save is planned, so training can continue at once.
"""

import os
from pathlib import Path

import msgspec
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from megatron.core.dist_checkpointing.strategies import torch as torch_strategy
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from megatron.core.dist_checkpointing.strategies.state_dict_saver import save_state_dict_async_plan
from torch import Tensor
from torch.distributed.checkpoint.filesystem import DEFAULT_SUFFIX, SerializationFormat, _write_item
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult

from asyncrl.device.pinning import HostArena, alone_in_memory
from learners.checkpointing.checkpoint_manifest import StoredFile

_BACKEND = CheckpointingConfig("torch_dist", 1)


class Written(msgspec.Struct, frozen=True):
    """What one rank wrote: its file, if it had anything to write, and where each part lies in it."""

    parts: list[WriteResult]
    files: list[StoredFile]


class PlannedSave(torch_strategy.TorchDistSaveShardedStrategy):
    """Uses Megatron's format and plan, but :meth:`write` and :meth:`complete` write the files.

    Args:
        arena: where the copies are made that are written.
    """

    def __init__(self, arena: HostArena) -> None:
        self._arena = arena
        super().__init__(_BACKEND.sharded_backend, _BACKEND.sharded_backend_version)

    def async_save(self, sharded_state_dict: ShardedStateDict, checkpoint_dir: Path) -> AsyncRequest:
        """Agree with the other ranks who writes what, and copy this rank's part. The request that is returned leaves
        Megatron nothing to do."""
        by_key, _, _ = torch_strategy._replace_state_dict_keys_with_sharded_keys(sharded_state_dict, keep_only_main_replica=True)
        self._writer = _Writer(checkpoint_dir)
        self._writer.arena = self._arena
        (_, self._metadata, _), *_ = save_state_dict_async_plan(
            torch_strategy.mcore_to_pyt_state_dict(by_key),
            self._writer,
            planner=torch_strategy.MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False),
        )
        return AsyncRequest(None, (), [])

    def write(self) -> Written:
        """Write this rank's part. Any thread may call this.

        Raises:
            OSError, RuntimeError: if the disk refuses; torch turns some OSErrors into RuntimeErrors.
        """
        return self._writer.write()

    def complete(self, parts: list[list[WriteResult]]) -> None:
        """On the first rank, write the index of where the parts of all ranks lie, and the name of the format.

        Raises:
            OSError: if the disk refuses.
        """
        self._writer.finish(self._metadata, parts)
        save_config(_BACKEND, str(self._writer.checkpoint_dir))


class _Writer(FileSystemWriterAsync):
    """Copies what this rank saves, and writes the copy to one file."""

    arena: HostArena

    def prepare_write_data(self, plan: SavePlan, planner: SavePlanner) -> None:
        self._name = f"{plan.storage_data.prefix}0{DEFAULT_SUFFIX}"
        resolved = [planner.resolve_data(item) for item in plan.items]
        # An object is already a copy: its pickled bytes.
        copies = iter(self.arena.copies([data for data in resolved if isinstance(data, Tensor)]))
        self._copies = [
            (item, next(copies) if isinstance(data, Tensor) else data) for item, data in zip(plan.items, resolved, strict=True)
        ]

    def write(self) -> Written:
        if not self._copies:
            return Written([], [])
        path = Path(self.checkpoint_dir) / self._name
        with path.open("wb") as file:
            parts = [
                _write_item(
                    self.transforms,
                    file,
                    alone_in_memory(data) if isinstance(data, Tensor) else data,
                    item,
                    self._name,
                    SerializationFormat.TORCH_SAVE,
                )
                for item, data in self._copies
            ]
            file.flush()
            os.fsync(file.fileno())
        self._copies = []
        return Written(parts, [StoredFile.of(path)])
