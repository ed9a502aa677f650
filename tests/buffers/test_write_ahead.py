"""Changes of the buffer: in the journal first, in order, to their end, and never lost to a full disk."""

import asyncio

import pytest
import virtual_time
from made_buffers import buffer_of
from samples import make_recipe, make_tasks

from asyncrl.buffers import commands, write_ahead
from asyncrl.buffers.commands import Advance, Commit, Fail, IssueTickets
from asyncrl.buffers.journal.disk import DiskFull
from asyncrl.buffers.journal.journal import Journal
from asyncrl.buffers.journal.journal_files import read_journal
from asyncrl.buffers.pauses import Pauses
from asyncrl.buffers.write_ahead import WriteAhead
from asyncrl.core.errors import ComponentFailed, FailureKind, LedgerError

LEASE = IssueTickets("worker", 1, 0.0)


class SpiedJournal(Journal):
    """Notes what the buffer was like at each append, and has no room for as long as ``full`` says so."""

    full = False
    buffer = None

    def append(self, record):
        if self.full:
            raise DiskFull(self._folder, len(record), 0)
        self.seen.append(self.buffer.snapshot())
        super().append(record)


class Bench:
    def __init__(self, folder):
        self.folder = folder / "journal"
        self.journal, _ = SpiedJournal.open(self.folder, fsync=False, segment_bytes=1 << 20)
        self.buffer = self.journal.buffer = buffer_of(make_recipe(), make_tasks())
        self.journal.seen = []
        self.pauses, self.failures, self.applied = Pauses(), [], 0
        self.changes = WriteAhead(self.buffer, self.journal, pauses=self.pauses, applied=self.count, failed=self.failures.append)

    def count(self):
        self.applied += 1

    def recorded(self):
        return [commands.decode(record) for record in read_journal(self.folder).records]

    def replayed(self):
        again = buffer_of(make_recipe(), make_tasks())
        commands.replay(read_journal(self.folder).records, again)
        return again.snapshot()


@pytest.fixture
def drive(tmp_path):
    def drive(scenario):
        async def main():
            bench = Bench(tmp_path)
            try:
                await scenario(bench)
                assert bench.replayed() == bench.buffer.snapshot()
            finally:
                await bench.changes.close()

        virtual_time.run(main())

    return drive


def test_a_change_is_in_the_journal_before_it_is_applied_and_applied_before_it_is_answered(drive):
    async def scenario(bench):
        before = bench.buffer.snapshot()
        (ticket,) = await bench.changes.change(lambda: LEASE)
        assert bench.journal.seen == [before]
        assert bench.buffer.groups[ticket.group_id].task == ticket.task
        assert (bench.recorded(), bench.applied) == ([LEASE], 1)

    drive(scenario)


def test_each_is_asked_for_when_those_before_it_are_applied_and_may_want_nothing_then(drive):
    async def scenario(bench):
        versions = []

        def asked(command):
            versions.append(bench.buffer.version)
            return command

        made = [Advance(1), None, Advance(2)]
        assert await asyncio.gather(*(bench.changes.change(lambda one=one: asked(one)) for one in made)) == [None] * 3
        assert versions == [0, 1, 1]
        assert bench.recorded() == [Advance(1), Advance(2)]

    drive(scenario)


def test_a_change_goes_to_its_end_when_whoever_asked_has_gone(drive):
    async def scenario(bench):
        bench.journal.full = True
        asking = asyncio.ensure_future(bench.changes.change(lambda: LEASE))
        await asyncio.sleep(0.1)
        asking.cancel()
        bench.journal.full = False
        await asyncio.sleep(10)
        assert asking.cancelled()
        assert bench.recorded() == [LEASE]
        assert bench.applied == 1

    drive(scenario)


def test_a_refused_command_is_told_to_its_caller_and_the_next_goes_on(drive):
    async def scenario(bench):
        with pytest.raises(LedgerError, match="cannot become 5"):
            await bench.changes.change(lambda: Advance(5))
        await bench.changes.change(lambda: Advance(1))
        assert (bench.buffer.version, bench.failures) == (1, [])

    drive(scenario)


def test_the_log_names_a_task_that_is_given_up_once_and_not_again_when_the_journal_is_replayed(drive, caplog):
    async def scenario(bench):
        for _ in range(3):
            (ticket,) = await bench.changes.change(lambda: LEASE)
            for index in range(2):
                broken = Fail(ticket.group_id, index, FailureKind.DATA, "100% broken")
                await bench.changes.change(lambda broken=broken: broken)
        bench.replayed()
        said = f"filtered after 3 attempts: task {ticket.task.id}: 100% broken"
        assert [record.getMessage() for record in caplog.records] == [said]

    drive(scenario)


def test_an_error_of_a_shared_command_is_a_failure_that_everybody_hears_of(drive):
    async def scenario(bench):
        with pytest.raises(LedgerError, match="never issued"):
            await bench.changes.change(lambda: Fail(7, 0, FailureKind.DATA, ""), shared=True)
        assert len(bench.failures) == 1
        with pytest.raises(LedgerError, match="never issued"):
            await bench.changes.change(lambda: Commit((), 0.0), shared=True)

    drive(scenario)


def test_a_full_disk_makes_changes_wait_in_their_order(drive):
    async def scenario(bench):
        bench.journal.full = True
        waiting = [asyncio.ensure_future(bench.changes.change(lambda v=v: Advance(v))) for v in (1, 2)]
        await asyncio.sleep(100)
        assert (bench.buffer.version, bench.recorded()) == (0, [])
        assert "the buffer: " in bench.pauses.message
        bench.journal.full = False
        await asyncio.gather(*waiting)
        assert (bench.buffer.version, bench.pauses.message) == (2, "")

    drive(scenario)


def test_after_a_failure_nothing_changes_and_nothing_waits_for_room(drive):
    async def scenario(bench):
        bench.journal.full = True
        waiting = asyncio.ensure_future(bench.changes.change(lambda: LEASE))
        await asyncio.sleep(0.1)
        bench.changes.fail(ComponentFailed("it ends"))
        bench.changes.fail(ComponentFailed("again"))
        for change in (waiting, bench.changes.change(lambda: LEASE)):
            with pytest.raises(ComponentFailed, match="it ends"):
                await change
        assert (bench.recorded(), bench.applied) == ([], 0)

    drive(scenario)


def test_a_snapshot_is_taken_when_the_journal_has_grown(drive, monkeypatch):
    monkeypatch.setattr(write_ahead, "SNAPSHOT_BYTES", 100)

    async def scenario(bench):
        for version in range(1, 20):
            await bench.changes.change(lambda v=version: Advance(v))
        found = read_journal(bench.folder)
        assert found.snapshot is not None
        assert len(found.records) < 19
        bench.replayed = bench.buffer.snapshot  # the snapshot itself is looked at in the tests of the service

    drive(scenario)
