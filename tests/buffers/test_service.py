"""The service on a clock of its own: waits, wake-ups, write-ahead, leases and pauses, with the real buffer and journal."""

import asyncio
import errno
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager

import pytest
import virtual_time
from made_buffers import buffer_of, restored
from played_episodes import record

from asyncrl.buffers import commands, write_ahead
from asyncrl.buffers.journal.disk import DiskFull
from asyncrl.buffers.journal.journal import Journal
from asyncrl.buffers.journal.journal_files import read_journal
from asyncrl.buffers.service import LEASE_WAIT_S, BufferService
from asyncrl.buffers.tasks.task_stream import TaskSource, TaskStream
from asyncrl.core.episode_records import PayloadRef
from asyncrl.core.errors import BudgetExceeded, ComponentFailed, DeadlineExceeded, FailureKind
from asyncrl.core.ids import PolicyVersion, TaskId, WorkerId
from asyncrl.core.recipe.buffer import AppendOnlyJournalConfig, BufferConfig, NoJournalConfig, ZeroVarianceFilterConfig
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.recipe.schema import BatchConfig, DeadlinesConfig, ModelConfig, Recipe
from asyncrl.core.task import Task

A, B = WorkerId("generator-0"), WorkerId("generator-1")


def recipe(**buffer):
    return Recipe(
        name="test",
        steps=100,
        model=ModelConfig(path="tiny"),
        environment=ClassEnvironmentConfig(name="calculator"),
        batch=BatchConfig(groups_per_step=2, group_size=2),
        buffer=BufferConfig(**{"pipeline_depth": 1, "max_staleness": 2, **buffer}),
        deadlines=DeadlinesConfig(batch=100.0, lease=30.0),
    )


def tasks():
    return TaskStream([TaskSource("only", [Task(id=TaskId(f"task-{n}"), prompt="?") for n in range(50)])], seed=1)


class FullJournal(Journal):
    """A journal whose disk has no room for as long as ``full`` says so."""

    full = False
    broken = False

    def append(self, record):
        if self.broken:
            raise OSError(errno.EIO, "Input/output error")
        if self.full:
            raise DiskFull(self._folder, len(record), 0)
        super().append(record)


def sample(ticket, index, version=0, reward=None):
    return record(
        group_id=ticket.group_id,
        sample_index=index,
        length=10,
        sampled=((PolicyVersion(version), 5),),
        reward=float(index if reward is None else reward),
        payload=PayloadRef(0, "segment", 100 * (2 * ticket.group_id + index), 100, 0),
    )


def finished(*tickets, version=0, reward=None):
    return [sample(ticket, index, version, reward) for ticket in tickets for index in ticket.samples]


class Bench:
    """A service and what stands around it."""

    def __init__(self, recipe, journal):
        self.recipe, self.journal = recipe, journal
        self.buffer = buffer_of(recipe, tasks())
        self.freed, self.sweeps = [], []
        self.service = BufferService(
            self.buffer,
            journal,
            groups_per_step=recipe.batch.groups_per_step,
            deadlines=recipe.deadlines,
            free=self.freed.extend,
            sweep=lambda: self.sweeps.append(self.buffer.version),
            clock=self.clock,
        )

    def clock(self):
        return 1e9 + asyncio.get_running_loop().time()

    def records(self):
        return [commands.decode(record) for record in read_journal(self.journal._folder).records]

    async def step(self, version, worker=A):
        """One whole step of version ``version``."""
        await self.service.commit(finished(*await self.service.lease(worker, version, 2), version=version))
        batch = await self.service.take(version)
        await self.service.trained(version)
        await self.service.advance(PolicyVersion(version + 1))
        return batch


@pytest.fixture(params=["journal", "no journal"])
def either(request, tmp_path):
    def drive(scenario: Callable[[Bench], Coroutine], **buffer):
        return _drive(scenario, tmp_path if request.param == "journal" else None, **buffer)

    return drive


@pytest.fixture
def journaled(tmp_path):
    return lambda scenario, **buffer: _drive(scenario, tmp_path, **buffer)


def _drive(scenario, folder, **buffer):
    async def main():
        made = recipe(**{"journal": NoJournalConfig() if folder is None else AppendOnlyJournalConfig(), **buffer})
        journal = None if folder is None else FullJournal.open(folder / "journal", fsync=False, segment_bytes=1 << 20)[0]
        bench = Bench(made, journal)
        try:
            return await scenario(bench)
        finally:
            await bench.service.close()

    return virtual_time.run(main())


@asynccontextmanager
async def meanwhile(work):
    """``work`` goes on beside the body, and has got as far as it can when the body begins."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0.001)
    yield task
    await task


async def until(condition):
    """Returns in the very turn of the loop in which ``condition`` came true."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


def now():
    return asyncio.get_running_loop().time()


class TestLease:
    def test_a_request_that_finds_no_room_is_answered_empty_in_time(self, either):
        async def scenario(bench):
            assert len(await bench.service.lease(A, 0, 100)) == 4
            assert await bench.service.lease(A, 0, 1) == []
            return now()

        assert either(scenario) == pytest.approx(LEASE_WAIT_S)

    def test_a_worker_behind_the_clock_gets_nothing_and_one_at_it_gets_tickets_when_it_moves(self, either):
        async def scenario(bench):
            async with meanwhile(bench.service.lease(B, 1, 8)) as early, meanwhile(bench.service.lease(A, 0, 2)):
                assert not early.done()
                tickets = await bench.service.lease(A, 0, 2)
                assert not early.done()
                await bench.service.commit(finished(*tickets))
                await bench.service.take(0)
                await bench.service.trained(0)
                await bench.service.advance(1)
                assert now() < LEASE_WAIT_S
                assert [ticket.version for ticket in await early] == [1, 1]
            assert await bench.service.lease(A, 0, 1) == []

        either(scenario)

    def test_a_request_the_clock_moves_past_is_answered_at_once_and_one_that_comes_behind_it_waits(self, either):
        async def scenario(bench):
            held = await bench.service.lease(A, 0, 4)
            async with meanwhile(bench.service.lease(A, 0, 1)) as passed:
                await bench.service.commit(finished(*held[:2]))
                await bench.service.take(0)
                await bench.service.trained(0)
                assert not passed.done()
                await bench.service.advance(1)
                assert await passed == []
            before = now()
            async with meanwhile(bench.service.lease(A, 0, 1)) as behind:
                await bench.service.commit(finished(*held[2:]))
                assert await behind == []
            return before, now() - before

        before, waited = either(scenario)
        assert before < LEASE_WAIT_S
        assert waited == pytest.approx(LEASE_WAIT_S)

    def test_room_goes_to_those_who_wait_one_after_the_other(self, either):
        async def scenario(bench):
            held = await bench.service.lease(A, 0, 4)
            waiting = [asyncio.ensure_future(bench.service.lease(WorkerId(f"w{n}"), 1, 1)) for n in range(3)]
            await asyncio.sleep(0.001)
            await bench.service.commit(finished(*held[:2]))
            await bench.service.take(0)
            await bench.service.trained(0)
            await bench.service.advance(1)
            answers = await asyncio.gather(*waiting)
            assert [len(tickets) for tickets in answers] == [1, 1, 0]

        either(scenario)

    def test_those_who_ask_at_once_share_what_a_publication_makes_room_for(self, either):
        async def scenario(bench):
            held = await bench.service.lease(A, 0, 4)
            asking = [asyncio.ensure_future(bench.service.lease(WorkerId(f"w{n}"), 1, 100)) for n in range(2)]
            await asyncio.sleep(0.001)
            await bench.service.commit(finished(*held[:2]))
            await bench.service.take(0)
            await bench.service.trained(0)
            await bench.service.advance(1)
            assert [len(await each) for each in asking] == [1, 1]
            assert now() < LEASE_WAIT_S

        either(scenario)

    def test_those_who_ask_at_once_have_equal_shares_and_leave_nothing(self, either):
        async def scenario(bench):
            answers = await asyncio.gather(bench.service.lease(A, 0, 100), bench.service.lease(B, 0, 100))
            assert [len(tickets) for tickets in answers] == [2, 2]

        either(scenario)

    def test_one_who_gives_up_waiting_passes_the_room_on(self, either):
        async def scenario(bench):
            held = await bench.service.lease(A, 0, 4)
            first = asyncio.ensure_future(bench.service.lease(A, 1, 2))
            await asyncio.sleep(0.001)
            second = asyncio.ensure_future(bench.service.lease(B, 1, 2))
            await asyncio.sleep(0.001)
            await bench.service.commit(finished(*held[:2]))
            await bench.service.take(0)
            await bench.service.trained(0)
            moving = asyncio.ensure_future(bench.service.advance(1))
            await until(lambda: bench.buffer.version == 1)
            first.cancel()
            await moving
            assert len(await second) == 2
            assert now() < LEASE_WAIT_S

        either(scenario)


class TestTake:
    def test_it_waits_for_exactly_the_last_sample(self, either):
        async def scenario(bench):
            async with meanwhile(bench.service.take(0)) as taking:
                rows = finished(*await bench.service.lease(A, 0, 2))
                for row in rows:
                    await asyncio.sleep(5)
                    assert not taking.done()
                    await bench.service.commit([row])
                await asyncio.sleep(0.001)
                assert taking.done()
            batch = taking.result()
            assert [each.payload for each in batch.episodes] == [each.payload for each in rows]
            assert await bench.service.take(0) == batch

        either(scenario)

    def test_overdue_it_names_what_it_waited_for(self, either):
        async def scenario(bench):
            tickets = await bench.service.lease(A, 0, 2)
            await bench.service.commit([*finished(tickets[0]), sample(tickets[1], 0)])

            async def renewing():
                while True:
                    await bench.service.renew(A, [])
                    await asyncio.sleep(10)

            renewer = asyncio.ensure_future(renewing())
            with pytest.raises(DeadlineExceeded) as caught:
                await bench.service.take(0)
            renewer.cancel()
            assert now() == pytest.approx(100)
            return str(caught.value), tickets[1]

        told, missing = either(scenario)
        assert "the learner waited 100 s" in told
        assert f"group {missing.group_id} (task {missing.task.id}) on generator-0" in told
        assert "1 committed" in told
        assert "version 0 is published" in told

    @pytest.mark.parametrize("batches", [1, 2, 3])
    def test_a_run_whose_groups_are_all_filtered_says_so_after_two_batches(self, either, batches):
        async def scenario(bench):
            for _ in range(2 * batches):
                for ticket in await bench.service.lease(A, 0, 1):
                    await bench.service.commit(finished(ticket, reward=1.0))
            return await bench.service.statistics()

        told = either(scenario, filters=(ZeroVarianceFilterConfig(),)).in_vain
        assert (told != "") == (batches >= 2)
        assert not told or told.startswith(f"buffer.filters left out the last {2 * batches} groups, one after the other")

    def test_filters_that_are_not_there_are_not_blamed(self, either):
        """Groups are filtered, too, because their tasks break their environment."""

        async def scenario(bench):
            async def generate():
                while True:
                    for ticket in await bench.service.lease(A, 0, 1):
                        for index in ticket.samples:
                            await bench.service.fail(ticket.group_id, index, FailureKind.DATA, "it broke")
                    await asyncio.sleep(9)

            generating = asyncio.ensure_future(generate())
            with pytest.raises(DeadlineExceeded) as caught:
                await bench.service.take(0)
            generating.cancel()
            statistics = await bench.service.statistics()
            return str(caught.value), statistics

        told, statistics = either(scenario, max_attempts=1)
        assert "every group was given up because its task breaks its environment" in told
        assert "buffer.filters" not in told
        assert statistics.ledger.filtered > 2
        assert (statistics.ledger.left_out_by_filters, statistics.in_vain) == (0, "")

    def test_a_run_whose_groups_are_all_filtered_says_so(self, either):
        async def scenario(bench):
            async def generate():
                while True:
                    for ticket in await bench.service.lease(A, 0, 1):
                        await bench.service.commit(finished(ticket, reward=1.0))
                    await asyncio.sleep(9)

            generating = asyncio.ensure_future(generate())
            with pytest.raises(DeadlineExceeded) as caught:
                await bench.service.take(0)
            generating.cancel()
            return str(caught.value)

        told = either(scenario, filters=(ZeroVarianceFilterConfig(),))
        assert "every finished group was filtered" in told
        assert "loosen buffer.filters" in told
        assert "filtered: zero variance" in told, told


class TestWriteAhead:
    def test_the_journal_replayed_is_the_buffer(self, journaled):
        async def scenario(bench):
            for version in range(3):
                await bench.step(version)
            tickets = await bench.service.lease(A, 3, 2)
            await bench.service.fail(tickets[0].group_id, 0, FailureKind.DATA, "it broke")
            await bench.service.lost(A)
            await bench.service.checkpointed(2)
            again = buffer_of(bench.recipe, tasks())
            commands.replay(read_journal(bench.journal._folder).records, again)
            assert again.snapshot() == bench.buffer.snapshot()
            assert bench.freed

        journaled(scenario)

    def test_what_failed_is_in_the_journal_and_fails_the_same_again(self, journaled):
        async def scenario(bench):
            tickets = await bench.service.lease(A, 0, 2)
            await bench.service.fail(tickets[0].group_id, 0, FailureKind.DATA, "it broke")
            with pytest.raises(BudgetExceeded, match="it broke again"):
                await bench.service.fail(tickets[1].group_id, 1, FailureKind.DATA, "it broke again")
            again = buffer_of(bench.recipe, tasks())
            commands.replay(read_journal(bench.journal._folder).records, again)
            assert again.snapshot() == bench.buffer.snapshot()

        journaled(scenario, max_failures=1)

    def test_a_snapshot_is_taken_when_the_journal_has_grown(self, journaled, monkeypatch):
        monkeypatch.setattr(write_ahead, "SNAPSHOT_BYTES", 1000)

        async def scenario(bench):
            for version in range(20):
                await bench.step(version)
                await bench.service.checkpointed(version + 1)
            found = read_journal(bench.journal._folder)
            again = restored(bench.recipe, tasks(), found.snapshot)
            commands.replay(found.records, again)
            assert again.snapshot() == bench.buffer.snapshot()
            assert len(found.records) < 120

        journaled(scenario)

    def test_without_a_journal_payload_is_given_up_once_it_is_trained(self, tmp_path):
        async def scenario(bench):
            batch = await bench.step(0)
            await asyncio.sleep(0.001)
            assert bench.freed == [each.payload for each in batch.episodes]

        _drive(scenario, None)

    def test_with_one_it_is_kept_until_a_checkpoint_makes_it_superfluous(self, journaled):
        async def scenario(bench):
            batch = await bench.step(0)
            await asyncio.sleep(1)
            assert bench.freed == []
            await bench.service.checkpointed(1)
            await asyncio.sleep(0.001)
            assert bench.freed == [each.payload for each in batch.episodes]

        journaled(scenario)


class TestLostWorkers:
    def test_one_that_is_silent_is_given_up_and_its_episodes_are_issued_again(self, either):
        async def scenario(bench):
            (ticket,) = await bench.service.lease(A, 0, 1)
            await bench.service.commit([sample(ticket, 0)])
            await asyncio.sleep(29)
            await bench.service.renew(A, [ticket.group_id])
            await asyncio.sleep(29.9)
            assert (await bench.service.statistics()).ledger.failed == 0
            await asyncio.sleep(0.2)
            (again,) = await bench.service.lease(B, 0, 1)
            assert (again.group_id, again.samples, again.attempt) == (ticket.group_id, (1,), 0)

        either(scenario)

    def test_one_that_is_lost_gets_nothing_by_what_it_asked_for_before(self, either):
        """The transport does not take back the waiting request of a process that was killed; its tickets would be nobody's."""

        async def scenario(bench):
            tickets = await bench.service.lease(A, 0, 100)
            dead = asyncio.ensure_future(bench.service.lease(B, 0, 1))
            await asyncio.sleep(0.001)
            await bench.service.lost(B)
            await bench.service.lost(A)
            other = await bench.service.lease(WorkerId("generator-2"), 0, 100)
            assert await dead == []
            assert {ticket.group_id for ticket in other} == {ticket.group_id for ticket in tickets}

        either(scenario)

    def test_what_one_hands_back_is_issued_again_at_once_and_counts_as_no_failure(self, either):
        async def scenario(bench):
            tickets = await bench.service.lease(A, 0, 100)
            await bench.service.commit([sample(tickets[0], 0)])
            other = asyncio.ensure_future(bench.service.lease(B, 0, 100))
            ended = asyncio.ensure_future(bench.service.lease(A, 0, 100))
            await asyncio.sleep(0.001)
            await bench.service.hand_back(A, "is out of reach")
            assert await ended == [], "its node may be gone, and its request may still wait"
            given = [*await other, *await bench.service.lease(B, 0, 100)]  # the first time, the other's request has its share
            again = {ticket.group_id: (ticket.samples, ticket.attempt) for ticket in given}
            assert again == {t.group_id: (t.samples[t is tickets[0] :], 0) for t in tickets}
            statistics = await bench.service.statistics()
            assert set(statistics.failures.values()) == {0}
            await asyncio.sleep(20)
            await bench.service.renew(B, list(again))
            await asyncio.sleep(20)
            assert set((await bench.service.statistics()).failures.values()) == {0}, "nobody waits for its heartbeats"
            assert await bench.service.renew(A, list(again)) == list(again), "it is back, and has lost them"
            last = min(again)
            await bench.service.commit([sample(ticket, index) for ticket in tickets for index in again[ticket.group_id][0]])
            assert (await bench.service.statistics()).late_samples == 0, f"what it had finished of {last} meanwhile is of use"

        either(scenario)

    def test_one_that_comes_back_may_hand_in_what_is_still_missing(self, either):
        async def scenario(bench):
            (ticket,) = await bench.service.lease(A, 0, 1)
            await asyncio.sleep(31)
            await bench.service.lease(B, 0, 1)
            assert await bench.service.renew(A, [ticket.group_id]) == [ticket.group_id]
            await bench.service.commit(finished(ticket))
            assert (await bench.service.statistics()).ledger.committed == 1
            assert await bench.service.renew(B, [ticket.group_id]) == [ticket.group_id]

        either(scenario)

    def test_too_many_of_them_end_a_take_that_waits(self, either):
        async def scenario(bench):
            for worker in (A, B):
                await bench.service.lease(worker, 0, 1)
            with pytest.raises(BudgetExceeded, match="generator"):
                await bench.service.take(0)
            assert now() == pytest.approx(30)

        either(scenario, max_failures=1)


class TestPauses:
    def test_who_has_gone_while_the_disk_was_full_gets_no_tickets_and_has_no_share(self, journaled):
        async def scenario(bench):
            bench.journal.full = True
            pacing = asyncio.ensure_future(bench.service.pace(1))
            await asyncio.sleep(0.001)
            asking = [asyncio.ensure_future(bench.service.lease(worker, 0, 100)) for worker in (A, B)]
            await asyncio.sleep(0.001)
            asking[0].cancel()
            await asyncio.sleep(0.001)
            bench.journal.full = False
            await pacing
            assert len(await asking[1]) == 4
            assert (await bench.service.statistics()).ledger.issued == 4

        journaled(scenario)

    def test_a_full_disk_pauses_everything_and_loses_nothing(self, journaled):
        async def scenario(bench):
            tickets = await bench.service.lease(A, 0, 2)
            async with meanwhile(bench.service.take(0)) as taking:
                await asyncio.sleep(10)
                bench.journal.full = True
                before = len(bench.records())
                handing_in = []
                for row in finished(*tickets):
                    handing_in.append(asyncio.ensure_future(bench.service.commit([row])))
                    await asyncio.sleep(0.1)
                for _ in range(100):
                    await asyncio.sleep(10)
                    await bench.service.renew(A, [])
                assert "is full" in (await bench.service.statistics()).paused
                assert not any(call.done() for call in (*handing_in, taking))
                bench.journal.full = False
                await asyncio.gather(*handing_in)
                await taking
            assert (await bench.service.statistics()).paused == ""
            # The first went alone; those that came while it waited went together.
            assert [len(record.records) for record in bench.records()[before:-1]] == [1, 3]

        journaled(scenario)

    def test_a_worker_without_room_stops_the_clock_of_a_take(self, either):
        async def scenario(bench):
            await bench.service.lease(A, 0, 2)

            async def renewing():
                while True:
                    await bench.service.renew(A, [])
                    await asyncio.sleep(10)

            renewer = asyncio.ensure_future(renewing())
            taking = asyncio.ensure_future(bench.service.take(0))
            await asyncio.sleep(60)
            await bench.service.report_pause(A, "its disk is full")
            assert (await bench.service.statistics()).paused == "generator-0: its disk is full"
            await asyncio.sleep(500)
            assert not taking.done()
            await bench.service.report_pause(A, "")
            await asyncio.sleep(39)
            assert not taking.done()
            await asyncio.sleep(1.5)
            with pytest.raises(DeadlineExceeded):
                await taking
            renewer.cancel()

        either(scenario)

    def test_a_worker_that_dies_paused_pauses_no_longer(self, either):
        async def scenario(bench):
            await bench.service.report_pause(A, "its disk is full")
            await asyncio.sleep(31)
            assert (await bench.service.statistics()).paused == ""

        either(scenario)


def test_everybody_whose_samples_a_broken_disk_refused_hears_of_it(journaled):
    async def scenario(bench):
        (ticket,) = await bench.service.lease(A, 0, 1)
        bench.journal.broken = True
        commits = [bench.service.commit([made]) for made in finished(ticket)]
        outcomes = await asyncio.gather(*commits, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [OSError, OSError]

    journaled(scenario)


def test_who_closes_the_service_does_not_wait_for_room_on_the_disk(journaled):
    async def scenario(bench):
        (ticket,) = await bench.service.lease(A, 0, 1)
        bench.journal.full = True
        committing = asyncio.ensure_future(bench.service.commit(finished(ticket)))
        losing = asyncio.ensure_future(bench.service.lost(B))
        await asyncio.sleep(10)
        async with asyncio.timeout(5):
            await bench.service.close()
        for refused in (committing, losing):
            with pytest.raises(ComponentFailed, match="closed"):
                await refused

    journaled(scenario)


def test_what_a_recovery_set_aside_is_swept_once_at_the_first_checkpoint(journaled):
    async def scenario(bench):
        await bench.step(PolicyVersion(0))
        await bench.step(PolicyVersion(1))
        await asyncio.sleep(10)
        assert bench.sweeps == []
        await bench.service.checkpointed(PolicyVersion(1))
        await bench.service.checkpointed(PolicyVersion(2))
        await bench.service.close()
        assert bench.sweeps == [2]

    journaled(scenario)


def test_a_closed_service_ends_those_who_wait_and_writes_nothing_more(journaled):
    async def scenario(bench):
        tickets = await bench.service.lease(A, 0, 1)
        taking = asyncio.ensure_future(bench.service.take(0))
        await asyncio.sleep(0.001)
        await bench.service.close()
        with pytest.raises(ComponentFailed, match="closed"):
            await taking
        before = bench.records()
        with pytest.raises(ComponentFailed, match="closed"):
            await bench.service.commit(finished(*tickets))
        return before == bench.records()

    assert journaled(scenario)
