"""The folder of a run's checkpoints: finding the newest, and removing old ones.

What always holds: a folder with a checkpoint's name is complete. A checkpoint is written under a hidden name and
renamed once it is complete; before its first file is removed, it is renamed to a hidden name again. Nothing here reads
a checkpoint's files.
"""

import logging
import shutil
from pathlib import Path

from asyncrl.core.ids import PolicyVersion

logger = logging.getLogger(__name__)

_PREFIX = "version-"
_PARTIAL, _DOOMED = ".partial", ".doomed"


def path_of(folder: Path, version: PolicyVersion) -> Path:
    """The path in ``folder`` where the checkpoint of ``version`` lies, or would lie."""
    return folder / f"{_PREFIX}{version:06d}"


def version_of(checkpoint: Path) -> PolicyVersion | None:
    """The version in the name of a checkpoint; None if the name is not a checkpoint's."""
    number = checkpoint.name.removeprefix(_PREFIX)
    return PolicyVersion(int(number)) if checkpoint.name.startswith(_PREFIX) and number.isdecimal() else None


def newest(folder: Path) -> tuple[PolicyVersion, Path] | None:
    """Version and path of the newest checkpoint in ``folder``, which need not exist; None if there is none."""
    return max(_checkpoints(folder), default=None)


def versions(folder: Path) -> list[PolicyVersion]:
    """The versions of the checkpoints in ``folder``, in no order."""
    return [version for version, _ in _checkpoints(folder)]


def prune(folder: Path, keep: int) -> None:
    """Remove all checkpoints except the ``keep`` newest, and finish any removal that was interrupted earlier.

    What cannot be removed, such as files on a network drive that somebody reads just now, is left to the next call.

    Raises:
        ValueError: if ``keep`` is below 1.
    """
    if keep < 1:
        raise ValueError(f"keep is {keep}; a run that keeps no checkpoint cannot be resumed")
    for _, path in sorted(_checkpoints(folder))[:-keep]:
        doomed = _hidden(path, _DOOMED)
        remove(doomed)
        if not doomed.exists():
            path.rename(doomed)
    for doomed in folder.glob(f".{_PREFIX}*{_DOOMED}"):
        remove(doomed)


def remove(folder: Path) -> None:
    """Remove a folder, which need not exist; if that fails, the log says so."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        logger.warning("%s could not be removed, which is tried again with the next checkpoint: %s", folder, error)


def partial_of(checkpoint: Path) -> Path:
    """The path where ``checkpoint`` lies while it is being written: beside its final path, so that a rename completes
    it."""
    return _hidden(checkpoint, _PARTIAL)


def remove_partials(folder: Path) -> None:
    """Remove the unfinished checkpoints in ``folder``. Only the process that writes checkpoints there may call this."""
    for partial in folder.glob(f".*{_PARTIAL}"):
        shutil.rmtree(partial)


def _hidden(checkpoint: Path, suffix: str) -> Path:
    return checkpoint.with_name(f".{checkpoint.name}{suffix}")


def _checkpoints(folder: Path) -> list[tuple[PolicyVersion, Path]]:
    found = [(version_of(path), path) for path in folder.glob(f"{_PREFIX}*") if path.is_dir()]
    return [(version, path) for version, path in found if version is not None]
