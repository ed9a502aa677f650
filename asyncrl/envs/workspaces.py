"""The temporary folders of episodes: one for each that asks for it, in a folder of the worker's process.

What always holds: a folder goes with its episode; all folders of a worker go when it closes; and those of a worker that was
killed go when the next one starts on the same machine, and not before. A worker holds a lock on its folder while it lives, which
the system gives back however the process ends.
"""

import asyncio
import fcntl
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from asyncrl.core.errors import ComponentFailed
from asyncrl.envs.threads import run_in_daemon_thread

logger = logging.getLogger(__name__)

REMOVAL_S = 10.0
"""How long the end of an episode waits for its folder to be removed; what is left then goes with the worker."""
LOCKED_S, LOOK_S = 300.0, 0.1
"""How long a worker waits for the lock of all workers, which another holds while it removes folders, and how often it looks."""
_LOCK = ".lock"


def default_root() -> Path:
    """The folder of all workers of this user on this machine, below ``$TMPDIR`` or ``/tmp``."""
    return Path(tempfile.gettempdir()) / f"asyncrl-{os.getuid()}"


class Workspaces:
    """The folders of one worker's episodes.

    Args:
        worker: name of the worker; its folder's name begins with it.
        root: the folder of all workers.

    Raises:
        ComponentFailed: no folder can be made.
    """

    def __init__(self, worker: str, root: Path | None = None) -> None:
        self._root = root or default_root()
        self._numbers = count()
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._root.stat().st_uid != os.getuid():
                raise PermissionError(f"{self._root} belongs to another user")
            with _locked(self._root):
                self._sweep()
                self.folder = Path(tempfile.mkdtemp(prefix=f"{worker}-{os.getpid()}-", dir=self._root))
                self._lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            remedy = "set TMPDIR to a folder of yours with some room"
            raise ComponentFailed(f"{worker} cannot make a folder for its episodes: {error}; {remedy}") from error

    def next(self) -> Path:
        """Return the path of a new episode's folder, which is made when the episode asks for it."""
        return self.folder / f"episode-{next(self._numbers)}"

    def close(self) -> None:
        """Remove everything; if that is not possible in time, it is left to the next worker that starts."""
        try:
            with _locked(self._root):
                remove_tree(self.folder)
        except TimeoutError as late:
            logger.warning("%s is left behind: %s", self.folder, late)
        finally:
            os.close(self._lock)

    def _sweep(self) -> None:
        """Remove the folders of workers that are gone."""
        for folder in self._root.iterdir():
            if not folder.is_dir() or folder.is_symlink():
                continue
            try:
                lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                logger.warning("%s cannot be looked into: %s", folder, error)
                continue
            try:
                if _has_locked(lock):  # its worker is gone
                    remove_tree(folder)
            finally:
                os.close(lock)


def _has_locked(lock: int) -> bool:
    """Lock an open file if nobody else has; returns whether it is locked now."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Hold the lock of all workers, so that no folder is swept between its making and the locking of it.

    Raises:
        TimeoutError: another worker held it for :data:`LOCKED_S`.
    """
    lock = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    ends = time.monotonic() + LOCKED_S
    try:
        while not _has_locked(lock):
            if time.monotonic() > ends:
                raise TimeoutError(f"another worker has held {root / _LOCK} for {LOCKED_S:g} s")
            time.sleep(LOOK_S)  # the system has no wait for a lock that ends at a deadline
        yield
    finally:
        os.close(lock)


async def remove_after_episode(folder: Path) -> None:
    """Remove the folder of an episode that has ended, in a thread: it may hold many files."""
    removing = run_in_daemon_thread(partial(remove_tree, folder), name=f"removing {folder.name}")
    try:
        await asyncio.wait_for(removing, REMOVAL_S)
    except TimeoutError:
        logger.warning("removing %s takes longer than %g s: the rest goes with its worker", folder, REMOVAL_S)


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it, also what was made read-only; log what cannot be removed."""

    def retry(remove: Callable[..., Any], path: str, error: tuple[type[BaseException], BaseException, Any]) -> None:
        if isinstance(error[1], FileNotFoundError):
            return
        try:
            os.chmod(Path(path).parent, stat.S_IRWXU)
            if not os.path.islink(path):
                os.chmod(path, stat.S_IRWXU)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
        except OSError as again:
            logger.warning("%s cannot be removed: %s", path, again)

    shutil.rmtree(folder, onerror=retry)
