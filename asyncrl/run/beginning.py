"""Finds where a resumed run begins: at its newest checkpoint, if that fits the journal, and with that one's totals."""

from pathlib import Path

import msgspec

from asyncrl.core.errors import AsyncRLError
from asyncrl.core.files.file_formats import UnknownFormat, check_json_format
from asyncrl.core.ids import PolicyVersion
from asyncrl.run.measures.totals import FORMAT, SavedTotals
from learners.checkpointing import checkpoints


class CheckpointOfTheFuture(AsyncRLError):
    """The newest checkpoint is of a version that the buffer has not reached yet."""


class CheckpointsGone(AsyncRLError):
    """The newest checkpoint is so old that the buffer no longer has what was trained since."""


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
