import asyncio
import errno
import os
from pathlib import Path

import pytest

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.ids import PolicyVersion
from asyncrl.learners.checkpointing import checkpoints
from asyncrl.run.checkpointer import Checkpointer
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.summary import PlayedEvaluation
from asyncrl.run.measures.totals import Totals
from asyncrl.run.recipe.compose import compose
from asyncrl.run.resume import CheckpointOfTheFuture, CheckpointsGone


class Learner:
    """Writes checkpoints as the cluster's ranks do, and remembers what the buffer was told."""

    def __init__(self) -> None:
        self.forgotten: list[int] = []
        self._writing = Path()

    async def load_checkpoint(self, path: Path) -> None:
        assert path.name == "version-000004"

    async def start_checkpoint(self, path: Path, version: PolicyVersion) -> None:
        self._writing = path

    async def finish_checkpoint(self) -> None:
        self._writing.mkdir()

    async def checkpointed(self, version: PolicyVersion) -> None:
        self.forgotten.append(version)


class Notes:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def phase(self, text: str) -> None:
        pass

    def note(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}"]))


def make(folder: RunFolder, totals: Totals, *overrides: str) -> tuple[Checkpointer, Learner, Notes]:
    recipe = compose("quickstart", [f"run_dir={folder.path.parent}", "steps=20", "checkpoint.every=2", *overrides])
    learner, notes = Learner(), Notes()
    return Checkpointer(recipe, folder, learner, learner, totals, notes), learner, notes


async def run(checkpointer: Checkpointer, steps: int) -> None:
    for step in range(1, steps + 1):
        await checkpointer.finish()
        await checkpointer.begin(PolicyVersion(step))
    await checkpointer.finish()


def test_the_buffer_keeps_what_the_oldest_checkpoint_lacks(folder: RunFolder):
    checkpointer, learner, _ = make(folder, Totals(), "checkpoint.keep=3")
    asyncio.run(run(checkpointer, 11))
    assert learner.forgotten == [2, 2, 2, 4, 6]
    assert checkpoints.newest(folder.checkpoints) == (10, folder.checkpoints / "version-000010")
    assert sorted(path.name for path in folder.checkpoints.glob("*.json")) == [f"version-{v:06d}.json" for v in (6, 8, 10)]


def test_batches_of_further_steps_are_kept_where_the_recipe_says_so(folder: RunFolder):
    checkpointer, learner, _ = make(folder, Totals(), "checkpoint.keep=2", "buffer.journal.keep=5")
    asyncio.run(run(checkpointer, 11))
    assert learner.forgotten == [0, 0, 1, 3, 5]


def test_a_resume_goes_on_from_what_the_checkpoint_had_and_writes_nothing(folder: RunFolder):
    checkpointer, _, _ = make(folder, Totals(), "checkpoint.keep=3")
    asyncio.run(run(checkpointer, 5))
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    for _ in range(3):
        totals = Totals()
        again, _, notes = make(folder, totals)
        assert asyncio.run(again.resume(PolicyVersion(5), PolicyVersion(0))) == 4
        assert totals.versions_published == 5
        assert notes.lines == ["version 5 had been reached: training steps 5 to 5 are done again from the journal"]
    assert {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("steps", [1, 5], ids=["before the first checkpoint", "after one"])
def test_what_no_resume_does_again_is_not_forgotten(folder: RunFolder, steps: int):
    totals = Totals()
    checkpointer, _, _ = make(folder, totals)
    asyncio.run(run(checkpointer, steps))
    for reward in (0.25, 0.5):
        totals.evaluation(PlayedEvaluation(PolicyVersion(0), PolicyVersion(0), PolicyVersion(0), reward))
        totals.skip_evaluation(PolicyVersion(5))
        checkpointer.note()
    totals = Totals()
    again, _, _ = make(folder, totals)
    asyncio.run(again.resume(PolicyVersion(steps), PolicyVersion(0)))
    assert [each.reward for each in totals.now().evaluations] == [0.25, 0.5]
    assert totals.now().skipped_evaluations == [5]
    assert totals.now().steps == 0


def test_a_journal_that_ends_before_the_newest_checkpoint_is_refused(folder: RunFolder):
    checkpointer, _, _ = make(folder, Totals(), "checkpoint.keep=3")
    asyncio.run(run(checkpointer, 5))
    for published_version in (0, 2):
        with pytest.raises(CheckpointOfTheFuture, match=f"is of version 4, and the journal ends at version {published_version}"):
            asyncio.run(checkpointer.resume(PolicyVersion(published_version), PolicyVersion(0)))
    assert asyncio.run(checkpointer.resume(PolicyVersion(3), PolicyVersion(0))) == 4


def test_a_checkpoint_that_is_older_than_what_the_journal_keeps_is_refused(folder: RunFolder):
    checkpointer, _, _ = make(folder, Totals(), "checkpoint.keep=3")
    with pytest.raises(
        CheckpointsGone, match=r"there is no checkpoint in .*, and the journal has only the batches since version 4"
    ):
        asyncio.run(checkpointer.resume(PolicyVersion(5), PolicyVersion(4)))
    asyncio.run(run(checkpointer, 5))
    told = r"newest checkpoint in .* is version-000004, .* since version 6, .*; put version-000006 or a later one back"
    with pytest.raises(CheckpointsGone, match=told):
        asyncio.run(checkpointer.resume(PolicyVersion(7), PolicyVersion(6)))
    assert asyncio.run(checkpointer.resume(PolicyVersion(7), PolicyVersion(4))) == 4


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "; make room there;"), (errno.EROFS, "; its file system is read-only: mount it writable")],
)
def test_totals_that_cannot_be_written_put_a_checkpoint_off(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
):
    checkpointer, learner, notes = make(folder, Totals())
    real = Path.write_bytes

    def refuse(path: Path, data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    asyncio.run(run(checkpointer, 2))
    assert learner.forgotten == []
    assert f"could not be written: {os.strerror(number)}{remedy}" in notes.lines[0]
    monkeypatch.setattr(Path, "write_bytes", real)
    asyncio.run(run(checkpointer, 1))
    assert learner.forgotten == [1]


def test_a_run_whose_folder_was_moved_ends_instead_of_going_on_in_another(folder: RunFolder):
    async def moved() -> None:
        with folder.driven():
            await checkpointer.room()
            folder.path.rename(folder.path.with_name("moved"))
            folder.path.mkdir()
            await checkpointer.room()

    checkpointer, *_ = make(folder, Totals())
    with pytest.raises(ComponentFailed, match="was moved or removed while its run went on"):
        asyncio.run(moved())


def test_a_checkpoint_that_cannot_be_removed_ends_no_run_and_is_removed_later(folder: RunFolder, monkeypatch, caplog):
    def busy(path: Path) -> None:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))

    checkpointer, learner, _ = make(folder, Totals(), "checkpoint.keep=1")
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints.shutil, "rmtree", busy)
        asyncio.run(run(checkpointer, 6))
    assert learner.forgotten == [2, 4, 6]
    assert ".version-000004.doomed could not be removed, which is tried again" in caplog.text
    assert sorted(checkpoints.versions(folder.checkpoints)) == [6]
    assert len(list(folder.checkpoints.glob(".*.doomed"))) == 2
    checkpoints.prune(folder.checkpoints, 1)
    assert not list(folder.checkpoints.glob(".*.doomed"))
