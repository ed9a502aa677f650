"""Finds out whether a run can be resumed, before anything of it starts, how far it had come, and where it begins.

It begins at its newest checkpoint, if that fits the journal, and with that one's totals.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from asyncrl.buffers.journal.journal_files import JournalGone, read_begun
from asyncrl.buffers.journal.recovery import rebuild
from asyncrl.buffers.journal.unchangeable_keys import Identity
from asyncrl.buffers.payload_store import SUFFIX, check_there
from asyncrl.buffers.replay_buffer import ReplayBuffer
from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.core.files.file_formats import UnknownFormat, check_json_format
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.measures.buffer_statistics import BufferStatistics
from asyncrl.core.recipe.buffer import AppendOnlyJournalConfig, BufferConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.learners.checkpointing import checkpoints
from asyncrl.learners.checkpointing.checkpoint_check import check_checkpoint
from asyncrl.run.buffer.tasks import make_task_stream
from asyncrl.run.folder.buffer_folder import BufferFolder, journal_of
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.summary import Status, Summary
from asyncrl.run.measures.totals import FORMAT, SavedTotals, Totals, summarize
from asyncrl.run.recipe.compose import compose
from asyncrl.run.tracking.tracking_check import check_database, check_names


class CheckpointOfTheFuture(AsyncRLError):
    """The newest checkpoint is of a version that the buffer has not reached yet."""


class CheckpointsGone(AsyncRLError):
    """The newest checkpoint is so old that the buffer no longer has what was trained since."""


class Reached(msgspec.Struct, frozen=True):
    """How far a run that is about to be resumed had come, according to its files.

    Attributes:
        summary: the summary that it would have if it ended now.
        totals: the totals at the checkpoint that its learner begins from.
        note: says that the summary cannot be read and is made anew; empty if it could be read.
        changed: whether the run is resumed with changes of its recipe, which it keeps from now on.
    """

    summary: Summary
    totals: SavedTotals
    statistics: BufferStatistics
    note: str = ""
    changed: bool = False


def check_resumable(recipe: Recipe, folder: RunFolder) -> Reached:
    """Refuse a run that cannot be resumed. Reads journal, checkpoints, totals, summary and tracking; changes nothing.

    Raises:
        RecipeError: the run keeps no journal, or one that cannot be read, is gone, or is another recipe's; its folder's path is
            not UTF-8; its summary has another format; its trajectories are gone; its newest checkpoint is damaged, of another
            version than its name says, or does not go with the journal; its MLflow database cannot be used; it has completed
            and ``steps`` was not raised; or a process is driving it.
    """
    if not isinstance(recipe.buffer.journal, AppendOnlyJournalConfig):
        raise RecipeError("buffer.journal", f"{folder.path} keeps no journal, so it cannot be resumed", "launch it anew")
    check_names(folder.path)
    folder.check_not_driven()
    _check_teacher(recipe, folder)
    ended, unreadable = _how_it_ended(folder)
    if ended is not None and ended.status is Status.COMPLETED and recipe.steps <= ended.steps:
        problem = f"{folder.path} has completed its {ended.steps} training steps, so there is nothing to resume"
        raise RecipeError("", problem, f"make it longer (--resume {folder.path} steps=N), or launch a new run")
    try:
        statistics = _read_buffer(recipe, folder, ended)
        version, checkpoint = begin_from(folder.checkpoints, statistics.version, statistics.kept_from)
        if checkpoint is not None:
            check_checkpoint(checkpoint)
    except RecipeError:
        raise
    except AsyncRLError as error:
        raise RecipeError("", str(error), "nothing of the run was changed") from error
    if not recipe.tracking.uri:
        check_database(folder)
    totals, _ = totals_at(folder.checkpoints, version)
    return Reached(_summary_so_far(recipe.buffer, folder, totals, statistics, ended), totals, statistics, unreadable)


def _check_teacher(recipe: Recipe, folder: RunFolder) -> None:
    """Refuse a teacher where the run had none: nobody has looked at the episodes that are waiting to be trained."""
    if recipe.algorithm.teacher is not None and compose(str(folder.recipe)).algorithm.teacher is None:
        problem = f"{folder.path} has had no teacher, so none has looked at the episodes that wait in its buffer"
        raise RecipeError("algorithm.teacher", problem, "launch a new run with it, from the model that this one has exported")


def check_changes(overrides: Sequence[str]) -> None:
    """Refuse changes of a resumed run's recipe that would say something else than its folder does.

    What else may not change is found where it matters: :mod:`asyncrl.buffers.journal.unchangeable_keys`, and the model of
    the checkpoint.

    Raises:
        RecipeError: one of them names the run or its folder anew.
    """
    for override in overrides:
        key = override.lstrip("~+").partition("=")[0].strip()
        if key in ("name", "run_dir"):
            raise RecipeError(key, "a resumed run keeps its name and its folder", "leave it out, or launch a new run")


def begin_from(folder: Path, published: PolicyVersion, kept_from: PolicyVersion) -> tuple[PolicyVersion, Path | None]:
    """Return the version that the learner begins from, and its checkpoint in ``folder``; 0 and None if there is none.

    Args:
        folder: the run's checkpoints; it may be missing.
        published: the buffer's published version, according to its journal.
        kept_from: the oldest version whose batch the buffer still has.

    Raises:
        CheckpointOfTheFuture: the journal has lost what led to the newest checkpoint.
        CheckpointsGone: the buffer has forgotten what was trained since the newest checkpoint.
    """
    version, path = checkpoints.newest(folder) or (PolicyVersion(0), None)
    if version > published + 1:  # a learner is at most one version ahead
        raise CheckpointOfTheFuture(
            f"{path} is of version {version}, and the journal ends at version {published}, before it; put the journal back, "
            f"or move the checkpoints after version {published + 1} out of {folder}, then resume again"
        )
    if version < kept_from:
        there = f"there is no checkpoint in {folder}" if path is None else f"the newest checkpoint in {folder} is {path.name}"
        raise CheckpointsGone(
            f"{there}, and the journal has only the batches since version {kept_from}, which had a checkpoint; put "
            f"version-{kept_from:06d} or a later one back and resume again (if they are lost, launch a new run)"
        )
    return version, path


def totals_at(folder: Path, version: PolicyVersion) -> tuple[SavedTotals, str]:
    """Read the totals saved with the checkpoint of ``version`` in ``folder``; if that fails, also say why."""
    file = totals_file(folder, version)
    try:
        content = file.read_bytes()
        check_json_format(content, file, FORMAT)
        return msgspec.json.decode(content, type=SavedTotals), ""
    except UnknownFormat as error:
        return SavedTotals(), f"{error}, or else the summary counts from version {version} on"
    except (OSError, ValueError, RecursionError) as error:
        missing = version == 0 and isinstance(error, FileNotFoundError)
        return SavedTotals(), "" if missing else f"{file} cannot be read ({error}): the summary counts from version {version} on"


def totals_file(folder: Path, version: PolicyVersion) -> Path:
    """The file in ``folder`` that holds the totals at ``version``, beside the checkpoint."""
    return checkpoints.path_of(folder, version).with_suffix(".json")


def _how_it_ended(folder: RunFolder) -> tuple[Summary | None, str]:
    """Read the summary, if there is one; if it cannot be read, also return why, as text."""
    try:
        return Summary.read(folder.summary), ""
    except FileNotFoundError:
        return None, ""
    except UnknownFormat as error:
        raise RecipeError("", str(error), "nothing of the run was changed") from error
    except (OSError, ValueError, RecursionError) as error:
        return (
            None,
            f"{folder.summary} cannot be read ({error}): it is made anew, from the journal and the last checkpoint's totals",
        )


def _read_buffer(recipe: Recipe, folder: RunFolder, ended: Summary | None) -> BufferStatistics:
    """Return the statistics of the buffer that the journal describes. Looks for its payload, but does not read it."""
    journal, buffer_folder = journal_of(folder.path), BufferFolder.of(recipe.buffer, folder.path, folder.run_id)
    found = read_begun(journal)
    if found.is_empty:
        _check_not_begun(folder, buffer_folder, ended)
    tasks = make_task_stream(recipe)
    buffer = ReplayBuffer(recipe.batch, recipe.buffer, tasks, steps=recipe.steps, seed=recipe.seed)
    rebuild(buffer, Identity.of(recipe, tasks), journal, found)
    # Other shards may lie on other hosts; they are checked there once those hosts are up.
    check_there(buffer_folder.shard(0), [ref for ref in buffer.groups.live_payload() if ref.shard == 0])
    return buffer.statistics()


def _check_not_begun(folder: RunFolder, buffer: BufferFolder, ended: Summary | None) -> None:
    """Refuse an empty journal if the folder shows that the run had begun."""
    evidence = []
    if any(buffer.payload.rglob(f"*{SUFFIX}")):
        evidence.append(f"there are trajectories in {buffer.payload}")
    if newest := checkpoints.newest(folder.checkpoints):
        evidence.append(f"there is a checkpoint, {newest[1].relative_to(folder.path)}")
    if ended is not None and ended.ledger.issued:
        evidence.append(f"{folder.summary.name} has {ended.ledger.issued} groups")
    if evidence:
        raise JournalGone(journal_of(folder.path), " and ".join(evidence))


def _summary_so_far(
    limits: BufferConfig, folder: RunFolder, saved: SavedTotals, statistics: BufferStatistics, ended: Summary | None
) -> Summary:
    """Make the summary so far, from the last checkpoint's totals, the journal, and the last summary if there is one."""
    totals = Totals()
    totals.resume(saved, statistics.version)
    totals.buffer = statistics
    known = summarize(totals, Status.FAILED, "", limits)
    if ended is not None and ended.steps >= known.steps:
        known = msgspec.structs.replace(ended, ledger=known.ledger, versions_published=known.versions_published)
    resumes = folder.resumes if ended is None else max(folder.resumes, ended.resumes)
    return msgspec.structs.replace(known, steps=max(known.steps, statistics.steps_trained), resumes=resumes)
