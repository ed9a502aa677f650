"""The replay buffer as a Ray actor: the service, the journal beside it, and the first shard of the trajectories."""

import asyncio
import gc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from asyncrl.core.batch import Batch
from asyncrl.core.errors import FailureKind
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.payload import FinishedSample, PayloadRef
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.ticket import Ticket
from asyncrl.run.actors.payload_shard import PayloadShardActor, RemotePayloadShard, RemoteStore
from asyncrl.run.asking import ask
from asyncrl.run.buffer_folder import BufferFolder
from asyncrl.run.payload import SHARD_DEADLINE_S, ShardPlace, this_node
from asyncrl.run.tasks import make_task_stream
from buffers.journal import Journal
from buffers.payload import PayloadStore
from buffers.recovery import Store, recover
from buffers.replay_buffer import BufferStatistics, ReplayBuffer
from buffers.service import BufferService


class BufferActor(PayloadShardActor):
    """See :class:`buffers.service.BufferService` for the contract. Nothing may be called before :meth:`ready` has answered.

    Args:
        recipe: the run's.
        run: the run's folder.
        run_id: unique among the runs on this host.
        log_file: for this process; other shards log beside it.
    """

    def __init__(self, recipe: Recipe, run: Path, run_id: str, log_file: Path) -> None:
        self._folder = BufferFolder.of(recipe, run, run_id)
        super().__init__(recipe, 0, self._folder.shard(0), log_file)
        self._recipe, self._log_file = recipe, log_file
        self._places: list[ShardPlace] = []
        self._started: BufferService | None = None

    async def ready(self) -> str:
        """Load the tasks and recover what the journal holds; what was recovered, in words, empty for a new run."""
        self._places = [ShardPlace(0, this_node(), self._folder.shard(0), ray.get_runtime_context().current_actor)]
        others = _other_nodes()
        for shard in range(1, self._recipe.buffer.shards):
            self._places.append(self._start_shard(shard, (this_node(), *others)[shard % (1 + len(others))]))
        await asyncio.gather(*(self._started_shard(place) for place in self._places[1:]))
        stores: dict[int, PayloadStore | RemoteStore] = {0: self._store}
        stores |= {place.shard: RemoteStore(place.shard, place.actor, self._recipe.deadlines.start) for place in self._places[1:]}
        buffer, journal, report = await asyncio.to_thread(self._recover, stores)

        def free(refs: Sequence[PayloadRef]) -> None:
            for shard, store in stores.items():
                if of_shard := [ref for ref in refs if ref.shard == shard]:
                    store.free(of_shard)

        self._started = BufferService(self._recipe, buffer, journal=journal, free=free)
        gc.freeze()  # tasks and modules stay: looking through them again and again would cost more than all bookkeeping
        return report

    def _recover(self, stores: Mapping[int, Store]) -> tuple[ReplayBuffer, Journal | None, str]:
        tasks = make_task_stream(self._recipe)
        if self._folder.journal is None:
            return ReplayBuffer(self._recipe, tasks), None, ""
        buffer, journal, report = recover(self._recipe, tasks, self._folder.journal, stores)
        return buffer, journal, str(report)

    def _start_shard(self, shard: int, node: str) -> ShardPlace:
        folder = self._folder.shard(shard)
        log_file = self._log_file.with_stem(f"{self._log_file.stem}-shard-{shard}")
        actor = RemotePayloadShard.options(
            num_cpus=0, max_concurrency=100, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
        ).remote(self._recipe, shard, folder, log_file)
        return ShardPlace(shard, node, folder, actor)

    async def _started_shard(self, place: ShardPlace) -> None:
        of, remedy = f"payload shard {place.shard} to start", f"see the logs beside {self._log_file.name}"
        await ask(place.actor.verify.remote([]), of=of, by="the buffer", seconds=SHARD_DEADLINE_S, remedy=remedy)

    @property
    def _service(self) -> BufferService:
        if self._started is None:
            raise RuntimeError("the buffer was used before ready()")
        return self._started

    async def shards(self) -> list[ShardPlace]:
        """Where trajectories are kept."""
        return self._places

    async def lease(self, worker: WorkerId, version: PolicyVersion, limit: int) -> Sequence[Ticket]:
        """See :meth:`buffers.service.BufferService.lease`."""
        return await self._service.lease(worker, version, limit)

    async def commit(self, samples: Sequence[FinishedSample]) -> None:
        """See :meth:`buffers.service.BufferService.commit`."""
        await self._service.commit(samples)

    async def fail(self, group_id: GroupId, sample_index: int, kind: FailureKind, reason: str) -> None:
        """See :meth:`buffers.service.BufferService.fail`."""
        await self._service.fail(group_id, sample_index, kind, reason)

    async def renew(self, worker: WorkerId, running: Sequence[GroupId]) -> Sequence[GroupId]:
        """See :meth:`buffers.service.BufferService.renew`."""
        return await self._service.renew(worker, running)

    async def lost(self, worker: WorkerId) -> None:
        """See :meth:`buffers.service.BufferService.lost`."""
        await self._service.lost(worker)

    async def report_pause(self, worker: WorkerId, message: str) -> None:
        """See :meth:`buffers.service.BufferService.report_pause`."""
        await self._service.report_pause(worker, message)

    async def take(self, version: PolicyVersion) -> Batch:
        """See :meth:`buffers.service.BufferService.take`."""
        return await self._service.take(version)

    async def trained(self, version: PolicyVersion) -> None:
        """See :meth:`buffers.service.BufferService.trained`."""
        await self._service.trained(version)

    async def advance(self, version: PolicyVersion) -> None:
        """See :meth:`buffers.service.BufferService.advance`."""
        await self._service.advance(version)

    async def checkpointed(self, version: PolicyVersion) -> None:
        """See :meth:`buffers.service.BufferService.checkpointed`."""
        await self._service.checkpointed(version)

    async def statistics(self) -> BufferStatistics:
        """See :meth:`buffers.service.BufferService.statistics`."""
        return await self._service.statistics()

    async def close(self) -> None:
        """End the service; without a journal, remove the trajectories on all nodes, which nobody could make use of any more."""
        if self._started is not None:
            await self._started.close()
        if self._folder.journal is None:
            await asyncio.gather(self.remove(), *(place.actor.remove.remote() for place in self._places[1:]))


def _other_nodes() -> list[str]:
    """Ray's ids of the nodes beside this one, in an order that a restarted cluster keeps."""
    nodes = [(node["NodeManagerAddress"], node["NodeID"]) for node in ray.nodes() if node["Alive"]]
    return [node_id for _, node_id in sorted(nodes) if node_id != this_node()]


def as_remote(buffer: type[BufferActor]) -> Any:
    """``buffer`` as Ray starts it."""
    # A client reports each of its calls to Ray's head, once a second, and meanwhile holds up those under way; these are too many.
    return ray.remote(enable_task_events=False)(buffer)


RemoteBuffer = as_remote(BufferActor)
