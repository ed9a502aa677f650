import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from fake_engine import FakeEngine
from scripted_environment import Scripted, task

from asyncrl.core.errors import ComponentFailed, EnvironmentBroken, FailureKind
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.publication import Publication
from asyncrl.core.recipe.schema import Batch, Environment, Generators, Model, Recipe
from asyncrl.core.task import Task
from asyncrl.core.ticket import Ticket
from asyncrl.core.trajectory import StopReason, Trajectory, decode
from generators.worker import GeneratorWorker

RECIPE = Recipe(
    name="r",
    steps=1,
    model=Model(path="m"),
    environment=Environment(name="e"),
    batch=Batch(group_size=4),
    generators=Generators(max_running=6),
)


class Desk:
    """A buffer's side: hands out the tickets it was given to workers at its clock, waits when it has none."""

    def __init__(self, tasks: Sequence[Task], size: int = 4) -> None:
        self.clock = PolicyVersion(0)
        self.tickets = deque(Ticket(GroupId(i), task, size, 0, self.clock) for i, task in enumerate(tasks))
        self.limits: list[int] = []
        self.groups: dict[int, list[Trajectory]] = {}
        self.failures: dict[int, tuple[FailureKind, str]] = {}
        self.changed = asyncio.Condition()

    async def lease(self, worker: WorkerId, version: PolicyVersion, limit: int) -> Sequence[Ticket]:
        self.limits.append(limit)
        async with self.changed:
            self.changed.notify_all()
            await self.changed.wait_for(lambda: self.tickets and version == self.clock)
        return [self.tickets.popleft() for _ in range(min(limit, len(self.tickets)))]

    async def commit(self, rows: Sequence[bytes]) -> None:
        trajectories = [decode(row) for row in rows]
        (group_id,) = {trajectory.group_id for trajectory in trajectories}
        self.groups[group_id] = trajectories
        await self.notify()

    async def fail(self, group_id: GroupId, kind: FailureKind, reason: str) -> None:
        self.failures[group_id] = (kind, reason)
        await self.notify()

    async def notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(condition)


class Shop:
    def __init__(self, tasks: Sequence[Task], script: Callable[[str], str] = lambda row: "a", size: int = 4) -> None:
        self.engine, self.desk = FakeEngine(script), Desk(tasks, size)
        self.environments: list[Scripted] = []
        self.worker = GeneratorWorker(
            WorkerId("w"), RECIPE, self.engine, self.engine.chat, lambda: Scripted(self.environments), self.desk
        )
        self.stop = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[asyncio.Task[tuple[GroupId, ...]]]:
        """The worker running; stopped at the end, when all its environments must be closed."""
        running = asyncio.create_task(self.worker.run(self.stop))
        yield running
        self.stop.set()
        async with asyncio.timeout(10):
            await running
        assert all(environment.closed == 1 for environment in self.environments)
        assert self.engine.running == 0


async def test_every_ticket_comes_back_as_a_whole_group() -> None:
    shop = Shop([task(f"t{i}") for i in range(9)])
    async with shop.open():
        await shop.desk.until(lambda: len(shop.desk.groups) == 9)
    for group_id, rows in shop.desk.groups.items():
        assert [row.sample_index for row in rows] == [0, 1, 2, 3]
        assert {row.task_id for row in rows} == {f"t{group_id}"}
    assert shop.worker.statistics().finished_episodes == 36


async def test_the_engine_is_full_and_never_more() -> None:
    """Six slots, groups of four: two groups are leased, so that two episodes wait for a slot rather than slots for episodes."""
    shop = Shop([task(f"t{i}") for i in range(9)])
    async with shop.open():
        await shop.desk.until(lambda: len(shop.desk.groups) == 9)
    assert shop.engine.most_running == 6
    assert shop.desk.limits[0] == 2


async def test_a_group_larger_than_the_engine_is_generated() -> None:
    shop = Shop([task("t")], size=15)
    async with shop.open():
        await shop.desk.until(lambda: len(shop.desk.groups) == 1)
    assert len(shop.desk.groups[0]) == 15
    assert shop.engine.most_running == 6


async def test_a_task_that_breaks_its_environment_is_reported_and_the_others_go_on() -> None:
    shop = Shop([task("bad", breaks="step"), task("good"), task("worse", breaks="reset"), *(task(f"t{i}") for i in range(5))])
    async with shop.open():
        await shop.desk.until(lambda: len(shop.desk.groups) == 6 and len(shop.desk.failures) == 2)
    assert set(shop.desk.failures) == {0, 2}
    kind, reason = shop.desk.failures[0]
    assert kind is FailureKind.DATA
    assert "task bad: Scripted.step raised ZeroDivisionError" in reason


async def test_a_dead_engine_ends_the_worker_with_its_own_error() -> None:
    shop = Shop([task("t")])
    shop.engine.dead = True
    with pytest.raises(ComponentFailed, match="the fake engine died"):
        async with asyncio.timeout(10):
            await shop.worker.run(shop.stop)
    assert all(environment.closed == 1 for environment in shop.environments)


async def test_stopping_names_the_groups_that_were_not_handed_in() -> None:
    shop = Shop([task(f"t{i}") for i in range(4)])
    shop.engine.gate.clear()
    async with shop.open() as running:
        await shop.desk.until(lambda: len(shop.desk.tickets) == 2)
    assert running.result() == (0, 1)
    assert not shop.desk.groups
    assert not shop.desk.failures


async def test_nothing_is_asked_for_while_weights_are_installed() -> None:
    shop = Shop([])
    installing = asyncio.Event()

    async def install(publication: Publication) -> int:
        await installing.wait()
        shop.engine.version = publication.version
        return publication.fingerprint

    shop.engine.install = install  # type: ignore[method-assign]
    publication = Publication(version=PolicyVersion(1), files=(), shards=(), fingerprint=77)
    async with asyncio.TaskGroup() as group:
        installed = group.create_task(shop.worker.install(publication))
        await asyncio.sleep(0)
        running = group.create_task(shop.worker.run(shop.stop))
        await asyncio.sleep(0)
        assert shop.desk.limits == []
        installing.set()
        assert await installed == 77
        await shop.desk.until(lambda: len(shop.desk.limits) == 1)
        shop.stop.set()
        await running


async def test_a_worker_that_waited_under_an_old_version_gets_tickets_at_the_new_one() -> None:
    """The desk never answers the request that was made as version 0: it must not keep the worker from asking as version 1."""
    shop = Shop([])
    publication = Publication(version=PolicyVersion(1), files=(), shards=(), fingerprint=1)
    async with shop.open():
        await shop.desk.until(lambda: len(shop.desk.limits) == 1)
        await shop.worker.install(publication)
        shop.desk.clock = PolicyVersion(1)
        shop.desk.tickets.append(Ticket(GroupId(0), task("t"), 4, 0, shop.desk.clock))
        await shop.desk.notify()
        await shop.desk.until(lambda: 0 in shop.desk.groups)
    assert {span.version for row in shop.desk.groups[0] for span in row.version_spans} == {-1, 1}


async def test_evaluation_runs_beside_training() -> None:
    shop = Shop([task("train")])
    async with shop.open():
        held_out = [task(f"e{i}", rewards=[0.5, 0.25]) for i in range(20)]
        results = await shop.worker.evaluate(held_out, 0.0)
        await shop.desk.until(lambda: 0 in shop.desk.groups)
    assert [result.task_id for result in results] == [t.id for t in held_out]
    assert {(r.reward, r.turns, r.stop_reason, r.oldest_version, r.newest_version) for r in results} == {
        (0.75, 2, StopReason.ENVIRONMENT_DONE, 0, 0)
    }
    assert [bool(r.text) for r in results] == [i < RECIPE.tracking.sample_trajectories for i in range(20)]
    assert "a<|im_end|>" in results[0].text


async def test_an_evaluation_task_that_breaks_has_no_reward() -> None:
    shop = Shop([])
    results = await shop.worker.evaluate([task("bad", breaks="reset"), task("good")], 1.0)
    assert [result.task_id for result in results] == ["good"]
    assert len(shop.environments) == RECIPE.buffer.max_attempts + 1
    with pytest.raises(EnvironmentBroken, match="none of 1 evaluation tasks could be run"):
        await shop.worker.evaluate([task("bad", breaks="reset")], 1.0)
