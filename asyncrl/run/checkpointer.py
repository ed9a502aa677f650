"""Checkpoints of a run: the learner's state and the run's totals at one version, and what the buffer may then forget.

Always holds: the buffer forgets a trained batch only when every checkpoint that is kept includes it. So a run can
be resumed from any of them, for example from the one before if the newest is damaged or gone; ``buffer.journal.keep`` has it
keep more. A run without a journal cannot be resumed, and makes no checkpoint.
"""

import asyncio
from pathlib import Path
from typing import Protocol

import msgspec

from asyncrl.buffers.journal.journal_copy import copy_journal
from asyncrl.core.buffer_api import BufferApi
from asyncrl.core.files.file_errors import cause_and_remedy
from asyncrl.core.files.whole_file import write_whole
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.recipe.buffer import AppendOnlyJournalConfig
from asyncrl.core.recipe.schema import CheckpointConfig, Recipe
from asyncrl.learners.checkpointing import checkpoints
from asyncrl.learners.checkpointing.checkpoint_manifest import CheckpointNotWritten
from asyncrl.run.folder.buffer_folder import journal_of
from asyncrl.run.folder.disk import ROOM_BYTES, wait_for_room
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.totals import SavedTotals, Totals
from asyncrl.run.resume import begin_from, totals_at, totals_file
from asyncrl.run.storage.stored_checkpoints import journal_copy_of
from asyncrl.run.storage.upload_places import Uploads
from asyncrl.run.views.live_view import LiveView


class CheckpointingRanks(Protocol):
    """The learner's ranks, as far as checkpoints need them. Every call has a deadline of its own."""

    async def load_checkpoint(self, path: Path) -> None:
        """Have all ranks go on from a checkpoint."""
        ...

    async def start_checkpoint(self, path: Path, version: PolicyVersion) -> None:
        """Have all ranks begin to write their part of the checkpoint at ``version``."""
        ...

    async def finish_checkpoint(self) -> None:
        """Wait until the checkpoint that was begun is complete on disk."""
        ...


class Checkpointer:
    """Saves and finds the checkpoints of one run.

    Args:
        recipe: says how often a checkpoint is made, how many are kept, and how many steps' batches beside them.
        uploads: upload the run to object stores; None, if nothing does.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        ranks: CheckpointingRanks,
        buffer: BufferApi,
        totals: Totals,
        view: LiveView,
        uploads: Uploads | None = None,
    ) -> None:
        journal = recipe.buffer.journal
        self._config: CheckpointConfig | None = None
        self._keep_batches = 0
        if isinstance(journal, AppendOnlyJournalConfig):  # without one, a run cannot be resumed
            self._config, self._keep_batches = recipe.checkpoint, journal.keep
        self._steps = recipe.steps
        self._folder, self._ranks, self._buffer, self._totals, self._view = folder, ranks, buffer, totals, view
        self._uploads = uploads
        self._published_before = PolicyVersion(0)
        self._writing: PolicyVersion | None = None
        self._overdue = False
        self._checkpoint_bytes = 0
        self._written = (PolicyVersion(0), SavedTotals())

    async def resume(self, published_version: PolicyVersion, kept_from: PolicyVersion) -> PolicyVersion:
        """Bring learner and totals to the version that :func:`begin_from` names, and return it. Writes nothing.

        Raises:
            CheckpointOfTheFuture, CheckpointsGone: the buffer and the newest checkpoint do not fit together.
        """
        version, path = begin_from(self._folder.checkpoints, published_version, kept_from)
        self._published_before = published_version
        if path is not None:
            self._view.phase(f"Resuming from the checkpoint of version {version}")
            await self._ranks.load_checkpoint(path)
        if published_version > 0:
            self._resume_totals(version, published_version)
        if published_version > version:
            self._view.note(
                f"version {published_version} had been reached: training steps {version + 1} to {published_version} are done "
                "again from the journal"
            )
        return version

    def _resume_totals(self, version: PolicyVersion, published_version: PolicyVersion) -> None:
        """Load the totals saved at ``version``, to go on from there."""
        saved, problem = totals_at(self._folder.checkpoints, version)
        if problem:
            self._view.note(problem)
        self._totals.resume(saved, published_version)
        self._written = version, saved

    async def begin(self, version: PolicyVersion, *, last: bool = False) -> None:
        """Begin the checkpoint of ``version``, which the learner has just reached, if one is due. Training may go on.

        Args:
            last: the run ends with this version, whatever its recipe says.
        """
        if self._config is None:
            return
        if not (version % self._config.every == 0 or version == self._steps or last or self._overdue):
            return
        self._overdue = True
        try:
            # Written before the checkpoint itself, so that every checkpoint has its totals.
            self._write_totals(version, self._totals.now())
            await self._copy_journal(version)
            self._writing = version
            await self._ranks.start_checkpoint(checkpoints.path_of(self._folder.checkpoints, version), version)
        except CheckpointNotWritten as error:
            self._not_written(error)

    async def _copy_journal(self, version: PolicyVersion) -> None:
        """Copy the journal beside the checkpoint, for a resume where nothing else of the run is.

        No batch after ``version`` has been handed out yet, so that resume needs no trajectory. Where training steps are done
        again, the journal is ahead, and no copy is made.
        """
        if self._uploads is None or not self._uploads.with_checkpoints or version < self._published_before:
            return
        to = journal_copy_of(checkpoints.path_of(self._folder.checkpoints, version))
        try:
            await asyncio.to_thread(copy_journal, journal_of(self._folder.path), to)
        except OSError as error:
            raise CheckpointNotWritten(f"{to} could not be written: {cause_and_remedy(error)}") from error

    async def finish(self) -> None:
        """Wait for the checkpoint that was begun, if any, and tell the buffer what it may forget."""
        if self._config is None or self._writing is None:
            return
        version = self._writing
        try:
            await self._ranks.finish_checkpoint()
        except CheckpointNotWritten as error:
            self._not_written(error)
            return
        self._writing, self._overdue = None, False
        path = checkpoints.path_of(self._folder.checkpoints, version)
        self._checkpoint_bytes = sum(file.stat().st_size for file in path.rglob("*"))
        oldest = self._prune(self._config.keep)
        if self._uploads is not None:
            self._uploads.wake()
        await self._buffer.checkpointed(min(oldest, PolicyVersion(max(0, version - self._keep_batches))))

    def _prune(self, keep: int) -> PolicyVersion:
        """Remove all but the newest ``keep`` checkpoints and their totals; returns the oldest version that is left."""
        checkpoints.prune(self._folder.checkpoints, keep)
        for totals in self._folder.checkpoints.glob("version-*.json"):
            if not totals.with_suffix("").is_dir():
                totals.unlink()
        for copy in self._folder.checkpoints.glob("*.journal*"):
            if not copy.with_name(copy.name.partition(".journal")[0]).is_dir():
                checkpoints.remove(copy)
        return min(checkpoints.versions(self._folder.checkpoints))

    def _not_written(self, error: CheckpointNotWritten) -> None:
        """Go on without this checkpoint: the buffer keeps what was trained since the last one."""
        self._writing = None
        self._view.note(f"{error}; another checkpoint is tried after the next training step")

    def note(self) -> None:
        """Save in the newest totals what a resumed run does not do again: evaluations, tokens sampled and time."""
        if self._config is not None:
            version, saved = self._written
            now = self._totals.now()
            kept = ("evaluations", "skipped_evaluations", "tokens_generated", "wall")
            known = {field: getattr(now, field) for field in kept}
            try:
                self._write_totals(version, msgspec.structs.replace(saved, **known))
            except CheckpointNotWritten as error:
                self._view.note(str(error))

    async def room(self) -> None:
        """Wait until the disk has room for another training step, and tell the user if there is a wait.

        Raises:
            RunTakenOver: another process drives the run by now.
            ComponentFailed: the run's folder was moved or removed.
        """
        self._folder.check_there()
        if self._uploads is not None:
            self._uploads.check()
        await wait_for_room(self._folder.path, ROOM_BYTES + self._checkpoint_bytes, self._view.note)

    def _write_totals(self, version: PolicyVersion, totals: SavedTotals) -> None:
        file = totals_file(self._folder.checkpoints, version)
        try:
            file.parent.mkdir(exist_ok=True)
            write_whole(file, msgspec.json.encode(totals))
            self._written = version, totals
        except OSError as error:
            raise CheckpointNotWritten(f"{file} could not be written: {cause_and_remedy(error)}") from error
