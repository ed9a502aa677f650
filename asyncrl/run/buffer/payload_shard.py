"""One payload shard: serves the trajectories on its node to other nodes, and frees those that nobody needs any more."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import ray

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.files.memory_owners import MemoryOwner
from asyncrl.core.files.own_folder import open_own_folder
from asyncrl.core.payload import PayloadRef
from asyncrl.core.recipe.buffer import AppendOnlyJournalConfig, BufferConfig
from asyncrl.run.buffer.payload import ask_shard, open_writer
from asyncrl.run.host.process_output import route_output
from asyncrl.run.host.ray_calls import AGAIN
from buffers.payload import PayloadReader, PayloadStore


class PayloadShard:
    """Serves the files of one shard to processes on other nodes, in threads. Those on its own node open the files.

    Attributes:
        store: frees and checks the payload in the files.
    """

    def __init__(self, buffer: BufferConfig, shard: int, folder: Path) -> None:
        self._folder, self.store, self._reader = folder, PayloadStore(folder), PayloadReader(folder)
        self._writer = open_writer(buffer, shard, folder, "elsewhere")
        self._in_memory = not isinstance(buffer.journal, AppendOnlyJournalConfig)

    async def begin(self) -> None:
        """Make the folder of all shards if it lies in memory, where anybody could make one. Call nothing before.

        Raises:
            ComponentFailed: somebody has.
        """
        if not self._in_memory:
            return
        try:
            os.close(await asyncio.to_thread(open_own_folder, self._folder.parent))
        except OSError as error:
            remedy = "remove it, or launch again: the next run's folder has another name"
            raise ComponentFailed(f"trajectories cannot be kept in memory: {error}; {remedy}") from error

    async def fetch_payloads(self, refs: Sequence[PayloadRef]) -> list[bytes]:
        """Read the bytes of ``refs``.

        Raises:
            PayloadLost: some of the payload is gone or damaged.
        """
        return await asyncio.to_thread(self._reader.read, refs)

    async def append(self, payloads: Sequence[bytes]) -> list[PayloadRef]:
        """Keep trajectories that a worker made on a node without a shard.

        Raises:
            DiskFull: there is no room; nothing was kept.
        """
        return await asyncio.to_thread(self._writer.append, payloads)

    async def free(self, refs: Sequence[PayloadRef]) -> None:
        """Free payload that nobody needs any more."""
        await asyncio.to_thread(self.store.free, refs)

    async def is_empty(self) -> bool:
        """Return whether the shard holds no payload."""
        return self.store.is_empty()

    async def verify(self, refs: Collection[PayloadRef]) -> list[PayloadRef]:
        """Return those of ``refs`` whose payload is gone or damaged.

        Raises:
            PayloadGone: the shard's folder is missing.
        """
        return await asyncio.to_thread(self.store.verify, refs)

    async def remove(self) -> None:
        """Remove the whole shard; the last one on its node also removes the folder of all shards."""
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._folder.parent.rmdir()

    async def set_aside(self, live: Collection[PayloadRef]) -> int:
        """Remember all payload but ``live``, for :meth:`sweep` to free, and return its size on disk in bytes."""
        return await asyncio.to_thread(self.store.set_aside, live)

    async def sweep(self) -> None:
        """Free the payload that was set aside."""
        await asyncio.to_thread(self.store.sweep)


class PayloadShardActor(PayloadShard):
    """A shard of run ``run_id`` in a process of its own, which logs to ``log_file``."""

    def __init__(self, buffer: BufferConfig, shard: int, folder: Path, run_id: str, log_file: Path) -> None:
        route_output(log_file)
        self._memory = MemoryOwner(run_id)
        super().__init__(buffer, shard, folder)


class RemoteStore:
    """The store of a shard in another process, for use in threads of this one.

    Args:
        whole_s: deadline, in seconds, of calls that read or list the whole shard, as when a run is resumed.
    """

    def __init__(self, shard: int, actor: Any, whole_s: float) -> None:
        self._name, self._actor, self._whole_s = f"payload shard {shard}", actor, whole_s

    def free(self, refs: Sequence[PayloadRef]) -> None:
        """Free payload in the shard."""
        ask_shard(self._actor.free.remote(refs), of=self._name, by="the buffer")

    def is_empty(self) -> bool:
        """Whether the shard has no segment."""
        return bool(ask_shard(self._actor.is_empty.remote(), of=self._name, by="the buffer"))

    def verify(self, refs: Collection[PayloadRef]) -> list[PayloadRef]:
        """Read all of ``refs``, and return those that are gone or damaged."""
        return ask_shard(self._actor.verify.remote(refs), of=self._name, by="the buffer", seconds=self._whole_s)

    def set_aside(self, live: Collection[PayloadRef]) -> int:
        """Mark all payload except ``live`` for :meth:`sweep`, and return its size on disk."""
        return int(ask_shard(self._actor.set_aside.remote(live), of=self._name, by="the buffer", seconds=self._whole_s))

    def sweep(self) -> None:
        """Free the payload that was set aside."""
        ask_shard(self._actor.sweep.remote(), of=self._name, by="the buffer", seconds=self._whole_s)


RemotePayloadShard = ray.remote(max_task_retries=AGAIN)(PayloadShardActor)
"""Payload that is kept twice, because a call was made again, is freed when the run is resumed."""
