"""Reads the replay buffer of a run, live or dead, from its journal. Changes nothing, and needs no task files."""

import time
from pathlib import Path

import msgspec

from asyncrl.buffers.inspection import BufferReport, inspect
from asyncrl.buffers.journal.journal_files import read_begun
from asyncrl.buffers.journal.recovery import rebuild
from asyncrl.buffers.journal.unchangeable_keys import Identity
from asyncrl.buffers.replay_buffer import ReplayBuffer
from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.buffer import AppendOnlyJournalConfig
from asyncrl.run.buffer.tasks import recorded_task_stream
from asyncrl.run.folder.buffer_folder import journal_of
from asyncrl.run.folder.run_folder import RunFolder, in_launch_directory
from asyncrl.run.recipe.compose import compose


def inspect_run(run: Path) -> BufferReport:
    """Report on the buffer of the run in folder ``run``, as it is now.

    Raises:
        RecipeError: there is no run in the folder, or the run keeps no journal or has not begun it yet.
        JournalDamaged, JournalGone, JournalOfAnotherRun, UnknownFormat: what is there cannot be read.
    """
    buffer = recorded_buffer(RunFolder.find(run))
    return inspect(buffer.statistics(), buffer.tasks.drawn, time.time())


def recorded_buffer(folder: RunFolder) -> ReplayBuffer:
    """Return the buffer of a run as its journal describes it. Raises what :func:`inspect_run` does."""
    recipe = compose(str(folder.recipe))
    if not isinstance(recipe.buffer.journal, AppendOnlyJournalConfig):
        problem = f"{folder.path} keeps no journal, so only the buffer's process knows what the buffer holds"
        raise RecipeError("buffer.journal", problem, "launch it with buffer.journal={kind: append_only} to look into it")
    journal = journal_of(folder.path)
    found = read_begun(journal)
    if found.identity is None:
        problem = f"{folder.path} has no journal in {journal.relative_to(folder.path)}"
        raise RecipeError("", problem, "wait until the run has started its buffer, or, if it failed before that, see its logs")
    recorded = msgspec.json.decode(found.identity, type=Identity)
    with in_launch_directory(folder):  # where the recipe's curriculum and sampler are, if it has its own
        tasks = recorded_task_stream(recipe, recorded.sources)
        buffer = ReplayBuffer(recipe.batch, recipe.buffer, tasks, steps=recipe.steps, seed=recipe.seed)
        rebuild(buffer, Identity.of(recipe, tasks), journal, found)
    return buffer
