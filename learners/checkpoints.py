"""The folder of a run's checkpoints: finding the newest, and removing old ones.

Always holds: a folder with a checkpoint's name is complete. A checkpoint is written under a hidden name and renamed when it is
complete, and renamed to a hidden one before its first file is removed. Nothing here reads a checkpoint.
"""

import shutil
from pathlib import Path

from asyncrl.core.ids import PolicyVersion

_PREFIX = "version-"
_PARTIAL, _DOOMED = ".partial", ".doomed"


def path_of(folder: Path, version: PolicyVersion) -> Path:
    """Where the checkpoint of ``version`` lies in ``folder``, or would."""
    return folder / f"{_PREFIX}{version:06d}"


def version_of(checkpoint: Path) -> PolicyVersion | None:
    """The version in the name of a checkpoint; None if it is not a checkpoint's name."""
    number = checkpoint.name.removeprefix(_PREFIX)
    return PolicyVersion(int(number)) if checkpoint.name.startswith(_PREFIX) and number.isdecimal() else None


def newest(folder: Path) -> tuple[PolicyVersion, Path] | None:
    """Version and path of the newest checkpoint in ``folder``, which need not exist; None if there is none."""
    return max(_checkpoints(folder), default=None)


def prune(folder: Path, keep: int) -> None:
    """Remove all checkpoints but the ``keep`` newest, and finish what an earlier removal left.

    Raises:
        ValueError: if none would be left.
    """
    if keep < 1:
        raise ValueError(f"keep is {keep}; a run that keeps no checkpoint cannot be resumed")
    for _, path in sorted(_checkpoints(folder))[:-keep]:
        path.rename(_hidden(path, _DOOMED))
    for doomed in folder.glob(f".{_PREFIX}*{_DOOMED}"):
        shutil.rmtree(doomed)


def partial_of(checkpoint: Path) -> Path:
    """Where ``checkpoint`` lies while it is written: beside it, so that a rename completes it."""
    return _hidden(checkpoint, _PARTIAL)


def remove_partials(folder: Path) -> None:
    """Remove the unfinished checkpoints in ``folder``. Only its writer may call this."""
    for partial in folder.glob(f".*{_PARTIAL}"):
        shutil.rmtree(partial)


def _hidden(checkpoint: Path, suffix: str) -> Path:
    return checkpoint.with_name(f".{checkpoint.name}{suffix}")


def _checkpoints(folder: Path) -> list[tuple[PolicyVersion, Path]]:
    found = [(version_of(path), path) for path in folder.glob(f"{_PREFIX}*") if path.is_dir()]
    return [(version, path) for version, path in found if version is not None]
