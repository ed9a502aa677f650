"""Copies of a model's files into a folder that is the user's own.

What always holds: the owner may write what was copied, also where the model lies in a store that nobody may write to; and what
says under which licence the model is goes with it.
"""

import shutil
import stat
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

LICENCES = ("LICENSE*", "LICENCE*", "NOTICE*", "COPYING*", "USE_POLICY*")
"""Names of files that say under which licence a model is."""


def is_licence(name: str) -> bool:
    """Return whether a file of this name says under which licence a model is."""
    return any(fnmatch(name.upper(), pattern) for pattern in LICENCES)


def copy_folder(source: Path, target: Path, leave_out: Sequence[str] = ()) -> None:
    """Copy a folder to the new folder ``target``, without names that match a pattern of ``leave_out``.

    Raises:
        OSError: the disk refuses, or there is something at ``target``.
    """
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*leave_out), copy_function=shutil.copyfile)
    for folder in (target, *(path for path in target.rglob("*") if path.is_dir())):
        folder.chmod(folder.stat().st_mode | stat.S_IRWXU)
