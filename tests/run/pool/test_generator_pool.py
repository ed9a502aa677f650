import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import NoReturn

import pytest
from fake_generator import FakeGenerator, SameNode, publication
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.errors import (
    BudgetExceeded,
    ComponentFailed,
    DeadlineExceeded,
    EventLoopBlocked,
    HandedBack,
    ProcessDied,
    RecipeError,
    WeightMismatch,
    WeightsOutOfReach,
)
from asyncrl.core.ids import PolicyVersion, TaskId, WorkerId
from asyncrl.core.measures.time_split import GeneratorTime
from asyncrl.core.plug_ins.error_counts import CountedError
from asyncrl.core.publication import Publication, WeightFile
from asyncrl.core.recipe.generators import MAIN_POOL, GeneratorsConfig
from asyncrl.core.recipe.schema import DeadlinesConfig
from asyncrl.core.task import Task
from asyncrl.envs.hosting.event_loop import EventLoopThread
from asyncrl.generators.evaluation import HeldOutTask
from asyncrl.generators.scoring import ScoringUse
from asyncrl.generators.worker import GeneratorStatistics
from asyncrl.run.nodes.node_watch import NodeWatch
from asyncrl.run.pool import growth, successors
from asyncrl.run.pool.generator_pool import GeneratorPool, GeneratorSupply
from asyncrl.run.pool.slots import GeneratorSlot
from asyncrl.weights.delivery_rules import VERSIONS_IN_FILES
from asyncrl.weights.shm.memory_file import MemoryFull

DEADLINES = DeadlinesConfig(straggler=10.0)
TASKS = [HeldOutTask(Task(id=TaskId(f"e{i}"), prompt="p", data={}), "held-out") for i in range(7)]


class Shop:
    """A pool of fakes; ``successor`` is applied to each one made in place of another, ``budget`` deaths are allowed."""

    def __init__(self, size: int = 2, budget: int = 100, pools: Mapping[str, GeneratorsConfig] | None = None) -> None:
        self.now, self.room, self.grows, self.free = 0.0, 100, False, 1 << 40
        self.log: list[str] = []
        self.notes: list[str] = []
        self.made: list[FakeGenerator] = []
        self.successor: Callable[[FakeGenerator], None] = lambda fake: None
        self._size, self._budget = size, budget
        self.far: Callable[[int], bool] = lambda number: False
        self.watch = NodeWatch(self._ask, lambda: {"far"}, 1.0)
        self.pool = GeneratorPool(
            pools or {MAIN_POOL: GeneratorsConfig(count=size)},
            GeneratorSupply(self._make, self._lost, self._find_room),
            DEADLINES,
            self.notes.append,
            SameNode(),
            lambda: self.now,
            nodes=self.watch,
        )

    async def _find_room(self, pool: str, number: int, successors: bool, lacking: Callable[[RecipeError], None]) -> None:
        def has_room() -> bool:
            return sum(fake.alive for fake in self.made) + number <= self.room

        if not has_room():
            no_room = RecipeError("generators", "no node has room for one more engine", "free some")
            if not (successors or self.grows):
                raise no_room
            lacking(no_room)
            await self.until(has_room)

    def _make(self, pool: str, number: int) -> FakeGenerator:
        fake = FakeGenerator(number, self.log, "far" if self.far(number) else "")
        assert f"generator-{number}" not in {each.worker for each in self.made}, "numbers are given out once"
        self.made.append(fake)
        if number >= self._size:
            self.successor(fake)
        return fake

    async def _ask(self, node: str) -> int:
        return self.free

    async def _lost(self, worker: WorkerId, with_node: bool) -> None:
        await asyncio.sleep(0)
        if with_node:
            self.log.append(f"{worker} lost with its node")
            return
        self._budget -= 1
        if self._budget < 0:
            raise BudgetExceeded("one too many")
        self.log.append(f"{worker} lost")

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - fakes change with the passes of the loop only
                await asyncio.sleep(0)

    async def settle(self) -> None:
        """Let the loop pass as often as anything here could need."""
        for _ in range(50):
            await asyncio.sleep(0)

    @asynccontextmanager
    async def generating(self, *, version: int = 0) -> AsyncIterator["asyncio.Task[None]"]:
        """Everything up and generating with ``version``; stopped at the end."""
        await self.pool.start()
        await self.pool.deliver(publication(version))
        running = asyncio.create_task(self.pool.generate())
        await self.until(lambda: sum("runs" in line for line in self.log) == self._size)
        try:
            yield running
            await self.pool.stop()
            async with asyncio.timeout(60):
                await asyncio.wait({running})
        finally:
            running.cancel()
            await self.pool.close(1.0)


async def test_a_dead_generator_is_reported_and_its_successor_catches_up_before_it_runs() -> None:
    shop = Shop()
    async with shop.generating(version=3):
        shop.log.clear()
        shop.made[0].die()
        await shop.until(lambda: "generator-2 runs" in shop.log)
    assert shop.log[:5] == ["generator-0 lost", "generator-2 made", "generator-2 up", "generator-2 loaded 3", "generator-2 runs"]
    assert not any("generator-1" in line for line in shop.log[:5])
    assert "generator-0: its process died (killed)" in shop.notes[0]
    assert "generator-2 takes its place" in shop.notes[0]
    assert "caught up with version 3" in shop.notes[1]


async def test_a_successor_that_dies_is_replaced_as_well() -> None:
    shop = Shop(size=1)
    async with shop.generating():
        for number in range(5):
            shop.made[number].die()
            await shop.until(lambda number=number: f"generator-{number + 1} runs" in shop.log)
    assert [line for line in shop.log if "lost" in line] == [f"generator-{number} lost" for number in range(5)]


async def test_deliveries_do_not_wait_for_a_generator_that_is_coming_up_and_it_does_not_miss_them() -> None:
    shop = Shop()
    shop.successor = lambda fake: fake.may_start.clear()
    async with shop.generating():
        shop.made[1].die()
        await shop.until(lambda: len(shop.made) == 3)
        async with asyncio.timeout(60):
            await shop.pool.deliver(publication(1))
            await shop.pool.deliver(publication(2))
        shop.made[2].may_start.set()
        await shop.until(lambda: "generator-2 runs" in shop.log)
        await shop.pool.deliver(publication(3))
    assert shop.made[0].loaded == [0, 1, 2, 3]
    assert shop.made[2].loaded == [2, 3]


async def test_a_delivery_does_not_wait_for_one_that_is_catching_up_and_it_goes_on_to_the_newest() -> None:
    shop = Shop()
    shop.successor = lambda fake: fake.may_load.clear()
    async with shop.generating():
        shop.made[1].die()
        await shop.until(lambda: len(shop.made) == 3 and shop.made[2].loading is not None)
        async with asyncio.timeout(60):
            await shop.pool.deliver(publication(1))
            await shop.pool.deliver(publication(2))
        assert shop.made[0].loaded == [0, 1, 2]
        shop.made[2].may_load.set()
        await shop.until(lambda: "generator-2 loaded 2" in shop.log)
    assert shop.made[2].loaded == [0, 2]


async def test_a_slow_generator_falls_behind_and_skips_to_the_newest_version() -> None:
    shop = Shop(size=3)
    async with shop.generating():
        slow = shop.made[1]
        slow.may_load.clear()
        delivering = asyncio.create_task(shop.pool.deliver(publication(1)))
        await shop.until(lambda: shop.made[0].loaded == shop.made[2].loaded == [0, 1])
        await shop.settle()
        assert not delivering.done()
        shop.now += DEADLINES.straggler
        shop.pool._delivery._changed.set()  # the clock is the test's, the timer is not
        async with asyncio.timeout(60):
            await delivering
            for version in (2, 3):
                await shop.pool.deliver(publication(version))
        slow.may_load.set()
        await shop.until(lambda: slow.loaded == [0, 1, 3])
        async with asyncio.timeout(60):
            await shop.pool.deliver(publication(4))
            await shop.until(lambda: slow.loaded == [0, 1, 3, 4])
    assert [note for note in shop.notes if "generator-1" in note] == [
        "generator-1 does not have version 1 yet (it is loading): the others go on, and it gets no tickets until it has caught "
        "up; raise deadlines.straggler (10 s) to have them wait longer"
    ]


async def test_a_generator_that_weights_cannot_reach_is_replaced() -> None:
    shop = Shop()
    cut_off = iter([ComponentFailed("the node cannot be reached")])

    async def fetch_to_node(publication: Publication, node: str) -> Publication:
        for error in cut_off:
            raise error
        return publication

    async with shop.generating():
        shop.pool._delivery._transport.fetch_to_node = fetch_to_node  # type: ignore[method-assign]
        await shop.pool.deliver(publication(1))
        await shop.until(lambda: "generator-2 runs" in shop.log)
    assert shop.notes[0].startswith("generator-0: version 1 did not reach its node: the node cannot be reached. Its episodes")
    assert shop.made[2].loaded == [1]


async def test_a_generator_that_cannot_load_a_publication_is_replaced_and_the_others_go_on() -> None:
    """Its tokens would be of weights that nobody knows."""
    shop = Shop()

    async def load_publication(publication: Publication) -> int:
        raise WeightMismatch("version 1 could not be loaded: out of memory")

    async with shop.generating():
        shop.made[0].load_publication = load_publication  # type: ignore[method-assign]
        await shop.pool.deliver(publication(1))
        await shop.until(lambda: "generator-2 runs" in shop.log)
    assert shop.notes[0].startswith("generator-0: version 1 could not be loaded: out of memory. Its episodes are issued again")
    assert (shop.made[1].loaded, shop.made[2].loaded) == ([0, 1], [1])


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 3))
def test_nobody_reads_a_publication_that_is_being_overwritten(seed: int, size: int) -> None:
    """Deaths, starts and loading take random times, and so do slow generators that fall behind. The learner writes each version
    over one that nobody reads; in the end, all that are up have the newest version, loaded in order."""
    random = Random(seed)

    async def passes(at_most: int) -> None:
        for _ in range(random.randrange(at_most)):
            await asyncio.sleep(0)

    async def gate(fake: FakeGenerator) -> None:
        """Opens a generator's gates after a while."""
        await passes(60)
        fake.may_start.set()
        await passes(200)
        fake.may_load.set()

    async def run() -> None:
        shop = Shop(size)
        gates: list[asyncio.Task[None]] = []
        places: list[int | None] = [None] * VERSIONS_IN_FILES

        def held_back(fake: FakeGenerator) -> None:
            fake.may_start.clear()
            fake.may_load.clear()
            gates.append(asyncio.create_task(gate(fake)))

        async def time_passes() -> None:
            while True:
                shop.now += random.random()
                shop.pool._delivery._changed.set()
                await asyncio.sleep(0)

        shop.successor = held_back
        async with shop.generating():
            ticking = asyncio.create_task(time_passes())
            for version in range(1, 12):
                read = await shop.pool.may_write()
                place = next(place for place, there in enumerate(places) if there not in read)
                for _ in range(random.randrange(4)):  # the writing of one version takes a few passes
                    await asyncio.sleep(0)
                    assert places[place] not in {fake.loading.version for fake in shop.made if fake.loading is not None}
                places[place] = version
                running = [fake for fake in shop.made if f"{fake.worker} runs" in shop.log and fake.alive]
                if running and random.random() < 0.5:
                    random.choice(running).die()
                elif running and random.random() < 0.5:
                    held_back(random.choice(running))
                await passes(40)
                await shop.pool.deliver(publication(version))
            newest = version
            await asyncio.gather(*gates)
            await shop.until(lambda: sum(fake.alive for fake in shop.made) == size)
            alive = [fake for fake in shop.made if fake.alive]
            await shop.until(lambda: all(f"{fake.worker} runs" in shop.log for fake in alive))
            await shop.until(lambda: all(fake.loaded[-1] == newest for fake in alive))
            ticking.cancel()
        assert all(fake.loaded == sorted(set(fake.loaded)) for fake in shop.made)
        for fake in shop.made[size:]:
            if f"{fake.worker} runs" in shop.log:
                line = [line for line in shop.log if line.startswith(f"{fake.worker} ")]
                assert line[2].startswith(f"{fake.worker} loaded"), "it ran before it had caught up"

    asyncio.run(run())


class Far(Shop):
    """Its second generator, and the successors up to a number, are on another node."""

    def __init__(self, until: int = 2, budget: int = 100) -> None:
        super().__init__(budget=budget)
        self.far = lambda number: 0 < number < until
        for fake in self.made[1:]:
            fake.node = "far"


async def test_nobody_waits_for_a_generator_whose_node_does_not_answer_and_it_goes_on_when_it_does() -> None:
    shop = Far()
    async with shop.generating():
        far = shop.made[1]
        far.tokens = 5
        await shop.pool.statistics()
        for gate in (far.may_load, far.may_count):
            gate.clear()
        delivering = asyncio.create_task(shop.pool.deliver(publication(1)))
        counting = asyncio.create_task(shop.pool.statistics())
        scoring = asyncio.create_task(shop.pool.score([[1, 2]], 1))
        await shop.until(lambda: shop.made[0].loaded == [0, 1] and far.loading is not None)
        await shop.settle()
        assert not delivering.done()
        assert not counting.done()
        shop.watch._silent["far"].set()
        assert shop.pool.cut_off("far") == ["generator-1"]
        async with asyncio.timeout(60):
            await delivering
            assert [each.tokens_generated for each in await counting] == [0, 5]
            assert await scoring is None
            assert {(await shop.pool.score([[1, 2]], turn)).worker for turn in range(4)} == {"generator-0"}
            await shop.pool.deliver(publication(2))
            await shop.pool.statistics()
        shop.watch._silent["far"].clear()
        for gate in (far.may_load, far.may_count):
            gate.set()
        await shop.until(lambda: far.loaded == [0, 1, 2])
        far.tokens = 7
        assert [each.tokens_generated for each in await shop.pool.statistics()] == [0, 7]
        far.may_load.clear()
        delivering = asyncio.create_task(shop.pool.deliver(publication(3)))
        await shop.until(lambda: shop.made[0].loaded[-1] == 3)
        await shop.settle()
        assert not delivering.done(), "it was in time, so it is waited for again"
        far.may_load.set()
        await delivering
    assert not any("lost" in line for line in shop.log)
    assert shop.notes == []


async def test_generators_that_are_lost_with_their_node_are_no_failures_however_many() -> None:
    shop = Far(until=8, budget=0)

    def lost(fake: FakeGenerator) -> None:
        if fake.node == "far":
            fake.die()

    async with shop.generating():
        shop.watch._silent["far"].set()
        shop.successor = lost
        shop.made[1].die()
        await shop.until(lambda: "generator-8 runs" in shop.log)
    assert [line for line in shop.log if "lost" in line] == [f"generator-{number} lost with its node" for number in range(1, 8)]
    assert "generator-3: its node does not answer" in "".join(shop.notes)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("silent", "free", "why"), [(True, 1 << 40, "does not answer"), (False, 0, "had 0 MiB free")])
async def test_a_run_begins_without_a_generator_whose_node_is_lost_or_full_and_takes_its_successor_later(
    silent: bool, free: int, why: str, late: bool
) -> None:
    shop = Far(budget=0)
    shop.free = free
    if silent:
        shop.watch._silent["far"].set()

    async def passes_its_deadline() -> None:
        raise DeadlineExceeded("the driver", "generator-1 to start", 1.0, "raise deadlines.start")

    if late:
        shop.made[1].start = passes_its_deadline  # type: ignore[method-assign]
    else:
        shop.made[1].die()
    await shop.pool.start()
    await shop.pool.deliver(publication(0))
    running = asyncio.create_task(shop.pool.generate())
    await shop.until(lambda: "generator-2 runs" in shop.log)
    await shop.pool.stop()
    await running
    assert "generator-1 lost with its node" in shop.log
    assert shop.notes[0].startswith("generator-1: its node ")
    assert shop.notes[0].endswith("The run begins without it")
    assert why in shop.notes[0]


async def test_a_run_does_not_begin_without_any_generator() -> None:
    shop = Far()
    shop.made[0].die()
    with pytest.raises(ProcessDied, match="generator-0: its process died"):
        await shop.pool.start()
    shop = Shop(size=1)
    shop.made[0].node, shop.free = "far", 0
    shop.made[0].die()
    with pytest.raises(ComponentFailed, match=r"no generator is left: generator-0: its node is full.*had 0 MiB free"):
        await shop.pool.start()


async def test_event_loops_that_seem_blocked_on_a_node_that_does_not_answer_do_not_end_the_run() -> None:
    shop = Far(until=8, budget=0)

    def silent(fake: FakeGenerator) -> None:
        if fake.node == "far":
            blocked(fake)

    await shop.pool.start()
    silent(shop.made[1])
    shop.successor = silent
    shop.watch._silent["far"].set()
    running = asyncio.create_task(shop.pool.generate())
    await shop.until(lambda: "generator-8 runs" in shop.log)
    await shop.pool.stop()
    await running


async def test_no_successor_is_made_on_a_node_whose_memory_is_full() -> None:
    shop = Far()
    files = (WeightFile("rank-0", "", 700), WeightFile("rank-1", "", 30))
    large = Publication(version=PolicyVersion(1), files=files, shards=(), fingerprints=(), fingerprint=1001)

    async def fetch_to_node(publication: Publication, node: str) -> Publication:
        if node == "far":
            raise MemoryFull("/dev/shm/mirror: no room for 700 bytes of weights")
        return publication

    async with shop.generating():
        shop.pool._delivery._transport.fetch_to_node = fetch_to_node  # type: ignore[method-assign]
        await shop.pool.deliver(large)
        await shop.until(lambda: "generator-2 runs" in shop.log)
    assert shop.watch._needed == {"far": 730}
    assert shop.notes[0].startswith("generator-1: version 1 did not reach its node: /dev/shm/mirror: no room for 700 bytes")
    assert (shop.made[0].loaded, shop.made[2].loaded) == ([0, 1], [1])


async def test_a_node_that_weights_do_not_come_to_gets_no_engine_and_counts_as_no_failure() -> None:
    shop = Shop(size=1, budget=1)
    blind = [f"blind-{number}" for number in range(successors.SUCCESSORS_IN_A_ROW + 2)]

    async def check_reach(newest: Publication, node: str) -> None:
        if node in blind:
            raise WeightsOutOfReach(f"node {node} does not see the folder")

    def at_the_first_node_that_is_not_avoided(fake: FakeGenerator) -> None:
        fake.node = next(node for node in [*blind, "seeing"] if node not in shop.watch.avoided)

    shop.successor = at_the_first_node_that_is_not_avoided
    async with shop.generating():
        shop.pool._delivery._transport.check_reach = check_reach  # type: ignore[method-assign]
        shop.made[0].die()
        last = len(blind) + 1
        await shop.until(lambda: f"generator-{last} runs" in shop.log)
        assert await shop.pool.scale("generators", 2) == f"generator-{last + 1} is coming up"
        await shop.until(lambda: f"generator-{last + 1} runs" in shop.log)
    assert [fake.node for fake in shop.made[1:]] == [*blind, "seeing", "seeing"]
    assert [line for line in shop.log if line.endswith(" up")] == [f"generator-{each} up" for each in (0, last, last + 1)]
    assert shop.notes[1].startswith("generator-1: node blind-0 does not see the folder. Its episodes are issued again")


async def test_a_newcomer_on_a_node_that_weights_do_not_come_to_leaves_the_run_as_it_was() -> None:
    shop = Shop(size=1)

    async def check_reach(newest: Publication, node: str) -> None:
        raise WeightsOutOfReach("node blind does not see the folder")

    shop.successor = lambda fake: setattr(fake, "node", "blind")
    async with shop.generating():
        shop.pool._delivery._transport.check_reach = check_reach  # type: ignore[method-assign]
        await shop.pool.scale("generators", 2)
        await shop.until(lambda: "generator-1 lost" in shop.log)
        assert (shop.watch.avoided, shop.pool.sizes) == ({"blind": "new weights do not come to it"}, {"generators": 1})
    assert shop.notes[-1] == (
        "generator-1 did not come up, and the run goes on without it: generator-1: node blind does not see the folder"
    )


async def test_a_publication_goes_on_with_the_living() -> None:
    shop = Shop()
    async with shop.generating():
        shop.made[1].may_load.clear()
        delivering = asyncio.create_task(shop.pool.deliver(publication(1)))
        await shop.until(lambda: shop.made[1].loading is not None)
        shop.made[1].die()
        async with asyncio.timeout(60):
            await delivering
        await shop.until(lambda: "generator-2 runs" in shop.log)
    assert shop.made[2].loaded == [1]
    assert shop.made[0].loaded == [0, 1]


async def test_a_generator_whose_engine_died_is_ended_and_replaced() -> None:
    """Its process lives and its pump waits for work: only the one call says what happened."""
    shop = Shop()

    async def load_publication(publication: object) -> int:
        raise ProcessDied("the vLLM engine died while version 1 was loaded")

    async with shop.generating():
        shop.made[0].load_publication = load_publication  # type: ignore[method-assign]
        await shop.pool.deliver(publication(1))
        await shop.until(lambda: "generator-2 runs" in shop.log)
    assert "generator-0 lost" in shop.log
    assert shop.notes[0].startswith("generator-0: the vLLM engine died while version 1 was loaded.")
    assert shop.made[2].loaded == [1]


def late(what: str) -> Callable[..., Awaitable[NoReturn]]:
    """A call whose deadline has passed, as a generator's handle tells of it: the engine is frozen, the process is not."""

    async def call(*arguments: object) -> NoReturn:
        raise DeadlineExceeded("the driver", f"generator-0 to {what}", 120.0, "see its log; raise the deadline")

    return call


async def test_a_generator_that_does_not_load_in_time_is_ended_and_replaced() -> None:
    shop = Shop()
    async with shop.generating():
        shop.made[0].load_publication = late("load version 1")  # type: ignore[method-assign]
        await shop.pool.deliver(publication(1))
        await shop.until(lambda: "generator-2 runs" in shop.log)
        assert not shop.made[0].alive
    assert [line for line in shop.log if "lost" in line] == ["generator-0 lost"]
    assert shop.notes[0].startswith("generator-0: the driver waited 120 s for generator-0 to load version 1; see its log")
    assert shop.made[1].loaded == [0, 1]
    assert shop.made[2].loaded == [1]


async def test_successors_that_do_not_load_in_time_end_the_run() -> None:
    """A deadline that is too short for the model: the reason says which."""
    shop = Shop()

    def frozen(fake: FakeGenerator) -> None:
        fake.load_publication = late("load version 0")  # type: ignore[method-assign]

    shop.successor = frozen
    async with shop.generating() as running:
        shop.made[1].die()
        with pytest.raises(ComponentFailed, match=r"3 in a row died; the last: generator-4: .* to load version 0; .*deadline"):
            await running


async def test_one_late_generator_too_many_ends_the_run() -> None:
    shop = Shop(budget=0)
    async with shop.generating() as running:
        shop.made[0].load_publication = late("load version 1")  # type: ignore[method-assign]
        await shop.pool.deliver(publication(1))
        with pytest.raises(BudgetExceeded, match="one too many: generator-0: the driver waited 120 s for generator-0 to load"):
            await running


@pytest.mark.parametrize("call", ["evaluate", "statistics"])
async def test_a_generator_that_does_not_answer_in_time_is_replaced(call: str) -> None:
    shop = Shop()
    async with shop.generating():
        setattr(shop.made[0], call, late(call))
        results = (await shop.pool.evaluate(TASKS, PolicyVersion(0))).episodes
        counters = await shop.pool.statistics()
        await shop.until(lambda: "generator-2 runs" in shop.log)
    assert sorted(result.task_id for result in results) == [each.task.id for each in TASKS]
    assert len(counters) == 2
    assert f"generator-0: the driver waited 120 s for generator-0 to {call}" in shop.notes[0]


async def test_an_evaluation_that_nobody_ever_answers_ends_and_says_why() -> None:
    shop = Shop(size=1)

    def slow(fake: FakeGenerator) -> None:
        fake.evaluate = late("evaluate")  # type: ignore[method-assign]

    shop.successor = slow
    async with shop.generating():
        slow(shop.made[0])
        with pytest.raises(
            ComponentFailed, match=r"nobody answered an evaluation, 3 times in a row; .*: generator-2: .* to evaluate"
        ):
            await shop.pool.evaluate(TASKS, PolicyVersion(0))


async def test_the_tasks_of_a_dead_generator_are_evaluated_by_the_others() -> None:
    shop = Shop(size=3)
    async with shop.generating():
        for fake in shop.made:
            fake.may_evaluate.clear()
        evaluating = asyncio.create_task(shop.pool.evaluate(TASKS, PolicyVersion(0)))
        await shop.settle()
        shop.made[1].die()
        for fake in shop.made:
            fake.may_evaluate.set()
        async with asyncio.timeout(60):
            results = (await evaluating).episodes
    assert sorted(result.task_id for result in results) == [each.task.id for each in TASKS]


async def test_a_pinned_evaluation_is_of_one_version_while_the_others_load_newer_ones() -> None:
    """Generators that hold their version get no publication; afterwards they load the newest one, and only that."""
    shop = Shop(size=3)
    async with shop.generating(version=4):
        for fake in shop.made:
            fake.may_evaluate.clear()
        evaluating = asyncio.create_task(shop.pool.evaluate(TASKS, PolicyVersion(4), pinned=True))
        await shop.settle()
        async with asyncio.timeout(60):
            await shop.pool.deliver(publication(5))
            await shop.pool.deliver(publication(6))
        assert [fake.loaded for fake in shop.made] == [[4], [4, 5, 6], [4, 5, 6]]
        shop.made[0].may_evaluate.set()
        async with asyncio.timeout(60):
            results = (await evaluating).episodes
        await shop.until(lambda: [fake.loaded for fake in shop.made] == [[4, 6], [4, 5, 6], [4, 5, 6]])
        await shop.pool.deliver(publication(7))
        assert all(fake.loaded[-1] == 7 for fake in shop.made)
    assert {result.reward for result in results} == {4.0}
    assert sorted(result.task_id for result in results) == [each.task.id for each in TASKS]


async def test_a_publication_waits_for_the_evaluation_that_holds_the_only_generator() -> None:
    shop = Shop(size=1)
    async with shop.generating():
        shop.made[0].may_evaluate.clear()
        evaluating = asyncio.create_task(shop.pool.evaluate(TASKS, PolicyVersion(0), pinned=True))
        await shop.settle()
        delivering = asyncio.create_task(shop.pool.deliver(publication(1)))
        await shop.settle()
        assert not delivering.done()
        shop.made[0].may_evaluate.set()
        async with asyncio.timeout(60):
            results = (await evaluating).episodes
            await delivering
    assert ({result.reward for result in results}, shop.made[0].loaded) == ({0.0}, [0, 1])


async def test_the_tasks_of_a_dead_generator_that_held_its_version_are_played_by_one_that_holds_its_own() -> None:
    shop = Shop(size=2)
    async with shop.generating(version=1):
        for fake in shop.made:
            fake.may_evaluate.clear()
        evaluating = asyncio.create_task(shop.pool.evaluate(TASKS, PolicyVersion(1), pinned=True))
        await shop.settle()
        await shop.pool.deliver(publication(2))
        shop.made[0].die()
        await shop.settle()
        shop.made[1].may_evaluate.set()
        async with asyncio.timeout(60):
            results = (await evaluating).episodes
            await shop.pool.deliver(publication(3))
        assert {result.reward for result in results} == {2.0}
        assert shop.made[1].loaded == [1, 2, 3]


async def test_without_training_a_pinned_evaluation_is_played_by_all() -> None:
    shop = Shop(size=2)
    await shop.pool.start()
    for fake in shop.made:
        fake.may_evaluate.clear()
    evaluating = asyncio.create_task(shop.pool.evaluate(TASKS, PolicyVersion(0), pinned=True))
    await shop.settle()
    shop.made[0].may_evaluate.set()
    await shop.settle()
    assert not evaluating.done(), "the other one has tasks, too"
    shop.made[1].may_evaluate.set()
    assert len((await evaluating).episodes) == len(TASKS)


async def test_a_generator_that_dies_in_the_first_evaluation_is_replaced() -> None:
    shop = Shop(size=1)
    await shop.pool.start()
    shop.made[0].may_evaluate.clear()
    evaluating = asyncio.create_task(shop.pool.evaluate(TASKS, PolicyVersion(0)))
    await shop.settle()
    shop.made[0].die()
    assert {result.task_id for result in (await evaluating).episodes} == {each.task.id for each in TASKS}
    assert "generator-0 lost" in shop.log
    assert "generator-1 up" in shop.log


async def test_a_generator_that_dies_in_the_last_evaluation_is_replaced_once() -> None:
    shop = Shop(size=1)
    async with shop.generating() as running:
        await shop.pool.stop()
        await running
        shop.made[0].may_evaluate.clear()
        evaluating = asyncio.create_task(shop.pool.evaluate(TASKS, PolicyVersion(0)))
        await shop.settle()
        shop.made[0].die()
        assert len((await evaluating).episodes) == len(TASKS)


async def test_an_evaluation_waits_for_the_successor_when_nobody_else_is_left() -> None:
    shop = Shop(size=1)
    shop.successor = lambda fake: fake.may_start.clear()
    async with shop.generating(version=4):
        shop.made[0].may_evaluate.clear()
        evaluating = asyncio.create_task(shop.pool.evaluate(TASKS, PolicyVersion(4)))
        await shop.settle()
        shop.made[0].die()
        await shop.until(lambda: len(shop.made) == 2)
        await shop.settle()
        await shop.pool.deliver(publication(9))
        assert not evaluating.done()
        shop.made[1].may_start.set()
        async with asyncio.timeout(60):
            played = await evaluating
    assert {result.reward for result in played.episodes} == {9.0}
    assert len(played.episodes) == len(TASKS)
    assert played.version == 9, "it stands for the version that played it, not for the one that was published when it was due"


async def test_stopping_does_not_wait_for_a_successor_and_a_last_evaluation_does() -> None:
    shop = Shop(size=1)
    shop.successor = lambda fake: fake.may_start.clear()
    async with shop.generating(version=9) as running:
        shop.made[0].die()
        await shop.until(lambda: len(shop.made) == 2)
        await shop.pool.stop()
        async with asyncio.timeout(60):
            await running
        evaluating = asyncio.create_task(shop.pool.evaluate(TASKS, PolicyVersion(0)))
        await shop.settle()
        shop.made[1].may_start.set()
        async with asyncio.timeout(60):
            assert {result.reward for result in (await evaluating).episodes} == {9.0}
    assert "generator-1 runs" not in shop.log


async def test_nobody_left_ends_the_run_with_the_last_death() -> None:
    shop = Shop()
    await shop.pool.start()
    for fake in shop.made:
        fake.die()
    with pytest.raises(ComponentFailed, match=r"no generator is left: generator-[01]: its process died"):
        await shop.pool.deliver(publication(0))
    assert len((await shop.pool.evaluate(TASKS, PolicyVersion(0))).episodes) == len(TASKS), (
        "an evaluation has one of them replaced"
    )


async def test_a_generator_that_died_before_generation_began_is_replaced_when_it_begins() -> None:
    shop = Shop()
    await shop.pool.start()
    shop.made[0].die()
    await shop.pool.deliver(publication(0))
    assert len((await shop.pool.evaluate(TASKS, PolicyVersion(0))).episodes) == len(TASKS)
    assert len(shop.made) == 2
    running = asyncio.create_task(shop.pool.generate())
    await shop.until(lambda: "generator-2 runs" in shop.log)
    await shop.pool.stop()
    await running


async def test_a_successor_that_dies_while_it_comes_up_is_replaced() -> None:
    shop = Shop()
    shop.successor = lambda fake: fake.die() if fake.worker in ("generator-2", "generator-3") else None
    async with shop.generating(version=5):
        shop.made[1].die()
        await shop.until(lambda: "generator-4 runs" in shop.log)
    assert [line for line in shop.log if "lost" in line] == ["generator-1 lost", "generator-2 lost", "generator-3 lost"]
    assert shop.made[4].loaded == [5]
    assert [note.partition(". ")[0] for note in shop.notes[:3]] == [
        f"generator-{number}: its process died (killed)" for number in (1, 2, 3)
    ]


async def test_successors_that_never_come_up_end_the_run() -> None:
    shop = Shop()
    shop.successor = lambda fake: fake.die()
    async with shop.generating() as running:
        shop.made[1].die()
        with pytest.raises(ComponentFailed, match=r"3 in a row died; the last: generator-4: its process died \(killed\)"):
            await running
    assert len(shop.made) == 2 + 3


async def test_a_successor_that_is_too_slow_ends_the_run_and_is_named() -> None:
    shop = Shop()

    def slow(fake: FakeGenerator) -> None:
        async def start() -> None:
            raise DeadlineExceeded("the driver", f"{fake.worker} to start", 1.0, "raise deadlines.start")

        fake.start = start  # type: ignore[method-assign]

    shop.successor = slow
    async with shop.generating() as running:
        shop.made[1].die()
        with pytest.raises(ComponentFailed, match=r"generator-2 could not take the place of generator-1: .*generator-2 to start"):
            await running


async def test_a_successor_that_loads_something_else_ends_the_run() -> None:
    shop = Shop()

    def corrupt(fake: FakeGenerator) -> None:
        fake.corrupts = True

    shop.successor = corrupt
    async with shop.generating() as running:
        shop.made[0].die()
        with pytest.raises(WeightMismatch, match="generator-2 loaded weights with fingerprint"):
            await running


async def test_what_was_loaded_must_be_what_was_published() -> None:
    shop = Shop()
    async with shop.generating():
        shop.made[1].corrupts = True
        with pytest.raises(WeightMismatch, match="generator-1 loaded weights with fingerprint 0x00000000000003ea, version 1 was"):
            await shop.pool.deliver(publication(1))


async def test_one_death_too_many_ends_the_run() -> None:
    shop = Shop(budget=1)
    async with shop.generating() as running:
        shop.made[0].die()
        await shop.until(lambda: "generator-2 runs" in shop.log)
        shop.made[2].die()
        with pytest.raises(BudgetExceeded, match=r"one too many: generator-2: its process died \(killed\)"):
            await running


class InThread(FakeGenerator):
    """Generates in an event loop of its own, as the actor does, until the user's code has ended that."""

    async def run(self) -> None:
        loop = EventLoopThread(self.worker, 60.0)

        async def generate() -> None:
            self._say("runs")
            asyncio.get_running_loop().call_soon(self.hostile)
            await asyncio.Event().wait()

        try:
            await self._while_alive(loop.call(generate))
        finally:
            loop.close()

    def hostile(self) -> None:
        def broken() -> None:
            raise OSError("its selector is closed")

        asyncio.get_running_loop()._run_once = broken  # type: ignore[attr-defined]


async def test_a_generator_whose_event_loop_ended_is_replaced() -> None:
    """Its process lives, and whoever waits for what that loop was to do would wait for ever."""
    shop = Shop()
    await shop.pool.start()
    await shop.pool.deliver(publication(0))
    shop.made[0].run = InThread(7, []).run  # type: ignore[method-assign]
    running = asyncio.create_task(shop.pool.generate())
    await shop.until(lambda: "generator-2 runs" in shop.log)
    await shop.pool.stop()
    await running
    assert [line for line in shop.log if "lost" in line] == ["generator-0 lost"]
    assert "its event loop ended: OSError: its selector is closed" in shop.notes[0]
    assert "generator-2 takes its place" in shop.notes[0]


async def test_a_generator_that_stops_generating_unasked_is_replaced() -> None:
    shop = Shop()
    async with shop.generating():
        await shop.made[1].stop()
        await shop.until(lambda: "generator-2 runs" in shop.log)
    assert [line for line in shop.log if "lost" in line] == ["generator-1 lost"]
    assert "generator-1: it stopped generating, although nobody stopped it" in shop.notes[0]


def blocked(fake: FakeGenerator) -> None:
    async def run() -> None:
        raise EventLoopBlocked(f"{fake.worker}: the event loop was blocked by async tool Code.run (env.py:3)")

    fake.run = run  # type: ignore[method-assign]


async def test_a_generator_whose_event_loop_is_blocked_is_replaced() -> None:
    shop = Shop()
    await shop.pool.start()
    blocked(shop.made[0])
    running = asyncio.create_task(shop.pool.generate())
    await shop.until(lambda: "generator-2 runs" in shop.log)
    await shop.pool.stop()
    await running
    assert shop.notes[0].startswith("generator-0: the event loop was blocked by async tool Code.run (env.py:3).")


async def test_an_environment_that_blocks_one_generator_after_another_ends_the_run_and_is_named() -> None:
    shop = Shop()
    shop.successor = blocked
    await shop.pool.start()
    blocked(shop.made[0])
    with pytest.raises(ComponentFailed, match=r"Code\.run \(env\.py:3\); 3 generators in one slot ended like this"):
        await shop.pool.generate()
    assert len(shop.made) == 2 + 2


async def test_what_blocks_the_event_loop_for_a_while_is_told_once() -> None:
    shop = Shop()
    sentence = "async tool Code.run (env.py:3) blocks the event loop"

    async def statistics() -> GeneratorStatistics:
        return GeneratorStatistics(blocked_by=(sentence,))

    async with shop.generating():
        for fake in shop.made:
            fake.statistics = statistics  # type: ignore[method-assign]
        await shop.pool.statistics()
        await shop.pool.statistics()
    assert shop.notes == [f"generator-0: {sentence}"]


async def test_an_error_of_the_environments_code_is_shown_once_with_its_traceback() -> None:
    shop = Shop()
    error = CountedError(
        "reward", "/me/env.py", 41, "KeyError", "raised KeyError: 'a'", "Traceback ...\n", times=3, example="task t"
    )

    async def statistics() -> GeneratorStatistics:
        return GeneratorStatistics(errors=(error,))

    async with shop.generating():
        for fake in shop.made:
            fake.statistics = statistics  # type: ignore[method-assign]
        await shop.pool.statistics()
        await shop.pool.statistics()
    assert shop.notes == ["task t: reward() of env.py:41 raised KeyError: 'a'\nTraceback ..."]


async def test_an_error_that_is_no_death_ends_the_run_at_once() -> None:
    shop = Shop()

    async def run() -> None:
        raise ComponentFailed("generator-0: ValueError: a bug")

    shop.made[0].run = run  # type: ignore[method-assign]
    with pytest.raises(ComponentFailed, match="a bug"):
        await shop.pool.generate()
    assert len(shop.made) == 2


async def test_counters_only_grow() -> None:
    shop = Shop()
    shop.successor = lambda fake: fake.may_start.clear()

    async def tokens() -> list[tuple[int, dict[int, int], float, float]]:
        counted = await shop.pool.statistics()
        return [(c.tokens_generated, dict(c.tokens_by_version), c.time.wall, c.time.idle * c.time.wall) for c in counted]

    async with shop.generating():
        shop.made[0].tokens, shop.made[1].tokens = 5, 7
        assert await tokens() == [(5, {0: 5}, 10.0, 5.0), (7, {0: 7}, 14.0, 7.0)]
        shop.made[0].die()
        shop.made[1].tokens = 8
        assert await tokens() == [(5, {0: 5}, 10.0, 5.0), (8, {0: 8}, 16.0, 8.0)]
        await shop.until(lambda: len(shop.made) == 3)
        assert (await tokens())[0] == (5, {0: 5}, 10.0, 5.0)
        shop.made[2].tokens = 1
        shop.made[2].may_start.set()
        await shop.until(lambda: "generator-2 runs" in shop.log)
        assert (await tokens())[0] == (6, {0: 6}, 12.0, 6.0)


def test_no_counter_is_lost_with_a_generator() -> None:
    slot = GeneratorSlot(FakeGenerator(0, []), MAIN_POOL, "both")
    counted = GeneratorStatistics(
        tokens_generated=3,
        tokens_by_version=Counter({PolicyVersion(0): 3}),
        time=GeneratorTime(sampling=3.0, held_back=3.0),
        last_pause_seconds=3.0,
        finished_episodes=3,
        tool_output_cut=3,
        scoring=ScoringUse(3, 3.0, 3.0),
    )
    slot.note_counters(counted)
    slot.vacate("it died")
    assert slot.counters.last_pause_seconds == 3.0
    slot.note_counters(counted)
    counters = slot.counters
    assert (counters.tokens_generated, counters.finished_episodes, counters.tool_output_cut) == (6, 6, 6)
    assert (counters.tokens_by_version, counters.time.wall, counters.time.held_back) == ({0: 6}, 6.0, 6.0)
    assert counters.last_pause_seconds == 3.0
    assert counters.scoring == ScoringUse(6, 6.0, 6.0)


async def test_closing_ends_a_successor_that_is_still_coming_up() -> None:
    shop = Shop(size=1)
    shop.successor = lambda fake: fake.may_start.clear()
    async with shop.generating():
        shop.made[0].die()
        await shop.until(lambda: len(shop.made) == 2)
    assert shop.log[-1] == "generator-1 closed"
    assert "generator-1 up" not in shop.log


TRAINING_AND_EVALUATING = {
    MAIN_POOL: GeneratorsConfig(count=2, role="train"),
    "evaluation": GeneratorsConfig(count=1, role="evaluation"),
}


async def test_a_pool_for_evaluations_alone_plays_them_all_and_is_held_whole():
    shop = Shop(size=3, pools=TRAINING_AND_EVALUATING)
    evaluating = shop.made[2]
    async with shop.generating():
        evaluating.may_evaluate.clear()
        playing = asyncio.create_task(shop.pool.evaluate(TASKS, PolicyVersion(0), pinned=True))
        await shop.settle()
        await shop.pool.deliver(publication(1))
        assert [fake.loaded for fake in shop.made] == [[0, 1], [0, 1], [0]]
        evaluating.may_evaluate.set()
        results = (await playing).episodes
        assert len(await shop.pool.statistics()) == 2, "an engine that only evaluates is never idle"
    assert shop.pool.training_pools == [MAIN_POOL] * 2
    assert [result.reward for result in results] == [0.0] * len(TASKS)
    assert evaluating.loaded == [0, 1]


async def test_an_evaluation_waits_for_its_own_pool_and_takes_no_generator_that_trains():
    shop = Shop(size=3, pools=TRAINING_AND_EVALUATING)
    async with shop.generating():
        gate = asyncio.Event()
        shop.successor = lambda fake: setattr(fake, "may_start", gate)
        shop.made[2].die()
        await shop.until(lambda: len(shop.made) == 4)
        for fake in shop.made[:2]:
            fake.may_evaluate.clear()
        playing = asyncio.create_task(shop.pool.evaluate(TASKS, PolicyVersion(0)))
        await shop.settle()
        assert not playing.done()
        gate.set()
        assert len((await playing).episodes) == len(TASKS)


async def test_an_evaluation_after_training_fails_when_its_own_pool_is_gone_for_good():
    shop = Shop(size=3, pools=TRAINING_AND_EVALUATING)
    await shop.pool.start()
    shop.made[2].die()
    shop.successor = FakeGenerator.die
    with pytest.raises(ComponentFailed):
        async with asyncio.timeout(60):
            await shop.pool.evaluate(TASKS, PolicyVersion(0))


async def test_a_pool_grows_by_newcomers_that_catch_up_and_shrinks_by_what_is_handed_back() -> None:
    shop = Shop(size=1)
    shop.successor = lambda fake: fake.may_load.clear()
    async with shop.generating(version=3):
        assert await shop.pool.scale("generators", 3) == "generator-1, generator-2 are coming up"
        await shop.until(lambda: all(fake.loading is not None for fake in shop.made[1:]))
        assert not any(f"generator-{number} runs" in shop.log for number in (1, 2)), "they have no weights yet"
        for fake in shop.made[1:]:
            fake.may_load.set()
        await shop.until(lambda: all(f"generator-{number} runs" in shop.log for number in (1, 2)))
        await shop.pool.deliver(publication(4))
        assert [fake.loaded for fake in shop.made] == [[3, 4]] * 3
        for fake in shop.made:
            fake.tokens = 5
        assert shop.pool.sizes == {"generators": 3}
        assert await shop.pool.scale("generators", 1) == "generator-2, generator-1 hand back their episodes"
        assert shop.pool.sizes == {"generators": 1}, "from now on, not when they have ended"
        await shop.until(lambda: not any(fake.alive for fake in shop.made[1:]))
        await shop.until(lambda: {"generator-1 lost", "generator-2 lost"} <= set(shop.log))
        await shop.pool.deliver(publication(5))
        counted = [each.tokens_generated for each in await shop.pool.statistics()]
        assert await shop.pool.scale("generators", 1) == "pool generators has 1 engine already"
    assert [fake.loaded for fake in shop.made] == [[3, 4, 5], [3, 4], [3, 4]]
    assert counted == [5, 5, 5], "what they had counted stays"
    for number in (1, 2):
        lines = [line for line in shop.log if line.startswith(f"generator-{number} ")]
        assert lines.index(f"generator-{number} hands back") < lines.index(f"generator-{number} lost")
    assert len(shop.made) == 3, "nobody takes their places"


async def test_how_many_episodes_are_played_at_once_holds_for_newcomers_too() -> None:
    shop = Shop(size=1, pools={MAIN_POOL: GeneratorsConfig(count=1, max_running=48)})
    shop.successor = lambda fake: fake.may_start.clear()
    async with shop.generating():
        assert (shop.made[0].at_once, shop.pool.settled) == (48, True)
        await shop.pool.scale("generators", 2)
        assert not shop.pool.settled
        await shop.pool.bound(["generators"], 24)
        assert [fake.at_once for fake in shop.made] == [24, 24], "one that is coming up begins with it"
        assert [line for line in shop.log if "plays" in line] == ["generator-0 plays 24"]
        shop.made[1].may_start.set()
        await shop.until(lambda: shop.pool.settled)
        await shop.pool.scale("generators", 1)
        assert not shop.pool.settled
        await shop.until(lambda: shop.pool.settled)
        await shop.pool.scale("generators", 2)
        assert shop.made[2].at_once == 24
        shop.made[2].may_start.set()


async def test_what_a_pool_cannot_be_scaled_to_is_refused() -> None:
    shop = Shop(size=1)
    with pytest.raises(RecipeError, match="not generating: it is starting or ending"):
        await shop.pool.scale("generators", 2)
    async with shop.generating():
        for pool, size, problem in [
            ("generators", 0, "nobody would play with 0 engines; choose 1 or more"),
            ("other", 2, "no pool of that name; name one of generators"),
        ]:
            with pytest.raises(RecipeError, match=problem):
                await shop.pool.scale(pool, size)
        shop.room = 2
        with pytest.raises(RecipeError, match="no node has room"):
            await shop.pool.scale("generators", 3)
        assert len(shop.made) == 1, "all or none come up"
        assert await shop.pool.scale("generators", 2) == "generator-1 is coming up"


async def test_a_pool_waits_for_room_that_the_cluster_may_make_until_somebody_changes_its_size_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(growth, "ANSWER_S", 0.001)
    shop = Shop(size=1)
    async with shop.generating():
        shop.room, shop.grows = 2, True
        assert await shop.pool.scale("generators", 3) == ("2 engines wait for room in the cluster, which the run's notes tell of")
        assert shop.pool.sizes == {"generators": 3}, "a resume begins with what was asked for"
        assert "Pool generators waits for room for 2 newcomers: generators: no node has room" in shop.notes[0]
        assert len(shop.made) == 1
        assert await shop.pool.scale("generators", 1) == "pool generators has 1 engine already"
        assert shop.pool.sizes == {"generators": 1}
        await shop.pool.scale("generators", 4)
        await shop.pool.scale("generators", 3)
        shop.room = 3
        await shop.until(lambda: {"generator-1 runs", "generator-2 runs"} <= set(shop.log))
        shop.room = 100
        await shop.settle()
        assert len(shop.made) == 3, "what was asked for before is not wanted any more"
        shop.room = 3
        await shop.pool.scale("generators", 9)
    assert len(shop.made) == 3, "the run ends while the pool waits"


@pytest.mark.parametrize("later", [False, True])
async def test_room_that_was_found_counts_before_the_size_is_changed_again(monkeypatch: pytest.MonkeyPatch, later: bool) -> None:
    shop, found = Shop(size=1), asyncio.Event()

    async def find_room(pool: str, number: int, successors: bool, lacking: Callable[[RecipeError], None]) -> None:
        await found.wait()

    monkeypatch.setattr(shop.pool._growth, "_room", find_room)
    if later:
        monkeypatch.setattr(growth, "ANSWER_S", 0.001)
    async with shop.generating():
        first = asyncio.create_task(shop.pool.scale("generators", 3))
        await shop.until(first.done if later else lambda: shop.pool.sizes == {"generators": 3})
        search = shop.pool._growth._finding["generators"]
        found.set()
        while not search.finding.done():  # noqa: ASYNC110 - the very next moment counts
            await asyncio.sleep(0)
        # Whoever asked for the room has not been told yet.
        assert await shop.pool.scale("generators", 3) == "pool generators has 3 engines already"
        await first
        assert shop.pool.sizes == {"generators": 3}
        assert len(shop.made) == 3


async def test_who_stops_asking_for_newcomers_before_there_is_an_answer_gets_none() -> None:
    shop = Shop(size=1)
    async with shop.generating():
        shop.room, shop.grows = 1, True
        asking = asyncio.create_task(shop.pool.scale("generators", 3))
        await shop.until(lambda: shop.pool.sizes == {"generators": 3})
        asking.cancel()
        await shop.until(asking.done)
        assert shop.pool.sizes == {"generators": 1}
        shop.room = 3
        await shop.settle()
        assert len(shop.made) == 1


async def test_a_newcomer_that_does_not_come_up_leaves_the_run_as_it_was() -> None:
    shop = Shop(size=1)

    def broken(fake: FakeGenerator) -> None:
        async def start() -> None:
            raise ComponentFailed("no memory")

        fake.start = start  # type: ignore[method-assign]

    shop.successor = broken
    async with shop.generating() as running:
        await shop.pool.scale("generators", 2)
        await shop.until(lambda: "generator-1 lost" in shop.log)
        assert not running.done()
        await shop.pool.deliver(publication(1))
    assert shop.notes[-1] == "generator-1 did not come up, and the run goes on without it: no memory"


async def test_a_newcomer_that_is_not_up_ends_first_and_has_nothing_to_hand_back() -> None:
    shop = Shop(size=1)
    shop.successor = lambda fake: fake.may_start.clear()
    async with shop.generating():
        await shop.pool.scale("generators", 2)
        await shop.settle()
        assert await shop.pool.scale("generators", 1) == "generator-1 hands back its episodes"
        await shop.until(lambda: "generator-1 lost" in shop.log)
    assert "generator-1 hands back" not in shop.log
    assert shop.made[0].alive


async def test_a_generator_that_sigterm_ended_is_replaced() -> None:
    shop = Shop()
    gone = asyncio.Event()

    async def run() -> None:
        await gone.wait()
        raise HandedBack("generator-0 was told to end by SIGTERM, and has handed its episodes back")

    await shop.pool.start()
    shop.made[0].run = run  # type: ignore[method-assign]
    running = asyncio.create_task(shop.pool.generate())
    gone.set()
    await shop.until(lambda: "generator-2 runs" in shop.log)
    await shop.pool.stop()
    await running
    assert shop.notes[0].startswith("generator-0 was told to end by SIGTERM, and has handed its episodes back. Its episodes are")


async def test_while_there_is_no_room_for_a_successor_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a node is lost: it may come back."""
    monkeypatch.setattr(successors, "NEEDED_CHECK_S", 0.001)
    shop = Shop()
    async with shop.generating():
        shop.room = 1
        shop.made[1].die()
        await shop.until(lambda: any("while there is no room" in note for note in shop.notes))
        async with asyncio.timeout(60):
            await shop.pool.deliver(publication(1))
        assert len((await shop.pool.evaluate(TASKS, PolicyVersion(1))).episodes) == len(TASKS)
        shop.room = 2
        await shop.until(lambda: len(shop.made) == 3 and f"{shop.made[2].worker} runs" in shop.log)
    assert shop.log.count("generator-1 lost") == 1
    assert shop.made[2].loaded == [1]
