"""Who is woken, and when: the real buffer, and the event loop's own order."""

import asyncio

import pytest
from samples import finish, make_buffer

from asyncrl.buffers.waiters import Waiters
from asyncrl.core.errors import ComponentFailed

GROUPS = 2


class Waiting:
    """A buffer without room, and what became of those who wait for it."""

    def __init__(self, **recipe):
        self.buffer = make_buffer(groups_per_step=GROUPS, **recipe)
        self.tickets = self.buffer.lease("worker", 100, 0.0)
        self.waiters = Waiters(self.buffer, GROUPS)

    async def begin(self, *waits):
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        await asyncio.sleep(0)
        return tasks

    async def woken(self, tasks):
        self.waiters.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return [task.done() for task in tasks]

    def train(self, version):
        for ticket in self.tickets[:GROUPS]:
            finish(self.buffer, ticket, (version,))
        del self.tickets[:GROUPS]
        self.buffer.batches.take(version, GROUPS)
        self.buffer.batches.trained(version)


async def test_room_wakes_one_after_the_other_the_longest_waiting_first():
    bench = Waiting()
    tasks = await bench.begin(*(bench.waiters.room(0) for _ in range(3)))
    assert await bench.woken(tasks) == [False, False, False], "there is no room"
    bench.buffer.pace(bench.buffer.depth + 1)
    assert await bench.woken(tasks) == [True, False, False]
    assert await bench.woken(tasks) == [True, True, False]
    tasks[2].cancel()


async def test_who_was_woken_and_has_gone_passes_the_room_on():
    bench = Waiting()
    tasks = await bench.begin(*(bench.waiters.room(0) for _ in range(2)))
    bench.buffer.pace(bench.buffer.depth + 1)
    bench.waiters.wake()
    tasks[0].cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [task.cancelled() for task in tasks] == [True, False]
    assert tasks[1].done()


async def test_a_newer_version_wakes_all_who_wait_with_an_older_one():
    bench = Waiting()
    tasks = await bench.begin(bench.waiters.room(0), bench.waiters.room(0), bench.waiters.room(1))
    bench.train(0)
    bench.buffer.advance(1)
    assert await bench.woken(tasks) == [True, True, True]
    (behind,) = await bench.begin(bench.waiters.room(0))
    assert await bench.woken([behind]) == [False], "its version was published long ago"
    behind.cancel()


async def test_a_batch_wakes_its_learner_when_it_is_whole():
    bench = Waiting()
    (taking,) = await bench.begin(bench.waiters.batch(0))
    finish(bench.buffer, bench.tickets[0])
    assert await bench.woken([taking]) == [False]
    finish(bench.buffer, bench.tickets[1])
    assert await bench.woken([taking]) == [True]


async def test_groups_that_became_too_old_wake_the_learner_too():
    bench = Waiting(max_staleness=1)
    (taking,) = await bench.begin(bench.waiters.batch(5))
    finish(bench.buffer, bench.tickets[0])
    assert await bench.woken([taking]) == [True]


async def test_a_failure_is_raised_in_everybody_who_waits():
    bench = Waiting()
    tasks = await bench.begin(bench.waiters.room(0), bench.waiters.room(1), bench.waiters.batch(0))
    bench.waiters.fail(ComponentFailed("the buffer broke"))
    for task in tasks:
        with pytest.raises(ComponentFailed, match="the buffer broke"):
            await task
