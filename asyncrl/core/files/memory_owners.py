"""Says which files in the memory file system belong to a living run: processes that make such files hold a lock.

What always holds: every process of a run that has files there holds a shared lock on the run's owner file while it lives, which
the kernel gives back however the process ends; and whoever removes what a run has left holds that lock alone.
"""

import fcntl
import logging
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncrl.core.files.memory_files import memory_file_system

logger = logging.getLogger(__name__)

BEGINNING, OWNER = "asyncrl-", "-owner"
"""How the names of owner files begin and end. In between is the run's id."""
HELD_S, LOOK_S = 10.0, 0.05
"""How long to wait for the lock of a file that is being removed, and how often to look."""


class MemoryOwner:
    """A hold on the files of run ``run_id`` in this host's memory file system, until it is closed or the process ends."""

    def __init__(self, run_id: str) -> None:
        self._lock: int | None = None
        self._run_id, path = run_id, owner_file(run_id)
        ends = time.monotonic() + HELD_S
        try:
            while (lock := _shared(path)) is None:
                if time.monotonic() > ends:
                    raise TimeoutError(f"another process has held it for {HELD_S:g} s")
                time.sleep(LOOK_S)  # the system has no wait for a lock that ends at a deadline
            self._lock = lock
        except OSError as error:
            logger.warning("what the run keeps in memory stays there if it is killed: cannot lock %s: %s", path, error)

    def close(self) -> None:
        """Give the hold back; the last process of the run removes the owner file. Does nothing the second time."""
        if self._lock is not None:
            if _has_locked(self._lock, fcntl.LOCK_EX) and _is_at(self._lock, owner_file(self._run_id)):
                remove_owner_file(self._run_id)
            os.close(self._lock)
            self._lock = None


def owner_file(run_id: str) -> Path:
    """Path of the file whose lock says that run ``run_id`` lives."""
    return memory_file_system() / f"{BEGINNING}{run_id}{OWNER}"


def remove_owner_file(run_id: str) -> None:
    """Remove the file of a run that is over, whoever holds it. It may be another user's, if that user guessed its name."""
    try:
        owner_file(run_id).unlink(missing_ok=True)
    except OSError as error:
        logger.warning("%s stays: %s", owner_file(run_id), error)


def abandoned_runs() -> Iterator[str]:
    """Yield the id of each run of this user that no living process holds on this host.

    While the caller looks at one, nobody else can take hold of it; its owner file is removed afterwards.
    """
    for path in sorted(memory_file_system().glob(f"{BEGINNING}*{OWNER}")):
        with locked_alone(path) as lock:
            if lock is not None:
                yield path.name.removeprefix(BEGINNING).removesuffix(OWNER)
                if _is_at(lock, path):  # else the caller has removed it, and another process may have made a new one
                    path.unlink()


@contextmanager
def locked_alone(path: Path) -> Iterator[int | None]:
    """Open a file of this user and lock it, so that no other process can; None if another has locked it, or the file is gone."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        yield None  # it is gone meanwhile, or another user's
        return
    try:
        yield lock if _is_ours(lock) and _has_locked(lock, fcntl.LOCK_EX) and _is_at(lock, path) else None
    finally:
        os.close(lock)


def _shared(path: Path) -> int | None:
    """Open the file and lock it together with others; None while it is being removed."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if _has_locked(lock, fcntl.LOCK_SH) and _is_at(lock, path):
        return lock
    os.close(lock)
    return None


def _has_locked(lock: int, how: int) -> bool:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_ours(lock: int) -> bool:
    found = os.fstat(lock)
    return found.st_uid == os.getuid() and stat.S_ISREG(found.st_mode)


def _is_at(lock: int, path: Path) -> bool:
    """Whether the open file still has its name; a file that was removed meanwhile protects nothing."""
    try:
        return os.path.samestat(os.fstat(lock), os.lstat(path))
    except FileNotFoundError:
        return False
