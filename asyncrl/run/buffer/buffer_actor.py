"""The replay buffer as a Ray actor: the service, its journal, and the first payload shard."""

import asyncio
import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from asyncrl.buffers.commands import SetTooLong
from asyncrl.buffers.journal.journal import Journal
from asyncrl.buffers.journal.recovery import Store, Takeover, recover
from asyncrl.buffers.journal.unchangeable_keys import Identity
from asyncrl.buffers.payload_store import PayloadStore
from asyncrl.buffers.replay_buffer import ReplayBuffer
from asyncrl.buffers.service import BufferService
from asyncrl.core.episode_records import PayloadRef
from asyncrl.core.files.memory_owners import MemoryOwner
from asyncrl.core.network.tls import TlsKeys
from asyncrl.core.recipe.buffer import AppendOnlyJournalConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.rpc.server import RpcServer
from asyncrl.rpc.wire import Endpoint
from asyncrl.run.buffer.client import METHODS
from asyncrl.run.buffer.payload_shards import SHARD_DEADLINE_S, PayloadShard, RemotePayloadShard, RemoteStore, ShardPlace
from asyncrl.run.buffer.tasks import make_task_stream
from asyncrl.run.folder.buffer_folder import BufferFolder
from asyncrl.run.host.actor_process import begin_actor
from asyncrl.run.host.ray_calls import AGAIN, ask, this_node


class BufferActor:
    """Runs the buffer's service, which clients reach at :meth:`endpoint`.

    Call nothing before :meth:`ready` has returned, and nothing that changes the buffer before :meth:`take_over` has.

    Args:
        run_id: unique among the runs on this host.
        log_file: this process's log file; the other shards' log files are made beside it.
        tls: the run's keys if its connections are encrypted.
        too_long: places of the training tasks that are left out because of their prompts, by source.
    """

    service_type = BufferService

    def __init__(
        self,
        recipe: Recipe,
        run: Path,
        run_id: str,
        log_file: Path,
        tls: TlsKeys | None = None,
        too_long: Mapping[str, Sequence[int]] = {},
    ) -> None:
        begin_actor(log_file)
        self._too_long = SetTooLong(recipe.model.max_context, {name: list(places) for name, places in too_long.items()})
        self._recipe, self._log_file, self._tls = recipe, log_file, tls
        self._run_id, self._memory = run_id, MemoryOwner(run_id)
        self._folder = BufferFolder.of(recipe.buffer, run, run_id)
        self._shard = PayloadShard(recipe.buffer, 0, self._folder.shard(0))
        self._places: list[ShardPlace] = []
        self._takeover: Takeover | None = None
        self._service: BufferService | None = None
        self._rpc: RpcServer | None = None
        self._endpoint: Endpoint | None = None

    async def ready(self) -> None:
        """Load the tasks, and read and check the journal and the payload. Changes neither of the two."""
        await self._shard.begin()
        self._places = [ShardPlace(0, this_node(), self._folder.shard(0), ray.get_runtime_context().current_actor)]
        others = _other_nodes()
        for shard in range(1, self._recipe.buffer.shards):
            self._places.append(self._start_shard(shard, (this_node(), *others)[shard % (1 + len(others))]))
        await asyncio.gather(*(self._started_shard(place) for place in self._places[1:]))
        stores: dict[int, PayloadStore | RemoteStore] = {0: self._shard.store}
        stores |= {place.shard: RemoteStore(place.shard, place.actor, self._recipe.deadlines.start) for place in self._places[1:]}
        buffer, journal, sweep = await asyncio.to_thread(self._recover, stores)

        def free(refs: Sequence[PayloadRef]) -> None:
            for shard, store in stores.items():
                if of_shard := [ref for ref in refs if ref.shard == shard]:
                    store.free(of_shard)

        groups, deadlines = self._recipe.batch.groups_per_step, self._recipe.deadlines
        self._service = self.service_type(buffer, journal, groups_per_step=groups, deadlines=deadlines, free=free, sweep=sweep)
        self._rpc = RpcServer(self._service, METHODS, "the buffer", self._tls)
        self._endpoint = await self._rpc.start(ray.util.get_node_ip_address())
        gc.freeze()  # tasks and modules live on: searching them for garbage would cost more than all bookkeeping

    def _recover(self, stores: Mapping[int, Store]) -> tuple[ReplayBuffer, Journal | None, Callable[[], None] | None]:
        recipe, tasks = self._recipe, make_task_stream(self._recipe)
        buffer = ReplayBuffer(recipe.batch, recipe.buffer, tasks, steps=recipe.steps, seed=recipe.seed)
        if not isinstance(recipe.buffer.journal, AppendOnlyJournalConfig) or self._folder.journal is None:
            self._too_long.apply(buffer)
            return buffer, None, None
        identity = Identity.of(recipe, tasks)
        self._takeover = recover(buffer, identity, recipe.buffer.journal, self._folder.journal, stores, too_long=self._too_long)
        return buffer, self._takeover.journal, self._takeover.sweep

    async def take_over(self) -> str:
        """Begin to change the run's files, once everything that the run needs has been checked.

        Returns:
            what was recovered, as text for the user; empty for a new run.

        Raises:
            DiskFull: there is no room for the records that this adds to the journal.
        """
        if self._takeover is None:
            return ""
        await asyncio.to_thread(self._takeover.begin)
        return str(self._takeover.report)

    def _start_shard(self, shard: int, node: str) -> ShardPlace:
        folder = self._folder.shard(shard)
        log_file = self._log_file.with_stem(f"{self._log_file.stem}-shard-{shard}")
        actor = RemotePayloadShard.options(
            num_cpus=0, max_concurrency=100, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
        ).remote(self._recipe.buffer, shard, folder, self._run_id, log_file)
        return ShardPlace(shard, node, folder, actor)

    async def _started_shard(self, place: ShardPlace) -> None:
        of, remedy = f"payload shard {place.shard} to start", f"see the logs beside {self._log_file.name}"
        await ask(place.actor.begin.remote(), of=of, by="the buffer", seconds=SHARD_DEADLINE_S, remedy=remedy)

    async def endpoint(self) -> Endpoint:
        """Return the address of the service."""
        if self._endpoint is None:
            raise RuntimeError("the buffer was used before ready()")
        return self._endpoint

    async def shards(self) -> list[ShardPlace]:
        """Return the places of all payload shards."""
        return self._places

    @ray.method(max_task_retries=AGAIN)
    async def fetch_payloads(self, refs: Sequence[PayloadRef]) -> list[bytes]:
        """Read from this actor's own shard; see :meth:`PayloadShard.fetch_payloads`."""
        return await self._shard.fetch_payloads(refs)

    @ray.method(max_task_retries=AGAIN)
    async def append(self, payloads: Sequence[bytes]) -> list[PayloadRef]:
        """Append to this actor's own shard; see :meth:`PayloadShard.append`."""
        return await self._shard.append(payloads)

    async def close(self) -> None:
        """End the service. Without a journal nobody can use the trajectories now, so remove them on all nodes."""
        if self._rpc is not None:
            self._rpc.close()
        if self._service is not None:
            await self._service.close()
        if self._folder.journal is None:
            await asyncio.gather(self._shard.remove(), *(place.actor.remove.remote() for place in self._places[1:]))
        self._memory.close()


def _other_nodes() -> list[str]:
    """Return Ray's ids of all other nodes, sorted by address, so that a restarted cluster has the same order."""
    nodes = [(node["NodeManagerAddress"], node["NodeID"]) for node in ray.nodes() if node["Alive"]]
    return [node_id for _, node_id in sorted(nodes) if node_id != this_node()]


RemoteBuffer = ray.remote(BufferActor)
