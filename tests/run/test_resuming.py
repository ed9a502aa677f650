"""Whether a run can be resumed: told before anything starts, by files alone; nothing is changed, and nothing is forgotten."""

import ctypes
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import msgspec
import pytest
from made_buffers import recovered
from made_checkpoints import make_checkpoint, saved_by_torch, seal
from played_episodes import record

from asyncrl.buffers import commands
from asyncrl.buffers.journal.journal_files import head_of
from asyncrl.buffers.limits import Limits
from asyncrl.buffers.payload_store import PayloadStore, PayloadWriter
from asyncrl.cli.main import main
from asyncrl.cli.outcome import ExitCode
from asyncrl.core.errors import RecipeError
from asyncrl.core.ids import PolicyVersion, WorkerId
from asyncrl.learners.checkpointing import checkpoint_manifest, checkpoints
from asyncrl.run.buffer.tasks import make_task_stream
from asyncrl.run.folder.buffer_folder import BufferFolder
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.summary import PlayedEvaluation, Status, Summary, TokenTotals
from asyncrl.run.measures.totals import SavedTotals
from asyncrl.run.recipe.compose import compose
from asyncrl.run.resume import check_resumable

SMALL = ["steps=20", "tasks.train=200", "batch.groups_per_step=2", "batch.group_size=2"]


class Run:
    """A run that was killed: ``steps`` steps trained, checkpoints of ``versions``, one finished group, one cut short."""

    def __init__(self, parent, steps=7, versions=(4, 6), overrides=()):
        self.recipe = compose("quickstart", [f"run_dir={parent}", *SMALL, *overrides])
        self.folder = RunFolder.create(self.recipe)
        where = BufferFolder.of(self.recipe.buffer, self.folder.path, self.folder.run_id)
        self.journal, self.payload = where.journal, where.shard(0)
        taken = recovered(self.recipe, make_task_stream(self.recipe), where.journal, {0: PayloadStore(self.payload)})
        taken.begin()
        self.buffer, self._journal = taken.buffer, taken.journal
        self._writer = PayloadWriter(self.payload, 0, "worker", segment_bytes=1 << 20, fsync=False)
        for version in range(steps):
            self.step(PolicyVersion(version))
            if version + 1 in versions:
                self.checkpoint(PolicyVersion(version + 1))
                self.do(commands.Checkpointed(PolicyVersion(min(versions))))
        self.commit(*self.lease(2)[:1])
        self._journal.close()
        self._writer.close()

    def do(self, command):
        self._journal.append(commands.encode(command))
        return command.apply(self.buffer)

    def lease(self, groups):
        return self.do(commands.IssueTickets(WorkerId("generator-0"), groups, 1e9))

    def commit(self, *tickets):
        for ticket in tickets:
            refs = self._writer.append([b"%d/%d" % (ticket.group_id, index) for index in ticket.samples])
            made = [
                record(
                    group_id=ticket.group_id,
                    sample_index=index,
                    length=10,
                    sampled=((ticket.version, 5),),
                    reward=float(index),
                    payload=ref,
                )
                for index, ref in zip(ticket.samples, refs, strict=True)
            ]
            self.do(commands.Commit(tuple(made), 1e9))

    def step(self, version):
        self.commit(*self.lease(2))
        self.do(commands.Take(version, 2))
        self.do(commands.Trained(version))
        self.do(commands.Advance(PolicyVersion(version + 1)))

    def checkpoint(self, version):
        path = checkpoints.path_of(self.folder.checkpoints, version)
        make_checkpoint(path, version)
        totals = SavedTotals(
            steps=version, wall=10.0 * version, tokens_generated=100 * version, evaluations=[PlayedEvaluation(0, 0, 0, 0.5)]
        )
        path.with_suffix(".json").write_bytes(msgspec.json.encode(totals))

    def files(self):
        return {path: path.read_bytes() for path in sorted(self.folder.path.rglob("*")) if path.is_file()}

    def refused(self, told):
        """It is refused, twice, with these words, and nothing is changed."""
        before, names = self.files(), sorted(self.folder.path.rglob("*"))
        for _ in range(2):
            with pytest.raises(RecipeError, match=told):
                self.reached()
        assert (self.files(), sorted(self.folder.path.rglob("*"))) == (before, names)

    def reached(self):
        return check_resumable(self.recipe, self.folder)


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def test_what_was_reached_is_told_by_journal_and_checkpoint(run):
    before = run.files()
    reached = run.reached()
    assert run.files() == before
    told = reached.summary
    assert (told.steps, told.versions_published, told.resumes) == (7, 7, 0), "by the journal: it is further than any checkpoint"
    assert (told.ledger.trained, told.ledger.committed, told.ledger.running) == (14, 1, 1)
    assert (told.tokens.generated, told.evaluation.last) == (600, 0.5), "by the totals of the newest checkpoint"
    assert told.wall_s == pytest.approx(60.0, abs=5.0)
    assert (reached.totals.steps, reached.statistics.version, reached.note) == (6, 7, "")


def test_an_orderly_end_had_told_more(run):
    ended = Summary(status=Status.INTERRUPTED, reason="stopped by the user", steps=7, tokens=TokenTotals(777, 70), resumes=1)
    ended.write(run.folder.summary)
    told = run.reached().summary
    assert (told.steps, told.tokens.generated, told.ledger.trained, told.versions_published) == (7, 777, 14, 7)
    assert told.resumes == 1
    run.folder.count_resume()
    run.folder.count_resume()
    assert run.reached().summary.resumes == 2


@pytest.mark.parametrize("content", [b"", b'{"status": "inter', b"\xff\xfe", b"[" * 100_000, b'{"status": "gone"}'], ids=range(5))
def test_a_summary_that_cannot_be_read_is_made_anew(run, content):
    run.folder.summary.write_bytes(content)
    reached = run.reached()
    assert "summary.json cannot be read" in reached.note
    assert "it is made anew, from the journal and the last checkpoint's totals" in reached.note
    assert (reached.summary.steps, reached.summary.ledger.trained) == (7, 14)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"], ids=["none", "empty", "garbage"])
def test_totals_that_cannot_be_read_are_done_without(run, content):
    totals = run.folder.checkpoints / "version-000006.json"
    totals.unlink() if content is None else totals.write_bytes(content)
    reached = run.reached()
    assert reached.totals == SavedTotals()
    assert (reached.summary.steps, reached.summary.ledger.trained) == (7, 14)


def test_a_completed_run_is_not_resumed(run):
    Summary(status=Status.COMPLETED, steps=20).write(run.folder.summary)
    run.refused("has completed its 20 training steps, so there is nothing to resume; make it longer")


@pytest.mark.parametrize("left", ["head", "nothing"])
def test_a_journal_that_is_gone_is_told_and_put_back_it_goes_on(run, tmp_path, left):
    expected, head = run.reached(), head_of(run.journal)
    run.journal.rename(tmp_path / "journal")
    if left == "nothing":
        head.rename(tmp_path / "head")
    run.refused(
        r"journal is gone or holds nothing, although \S+journal.head says .*; put it back"
        if left == "head"
        else "although there are trajectories in .*payload and there is a checkpoint, checkpoints/version-000006; put it back"
    )
    assert not run.journal.exists()
    if left == "nothing":
        shutil.rmtree(run.payload)
        run.refused("although there is a checkpoint, checkpoints/version-000006; put it back")
        shutil.rmtree(run.folder.checkpoints)
        Summary(status=Status.FAILED, ledger=expected.summary.ledger).write(run.folder.summary)
        run.refused("although summary.json has 16 groups; put it back")
        return
    (tmp_path / "journal").rename(run.journal)
    assert run.reached().statistics == expected.statistics


def test_a_run_that_died_before_it_began_begins(tmp_path):
    recipe = compose("quickstart", [f"run_dir={tmp_path}", *SMALL])
    folder = RunFolder.create(recipe)
    reached = check_resumable(recipe, folder)
    assert (reached.summary.steps, reached.summary.ledger.issued, reached.statistics.version) == (0, 0, 0)
    journal = BufferFolder.of(recipe.buffer, folder.path, folder.run_id).journal
    journal.mkdir(parents=True)
    (journal / "lock").write_text("123")
    assert check_resumable(recipe, folder).summary.steps == 0


def test_a_run_that_is_being_driven_is_not_looked_at_any_further(run, tmp_path):
    run.journal.rename(tmp_path / "journal")
    with run.folder.driven(), pytest.raises(RecipeError, match=r"is still running .*; wait for it, or stop it first"):
        check_resumable(run.recipe, RunFolder.find(run.folder.path))


def test_payload_that_is_gone_is_told(run, tmp_path):
    run.payload.rename(tmp_path / "shard-0")
    run.refused(r"payload/shard-0 is not there, and the run's journal needs 14 trajectories .*; put it back and resume again, or")
    assert not run.payload.exists()
    (tmp_path / "shard-0").rename(run.payload)
    assert run.reached().summary.steps == 7


def test_a_flipped_byte_in_a_checkpoint_is_told_before_anything_starts(run):
    weights = run.folder.checkpoints / "version-000006" / "__0_0.distcp"
    flipped = bytearray(weights.read_bytes())
    flipped[3500] ^= 1
    weights.write_bytes(flipped)
    run.refused(r"version-000006 is damaged: __0_0\.distcp does not have the checksum it was written with; put it back")
    weights.parent.rename(run.folder.path / "aside")
    assert run.reached().totals.steps == 4


def test_a_pickle_that_would_run_something_is_told_before_anything_starts_and_is_not_run(run, tmp_path):
    class Crafted:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "proof"),)

    checkpoint = run.folder.checkpoints / "version-000006"
    for name, crafted in ((".metadata", pickle.dumps(Crafted())), ("common.pt", saved_by_torch([Crafted()]))):
        sound = (checkpoint / name).read_bytes()
        (checkpoint / name).write_bytes(crafted)
        seal(checkpoint, PolicyVersion(6))
        run.refused(rf"{name} of checkpoint .*version-000006 names posix\.mkdir, which asyncrl never writes")
        (checkpoint / name).write_bytes(sound)
    assert not (tmp_path / "proof").exists()


CHANGED = ["buffer.filters=[{kind: zero_variance}]", "buffer.max_failures=7", "buffer.max_attempts=5"]


def test_what_a_remedy_says_to_change_may_change_and_holds_from_then_on(run):
    """A replay applies to each record the limits that held when it was written: nothing that was trained is filtered now."""
    changed = compose(str(run.folder.recipe), CHANGED)
    assert check_resumable(changed, run.folder).summary.ledger.trained == 14
    stores = {0: PayloadStore(run.payload)}
    taken = recovered(changed, make_task_stream(changed), run.journal, stores)
    taken.begin()
    assert taken.buffer.limits == Limits.of(changed.buffer)
    before = taken.buffer.snapshot()
    taken.journal.close()
    again = recovered(run.recipe, make_task_stream(run.recipe), run.journal, stores)
    assert again.buffer.limits == Limits.of(run.recipe.buffer), "and may be changed back"
    again.journal.close()
    assert recovered(changed, make_task_stream(changed), run.journal, stores).buffer.snapshot() == before


def test_a_key_that_the_journal_depends_on_may_not_change(run):
    changed = compose(str(run.folder.recipe), ["batch.groups_per_step=4"])
    with pytest.raises(RecipeError, match=r"batch.groups_per_step was 2 and is 4; resume with the recipe the run began with"):
        check_resumable(changed, run.folder)


def test_a_resume_takes_changes_of_its_recipe_on_the_command_line(run, capsys):
    resume = ["launch", "--resume", str(run.folder.path), "--dry-run"]
    before = run.files()
    assert main([*resume, "steps=30", "deadlines.batch=900", *CHANGED]) == ExitCode.COMPLETED
    shown = capsys.readouterr().out
    assert ("steps: 30" in shown, "batch: 900" in shown, "kind: zero_variance" in shown) == (True, True, True)
    assert run.files() == before, "a dry run changes nothing"
    for wrong, told in (("steps=5", "steps is now 5: a run can be made longer"), ("run_dir=x", "run_dir: a resumed run keeps")):
        assert main([*resume, wrong]) == ExitCode.REFUSED
        assert told in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*resume, "quickstart"])


def test_a_recipe_that_was_changed_is_kept_by_the_run(run):
    run.folder.keep_recipe(compose(str(run.folder.recipe), ["steps=30", *CHANGED]))
    kept = compose(str(RunFolder.find(run.folder.path).recipe))
    assert (kept.steps, kept.buffer.max_failures) == (30, 7)


def test_all_checkpoints_gone_is_told(run, tmp_path):
    run.folder.checkpoints.rename(tmp_path / "checkpoints")
    told = "there is no checkpoint in .*, and the journal has only the batches since version 4"
    run.refused(f"{told}, .*; put version-000004 or a later one back and resume again")
    run.folder.checkpoints.mkdir()
    (tmp_path / "checkpoints" / "version-000004").rename(run.folder.checkpoints / "version-000004")
    assert run.reached().summary.steps == 7


def test_before_the_first_checkpoint_none_is_missed(tmp_path):
    reached = Run(tmp_path, steps=3, versions=(4,)).reached()
    assert (reached.summary.steps, reached.summary.ledger.trained, reached.totals) == (3, 6, SavedTotals())


def test_a_checkpoint_under_another_s_name_is_told_by_both(run):
    target = run.folder.checkpoints / "version-000008"
    shutil.copytree(run.folder.checkpoints / "version-000004", target)
    told = "its name says version 8, but the files in it are of version 4 and belong in version-000004"
    run.refused(f"version-000008 is damaged: {told}; put it back from a copy, or move the folder away")
    target.rename(run.folder.checkpoints / "version-000012")
    run.refused("version-000012 is of version 12, and the journal ends at version 7, before it; put the journal back, or move")
    (run.folder.checkpoints / "version-000012").rename(run.folder.path / "aside")
    assert run.reached().totals.steps == 6


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"[" * 100_000], ids=["none", "empty", "garbage", "deep"])
def test_a_checkpoint_without_a_manifest_is_told_and_the_one_before_does(run, content):
    newest = run.folder.checkpoints / "version-000006"
    manifest = newest / checkpoint_manifest.NAME
    manifest.unlink() if content is None else manifest.write_bytes(content)
    run.refused("version-000006 is damaged: .*; put it back from a copy, or move the folder away, so that the checkpoint before")
    newest.rename(run.folder.path / "aside")
    assert run.reached().totals.steps == 4


@pytest.fixture
def tracked(run):
    """The run's MLflow database, as far as it is looked into."""
    run.folder.tracked_as.write_text("0123")
    with closing(sqlite3.connect(run.folder.database)) as database, database:
        database.execute("CREATE TABLE runs (run_uuid TEXT PRIMARY KEY, lifecycle_stage TEXT, experiment_id INTEGER)")
        database.execute("INSERT INTO runs VALUES ('0123', 'active', 1)")
        database.execute("CREATE TABLE experiments (experiment_id INTEGER, lifecycle_stage TEXT)")
        database.execute("INSERT INTO experiments VALUES (1, 'active')")
        database.execute("CREATE TABLE metrics (value REAL)")
        database.executemany("INSERT INTO metrics VALUES (?)", [(float(step),) for step in range(2000)])
    run.reached()
    return run.folder.database


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (
            lambda whole: b"no database " * 1000,
            "file is not a database.*; or resume with the metrics elsewhere",
        ),
        (
            lambda whole: whole[: len(whole) // 2],
            "malformed.*; or resume with the metrics elsewhere",
        ),
        (lambda whole: b"", "no such table: runs.*; or resume with the metrics elsewhere"),
        (
            lambda whole: whole.replace(b"0123", b"4567"),
            "it has no run '0123', which mlflow-run names; put it back; or remove .*mlflow-run to begin the metrics of this",
        ),
    ],
    ids=["garbage", "truncated", "empty", "another"],
)
def test_a_damaged_mlflow_database_is_told_before_anything_starts(run, tracked, damage, told):
    whole = tracked.read_bytes()
    tracked.write_bytes(damage(whole))
    run.refused(f"MLflow database {tracked} cannot be used: .*{told}")
    tracked.write_bytes(whole)
    run.reached()
    tracked.unlink()
    run.reached()


def test_a_read_only_mlflow_database_is_told_before_anything_starts(run, tracked):
    def forgo_what_root_may():
        ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)  # PR_CAPBSET_DROP of CAP_DAC_OVERRIDE: permissions hold for root, too

    tracked.chmod(0o444)
    command = [sys.executable, "-m", "asyncrl.cli.main", "launch", "--resume", str(run.folder.path), "--dry-run"]
    done = subprocess.run(command, preexec_fn=forgo_what_root_may, capture_output=True, text=True, timeout=200)
    assert done.returncode == ExitCode.REFUSED
    assert f"the MLflow database {tracked} cannot be used: it is read-only; repair it or put it back" in done.stderr


def test_the_command_line_says_so_and_starts_nothing(run, tmp_path, capsys):
    run.journal.rename(tmp_path / "journal")
    before = run.files()
    assert main(["launch", "--resume", str(run.folder.path)]) == ExitCode.REFUSED
    told = capsys.readouterr().err
    assert told.startswith("Refused, nothing was started:")
    assert "journal is gone or holds nothing" in told
    assert run.files() == before


def test_it_is_resumed_from_anywhere_and_after_its_project_has_moved(tmp_path, monkeypatch):
    project, moved = tmp_path / "project", tmp_path / "moved"
    project.mkdir()
    (project / "world_of_mine.py").write_text(
        "from asyncrl.envs.builtin.calculator import Calculator\nclass World(Calculator): ...\n"
    )
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", list(sys.path))
    run = Run(tmp_path / "runs", overrides=["environment.name=world_of_mine:World"])

    def resumed(*arguments):
        command = [sys.executable, "-m", "asyncrl.cli.main", "launch", "--resume", str(run.folder.path), "--dry-run", *arguments]
        return subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=200)

    assert resumed().returncode == ExitCode.COMPLETED
    project.rename(moved)
    gone = resumed()
    assert gone.returncode == ExitCode.REFUSED
    assert "there is no module 'world_of_mine'" in gone.stderr
    assert f"relative paths of its recipe begin in / ({project}, where the run was launched, is gone)" in gone.stderr
    assert resumed("--from", str(moved)).returncode == ExitCode.COMPLETED
    assert "is not a folder" in resumed("--from", str(project)).stderr
