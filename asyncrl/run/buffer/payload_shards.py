"""Moves episodes from the worker that made them to the rank that trains them.

A worker writes into the files of a shard on its own node, and a rank on that node reads them there: through the page cache, with
no process in between. The shard's actor moves the bytes only if writer or reader is on another node, and only once.

One payload shard: serves the trajectories on its node to other nodes, and frees those that nobody needs any more.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import ray

from asyncrl.buffers.payload_store import PayloadReader, PayloadStore, PayloadWriter
from asyncrl.core.episode_records import PayloadRef
from asyncrl.core.errors import ComponentFailed
from asyncrl.core.files.memory_owners import MemoryOwner
from asyncrl.core.files.own_folder import open_own_folder
from asyncrl.core.ids import GroupId
from asyncrl.core.recipe.buffer import AppendOnlyJournalConfig, BufferConfig
from asyncrl.run.host.actor_process import begin_actor
from asyncrl.run.host.ray_calls import AGAIN, ask, ask_blocking, ask_buffer, this_node

T = TypeVar("T")

SHARD_DEADLINE_S = 60.0
"""Deadline, in seconds, for moving the bytes of one batch, or of one episode, from node to node."""
SHARD_REMEDY = "see logs/buffer*.log; once its node answers again, resume the run (asyncrl launch --resume RUN)"
SEGMENT_MB_IN_MEMORY = 64
"""Size of segments in a run without a journal; with one, ``buffer.journal.segment_mb`` says it."""


class ShardPlace(msgspec.Struct, frozen=True):
    """Where one payload shard is.

    Attributes:
        node: Ray's id of its node.
        folder: the folder of its files, on that node.
        actor: handle of the actor that serves other nodes.
    """

    shard: int
    node: str
    folder: Path
    actor: Any


def open_writer(buffer: BufferConfig, shard: int, folder: Path, name: str) -> PayloadWriter:
    """Make a writer for worker ``name``, with the recipe's segment size and fsync."""
    journal = buffer.journal
    if isinstance(journal, AppendOnlyJournalConfig):
        return PayloadWriter(folder, shard, name, segment_bytes=journal.segment_mb << 20, fsync=journal.fsync == "always")
    return PayloadWriter(folder, shard, name, segment_bytes=SEGMENT_MB_IN_MEMORY << 20, fsync=False)


class PayloadSink:
    """Keeps a worker's episodes on its node: each group in one shard, the groups spread over the node's shards."""

    def __init__(self, buffer: BufferConfig, shards: Sequence[ShardPlace], node: str, name: str) -> None:
        self._name = name
        self._here = [open_writer(buffer, place.shard, place.folder, name) for place in shards if place.node == node]
        self._elsewhere = [] if self._here else [place.actor for place in shards]
        self._waits_for_disk = isinstance(buffer.journal, AppendOnlyJournalConfig) and buffer.journal.fsync == "always"

    @classmethod
    async def of(cls, config: BufferConfig, buffer: Any, name: str) -> "PayloadSink":
        """Make the sink of a worker in this process, given its run's buffer actor. Raises what :func:`ask_buffer` raises."""
        asked, remedy = buffer.shards.remote(), "see logs/buffer.log"
        shards = await ask_buffer(asked, of="the buffer (shards)", by=name, seconds=SHARD_DEADLINE_S, remedy=remedy)
        return cls(config, shards, this_node(), name)

    async def append(self, group_id: GroupId, payloads: Sequence[bytes]) -> list[PayloadRef]:
        """Keep the encoded episodes of one group; when this returns, they outlive this process.

        Raises:
            DiskFull: there is no room for them; nothing was kept.
        """
        if self._elsewhere:
            actor = self._elsewhere[group_id % len(self._elsewhere)]
            what, remedy = "a payload shard to keep an episode", "its actor may be overloaded; see logs/buffer*.log"
            return await ask(actor.append.remote(payloads), of=what, by=self._name, seconds=SHARD_DEADLINE_S, remedy=remedy)
        writer = self._here[group_id % len(self._here)]
        return await asyncio.to_thread(writer.append, payloads) if self._waits_for_disk else writer.append(payloads)

    def close(self) -> None:
        """Close the files; what was written stays."""
        for writer in self._here:
            writer.close()


def ask_shard(answer: "ray.ObjectRef[T]", *, of: str, by: str, seconds: float = SHARD_DEADLINE_S) -> T:
    """Wait for the answer of a payload shard. Raises what :func:`ask_blocking` raises."""
    return ask_blocking(answer, of=of, by=by, seconds=seconds, remedy=SHARD_REMEDY)


class PayloadSource:
    """Reads the episodes that a rank trains."""

    def __init__(self, shards: Sequence[ShardPlace], node: str, name: str) -> None:
        self._name = name
        self._here = {place.shard: PayloadReader(place.folder) for place in shards if place.node == node}
        self._elsewhere = {place.shard: place.actor for place in shards if place.node != node}

    @classmethod
    def of(cls, buffer: Any, name: str) -> "PayloadSource":
        """Make the source of a rank in this process, given its run's buffer actor. Raises what :func:`ask_shard` raises."""
        return cls(ask_shard(buffer.shards.remote(), of="the buffer (shards)", by=name), this_node(), name)

    def fetch_payloads(self, refs: Sequence[PayloadRef]) -> list[bytes]:
        """Return the bytes of ``refs``, in their order. Shards on several other nodes send theirs at the same time.

        Raises:
            PayloadLost: some of the payload is gone or damaged.
            DeadlineExceeded: a shard on another node did not answer in time.
            ComponentFailed: the actor of such a shard died.
        """
        places: dict[int, list[int]] = {}
        for at, ref in enumerate(refs):
            places.setdefault(ref.shard, []).append(at)
        asked = {
            shard: self._elsewhere[shard].fetch_payloads.remote([refs[at] for at in places[shard]])
            for shard in places
            if shard in self._elsewhere
        }
        found: list[bytes] = [b""] * len(refs)
        for shard, wanted in places.items():
            if shard in self._here:
                read = self._here[shard].read([refs[at] for at in wanted])
            else:
                read = ask_shard(asked[shard], of=f"payload shard {shard}", by=self._name)
            for at, payload in zip(wanted, read, strict=True):
                found[at] = payload
        return found


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
        begin_actor(log_file)
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
