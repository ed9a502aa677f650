"""No token is older than its lease says, whatever becomes of the engines.

The real buffer, pool, protocol and workers in virtual time, with scripted engines that are slow, die, are told to end, come back
without weights, and join while versions are published.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import count
from random import Random
from typing import Any, TypeVar

import pytest
import virtual_time
from fake_engine import FakeEngine
from made_buffers import buffer_of
from scripted_environment import Scripted, task

from asyncrl.buffers.service import BufferService
from asyncrl.buffers.tasks.task_stream import TaskSource, TaskStream
from asyncrl.core.episode import Episode
from asyncrl.core.episode_records import EpisodeRecord, PayloadRef
from asyncrl.core.errors import FailureKind, HandedBack, ProcessDied
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.measures.buffer_statistics import GroupState
from asyncrl.core.publication import Publication, WeightFile
from asyncrl.core.recipe.buffer import BufferConfig, NoJournalConfig
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.recipe.generators import MAIN_POOL, GeneratorsConfig
from asyncrl.core.recipe.schema import BatchConfig, DeadlinesConfig, ModelConfig, Recipe
from asyncrl.core.ticket import Ticket
from asyncrl.generators.episode import EpisodeTools
from asyncrl.generators.tool_calls.reader import ToolCallReader
from asyncrl.generators.worker import GeneratorStatistics, GeneratorWorker
from asyncrl.generators.worker_settings import WorkerSettings
from asyncrl.run.pool.generator_pool import GeneratorPool, GeneratorSupply

T = TypeVar("T")

STEPS = 12
RECIPE = Recipe(
    name="r",
    steps=STEPS,
    model=ModelConfig(path="m"),
    environment=ClassEnvironmentConfig(name="e"),
    batch=BatchConfig(groups_per_step=3, group_size=2),
    buffer=BufferConfig(journal=NoJournalConfig(), pipeline_depth=2, max_staleness=3),
    generators=GeneratorsConfig(count=2, max_running=4),
    deadlines=DeadlinesConfig(straggler=2.0, publish=30.0, lease=20.0, batch=500.0),
)


class Tickets:
    """A worker's way to the buffer, on which everything that it hands in is compared with its lease."""

    def __init__(self, world: "World", worker: WorkerId) -> None:
        self._world, self._service, self._worker = world, world.service, worker
        self._leased: dict[GroupId, PolicyVersion] = {}

    async def lease(self, worker: WorkerId, version: PolicyVersion, limit: int) -> Sequence[Ticket]:
        tickets = await self._service.lease(worker, version, limit)
        for ticket in tickets:
            assert ticket.version == version, "who has another version than the published one leases nothing"
            self._leased[ticket.group_id] = ticket.version
        return tickets

    async def commit(self, episode: Episode) -> None:
        record = EpisodeRecord.of(episode, PayloadRef(0, "segment", 100 * next(self._world.payloads), 100, 0))
        oldest, newest = record.sampled[0][0], record.sampled[-1][0]
        assert self._leased[record.group_id] <= oldest <= newest <= self._world.written
        self._world.spans[newest - oldest] += 1
        await self._service.commit([record])

    async def fail(self, group_id: GroupId, sample_index: int, kind: FailureKind, reason: str, incident: str = "") -> None:
        raise AssertionError(f"group {group_id} sample {sample_index}: {reason}")

    async def renew(self, worker: WorkerId, running: Sequence[GroupId]) -> Sequence[GroupId]:
        return await self._service.renew(worker, running)

    async def leave_out(self, group_id: GroupId, reason: str) -> None:
        raise AssertionError(reason)

    async def hand_back(self, worker: WorkerId) -> None:
        await self._service.hand_back(worker, "was told to end")


class Generator:
    """A generator in this process: the real worker, and an engine that begins with the weights of version 0."""

    nodes = ("",)

    def __init__(self, world: "World", worker: WorkerId) -> None:
        self.worker, self._world, self._chance = worker, world, world.chance
        self._engine = FakeEngine(lambda row: "a b c d e f"[: self._chance.choice((1, 5, 11))])
        self._engine.token_s = self._chance.choice((0.01, 0.1, 0.4))
        self._slow = self._chance.random() < 0.3
        reader = ToolCallReader(self._engine.chat.tokenizer, RECIPE.model.tool_parser)
        tools = EpisodeTools(self._engine, self._engine.chat, reader, lambda task: Scripted())
        self._worker = GeneratorWorker(worker, WorkerSettings.of(RECIPE), self._engine, tools, Tickets(world, worker))
        self._dead, self._stop = asyncio.Event(), asyncio.Event()
        self._told_to_end = False

    async def start(self) -> None:
        await self._while_alive(asyncio.sleep(self._chance.uniform(0.0, 5.0)))

    async def run(self) -> None:
        await self._while_alive(self._worker.run(self._stop))
        if self._told_to_end:
            raise HandedBack(f"{self.worker} was told to end")

    async def load_publication(self, publication: Publication) -> int:
        assert self._engine.version == 0 or self._engine.version < publication.version
        await self._while_alive(asyncio.sleep(self._chance.uniform(0.0, 8.0 if self._slow else 0.5)))
        return await self._while_alive(self._worker.load_publication(publication))

    async def statistics(self) -> GeneratorStatistics:
        return self._worker.statistics()

    async def hand_back(self) -> None:
        await self._while_alive(self._worker.hand_back(1.0))
        self._stop.set()

    async def sigterm(self) -> None:
        self._told_to_end = True
        await self.hand_back()

    async def stop(self) -> None:
        self._stop.set()

    async def close(self, seconds: float) -> None:
        self.kill()

    def kill(self) -> None:
        self._dead.set()

    async def _while_alive(self, work: Coroutine[Any, Any, T]) -> T:
        working, dying = asyncio.create_task(work), asyncio.create_task(self._dead.wait())
        try:
            await asyncio.wait({working, dying}, return_when=asyncio.FIRST_COMPLETED)
            if self._dead.is_set():
                raise ProcessDied(f"{self.worker}: its process died")
            return working.result()
        finally:
            working.cancel()
            dying.cancel()


class World:
    """A run without a learner: what is taken is trained at once, and what is written lies on the only node."""

    def __init__(self, seed: int) -> None:
        self.chance, self.payloads = Random(seed), count()
        self.written = 0
        self.spans: Counter[int] = Counter()
        self.alive: list[Generator] = []
        tasks = TaskStream([TaskSource("only", [task(f"t{n}") for n in range(50)])], seed=seed)
        buffer = buffer_of(RECIPE, tasks)
        groups, deadlines = RECIPE.batch.groups_per_step, RECIPE.deadlines
        self.service = BufferService(buffer, None, groups_per_step=groups, deadlines=deadlines, free=lambda refs: None)
        clock = asyncio.get_running_loop().time
        self.pool = GeneratorPool(
            RECIPE.generators.by_pool, GeneratorSupply(self._make, self._lost), deadlines, lambda note: None, self, clock
        )

    def _make(self, pool: str, number: int) -> Any:
        self.alive.append(Generator(self, WorkerId(f"generator-{number}")))
        return self.alive[-1]

    async def _lost(self, worker: WorkerId, with_node: bool) -> None:
        self.alive = [each for each in self.alive if each.worker != worker]
        await self.service.lost(worker)

    async def fetch_to_node(self, publication: Publication, node: str) -> Publication:
        await asyncio.sleep(self.chance.uniform(0.0, 0.5))
        return publication

    async def check_reach(self, newest: Publication, node: str) -> None:
        return

    async def publish(self, version: int) -> None:
        await self.pool.may_write()
        self.written = version
        file = WeightFile("file", "", 8)
        await self.pool.deliver(
            Publication(version=PolicyVersion(version), files=(file,), shards=(), fingerprints=(), fingerprint=version)
        )
        await self.service.advance(PolicyVersion(version))

    async def harm(self) -> None:
        """Kill, end and add generators at random, for as long as the run goes on."""
        harms: list[Callable[[], Awaitable[object]]] = [
            self._kill_one,
            self._end_one,
            lambda: self.pool.scale(MAIN_POOL, self.chance.randint(1, 4)),
        ]
        while True:
            await asyncio.sleep(self.chance.expovariate(1 / 4.0))
            await self.chance.choice(harms)()

    async def _kill_one(self) -> None:
        self.chance.choice(self.alive).kill()

    async def _end_one(self) -> None:
        try:
            await self.chance.choice(self.alive).sigterm()
        except ProcessDied:
            return

    async def run(self) -> None:
        await self.pool.start()
        await self.publish(0)
        generating = asyncio.create_task(self.pool.generate())
        harming = asyncio.create_task(self.harm())
        try:
            for step in range(STEPS):
                batch = await self.service.take(PolicyVersion(step))
                oldest = step - RECIPE.buffer.max_staleness
                for row in batch.rows:
                    assert row.loss_tokens == sum(tokens for version, tokens in row.sampled if version >= oldest)
                await self.service.trained(PolicyVersion(step))
                await self.publish(step + 1)
            assert not generating.done()
            assert not harming.done()
        finally:
            harming.cancel()
            await self.pool.stop()
            await asyncio.wait({generating})
            await self.pool.close(1.0)
        generating.result()
        ledger = (await self.service.statistics()).ledger
        assert ledger.issued == sum(getattr(ledger, state) for state in GroupState)
        assert ledger.trained == STEPS * RECIPE.batch.groups_per_step
        await self.service.close()


@pytest.mark.parametrize("seed", range(8))
def test_no_token_is_older_than_its_lease_says(seed: int) -> None:
    async def main() -> World:
        world = World(seed)
        await world.run()
        return world

    world = virtual_time.run(main())
    assert sum(world.spans.values()) >= STEPS * RECIPE.batch.groups_per_step * RECIPE.batch.group_size
