"""Has Ray bring the current folder, and what a program gave the run, to every node of a cluster.

Ray packs a folder and names the package by its content, keeps it as long as the cluster has a use for it, and unpacks it once on
each node. What always holds: a process that does not share the driver's file system works in that copy and takes the user's
modules from there, whatever lies at the same place on its own node; one that does works in the folder itself.
"""

import glob
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from asyncrl.core.measures.units import memory
from asyncrl.core.plug_ins.given_code import given_files

_SILENT = logging.getLogger(f"{__name__}.walk")
_SILENT.setLevel(logging.CRITICAL + 1)  # Ray would print an error for each folder around what ends its walk

MOST_BYTES, MOST_FILES = 500 << 20, 20_000
"""What is brought at most. Ray keeps packages in the memory of the cluster's head, and takes none above 512 MiB."""
NEVER = (".?*", "venv", "__pycache__", "*.pem", "*.key", "credentials*.json", "id_rsa*")
"""What does not go with a folder, as Ray's patterns. A dot begins the names of caches, and of files with secrets."""
_REFUSALS = (ValueError, re.error, IndexError)
"""What Ray raises at an ignore file that is not text, or has a pattern such as ``[z-a]`` or a lone ``!``."""
_LESS = "name in .rayignore what other nodes do not need"
_BOOT, _MOUNTS = "/proc/sys/kernel/random/boot_id", "/proc/self/ns/mnt"
_BESIDE_RUNS = ("mlflow.db", "mlflow-artifacts")


class FolderToBring(msgspec.Struct, frozen=True):
    """A folder that Ray shall bring.

    Attributes:
        path: the folder.
        excludes: what of it stays here beside what ``.gitignore`` and ``.rayignore`` name, as Ray's patterns.
        size: the rest, in bytes.
        files: how many files the rest has.
        links: links that stay here because they lead out of the folder, or back to a folder that they are in.
        problem: why it cannot be brought; empty if it can.
        remedy: what to do about that.
    """

    path: Path
    excludes: tuple[str, ...]
    size: int
    files: int
    links: tuple[str, ...]
    problem: str
    remedy: str

    @property
    def runtime_env(self) -> dict[str, Any]:
        """What Ray needs to know of it."""
        return {"working_dir": str(self.path), "excludes": list(self.excludes)}

    @property
    def without_links(self) -> str:
        """What to say of its links, after a comma; empty if all go."""
        return f", without links out of it or back ({len(self.links)}, the first: {self.links[0]})" if self.links else ""


class _CannotBring(Exception):
    """The folder is too large, or cannot be read."""


def folder_to_bring(path: Path, recipe: str = "") -> FolderToBring:
    """Return what of a folder goes to the nodes: not runs, nor the records of MLflow that lie beside them, nor Ray's sessions.

    Args:
        recipe: its text; a run that it names, such as by ``model.path``, goes as well.
    """
    problem, remedy, walk = "", "", _Walk(path, recipe)
    home = os.path.expanduser("~")
    if path == path.parent or (os.path.isdir(home) and os.path.samefile(path, home)):
        problem = "it is the root of the file system" if path == path.parent else "it is your home folder"
        remedy = "launch from the project's folder"
    else:
        try:
            walk.go()
        except _CannotBring as cannot:
            problem, remedy = str(cannot), _LESS
        except OSError as error:
            problem, remedy = f"{error.filename or 'a file in it'}: {error.strerror}", _LESS
        except _REFUSALS as error:
            why = "is not UTF-8 text" if isinstance(error, UnicodeError) else f"has a pattern that Ray refuses ({error})"
            problem = f"{walk.refused_file()} in it {why}"
            remedy = "mend that file: UTF-8 text with one pattern on a line"
    return FolderToBring(path, (*NEVER, *sorted(walk.stays)), walk.size, walk.files, tuple(sorted(walk.links)), problem, remedy)


class _Walk:
    """Ray's walk of a folder.

    Attributes:
        stays: what stays here beside what Ray's patterns and the folder's ignore files name, as such patterns.
        links: those of them that are links out of the folder, or to a folder that they are in.
        size: what goes, in bytes.
        files: what goes, in files.
    """

    def __init__(self, path: Path, recipe: str) -> None:
        from ray._private.runtime_env import packaging  # takes a moment

        self._ray, self._path, self._named = packaging, path, _named(path, recipe)
        self.stays, self.links, self._folders = list[str](), list[str](), list[Path]()
        self.size = self.files = 0
        self._excludes: list[Callable[[Path], bool]] = [packaging._get_excludes(path, list(NEVER)), self._left_out]

    def go(self) -> None:
        """Look at all that goes.

        Raises:
            _CannotBring: it is too much, or cannot be read.
            OSError: a folder cannot be read.
            Exception: one of :data:`_REFUSALS`, at an ignore file.
        """
        self._ray._dir_travel(self._path, self._excludes, self._count, include_gitignore=True, logger=_SILENT)

    def refused_file(self) -> str:
        """The ignore file that ended the walk: Ray reads a folder's before it decides whether the folder goes."""
        below = (each for folder in self._folders for each in folder.iterdir() if each.is_dir())
        for folder in (self._path, *below):
            for name in (".gitignore", ".rayignore"):
                try:
                    self._ray._get_ignore_file(folder, name)
                except _REFUSALS:
                    return (folder / name).relative_to(self._path).as_posix()
                except OSError:
                    continue
        return "an ignore file"

    def _left_out(self, place: Path) -> bool:
        if any(ignores(place) for ignores in self._excludes[2:]):  # Ray puts those of ignore files behind
            return True
        name = place.relative_to(self._path).as_posix()
        if _leads_away(place, self._path):
            self.links.append(name)
        elif self._goes(place):
            return False
        self.stays.append(f"/{glob.escape(name)}")
        return True

    def _goes(self, place: Path) -> bool:
        if place == self._path:
            return True
        if (place / "pyvenv.cfg").is_file() or _is_beside_runs(place) or (place / "session_latest").is_symlink():
            return False  # where Ray keeps its sessions lies the package that it makes: it would pack that into itself for ever
        is_run = (place / "recipe.yaml").is_file() and (place / "driver.lock").is_file()
        return place in self._named if is_run else place.is_dir() or place.is_file()

    def _count(self, place: Path) -> None:
        if not os.access(place, os.R_OK):
            raise _CannotBring(f"{place.name} in it cannot be read")
        if place.is_file():
            self.size, self.files = self.size + place.stat().st_size, self.files + 1
        else:
            self._folders.append(place)
        if self.size > MOST_BYTES or self.files + len(self._folders) > MOST_FILES:
            raise _CannotBring(f"it holds more than {memory(MOST_BYTES)} or {MOST_FILES} files")


def _named(path: Path, recipe: str) -> set[Path]:
    """The places in a folder that a recipe names by a value or a word of one, and all above them."""
    words = {word for text in _texts(yaml.safe_load(recipe)) for word in (text, *re.split(r"[\s,:=]+", text))}
    named = {Path(os.path.normpath(path / word)) for word in words}
    return named.union(*(place.parents for place in named))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in (*value, *(value.values() if isinstance(value, dict) else ())):
            yield from _texts(part)


def _leads_away(place: Path, path: Path) -> bool:
    """Whether this is a link out of the folder ``path``, or to a folder that the link is in, which would be packed for ever."""
    if place == path or not place.is_symlink() or not place.exists():
        return False
    target = Path(os.path.realpath(place))
    within = [os.path.realpath(folder) for folder in place.parents if folder.is_relative_to(path)]
    return not target.is_relative_to(within[-1]) or any(Path(folder).is_relative_to(target) for folder in within)


def _is_beside_runs(place: Path) -> bool:
    """Whether this is where MLflow keeps what runs in the same folder have told it."""
    return place.name in _BESIDE_RUNS and any(place.parent.glob("*/driver.lock"))


def runtime_env(tell: Callable[[str], None]) -> dict[str, Any]:
    """Return what Ray shall give the processes of a run in a cluster that this process joins.

    Args:
        tell: called with what is brought of the current folder, or why it is not.
    """
    env: dict[str, Any] = {}
    by_job = _is_brought_by_job()
    if not by_job:
        folder = folder_to_bring(Path.cwd())
        if folder.problem:
            tell(f"{folder.path} is not brought to other nodes: {folder.problem}; {folder.remedy}")
        else:
            tell(f"Ray brings {folder.path}, {folder.files:,} files, {memory(folder.size)}, to other nodes{folder.without_links}")
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
