"""Writes Megatron's checkpoint format: on each rank, one thread writes one file.

Megatron's own writer would fork a process that has threads (Ray's and torch's), and start a server process for the
results. This writer works on copies that are made when the save is planned, so training can continue at once.

What always holds: the files are the same whichever of the supported versions of Megatron writes them. Megatron's own saving
changed in 0.19, but not what it is made of.
"""

import io
import os
from pathlib import Path

import msgspec
import torch
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from megatron.core.dist_checkpointing.state_dict_utils import save_preprocess
from megatron.core.dist_checkpointing.strategies import torch as torch_strategy
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from megatron.core.dist_checkpointing.strategies.state_dict_saver import save_state_dict_async_plan
from torch import Tensor
from torch.distributed.checkpoint.filesystem import DEFAULT_SUFFIX, SerializationFormat, _write_item
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult

from asyncrl.device.pinning import HostArena, alone_in_memory
from asyncrl.learners.checkpointing.checkpoint_manifest import StoredFile
from asyncrl.learners.checkpointing.checkpoint_names import COMMON

_BACKEND = CheckpointingConfig("torch_dist", 1)


class Written(msgspec.Struct, frozen=True):
    """What one rank wrote: its file, if it had anything to write, and where each part lies in it."""

    parts: list[WriteResult]
    files: list[StoredFile]


class PlannedSave:
    """What this rank saves, copied when this is made, which is collective: ranks agree who writes what. :meth:`write` and
    :meth:`complete` write the files.

    Args:
        state: the rank's state, each tensor with its place in the whole. It is changed.
        folder: where the files are to lie.
        arena: where the copies are made that are written.

    Raises:
        CheckpointingException: no rank or several ranks would write a part of a tensor.
    """

    def __init__(self, state: ShardedStateDict, folder: Path, arena: HostArena) -> None:
        sharded, common = save_preprocess(state)
        self._common = io.BytesIO()
        torch.save(common, self._common)
        by_key, _, _ = torch_strategy._replace_state_dict_keys_with_sharded_keys(sharded, keep_only_main_replica=True)
        self._writer = _Writer(folder)
        self._writer.arena = arena
        (_, self._metadata, _), *_ = save_state_dict_async_plan(
            torch_strategy.mcore_to_pyt_state_dict(by_key),
            self._writer,
            planner=torch_strategy.MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False),
        )

    def write(self) -> Written:
        """Write this rank's part. Any thread may call this.

        Raises:
            OSError, RuntimeError: if the disk refuses; torch turns some OSErrors into RuntimeErrors.
        """
        return self._writer.write()

    def complete(self, parts: list[list[WriteResult]]) -> None:
        """On the first rank, write what is no tensor and the same on all ranks, the index of where the parts of all ranks lie,
        and the name of the format.

        Raises:
            OSError: if the disk refuses.
        """
        folder = Path(self._writer.checkpoint_dir)
        (folder / COMMON).write_bytes(self._common.getbuffer())
        self._writer.finish(self._metadata, parts)
        save_config(_BACKEND, str(folder))


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
