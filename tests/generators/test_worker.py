import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from fake_engine import FakeEngine
from scripted_environment import Scripted, task
from virtual_time import in_virtual_time

from asyncrl.core.episode import Episode
from asyncrl.core.errors import ComponentFailed, EnvironmentBroken, FailureKind, ProcessDied, ScoringFailed
from asyncrl.core.ids import GroupId, PolicyVersion, TaskId, WorkerId
from asyncrl.core.publication import Publication
from asyncrl.core.recipe.advantage import GdpoAdvantageConfig, RemaxAdvantageConfig
from asyncrl.core.recipe.algorithm import AlgorithmConfig
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.recipe.generators import GeneratorsConfig
from asyncrl.core.recipe.schema import BatchConfig, DeadlinesConfig, ModelConfig, Recipe
from asyncrl.core.task import Task
from asyncrl.core.ticket import Ticket
from asyncrl.core.trajectory import StopReason
from asyncrl.envs.base import Action, Observation, StepResult
from asyncrl.envs.hosting import hosted
from asyncrl.generators import worker
from asyncrl.generators.concurrency import EngineLoad
from asyncrl.generators.episode import EpisodeTools
from asyncrl.generators.evaluation import BrokenEpisode, EvaluationResult, HeldOutTask, require_results
from asyncrl.generators.judging import Judging
from asyncrl.generators.scoring import Scoring
from asyncrl.generators.tool_calls.reader import ToolCallReader
from asyncrl.generators.worker import GeneratorWorker, KeepEvaluation
from asyncrl.generators.worker_settings import WorkerSettings

RECIPE = Recipe(
    name="r",
    steps=1,
    model=ModelConfig(path="m"),
    environment=ClassEnvironmentConfig(name="e"),
    batch=BatchConfig(group_size=4),
    generators=GeneratorsConfig(max_running=6),
    deadlines=DeadlinesConfig(lease=0.04),
)


class FakeTicketClient:
    """A buffer's side: hands out the tickets it was given to workers at its clock, waits when it has none.

    ``unwanted`` groups are named at each renewal. ``commits`` and ``renewals`` are held back while their gates are closed.
    """

    def __init__(self, tasks: Sequence[Task], size: int = 4) -> None:
        self.clock = PolicyVersion(0)
        self.tickets = deque(Ticket(GroupId(i), task, tuple(range(size)), 0, self.clock) for i, task in enumerate(tasks))
        self.limits: list[int] = []
        self.groups: dict[int, list[Episode]] = {}
        self.failures: dict[tuple[int, int], tuple[FailureKind, str]] = {}
        self.renewals: list[tuple[GroupId, ...]] = []
        self.unwanted: set[GroupId] = set()
        self.handed_back = 0
        self.left_out: dict[GroupId, list[str]] = {}
        self.commits, self.answers = asyncio.Event(), asyncio.Event()
        self.commits.set()
        self.answers.set()
        self.changed = asyncio.Condition()

    async def lease(self, worker: WorkerId, version: PolicyVersion, limit: int) -> Sequence[Ticket]:
        self.limits.append(limit)
        async with self.changed:
            self.changed.notify_all()
            await self.changed.wait_for(lambda: self.tickets and version == self.clock)
        return [self.tickets.popleft() for _ in range(min(limit, len(self.tickets)))]

    async def commit(self, episode: Episode) -> None:
        await self.commits.wait()
        self.groups.setdefault(episode.group_id, []).append(episode)
        await self.notify()

    async def fail(self, group_id: GroupId, sample_index: int, kind: FailureKind, reason: str, incident: str = "") -> None:
        self.failures[group_id, sample_index] = (kind, reason)
        await self.notify()

    async def leave_out(self, group_id: GroupId, reason: str) -> None:
        self.left_out.setdefault(group_id, []).append(reason)
        await self.notify()

    async def renew(self, worker: WorkerId, running: Sequence[GroupId]) -> Sequence[GroupId]:
        self.renewals.append(tuple(running))
        await self.notify()
        answer = [group_id for group_id in running if group_id in self.unwanted]
        await self.answers.wait()
        return answer

    async def hand_back(self, worker: WorkerId) -> None:
        self.handed_back += 1
        await self.notify()

    async def notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(condition)

    def finished(self, group_id: int) -> list[int]:
        """Samples of a group that were handed in."""
        return sorted(episode.sample_index for episode in self.groups.get(group_id, []))


class Odd(Scripted):
    """Does as ``data`` says rather than its task."""

    def __init__(self, made: list[Scripted], data: dict[str, Any]) -> None:
        super().__init__(made)
        self._own = data

    async def reset(self, task: Task) -> Observation:
        return await super().reset(msgspec.structs.replace(task, data=self._own))


def held(task: Task, samples: int = 1) -> HeldOutTask:
    return HeldOutTask(task, "held-out", samples)


class Shop:
    def __init__(
        self,
        tasks: Sequence[Task],
        script: Callable[[str], str] = lambda row: "a",
        size: int = 4,
        scoring: Scoring | None = None,
        recipe: Recipe = RECIPE,
        keep: KeepEvaluation | None = None,
    ) -> None:
        self.engine, self.ticket_client = FakeEngine(script), FakeTicketClient(tasks, size)
        self.environments: list[Scripted] = []
        reader = ToolCallReader(self.engine.chat.tokenizer, recipe.model.tool_parser)
        tools = EpisodeTools(self.engine, self.engine.chat, reader, lambda task: self.environment())
        settings = WorkerSettings.of(recipe)
        judging = None if scoring is None else Judging(scoring)
        self.worker = GeneratorWorker(WorkerId("w"), settings, self.engine, tools, self.ticket_client, judging, keep)
        self.environment: Callable[[], Scripted] = lambda: Scripted(self.environments)
        self.stop = asyncio.Event()

    @property
    def held(self) -> tuple[GroupId, ...]:
        """Groups that are neither settled nor given up."""
        return tuple(self.worker._leases.held())

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """The worker running; stopped at the end, when all its environments must be closed."""
        running = asyncio.create_task(self.worker.run(self.stop))
        yield
        self.stop.set()
        async with asyncio.timeout(60):
            await running
        assert all(environment.closed == 1 for environment in self.environments)
        assert self.engine.running == 0


async def test_every_sample_of_every_ticket_is_handed_in_once() -> None:
    shop = Shop([task(f"t{i}") for i in range(9)])
    async with shop.open():
        await shop.ticket_client.until(lambda: sum(map(len, shop.ticket_client.groups.values())) == 36)
    for group_id, rows in shop.ticket_client.groups.items():
        assert shop.ticket_client.finished(group_id) == [0, 1, 2, 3]
        assert {row.task_id for row in rows} == {f"t{group_id}"}
    assert shop.worker.statistics().finished_episodes == 36


async def test_a_task_whose_prompt_leaves_no_room_is_left_out_and_fails_nothing() -> None:
    shop = Shop([task("long " * 2_000), task("t")])
    async with shop.open():
        await shop.ticket_client.until(
            lambda: len(shop.ticket_client.finished(1)) == 4 and len(shop.ticket_client.left_out.get(GroupId(0), [])) == 4
        )
    assert shop.ticket_client.finished(0) == [], "no episode of it was played"
    assert not shop.ticket_client.failures
    assert "prompt has 10,0" in shop.ticket_client.left_out[GroupId(0)][0]
    assert shop.held == ()


async def test_a_held_out_task_whose_prompt_leaves_no_room_is_looked_at_once() -> None:
    shop = Shop([])
    async with shop.open():
        long, short = await shop.worker.evaluate([held(task("long " * 2_000)), held(task("t"))], PolicyVersion(0))
    assert isinstance(long, BrokenEpisode)
    assert "no turn fits" in long.problem
    assert isinstance(short, EvaluationResult)
    assert len(shop.environments) == 2


async def test_a_ticket_that_lacks_some_samples_gets_just_those() -> None:
    shop = Shop([])
    shop.ticket_client.tickets.append(Ticket(GroupId(7), task("t"), (1, 3), 2, PolicyVersion(0)))
    async with shop.open():
        await shop.ticket_client.until(lambda: len(shop.ticket_client.finished(7)) == 2)
    assert shop.ticket_client.finished(7) == [1, 3]
    assert {row.attempt for row in shop.ticket_client.groups[7]} == {2}


async def test_a_sample_is_handed_in_while_its_siblings_run() -> None:
    """The environments of all but the first hang in reset until the worker is stopped."""
    shop = Shop([task("t")])

    def environment() -> Scripted:
        return Odd(shop.environments, {} if not shop.environments else {"hangs": "reset"})

    shop.environment = environment
    async with shop.open():
        await shop.ticket_client.until(lambda: len(shop.ticket_client.finished(0)) == 1)
    assert shop.held == (0,)
    assert shop.ticket_client.finished(0) == [0]


async def full(shop: Shop) -> None:
    """Hold all requests back until every slot has one."""
    shop.engine.gate.clear()
    await slots_filled(shop)
    shop.engine.gate.set()


async def slots_filled(shop: Shop) -> None:
    """Until six requests run, as many as there are slots. Renewals, which go by the clock, may come before that."""
    async with asyncio.timeout(60):
        while shop.engine.running < 6:  # noqa: ASYNC110 - the fake engine has no event for it
            await asyncio.sleep(0)


async def test_the_engine_is_full_and_never_more() -> None:
    """Six slots, groups of four: two groups are leased, so that two episodes wait for a slot rather than slots for episodes."""
    shop = Shop([task(f"t{i}") for i in range(9)])
    async with shop.open():
        await full(shop)
        await shop.ticket_client.until(lambda: sum(map(len, shop.ticket_client.groups.values())) == 36)
    assert shop.engine.most_running == 6
    assert shop.ticket_client.limits[0] == 2


async def test_a_full_cache_lets_the_worker_hold_fewer_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of four, at most twelve episodes: with the cache full two groups are played instead of three."""
    monkeypatch.setattr(worker, "ADAPT_S", 0.01)
    recipe = msgspec.structs.replace(RECIPE, generators=msgspec.structs.replace(RECIPE.generators, max_running=12))
    shop = Shop([task(f"t{i}") for i in range(9)], recipe=recipe)
    shop.engine.gate.clear()
    async with shop.open():
        await shop.ticket_client.until(lambda: shop.engine.running == 12)
        shop.engine.waiting, shop.engine.cache_share = 2, 0.9
        shop.engine.running -= 1  # one of those that wait
        await shop.ticket_client.until(lambda: shop.worker.statistics().episode_limit == 10)
        shop.engine.running += 1
        shop.engine.gate.set()
        await shop.ticket_client.until(lambda: sum(map(len, shop.ticket_client.groups.values())) == 36)
        assert shop.worker.statistics().episode_limit <= 10
    assert shop.ticket_client.limits[0] == 3


async def test_what_is_cut_from_tool_outputs_is_counted() -> None:
    recipe = msgspec.structs.replace(RECIPE, environment=msgspec.structs.replace(RECIPE.environment, max_tool_output=10))
    shop = Shop([task("t", rewards=[0.0, 1.0], reply="x" * 25)], recipe=recipe)
    async with shop.open():
        await shop.ticket_client.until(lambda: len(shop.ticket_client.groups.get(0, [])) == 4)
    assert [row.metrics["tool_output_cut"] for row in shop.ticket_client.groups[0]] == [15.0] * 4
    assert shop.worker.statistics().tool_output_cut == 60


async def test_handing_in_takes_no_room_in_the_engine() -> None:
    """While the buffer takes nothing in, the engine goes on with the next tickets."""
    shop = Shop([task(f"t{i}") for i in range(9)])
    shop.ticket_client.commits.clear()
    async with shop.open():
        await shop.ticket_client.until(lambda: shop.worker.statistics().finished_episodes == 36)
        assert not shop.ticket_client.groups
        shop.ticket_client.commits.set()
        await shop.ticket_client.until(lambda: sum(map(len, shop.ticket_client.groups.values())) == 36)


async def test_a_worker_that_is_told_to_end_leases_nothing_and_hands_in_what_is_over() -> None:
    """One episode of the first group waits to be handed in, all others are being played."""
    shop = Shop([task(f"t{i}") for i in range(9)])
    shop.environment = lambda: Odd(shop.environments, {} if not shop.environments else {"hangs": "reset"})
    shop.ticket_client.commits.clear()
    async with shop.open():
        await shop.ticket_client.until(lambda: shop.worker.statistics().finished_episodes == 1)
        ending = asyncio.create_task(shop.worker.hand_back(60.0))
        async with asyncio.timeout(60):
            while not all(each.closed for each in shop.environments):  # noqa: ASYNC110 - a scripted environment has no event
                await asyncio.sleep(0)
        assert not shop.ticket_client.handed_back, "one is over, and on its way to the buffer"
        shop.ticket_client.commits.set()
        async with asyncio.timeout(60):
            await ending
        left = len(shop.ticket_client.tickets)
        shop.worker._changed.set()
        await asyncio.sleep(2 * RECIPE.deadlines.lease)
        assert len(shop.ticket_client.tickets) == left
    assert (shop.ticket_client.finished(0), shop.ticket_client.handed_back) == ([0], 1)
    assert shop.held == ()


async def test_the_grace_of_a_worker_that_is_told_to_end_is_kept() -> None:
    shop = Shop([task("t")])
    shop.ticket_client.commits.clear()
    async with shop.open():
        await shop.ticket_client.until(lambda: shop.worker.statistics().finished_episodes == 4)
        async with asyncio.timeout(60):
            await shop.worker.hand_back(0.01)
    assert (shop.held, shop.ticket_client.handed_back, shop.ticket_client.groups) == ((), 1, {})


async def test_a_group_larger_than_the_engine_is_generated() -> None:
    shop = Shop([task("t")], size=15)
    async with shop.open():
        await full(shop)
        await shop.ticket_client.until(lambda: len(shop.ticket_client.finished(0)) == 15)
    assert shop.engine.most_running == 6


async def test_a_task_that_breaks_its_environment_is_given_back_sample_by_sample_and_the_others_go_on() -> None:
    shop = Shop([task("bad", breaks="step"), task("good"), task("worse", breaks="reset"), *(task(f"t{i}") for i in range(5))])
    async with shop.open():
        await shop.ticket_client.until(
            lambda: sum(map(len, shop.ticket_client.groups.values())) == 24 and len(shop.ticket_client.failures) == 8
        )
    assert shop.held == ()
    assert set(shop.ticket_client.failures) == {(group, sample) for group in (0, 2) for sample in range(4)}
    kind, reason = shop.ticket_client.failures[0, 3]
    assert kind is FailureKind.DATA
    assert "task bad: Scripted.step raised ZeroDivisionError" in reason


async def test_siblings_of_a_broken_episode_are_handed_in() -> None:
    """The environment of one episode in four breaks."""
    shop = Shop([task("t")])

    def environment() -> Scripted:
        return Odd(shop.environments, {"breaks": "reset"} if len(shop.environments) == 1 else {})

    shop.environment = environment
    async with shop.open():
        await shop.ticket_client.until(lambda: len(shop.ticket_client.finished(0)) == 3 and len(shop.ticket_client.failures) == 1)
    assert shop.ticket_client.finished(0) == [0, 2, 3]
    assert set(shop.ticket_client.failures) == {(0, 1)}


async def test_a_dead_engine_ends_the_worker_with_its_own_error() -> None:
    shop = Shop([task("t")])
    shop.engine.dead = True
    with pytest.raises(ComponentFailed, match="the fake engine died"):
        async with asyncio.timeout(60):
            await shop.worker.run(shop.stop)
    assert all(environment.closed == 1 for environment in shop.environments)


async def test_an_episode_that_is_cancelled_from_within_is_given_back() -> None:
    """Nobody of ours cancelled it: it was neither committed nor failed, and its lease was renewed for ever."""

    class Cancelling(Scripted):
        async def step(self, action: Action) -> StepResult:
            raise asyncio.CancelledError

    shop = Shop([task("t")])
    shop.environment = lambda: Cancelling(shop.environments)
    async with shop.open():
        await shop.ticket_client.until(lambda: len(shop.ticket_client.failures) == 4)
    assert shop.held == ()
    kind, reason = shop.ticket_client.failures[0, 2]
    assert (kind, reason.partition(" (")[0]) == (FailureKind.DATA, "task t: Cancelling.step raised CancelledError: ")


async def test_stopping_does_not_wait_for_an_environment_that_ignores_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf(Scripted):
        async def step(self, action: Action) -> StepResult:
            while not ends.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    stepping.set()
                    await ends.wait()
            return await super().step(action)

    monkeypatch.setattr(hosted, "CANCELLED_ENVIRONMENT_S", 0.05)
    stepping, ends = asyncio.Event(), asyncio.Event()
    shop = Shop([task("t")])
    shop.environment = lambda: Deaf(shop.environments)
    async with shop.open():
        await stepping.wait()
    assert shop.held == (0,)
    ends.set()


@pytest.mark.parametrize("victim", ["w waiting to be stopped", "w serving", "w renewing its leases", "group 0 sample 1"])
async def test_a_worker_one_of_whose_tasks_was_cancelled_by_others_does_not_look_alive(victim: str) -> None:
    shop = Shop([task("t")])
    shop.engine.gate.clear()
    running = asyncio.create_task(shop.worker.run(shop.stop))
    await shop.ticket_client.until(lambda: (0,) in shop.ticket_client.renewals)
    (cancelled,) = [each for each in asyncio.all_tasks() if each.get_name() == victim]
    cancelled.cancel()
    with pytest.raises(ProcessDied, match=f"w: its task {victim!r} was cancelled, and not by the worker"):
        async with asyncio.timeout(60):
            await running
    assert all(environment.closed == 1 for environment in shop.environments)


@in_virtual_time
async def test_an_engine_that_hangs_ends_the_worker() -> None:
    async def never() -> EngineLoad:
        return await asyncio.get_running_loop().create_future()

    shop = Shop([task("t")])
    shop.engine.gate.clear()
    shop.engine.report_load = never
    with pytest.raises(ProcessDied, match=r"w waited 120 s for its vLLM engine to end a step; .* raise deadlines.publish"):
        await shop.worker.run(shop.stop)
    assert all(environment.closed == 1 for environment in shop.environments)


async def test_an_environment_that_cancels_all_tasks_ends_the_worker() -> None:
    class Rampant(Scripted):
        async def step(self, action: Action) -> StepResult:
            for each in asyncio.all_tasks():
                if each is not test:
                    each.cancel()
            return await super().step(action)

    test = asyncio.current_task()
    shop = Shop([task("t")])
    shop.environment = lambda: Rampant(shop.environments)
    running = asyncio.create_task(shop.worker.run(shop.stop))
    async with asyncio.timeout(60):
        await asyncio.wait({running})
    assert running.cancelled()
    assert shop.ticket_client.groups == {}


async def test_stopping_hands_nothing_in_and_gives_nothing_back() -> None:
    shop = Shop([task(f"t{i}") for i in range(4)])
    shop.engine.gate.clear()
    async with shop.open():
        await shop.ticket_client.until(lambda: len(shop.ticket_client.tickets) == 2)
    assert shop.held == (0, 1)
    assert not shop.ticket_client.groups
    assert not shop.ticket_client.failures


async def test_leases_are_renewed_while_nothing_else_moves() -> None:
    """The engine stands still, weights are being loaded, and no commit is answered: the buffer hears of it anyway."""
    shop = Shop([task("t0"), task("t1"), task("t2")])
    shop.ticket_client.commits.clear()
    may_load = asyncio.Event()

    async def load_publication(publication: Publication) -> int:
        await may_load.wait()
        return publication.fingerprint

    shop.engine.load_publication = load_publication  # type: ignore[method-assign]
    async with shop.open():
        await shop.ticket_client.until(lambda: shop.worker.statistics().finished_episodes == 12)
        shop.engine.gate.clear()
        shop.ticket_client.tickets.append(Ticket(GroupId(9), task("t"), (0, 1), 0, PolicyVersion(0)))
        await shop.ticket_client.notify()
        await shop.ticket_client.until(lambda: (0, 1, 2, 9) in shop.ticket_client.renewals)
        loading = asyncio.create_task(
            shop.worker.load_publication(
                Publication(version=PolicyVersion(1), files=(), shards=(), fingerprints=(), fingerprint=5)
            )
        )
        shop.ticket_client.renewals.clear()
        await shop.ticket_client.until(lambda: len(shop.ticket_client.renewals) >= 3)
        assert not loading.done()
        may_load.set()
        assert await loading == 5
    assert set(shop.ticket_client.renewals) == {(0, 1, 2, 9)}


async def test_a_group_that_nobody_waits_for_is_stopped_at_once_and_makes_room() -> None:
    shop = Shop([task(f"t{i}") for i in range(3)])
    shop.engine.gate.clear()
    async with shop.open():
        await slots_filled(shop)
        await shop.ticket_client.until(lambda: (0, 1) in shop.ticket_client.renewals)
        assert shop.engine.running == 6
        shop.ticket_client.unwanted.add(GroupId(0))
        await shop.ticket_client.until(lambda: (1, 2) in shop.ticket_client.renewals)
        shop.engine.gate.set()
        await shop.ticket_client.until(lambda: sum(map(len, shop.ticket_client.groups.values())) == 8)
    assert set(shop.ticket_client.groups) == {1, 2}
    assert shop.held == ()
    assert not shop.ticket_client.failures


async def test_a_group_that_nobody_waits_for_reports_no_failure_even_if_its_environment_cannot_be_closed() -> None:
    """It may be another worker's by now, whose episode a late report would end."""
    shop = Shop([task("bad", breaks="close"), task("good")])
    shop.engine.gate.clear()
    async with shop.open():
        await slots_filled(shop)
        await shop.ticket_client.until(lambda: (0, 1) in shop.ticket_client.renewals)
        shop.ticket_client.unwanted.add(GroupId(0))
        await shop.ticket_client.until(lambda: (1,) in shop.ticket_client.renewals)
        shop.engine.gate.set()
        await shop.ticket_client.until(lambda: len(shop.ticket_client.finished(1)) == 4)
    assert sum(environment.closed for environment in shop.environments) == 8
    assert not shop.ticket_client.failures


async def test_a_group_that_came_back_while_it_was_called_off_is_kept() -> None:
    """The answer to a renewal is about the ticket that was held when it was asked; the newer one is somebody's wish."""
    shop = Shop([task("t")])
    shop.engine.gate.clear()
    async with shop.open():
        await shop.ticket_client.until(lambda: (0,) in shop.ticket_client.renewals)
        shop.ticket_client.answers.clear()
        shop.ticket_client.unwanted.add(GroupId(0))
        shop.ticket_client.renewals.clear()
        await shop.ticket_client.until(lambda: len(shop.ticket_client.renewals) == 1)
        shop.ticket_client.tickets.append(Ticket(GroupId(0), task("t"), (1, 2), 0, PolicyVersion(0)))
        await shop.ticket_client.notify()
        async with asyncio.timeout(60):
            while shop.engine.running != 2:  # noqa: ASYNC110 - the fake engine's state changes with the passes of the loop
                await asyncio.sleep(0)
        shop.ticket_client.answers.set()
        shop.ticket_client.unwanted.clear()
        shop.ticket_client.renewals.clear()
        await shop.ticket_client.until(lambda: (0,) in shop.ticket_client.renewals)
        shop.engine.gate.set()
        await shop.ticket_client.until(lambda: len(shop.ticket_client.finished(0)) == 2)
    assert shop.ticket_client.finished(0) == [1, 2]


async def test_nothing_is_asked_for_while_a_publication_is_loaded() -> None:
    shop = Shop([])
    may_load = asyncio.Event()

    async def load_publication(publication: Publication) -> int:
        await may_load.wait()
        shop.engine.version = publication.version
        return publication.fingerprint

    shop.engine.load_publication = load_publication  # type: ignore[method-assign]
    publication = Publication(version=PolicyVersion(1), files=(), shards=(), fingerprints=(), fingerprint=77)
    async with asyncio.TaskGroup() as group:
        loaded = group.create_task(shop.worker.load_publication(publication))
        await asyncio.sleep(0)
        running = group.create_task(shop.worker.run(shop.stop))
        await asyncio.sleep(0)
        assert shop.ticket_client.limits == []
        may_load.set()
        assert await loaded == 77
        await shop.ticket_client.until(lambda: len(shop.ticket_client.limits) == 1)
        shop.stop.set()
        await running


async def test_a_version_is_loaded_once_however_often_it_is_asked_for() -> None:
    """A driver that the answer did not reach asks again, while the worker loads and afterwards."""
    shop = Shop([])
    may_load, loaded = asyncio.Event(), list[int]()

    async def load_publication(publication: Publication) -> int:
        loaded.append(publication.version)
        await may_load.wait()
        return publication.fingerprint

    shop.engine.load_publication = load_publication  # type: ignore[method-assign]
    first, second = (
        Publication(version=PolicyVersion(each), files=(), shards=(), fingerprints=(), fingerprint=70 + each) for each in (1, 2)
    )
    unheard = asyncio.create_task(shop.worker.load_publication(first))
    await asyncio.sleep(0)
    unheard.cancel()
    again = [asyncio.create_task(shop.worker.load_publication(first)) for _ in range(2)]
    await asyncio.sleep(0)
    may_load.set()
    assert await asyncio.gather(*again) == [71, 71]
    assert await shop.worker.load_publication(first) == 71
    assert await shop.worker.load_publication(second) == 72
    assert loaded == [1, 2]


async def test_a_worker_that_waited_under_an_old_version_gets_tickets_at_the_new_one() -> None:
    """The buffer never answers the request that was made as version 0: it must not keep the worker from asking as version 1."""
    shop = Shop([])
    publication = Publication(version=PolicyVersion(1), files=(), shards=(), fingerprints=(), fingerprint=1)
    async with shop.open():
        await shop.ticket_client.until(lambda: len(shop.ticket_client.limits) == 1)
        await shop.worker.load_publication(publication)
        shop.ticket_client.clock = PolicyVersion(1)
        shop.ticket_client.tickets.append(Ticket(GroupId(0), task("t"), (0, 1, 2, 3), 0, shop.ticket_client.clock))
        await shop.ticket_client.notify()
        await shop.ticket_client.until(lambda: 0 in shop.ticket_client.groups)
    assert {span.version for row in shop.ticket_client.groups[0] for span in row.trajectories[0].version_spans} == {-1, 1}


async def test_evaluation_runs_beside_training_and_keeps_its_episodes() -> None:
    kept: list[tuple[int, list[tuple[str, int, str]]]] = []

    async def keep(version: PolicyVersion, episodes: Sequence[Episode], sources: Mapping[TaskId, str]) -> None:
        kept.append((version, [(each.task_id, each.sample_index, sources[each.task_id]) for each in episodes]))

    shop = Shop([task("train")], keep=keep)
    async with shop.open():
        held_out = [held(task(f"e{i}", rewards=[0.5, 0.25]), samples=1 + i % 2) for i in range(20)]
        results = await shop.worker.evaluate(held_out, PolicyVersion(3))
        await shop.ticket_client.until(lambda: 0 in shop.ticket_client.groups)
    played = [(each.task.id, sample, "held-out") for each in held_out for sample in range(each.samples)]
    assert [result.task_id for result in results] == [task_id for task_id, _, _ in played]
    assert set(results) == {
        EvaluationResult(t.task.id, 0.75, StopReason.ENVIRONMENT_DONE, 2, PolicyVersion(0), PolicyVersion(0)) for t in held_out
    }
    assert kept == [(3, played)]


async def test_an_evaluation_episode_that_breaks_has_no_reward() -> None:
    shop = Shop([])
    tasks = [held(task("bad", breaks="reset")), held(task("good"))]
    broken, good = await shop.worker.evaluate(tasks, PolicyVersion(0))
    assert isinstance(broken, BrokenEpisode)
    assert broken.problem.startswith("task bad: ")
    assert require_results([broken, good]) == [good]
    assert len(shop.environments) == RECIPE.buffer.max_attempts + 1
    with pytest.raises(
        EnvironmentBroken, match="none of 2 evaluation episodes of 1 task could be played; first error: task bad: "
    ):
        require_results([broken, broken])


async def test_the_first_sample_of_each_group_is_greedy_if_the_advantage_compares_with_it() -> None:
    remax = AlgorithmConfig(advantage=RemaxAdvantageConfig())
    shop = Shop([task("t0"), task("t1")], recipe=msgspec.structs.replace(RECIPE, algorithm=remax))
    async with shop.open():
        await shop.ticket_client.until(lambda: sum(map(len, shop.ticket_client.groups.values())) == 8)
    for rows in shop.ticket_client.groups.values():
        assert {row.sample_index: row.sampling.temperature for row in rows} == {0: 0.0, 1: 1.0, 2: 1.0, 3: 1.0}
    assert sorted(shop.engine.temperatures) == [0.0] * 2 + [1.0] * 6


async def test_an_episode_without_a_reward_that_the_recipe_names_is_given_back() -> None:
    several = AlgorithmConfig(advantage=GdpoAdvantageConfig(rewards={"steps": 1.0, "polite": 1.0}))
    shop = Shop([task("t", rewards=[1.0])], recipe=msgspec.structs.replace(RECIPE, algorithm=several))
    async with shop.open():
        await shop.ticket_client.until(lambda: len(shop.ticket_client.failures) == 4)
    kind, reason = shop.ticket_client.failures[0, 1]
    assert kind is FailureKind.DATA
    assert "task t" in reason
    assert "no metric 'polite'" in reason
    assert "reports malformed, steps" in reason
    assert shop.ticket_client.groups == {}


class Judge:
    """Scores 10 for each sample's index, but for one sample that fails as ``how`` says."""

    def __init__(self, how: FailureKind | None = None) -> None:
        self._how = how
        self.open = asyncio.Event()

    async def score(self, task: Task, episode: Episode) -> float:
        await self.open.wait()
        if episode.sample_index == 1 and self._how is FailureKind.DATA:
            return float("nan")
        if episode.sample_index == 1 and self._how is FailureKind.INFRASTRUCTURE:
            raise ScoringFailed(self._how, "the service is down")
        return 10.0 * episode.sample_index


@pytest.mark.parametrize("how", FailureKind)
async def test_an_episode_is_handed_in_with_its_score_or_given_back(how: FailureKind) -> None:
    judge = Judge(how)
    shop = Shop([task("t")], scoring=Scoring(judge, 0.0))
    judge.open.set()
    async with shop.open():
        await shop.ticket_client.until(
            lambda: len(shop.ticket_client.groups.get(0, [])) == 3 and len(shop.ticket_client.failures) == 1
        )
    assert {row.sample_index: row.reward for row in shop.ticket_client.groups[0]} == {0: 0.0, 2: 20.0, 3: 30.0}
    kind, reason = shop.ticket_client.failures[0, 1]
    assert kind is how
    assert ("service is down" if how is FailureKind.INFRASTRUCTURE else "is nan") in reason
    assert shop.worker.statistics().scoring.episodes == 3


async def test_episodes_that_wait_for_their_scores_take_no_room() -> None:
    judge = Judge()
    shop = Shop([task(f"t{i}") for i in range(6)], scoring=Scoring(judge, 0.0))
    async with shop.open():
        async with asyncio.timeout(60):
            while shop.worker.statistics().finished_episodes < 24:  # noqa: ASYNC110 - counted by the worker alone
                await asyncio.sleep(0)
        assert shop.ticket_client.groups == {}
        judge.open.set()
        await shop.ticket_client.until(lambda: sum(map(len, shop.ticket_client.groups.values())) == 24)


async def test_finished_episodes_are_counted_by_the_source_of_their_task() -> None:
    shop = Shop([], lambda row: "" if "silent" in row else "spoken")
    tickets = shop.ticket_client.tickets
    tickets.append(Ticket(GroupId(0), task("silent", metrics={"correct": 0.5}), (0, 1, 2, 3), 0, PolicyVersion(0), "easy.jsonl"))
    tickets.append(Ticket(GroupId(1), task("spoken", rewards=[0.0, 3.0]), (0, 1), 0, PolicyVersion(0), "hard.jsonl"))
    tickets.append(Ticket(GroupId(2), task("t", breaks="step"), (0, 1), 0, PolicyVersion(0), "broken.jsonl"))
    async with shop.open():
        await shop.ticket_client.until(lambda: len(shop.ticket_client.finished(0) + shop.ticket_client.finished(1)) == 6)
        await shop.ticket_client.until(lambda: len(shop.ticket_client.failures) == 2)
    finished = shop.worker.statistics().finished
    easy, hard = finished.sources["easy.jsonl"], finished.sources["hard.jsonl"]
    assert (easy.episodes, easy.reward, easy.turns, easy.empty_answers) == (4, 4.0, 4, 4)
    assert (hard.episodes, hard.reward, hard.turns, hard.empty_answers) == (2, 6.0, 4, 0)
    assert (easy.metrics["correct"].total, easy.stopped) == (2.0, {StopReason.ENVIRONMENT_DONE: 4})
    assert finished.sources.keys() == {"easy.jsonl", "hard.jsonl"}, "what broke its environment has finished nothing"
    assert finished.episode.count == finished.queue.count == 6


async def test_a_worker_s_time_adds_up() -> None:
    made, shop = time.monotonic(), Shop([task("t")], recipe=RECIPE)
    made_until = time.monotonic()
    async with shop.open():
        await shop.ticket_client.until(lambda: len(shop.ticket_client.finished(0)) == 4)
        await shop.worker.evaluate([held(task("e"))], PolicyVersion(0))
        before = time.monotonic()
        use = shop.worker.statistics().time
        assert before - made_until <= use.wall <= time.monotonic() - made
    assert min(use.sampling, use.evaluating, use.tools, use.tickets) > 0
    assert use.scoring == use.paused == 0
