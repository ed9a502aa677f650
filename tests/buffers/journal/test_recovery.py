"""Recovery: the buffer as it was, without its workers, with payload that was checked, or a refusal that says what to do."""

import pickle
import shutil

import msgspec
import pytest
from crash_run import TASKS, episode, stream
from made_buffers import buffer_of, recovered
from test_crash import recipe

from asyncrl.buffers import commands
from asyncrl.buffers.journal.journal import JournalInUse
from asyncrl.buffers.journal.journal_files import JournalDamaged, JournalGone, head_of, read_journal
from asyncrl.buffers.journal.recovery import RecoveryReport, rebuild
from asyncrl.buffers.journal.unchangeable_keys import Identity, JournalOfAnotherRun
from asyncrl.buffers.payload_store import PayloadGone, PayloadReader, PayloadStore, PayloadWriter
from asyncrl.buffers.tasks.recorded_tasks import recorded_sources, recorded_stream
from asyncrl.buffers.tasks.task_stream import NoTaskLeft, TaskSource, TaskStream
from asyncrl.core.episode import encode
from asyncrl.core.episode_records import EpisodeRecord
from asyncrl.core.errors import LedgerError
from asyncrl.core.files.file_formats import UnknownFormat
from asyncrl.core.ids import TaskId
from asyncrl.core.recipe.buffer import AppendOnlyJournalConfig
from asyncrl.core.recipe.tasks import FileTasksConfig, GeneratedTasksConfig, TaskFileConfig
from asyncrl.core.task import Task

RECIPE = recipe(filters=())


class Life:
    """A process's part: recovers, does things, and is gone without closing anything properly."""

    def __init__(self, folder, recipe=RECIPE, tasks=None, too_long=None):
        self.stores = self.stores_of(folder)
        self.taken = recovered(recipe, tasks or stream(), folder / "journal", self.stores, too_long=too_long)
        self.taken.begin()
        self.buffer, self.journal, self.report = self.taken.buffer, self.taken.journal, self.taken.report
        self.writers = [
            PayloadWriter(folder / f"shard-{shard}", shard, "worker", segment_bytes=20_000, fsync=False) for shard in range(2)
        ]

    @staticmethod
    def stores_of(folder):
        return {shard: PayloadStore(folder / f"shard-{shard}") for shard in range(2)}

    def do(self, command):
        self.journal.append(commands.encode(command))
        return command.apply(self.buffer)

    def lease(self, groups):
        return self.do(commands.IssueTickets("worker", groups, 0.0))

    def generate(self, ticket, indexes=None):
        made = []
        for index in ticket.samples if indexes is None else indexes:
            played = episode(ticket, index, ticket.version, self.buffer.version)
            (ref,) = self.writers[ticket.group_id % 2].append([encode(played)])
            made.append(EpisodeRecord.of(played, ref))
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
    assert len(read_journal(tmp_path / "journal").records) == 2, "how long it is to be, and its limits"
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
    assert (report.committed, report.again, report.batches, report.lost_trajectories) == (1, 2, 1, 0)
    assert f"{report.set_aside_bytes:,} bytes of trajectories that nobody needs are removed after the next checkpoint" in str(
        report
    )
    assert report.set_aside_bytes >= orphan[0].payload.size
    assert (tmp_path / "shard-0" / orphan[0].payload.segment).exists(), "the run has not shown yet that it can do without"
    life.taken.sweep()
    assert not (tmp_path / "shard-0" / orphan[0].payload.segment).exists(), "nobody was told of it"
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
    assert kept[0].payload in {each.payload for each in batch.episodes}
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
    assert life.report.records == 2 + 2 + 3 * 3
    life.die()
    assert before != life.buffer.snapshot()


def test_a_resumed_run_leaves_out_what_was_too_long_before_the_run_and_what_was_met_in_play(tmp_path):
    def draw(life, groups):
        """Draw tasks, and have their groups end, so that more of them may be drawn."""
        drawn = []
        for _ in range(groups):
            (ticket,) = life.lease(1)
            drawn.append(ticket.task.id)
            life.do(commands.LeaveOut(ticket.group_id, "too long"))
        return drawn

    before = commands.SetTooLong(512, {"only": list(range(0, TASKS - 8))})
    life = Life(tmp_path, too_long=before)
    met = draw(life, 3)
    assert not {f"task-{index}" for index in before.tasks["only"]} & set(met)
    assert sum(life.buffer.statistics().failures.values()) == 0
    life.journal.snapshot(life.buffer.snapshot())
    met += draw(life, 2)
    life.die()
    life = Life(tmp_path, too_long=before)
    assert life.buffer.statistics().too_long == {"only": TASKS - 3}
    assert life.buffer.statistics().too_long_tasks == tuple(met)
    later = draw(life, 3)
    assert sorted([*met, *later]) == [f"task-{index}" for index in range(TASKS - 8, TASKS)]
    with pytest.raises(NoTaskLeft):
        life.lease(1)
    life.die()
    without = recovered(RECIPE, recorded_stream(recorded_sources(stream()), 3, None), tmp_path / "journal", life.stores)
    assert without.buffer.statistics().too_long == {"only": TASKS}, "no task files are needed to know that"
    without.journal.close()
    life = Life(tmp_path, too_long=commands.SetTooLong(1024, {}))
    assert life.buffer.statistics().too_long == {}, "with a larger context they fit"
    life.lease(1)
    life.die()


def test_trajectories_that_are_gone_or_damaged_are_generated_again(tmp_path):
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
    assert (life.report.committed, life.report.again, life.report.lost_trajectories) == (1, 2, 4)
    assert "4 trajectories were gone or damaged; what is not trained yet is generated again" in str(life.report)
    assert [(ticket.group_id, ticket.samples) for ticket in life.lease(2)] == [
        (first.group_id, (2,)),
        (second.group_id, (0, 1, 2)),
    ]
    life.die()
    life = Life(tmp_path)
    assert life.report.lost_trajectories == 0, "that is history by now"
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
    assert min(row.group_id for row in life.step(2).episodes) > max(row.group_id for row in last.episodes)
    life.die()
    for _ in range(2):  # the second time there is nothing to be told anew
        life = life_of(4)
        assert life.buffer.steps == 4
        assert life.buffer.version == 3
        told = len(read_journal(tmp_path / "journal").records)
        life.die()
    assert life.report.records == told - 1
    assert len(life_of(5).step(3).episodes) == len(last.episodes)
    with pytest.raises(JournalInUse):
        life_of(6)


@pytest.mark.parametrize("snapshot", [True, False])
def test_a_pipeline_depth_that_was_turned_is_resumed_with_and_replays_what_was_done_with_the_first(tmp_path, snapshot):
    def with_depth(depth):
        return msgspec.structs.replace(RECIPE, buffer=msgspec.structs.replace(RECIPE.buffer, pipeline_depth=depth))

    def stands(life):
        return life.buffer.depth, life.buffer.statistics().ledger.issued

    life = Life(tmp_path, with_depth(1))
    issued = len(life.lease(1000))
    assert stands(life) == (1, 2 * RECIPE.batch.groups_per_step) == (1, issued)
    if snapshot:
        life.journal.snapshot(life.buffer.snapshot())
    life.die()
    for depth in (3, "auto", 0):
        life = Life(tmp_path, with_depth(depth))
        assert stands(life) == (1, issued)
        if snapshot:
            life.journal.snapshot(life.buffer.snapshot())  # in a file of this life
        life.die()
    life = Life(tmp_path, with_depth(3))
    life.do(commands.Pace(3))
    life.lease(1000)
    life.die()
    for depth in (3, 1, "auto"):
        check_recipe(with_depth(depth), tmp_path / "journal")
        life = Life(tmp_path, with_depth(depth))
        assert stands(life) == (3, 2 * issued)
        life.die()


def check_recipe(recipe, journal):
    tasks = stream()
    rebuild(buffer_of(recipe, tasks), Identity.of(recipe, tasks), journal, read_journal(journal))


def test_a_changed_recipe_is_known_before_anything_starts(tmp_path):
    life = Life(tmp_path)
    replaced = msgspec.structs.replace
    check_recipe(RECIPE, tmp_path / "journal")  # somebody else is writing it
    check_recipe(replaced(RECIPE, steps=RECIPE.steps + 1), tmp_path / "journal")
    with pytest.raises(JournalOfAnotherRun, match=r"batch.group_size was 3 and is 4; resume with the recipe"):
        check_recipe(replaced(RECIPE, batch=replaced(RECIPE.batch, group_size=4)), tmp_path / "journal")
    for _ in range(2):
        with pytest.raises(JournalOfAnotherRun, match=r"belongs to a run of 260 steps, but steps is now 259"):
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
    other = replaced(RECIPE, seed=7, buffer=replaced(RECIPE.buffer, max_staleness=3))
    with pytest.raises(JournalOfAnotherRun, match=r"buffer.max_staleness was \d+ and is 3, seed was 0 and is 7; resume with"):
        Life(tmp_path, other)
    with pytest.raises(JournalOfAnotherRun, match=r"belongs to a run of 260 steps, but steps is now 7: a run can be made longer"):
        Life(tmp_path, replaced(RECIPE, steps=7))
    with pytest.raises(JournalOfAnotherRun, match=r"tasks.train was 20000 and is 7;"):
        Life(tmp_path, replaced(RECIPE, tasks=GeneratedTasksConfig(train=7)))
    harmless = replaced(
        RECIPE,
        tasks=GeneratedTasksConfig(evaluation=7),
        buffer=replaced(RECIPE.buffer, journal=AppendOnlyJournalConfig(fsync="always")),
    )
    life = Life(tmp_path, harmless)
    assert life.report.again == 1
    life.die()


def test_files_of_tasks_may_be_moved_and_not_be_weighed_anew(tmp_path):
    def of(path, weight):
        files = (TaskFileConfig(path=path, weight=weight),)
        return msgspec.structs.replace(RECIPE, tasks=FileTasksConfig(train=files, evaluation=files))

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


# --- What is refused has changed nothing, and goes on as if nothing had been when what is gone is put back


def files(folder):
    """All files with their content and the disk space they take; the lock only says who asked last."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock"]
    return {path.relative_to(folder): (path.read_bytes(), path.stat().st_blocks) for path in found}


def refused(folder, error, told, **how):
    before = files(folder)
    with pytest.raises(error, match=told) as caught:
        Life(folder, **how)
    assert files(folder) == before
    return caught.value


def killed_run(folder):
    """Two steps trained, finished groups waiting, some rows orphaned, two snapshots, segments; its ledger."""
    life = Life(folder)
    life.step(0)
    life.journal.snapshot(life.buffer.snapshot())
    ready, half = life.lease(2)
    life.commit(ready)
    life.journal.snapshot(life.buffer.snapshot())
    life.commit(half, [1])
    life.generate(half, [0])
    life.die()


def gone_on(folder):
    """The state that a resume reaches, told by a copy of the run's files."""
    copy = folder.with_name(f"{folder.name}-copy")
    shutil.copytree(folder, copy)
    life = Life(copy)
    state = life.buffer.snapshot(), life.report
    life.die()
    shutil.rmtree(copy)
    return state


def test_a_recovery_that_goes_no_further_has_changed_nothing(tmp_path):
    """Whatever else is wrong with the run is found out before :meth:`Takeover.begin`."""
    killed_run(tmp_path)
    with open(tmp_path / "journal" / "00000003.log", "ab") as file:
        file.write(b"torn")
    (tmp_path / "journal" / "00000003.snapshot").write_bytes(b"nonsense")
    before, expected = files(tmp_path), gone_on(tmp_path)
    for _ in range(2):
        taken = recovered(RECIPE, stream(), tmp_path / "journal", Life.stores_of(tmp_path))
        assert taken.report.set_aside_bytes > 0
        taken.journal.close()
        assert files(tmp_path) == before
    life = Life(tmp_path)
    assert (life.buffer.snapshot(), life.report) == expected
    life.die()


GONE = {
    "the folder": ([""], JournalGone, r"journal is gone or holds nothing, although there are trajectories .*; put it back"),
    "all files": (["0*"], JournalGone, r"although \S+journal.head says that it had reached segment 3; put it back"),
    "the newest segment": (["00000003.log"], JournalDamaged, "00000003.log .* is not there, and journal.head says"),
    "newest segment and snapshot": (["00000003.*"], JournalDamaged, "00000003.log .* is not there, and journal.head says"),
    "a segment in the middle": (["00000003.snapshot", "00000002.log"], JournalDamaged, "00000002.log .* later ones are; restore"),
    "the beginning": (["*.snapshot"], JournalDamaged, "00000001.log .* cannot be read without it or a snapshot of"),
}


@pytest.mark.parametrize("what", GONE)
def test_what_is_gone_of_a_journal_is_told_and_put_back_it_goes_on(tmp_path, what):
    patterns, error, told = GONE[what]
    folder = tmp_path / "run"
    killed_run(folder)
    expected, aside = gone_on(folder), tmp_path / "aside"
    aside.mkdir()
    journal = folder / "journal"
    gone = [path for pattern in patterns for path in (sorted(journal.glob(pattern)) if pattern else [journal])]
    assert gone
    for path in gone:
        path.rename(aside / path.name)
    for _ in range(2):
        refused(folder, error, told)
    for path in gone:
        assert not path.exists(), "nothing was made in its place"
        (aside / path.name).rename(path)
    life = Life(folder)
    assert (life.buffer.snapshot(), life.report) == expected
    life.die()


def test_the_newest_snapshot_may_be_gone(tmp_path):
    killed_run(tmp_path)
    expected, _ = gone_on(tmp_path)
    (tmp_path / "journal" / "00000003.snapshot").unlink()
    life = Life(tmp_path)
    assert life.buffer.snapshot() == expected
    assert "missing, but not needed: the journal's 00000003.snapshot" in str(life.report)
    life.die()


@pytest.mark.parametrize("what", ["the folder", "all files"])
def test_trajectories_say_that_a_run_had_begun_even_if_nothing_is_left_of_its_journal(tmp_path, what):
    killed_run(tmp_path)
    head_of(tmp_path / "journal").unlink()
    shutil.rmtree(tmp_path / "journal")
    if what == "all files":
        (tmp_path / "journal").mkdir()
    refused(tmp_path, JournalGone, r"although there are trajectories of the run \(payload shard 0, 1\); put it back")
    assert (tmp_path / "journal").exists() == (what == "all files")


def test_a_first_record_that_was_torn_is_no_reason_to_begin_anew_over_trajectories(tmp_path):
    life = Life(tmp_path)
    life.commit(*life.lease(1))
    life.die()
    head_of(tmp_path / "journal").unlink()
    (tmp_path / "journal" / "00000001.log").write_bytes(b"")
    refused(tmp_path, JournalGone, "although there are trajectories of the run")


def test_what_a_remedy_gives_up_is_kept_until_the_run_has_shown_that_it_can_do_without(tmp_path):
    """The user gives up the newest segment, sees that this was wrong, and puts everything back."""
    folder, aside = tmp_path / "run", tmp_path / "aside"
    killed_run(folder)
    expected = gone_on(folder)
    shutil.copytree(folder / "journal", aside)
    (folder / "journal" / "00000003.log").unlink()
    remedy = refused(folder, JournalDamaged, "and journal.head says that").remedy
    assert remedy == f"move {head_of(folder / 'journal')} away"
    head_of(folder / "journal").rename(tmp_path / "head")
    life = Life(folder)
    assert life.report.set_aside_bytes > 0
    for shard, store in life.stores.items():
        store.free(live(life, shard))  # it goes on, and gives up what it had
    life.die()
    assert gone_on(folder)[0] != expected[0]

    shutil.rmtree(folder / "journal")
    shutil.copytree(aside, folder / "journal")
    (tmp_path / "head").replace(head_of(folder / "journal"))
    life = Life(folder)
    assert (life.buffer.snapshot(), life.report) == expected
    life.taken.sweep()
    assert [ref for shard, store in life.stores.items() for ref in store.verify(live(life, shard))] == []
    life.die()


def live(life, shard):
    return [ref for ref in life.buffer.groups.live_payload() if ref.shard == shard]


@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_payload_folder_that_is_gone_is_told_and_put_back_it_goes_on(tmp_path, checkpointed):
    folder, aside = tmp_path / "run", tmp_path / "aside"
    killed_run(folder)
    if checkpointed:
        life = Life(folder)
        life.do(commands.Checkpointed(1))
        life.die()
    expected, _ = gone_on(folder)
    aside.mkdir()
    for shard in range(2):
        (folder / f"shard-{shard}").rename(aside / f"shard-{shard}")
    told = r"shard-0 is not there, and the run's journal needs \d+ trajectories \([\d,]+ bytes\) .*; put it back and resume"
    refused(folder, PayloadGone, told)
    assert not (folder / "shard-0").exists(), "where it is to be put back, no folder is made in its place"
    for shard in range(2):
        (folder / f"shard-{shard}").mkdir()  # the other remedy, to the letter
    if checkpointed:
        taken = recovered(RECIPE, stream(), folder / "journal", Life.stores_of(folder))
        assert taken.report.lost_trajectories > 0
        taken.journal.close()
    else:
        refused(folder, LedgerError, "batch of version 0, .* were destroyed; put the run's payload folder back as it was")
    for shard in range(2):
        (folder / f"shard-{shard}").rmdir()
        (aside / f"shard-{shard}").rename(folder / f"shard-{shard}")
    assert gone_on(folder)[0] == expected


def test_errors_about_payload_travel_between_processes(tmp_path):
    error = PayloadGone(tmp_path, 3, 500)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_record_that_is_none_of_this_program_s_is_told(tmp_path):
    life = Life(tmp_path)
    life.journal.append(msgspec.msgpack.encode([99, "who knows"]))
    life.die()
    refused(
        tmp_path, UnknownFormat, "holds a record that this version of asyncrl cannot read .*; resume it with the asyncrl that"
    )
