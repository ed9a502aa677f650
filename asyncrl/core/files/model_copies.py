"""Copies of a model's files into a folder that is the user's own.

What always holds: the owner may write what was copied, also where the model lies in a store that nobody may write to; and what
says under which licence the model is goes with it.
"""

import shutil
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.file_errors import naming

LICENCES = ("LICENSE*", "LICENCE*", "NOTICE*", "COPYING*", "USE_POLICY*")
"""Names of files that say under which licence a model is."""


def is_licence(name: str) -> bool:
    """Return whether a file of this name says under which licence a model is."""
    return any(fnmatch(name.upper(), pattern) for pattern in LICENCES)


def copy_file(source: Path, target: Path) -> None:
    """Copy the content of a file.

    Raises:
        OSError: the disk refuses; it names both files, or the new one.
    """
    with naming(target):
        shutil.copyfile(source, target)


def copy_folder(
    source: Path, target: Path, leave_out: Sequence[str] = (), copy: Callable[[Path, Path], object] = copy_file
) -> None:
    """Copy a folder to the new folder ``target``, without names that match a pattern of ``leave_out``.

    Raises:
        OSError: the disk refuses, or there is something at ``target``. It is that of the first file that could not be copied;
            ``shutil.copytree`` would bury it in a list.
    """
    target.mkdir(parents=True)
    for each in sorted(source.iterdir()):
        if any(fnmatch(each.name, pattern) for pattern in leave_out):
            continue
        if each.is_dir():
            copy_folder(each, target / each.name, leave_out, copy)
        else:
            copy(each, target / each.name)


def check_can_be_made(folder: Path) -> None:
    """Refuse to make a folder where there is something already, or no folder to make it in.

    Raises:
        RecipeError: there is something at ``folder``, or its parent does not exist.
    """
    if folder.exists():
        raise RecipeError("--to", f"{folder} exists already", "name a folder that does not exist yet")
    if not folder.parent.is_dir():
        raise RecipeError("--to", f"{folder.parent} is no folder", "make it first, or name another")
