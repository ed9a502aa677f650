"""Has Ray bring the current folder, and what a program gave the run, to every node of a cluster.

Ray packs a folder and names the package by its content, keeps it as long as the cluster has a use for it, and unpacks it once on
each node. What always holds: a process that does not share the driver's file system works in that copy and takes the user's
modules from there, whatever lies at the same place on its own node; one that does works in the folder itself.
"""

import glob
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.core.measures.units import memory
from asyncrl.core.plug_ins.given_code import given_files

logger = logging.getLogger(__name__)

MOST_BYTES, MOST_FILES = 500 << 20, 20_000
"""What is brought at most. Ray keeps packages in the memory of the cluster's head, and takes none above 512 MiB."""
NEVER = (".?*", "venv", "__pycache__")
"""What does not go with a folder, as Ray's patterns. A dot begins the names of caches, and of files with secrets."""
_BOOT, _MOUNTS = "/proc/sys/kernel/random/boot_id", "/proc/self/ns/mnt"
_BESIDE_RUNS = ("mlflow.db", "mlflow-artifacts")


class FolderToBring(msgspec.Struct, frozen=True):
    """A folder that Ray shall bring.

    Attributes:
        path: the folder.
        excludes: what of it stays here beside what ``.gitignore`` and ``.rayignore`` name, as Ray's patterns.
        size: the rest, in bytes.
        problem: why it cannot be brought; empty if it can.
    """

    path: Path
    excludes: tuple[str, ...]
    size: int
    problem: str = ""

    @property
    def runtime_env(self) -> dict[str, Any]:
        """What Ray needs to know of it."""
        return {"working_dir": str(self.path), "excludes": list(self.excludes)}


class _CannotBring(Exception):
    """The folder is too large, or cannot be read."""


def folder_to_bring(path: Path, recipe: str = "") -> FolderToBring:
    """Return what of a folder goes to the nodes: not runs, nor the records of MLflow that lie beside them.

    Args:
        recipe: its text; a run that it names, such as by ``model.path``, goes as well.
    """
    from ray._private.runtime_env import packaging  # takes a moment

    stays, size, files = list[str](), 0, 0

    def left_out(place: Path) -> bool:
        is_run = place != path and (place / "recipe.yaml").is_file() and (place / "driver.lock").is_file()
        goes = place.relative_to(path).as_posix() in recipe if is_run else place.is_dir() or place.is_file()
        if goes and not _is_beside_runs(place):
            return False
        stays.append(f"/{glob.escape(place.relative_to(path).as_posix())}")
        return True

    def count(place: Path) -> None:
        nonlocal size, files
        if not os.access(place, os.R_OK):
            raise _CannotBring(f"{place.name} in it cannot be read")
        size, files = size + (place.stat().st_size if place.is_file() else 0), files + 1
        if size > MOST_BYTES or files > MOST_FILES:
            raise _CannotBring(f"it holds more than {memory(MOST_BYTES)} or {MOST_FILES} files")

    problem = ""
    try:
        excludes = [packaging._get_excludes(path, list(NEVER)), left_out]
        packaging._dir_travel(path, excludes, count, include_gitignore=True, logger=logger)
    except _CannotBring as cannot:
        problem = str(cannot)
    except OSError as error:
        problem = f"{error.filename or 'a file in it'}: {error.strerror}"
    return FolderToBring(path, (*NEVER, *sorted(stays)), size, problem)


def _is_beside_runs(place: Path) -> bool:
    """Whether this is where MLflow keeps what runs in the same folder have told it."""
    return place.name in _BESIDE_RUNS and any(place.parent.glob("*/driver.lock"))


def runtime_env(tell: Callable[[str], None]) -> dict[str, Any]:
    """Return what Ray shall give the processes of a run in a cluster that this process joins.

    Args:
        tell: called with why the current folder is not brought.
    """
    env: dict[str, Any] = {}
    by_job = _is_brought_by_job()
    if not by_job:
        folder = folder_to_bring(Path.cwd())
        if folder.problem:
            tell(f"{folder.path} is not brought to other nodes: {folder.problem}; name in .rayignore what they do not need")
        else:
            env = folder.runtime_env
    env["worker_process_setup_hook"] = _as_here(by_job or bool(env))
    if given := given_files(sys.path):  # Ray fails at an empty list
        env["py_modules"] = [str(file) for file in given]
    return env


def _is_brought_by_job() -> bool:
    """Whether this process is a job of the cluster that has a folder of its own."""
    job = msgspec.json.decode(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
    return "working_dir" in (job.get("runtime_env") or {})


def _as_here(brought: bool) -> Callable[[], None]:
    """Return what lets a process of the cluster find relative paths and modules as this one does.

    It looks for modules in the same places, after its own.

    Args:
        brought: the process begins in Ray's copy of the current folder.
    """
    folder, places, here = os.getcwd(), list(sys.path), file_system()

    def begin() -> None:  # uses no function of asyncrl, which would be imported before it is known from where
        copy, there = os.getcwd(), (Path(_BOOT).read_text(), os.readlink(_MOUNTS))
        if os.path.isdir(folder) and not (brought and there != here):
            os.chdir(folder)
            if brought and copy != folder:
                sys.path[:] = [place for place in sys.path if place != copy]
                own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
                os.environ["PYTHONPATH"] = os.pathsep.join(place for place in own if place != copy)
        sys.path.extend(place for place in places if place not in sys.path)

    return begin


def file_system() -> tuple[str, str]:
    """Return what tells which files a process sees: the boot of its machine, and its name space of mounts."""
    return Path(_BOOT).read_text(), os.readlink(_MOUNTS)
