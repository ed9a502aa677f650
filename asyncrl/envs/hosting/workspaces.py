"""The temporary folders of episodes: one for each that asks for it, in a folder of the worker's process.

What always holds: a folder goes with its episode; all folders of a worker go when it closes; and those of a worker that was
killed go when the next one starts on the same machine, and not before. A worker holds a lock on its folder while it lives, which
the system gives back however the process ends. Nothing is removed but folders with names that a worker gives, in a folder of this
user's that nobody else may write to.
"""

import asyncio
import fcntl
import logging
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.files.folder_tree import remove_tree
from asyncrl.core.files.own_folder import OPEN_FOLDER, open_own_folder
from asyncrl.envs.hosting.threads import run_in_daemon_thread

logger = logging.getLogger(__name__)

REMOVAL_S = 10.0
"""How long the end of an episode waits for its folder to be removed; what is left then goes with the worker."""
SWEEP_S = 60.0
"""How long a worker removes the folders of those that were killed, or its own at its end; what is left then goes next time."""
LOCKED_S, LOOK_S = 300.0, 0.1
"""How long a worker waits for the lock of all workers, which another holds while it starts, and how often it looks."""
_LOCK = ".lock"
SWEPT_AT_ONCE = 100
"""Most folders that a worker removes when it starts: it holds a descriptor for each."""
_NAME = re.compile(r".+-\d+-[a-z0-9_]{8}", re.DOTALL)
"""A worker's folder: the worker's name, its process, and eight random characters."""


def default_root(below: Path | None = None) -> Path:
    """The folder of all workers of this user on this machine, below ``$TMPDIR`` or ``/tmp`` unless another is named."""
    return (below or Path(tempfile.gettempdir())) / f"asyncrl-{os.getuid()}"


class Workspaces:
    """The folders of one worker's episodes.

    Args:
        worker: name of the worker; its folder's name begins with it.
        root: the folder of all workers.

    Raises:
        ComponentFailed: no folder can be made, or others could lay something into the folder of all workers.
    """

    def __init__(self, worker: str, root: Path | None = None) -> None:
        self._root = root or default_root()
        self._numbers = count()
        name = f"{worker}-{os.getpid()}-{secrets.token_hex(4)}"
        self.folder = self._root / name
        try:
            with _root_folder(self._root) as folder:
                with _locked(folder, self._root):
                    dead = _dead_workers(folder, self._root)
                _sweep(dead, self._root)  # first: it may be they that have filled the disk
                with _locked(folder, self._root):
                    os.mkdir(name, 0o700, dir_fd=folder)
                    self._lock = _lock_file(name, folder)
                    fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            remedy = "set TMPDIR to a folder of yours with some room"
            raise ComponentFailed(f"{worker} cannot make a folder for its episodes: {error}; {remedy}") from error

    def next(self) -> Path:
        """Return the path of a new episode's folder, which is made when the episode asks for it."""
        return self.folder / f"episode-{next(self._numbers)}"

    def close(self) -> None:
        """Remove everything; if that is not possible in time, it is left to the next worker that starts."""
        if (left := remove_tree(self.folder, SWEEP_S)) is not None:
            logger.warning("%s is left behind: %s", self.folder, left)
        os.close(self._lock)


@contextmanager
def _root_folder(path: Path) -> Iterator[int]:
    """Open the folder of all workers, which is made if there is none.

    Raises:
        OSError: it is not this user's alone.
    """
    folder = open_own_folder(path)
    try:
        yield folder
    finally:
        os.close(folder)


def _dead_workers(root: int, path: Path) -> dict[str, int]:
    """Lock the folders of workers that are gone; returns their names and the files that hold the locks."""
    dead: dict[str, int] = {}
    for name in filter(_NAME.fullmatch, os.listdir(root)):
        if len(dead) == SWEPT_AT_ONCE:
            break
        try:
            lock = _lock_file(name, root)
        except OSError as error:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                logger.warning("%s cannot be looked into, and is left: %s", path / name, error)
            continue
        if _has_locked(lock):
            dead[name] = lock
        else:
            os.close(lock)
    return dead


def _sweep(dead: dict[str, int], path: Path) -> None:
    """Remove the folders of workers that are gone, one after the other; log what is left of which."""
    ends = time.monotonic() + SWEEP_S
    for name, lock in dead.items():
        if (left := remove_tree(path / name, ends - time.monotonic())) is not None:
            logger.warning("%s of a worker that is gone is left behind: %s", path / name, left)
        os.close(lock)


def _lock_file(name: str, root: int) -> int:
    """Open the file in a worker's folder that the worker locks; it is made if there is none."""
    folder = os.open(name, OPEN_FOLDER, dir_fd=root)
    try:
        with suppress(OSError):  # what was killed may have made it read-only; if it is another's, opening the file fails
            os.fchmod(folder, 0o700)
        return os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    finally:
        os.close(folder)


def _has_locked(lock: int) -> bool:
    """Lock an open file if nobody else has; returns whether it is locked now."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _locked(root: int, path: Path) -> Iterator[None]:
    """Hold the lock of all workers, so that no folder is taken for a dead worker's between its making and the locking of it.

    Raises:
        TimeoutError: another worker held it for :data:`LOCKED_S`.
    """
    lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=root)
    ends = time.monotonic() + LOCKED_S
    try:
        while not _has_locked(lock):
            if time.monotonic() > ends:
                raise TimeoutError(f"another worker has held {path / _LOCK} for {LOCKED_S:g} s")
            time.sleep(LOOK_S)  # the system has no wait for a lock that ends at a deadline
        yield
    finally:
        os.close(lock)


async def remove_after_episode(folder: Path) -> None:
    """Remove the folder of an episode that has ended, in a thread: it may hold many files."""
    removing = run_in_daemon_thread(partial(remove_tree, folder), name=f"removing {folder.name}")
    try:
        left = await asyncio.wait_for(removing, REMOVAL_S)
    except TimeoutError:
        left = f"it takes longer than {REMOVAL_S:g} s"
    if left is not None:
        logger.warning("%s is left to the end of its worker: %s", folder, left)
