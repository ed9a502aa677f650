"""Recovery: the buffer as it was, without its workers, with payload that was checked, or a refusal that says what to do."""

import msgspec
import pytest
from crash_run import TASKS, episode, stream
from test_crash import recipe

from asyncrl.core.errors import LedgerError
from asyncrl.core.ids import TaskId
from asyncrl.core.payload import FinishedSample
from asyncrl.core.recipe.schema import AppendOnlyJournal, FileTasks, GeneratedTasks, TaskFile
from asyncrl.core.task import Task
from asyncrl.core.trajectory import encode
from buffers import commands
from buffers.journal import JournalInUse, read_journal
from buffers.payload import PayloadReader, PayloadStore, PayloadWriter
from buffers.recovery import JournalOfAnotherRun, RecoveryReport, check_recipe, recover
from buffers.task_stream import TaskSource, TaskStream

RECIPE = recipe(filters=())


class Life:
    """A process's part: recovers, does things, and is gone without closing anything properly."""

    def __init__(self, folder, recipe=RECIPE, tasks=None):
        self.stores = {shard: PayloadStore(folder / f"shard-{shard}") for shard in range(2)}
        self.buffer, self.journal, self.report = recover(recipe, tasks or stream(), folder / "journal", self.stores, wait_s=0)
        self.writers = [
            PayloadWriter(folder / f"shard-{shard}", shard, "worker", segment_bytes=20_000, fsync=False) for shard in range(2)
        ]

    def do(self, command):
        self.journal.append(commands.encode(command))
        return command.apply(self.buffer)

    def lease(self, groups):
        return self.do(commands.Lease("worker", groups, 0.0))

    def generate(self, ticket, indexes=None):
        made = []
        for index in ticket.samples if indexes is None else indexes:
            trajectory = episode(ticket, index, ticket.version, self.buffer.version)
            (ref,) = self.writers[ticket.group_id % 2].append([encode(trajectory)])
            made.append(FinishedSample.of(trajectory, ref))
        return tuple(made)

    def commit(self, ticket, indexes=None):
        made = self.generate(ticket, indexes)
        self.do(commands.Commit(made, 0.0))
        return made

    def step(self, version):
        for ticket in self.lease(4):
            self.commit(ticket)
        batch = self.do(commands.Take(version, 4))
        self.do(commands.Trained(version))
        self.do(commands.Advance(version + 1))
        return batch

    def die(self):
        self.journal.close()
        for writer in self.writers:
            writer.close()


def test_a_run_that_begins_has_nothing_to_report(tmp_path):
    life = Life(tmp_path)
    assert life.report == RecoveryReport(resumed=False)
    assert str(life.report) == ""
    assert life.journal.records_since_snapshot == 1, "how long it is to be"
    life.die()


@pytest.mark.parametrize("snapshot", [True, False])
def test_what_was_running_is_issued_again_and_what_was_finished_is_kept(tmp_path, snapshot):
    life = Life(tmp_path)
    redone = life.step(0)
    ready, half, untouched = life.lease(3)
    life.commit(ready)
    kept = life.commit(half, [1])
    if snapshot:
        life.journal.snapshot(life.buffer.snapshot())
    life.writers[0].close()  # what comes now is alone in its segment
    orphan = life.generate(untouched, [0])
    life.die()

    life = Life(tmp_path)
    report = life.report
    assert (report.committed, report.again, report.batches, report.rows_lost) == (1, 2, 1, 0)
    assert not (tmp_path / "shard-0" / orphan[0].payload.segment).exists(), "nobody was told of it"
    assert f"{report.swept_bytes:,} bytes of trajectories that nobody needs were removed" in str(report)
    assert report.swept_bytes >= orphan[0].payload.size
    assert "1 groups are ready, 2 are issued again, and 1 batches are kept" in str(report)
    tickets = life.lease(2)
    assert [(ticket.group_id, ticket.samples, ticket.attempt) for ticket in tickets] == [
        (half.group_id, (0, 2), 0),
        (untouched.group_id, (0, 1, 2), 0),
    ]
    assert life.buffer.statistics().failures == dict.fromkeys(life.buffer.statistics().failures, 0)
    assert life.do(commands.Take(0, 4)) == redone
    for ticket in tickets:
        life.commit(ticket)
    batch = life.do(commands.Take(1, 3))
    assert kept[0].payload in {row.payload for row in batch.rows}
    life.die()


def test_a_recovery_is_part_of_the_history(tmp_path):
    """Each life builds on what the recoveries before it changed."""
    issued = []
    for _ in range(4):
        life = Life(tmp_path)
        tickets = life.lease(2)
        life.commit(tickets[0], tickets[0].samples[:1])
        issued.append([(ticket.group_id, len(ticket.samples)) for ticket in tickets])
        before = life.buffer.snapshot()
        life.die()
    assert issued == [[(0, 3), (1, 3)], [(0, 2), (1, 3)], [(0, 1), (1, 3)], [(1, 3), (2, 3)]]
    life = Life(tmp_path)
    assert life.report.records == 1 + 2 + 3 * 3
    life.die()
    assert before != life.buffer.snapshot()


def test_rows_that_are_gone_or_damaged_are_generated_again(tmp_path):
    life = Life(tmp_path)
    first, second, third = life.lease(3)
    rows = {ticket.group_id: life.commit(ticket) for ticket in (first, second, third)}
    life.die()
    for path in (tmp_path / "shard-1").iterdir():
        path.unlink()  # that of the second group
    where = rows[first.group_id][2].payload
    with open(tmp_path / "shard-0" / where.segment, "r+b") as file:
        file.seek(where.offset + 5)
        file.write(b"!!!!")

    life = Life(tmp_path)
    assert (life.report.committed, life.report.again, life.report.rows_lost) == (1, 2, 4)
    assert "the trajectories of 4 rows were gone or damaged; what is not trained yet is generated again" in str(life.report)
    assert [(ticket.group_id, ticket.samples) for ticket in life.lease(2)] == [
        (first.group_id, (2,)),
        (second.group_id, (0, 1, 2)),
    ]
    life.die()
    life = Life(tmp_path)
    assert life.report.rows_lost == 0, "that is history by now"
    assert PayloadReader(tmp_path / "shard-0").read([rows[third.group_id][0].payload])
    life.die()


def test_batches_that_cannot_be_made_again_are_refused_every_time(tmp_path):
    life = Life(tmp_path)
    life.step(0)
    life.die()
    for shard in range(2):
        for path in (tmp_path / f"shard-{shard}").iterdir():
            path.unlink()
    for _ in range(2):
        with pytest.raises(LedgerError, match="batch of version 0, which must be trained again, were destroyed"):
            Life(tmp_path)


def test_a_torn_end_is_cut_and_told(tmp_path):
    life = Life(tmp_path)
    (ticket,) = life.lease(1)
    life.commit(ticket)
    life.die()
    segment = tmp_path / "journal" / "00000001.log"
    with open(segment, "r+b") as file:
        file.truncate(segment.stat().st_size - 3)
    life = Life(tmp_path)
    assert life.report.cut_bytes > 0
    assert f"{life.report.cut_bytes} bytes of an unfinished record were cut" in str(life.report)
    assert (life.report.committed, life.report.again) == (0, 1)
    assert read_journal(tmp_path / "journal").cut_bytes == 0
    life.die()


def test_a_damaged_snapshot_is_told(tmp_path):
    life = Life(tmp_path)
    (ticket,) = life.lease(1)
    life.journal.snapshot(life.buffer.snapshot())
    life.commit(ticket)
    life.die()
    (tmp_path / "journal" / "00000002.snapshot").write_bytes(b"nonsense")
    life = Life(tmp_path)
    assert life.report.damaged_snapshots == ("00000002.snapshot",)
    assert "damaged and not used: 00000002.snapshot" in str(life.report)
    assert life.report.committed == 1
    life.die()


@pytest.mark.parametrize("snapshot", [True, False])
def test_a_run_that_is_made_longer_goes_on_where_it_was_to_end(tmp_path, snapshot):
    def life_of(steps):
        return Life(tmp_path, msgspec.structs.replace(RECIPE, steps=steps))

    life = life_of(2)
    life.step(0)
    last = life.step(1)
    life.do(commands.Checkpointed(2))
    assert life.lease(9) == []
    if snapshot:
        life.journal.snapshot(life.buffer.snapshot())
    life.die()
    life = life_of(4)
    assert min(row.group_id for row in life.step(2).rows) > max(row.group_id for row in last.rows)
    life.die()
    for _ in range(2):  # the second time there is nothing to be told anew
        life = life_of(4)
        assert life.buffer.steps == 4
        assert life.buffer.version == 3
        told = life.journal.records_since_snapshot
        life.die()
    assert life.report.records == told - 1
    assert len(life_of(5).step(3).rows) == len(last.rows)
    with pytest.raises(JournalInUse):
        life_of(6)


def test_a_changed_recipe_is_known_before_anything_starts(tmp_path):
    life = Life(tmp_path)
    replaced = msgspec.structs.replace
    check_recipe(RECIPE, tmp_path / "journal")  # somebody else is writing it
    check_recipe(replaced(RECIPE, steps=RECIPE.steps + 1), tmp_path / "journal")
    with pytest.raises(JournalOfAnotherRun, match=r"batch.group_size was 3 and is 4; resume with the recipe"):
        check_recipe(replaced(RECIPE, batch=replaced(RECIPE.batch, group_size=4)), tmp_path / "journal")
    for _ in range(2):
        with pytest.raises(JournalOfAnotherRun, match=r"is of a run of 260 steps, and now steps is 259"):
            check_recipe(replaced(RECIPE, steps=259), tmp_path / "journal")
        life.journal.snapshot(life.buffer.snapshot())
    life.die()


@pytest.mark.parametrize("snapshot", [True, False])
def test_other_tasks_or_another_recipe_are_refused_by_what_differs(tmp_path, snapshot):
    life = Life(tmp_path)
    life.lease(1)
    if snapshot:
        life.journal.snapshot(life.buffer.snapshot())
    life.die()
    others = TaskStream([TaskSource("only", [Task(id=TaskId(f"task-{n}"), prompt="!") for n in range(TASKS)])], seed=3)
    with pytest.raises(JournalOfAnotherRun, match=r"written with other tasks \(fingerprint .*\); put the task files back"):
        Life(tmp_path, tasks=others)
    replaced = msgspec.structs.replace
    other = replaced(RECIPE, seed=7, buffer=replaced(RECIPE.buffer, pipeline_depth=2))
    with pytest.raises(JournalOfAnotherRun, match=r"buffer.pipeline_depth was 1 and is 2, seed was 0 and is 7; resume with"):
        Life(tmp_path, other)
    with pytest.raises(JournalOfAnotherRun, match=r"is of a run of 260 steps, and now steps is 7: a run can be made longer, not"):
        Life(tmp_path, replaced(RECIPE, steps=7))
    with pytest.raises(JournalOfAnotherRun, match=r"tasks.train was 20000 and is 7;"):
        Life(tmp_path, replaced(RECIPE, tasks=GeneratedTasks(train=7)))
    harmless = replaced(
        RECIPE, tasks=GeneratedTasks(evaluation=7), buffer=replaced(RECIPE.buffer, journal=AppendOnlyJournal(fsync="always"))
    )
    life = Life(tmp_path, harmless)
    assert life.report.again == 1
    life.die()


def test_files_of_tasks_may_be_moved_and_not_be_weighed_anew(tmp_path):
    def of(path, weight):
        files = (TaskFile(path=path, weight=weight),)
        return msgspec.structs.replace(RECIPE, tasks=FileTasks(train=files, evaluation=files))

    life = Life(tmp_path, of("here/sums.jsonl", 1.0))
    life.lease(1)
    life.die()
    with pytest.raises(JournalOfAnotherRun, match=r"tasks\.train was .*\"weight\":1\.0.* and is .*\"weight\":2\.0"):
        Life(tmp_path, of("here/sums.jsonl", 2.0))
    Life(tmp_path, of("there/sums.jsonl", 1.0)).die()


def test_a_refused_recovery_lets_go_of_the_journal(tmp_path):
    life = Life(tmp_path)
    life.lease(1)
    with pytest.raises(JournalInUse):
        Life(tmp_path)
    life.die()
    with pytest.raises(JournalOfAnotherRun):
        Life(tmp_path, msgspec.structs.replace(RECIPE, seed=5))
    Life(tmp_path).die()
