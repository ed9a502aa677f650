"""Who drives a run that is kept in an object store: stores have no locks, so each driver leaves a mark there, again and again.

What always holds: a driver that finds another's mark uploads nothing any more. So when a run is resumed on another cluster while
its first driver was only cut off, the first one ends, and the files of the two do not mix.
"""

import os
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.core.storage.storage import Storage

NAME = "driver.json"
_STOP = "stop"
"""The object by which a driver is asked to end: it holds its token, and the driver removes it."""
BEAT_S = 20.0
"""Seconds between two marks of a live driver."""
SILENT_S = 65.0
"""Seconds without a new mark after which a driver counts as dead: three of its marks are missing."""
ANSWER_S = 4 * BEAT_S
"""How long a driver may take to see that it is asked to end."""
_LOOK_S = 5.0


class RunTakenOver(AsyncRLError):
    """Another process has resumed this run while this one drove it."""


class DriverMark(msgspec.Struct, frozen=True):
    """What a driver leaves.

    Attributes:
        token: of this driver alone.
        machine: the machine it runs on; see :func:`this_machine`.
        process: its process id.
        beats: how often it has marked itself.
        ended: whether it has ended, and uploaded all.
    """

    token: str
    machine: str
    process: int
    beats: int = 0
    ended: bool = False


def this_machine() -> str:
    """A name of this machine, as far as process ids mean something: host, boot and the namespace of processes."""
    boot, space = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    parts = (boot.read_text().strip() if boot.is_file() else "", os.readlink(space) if space.exists() else "")
    return " ".join((socket.gethostname(), *filter(None, parts)))


def read_mark(storage: Storage) -> DriverMark | None:
    """Return the newest mark; None if there is none, or none that can be read."""
    content = storage.read(NAME)
    try:
        return None if content is None else msgspec.json.decode(content, type=DriverMark)
    except ValueError:
        return None


class Driver:
    """The mark of this process at one address.

    Args:
        stop: called once, when somebody asks there for the run to end.
        clock: seconds; says when the next mark is due.
    """

    def __init__(self, storage: Storage, stop: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._storage, self._stop, self._clock = storage, stop, clock
        self._mark = DriverMark(secrets.token_hex(8), this_machine(), os.getpid())
        self._next = 0.0
        self._taken = False

    @property
    def token(self) -> str:
        """The token of this driver."""
        return self._mark.token

    def mark(self, *, ended: bool = False) -> None:
        """Leave a mark if one is due, or if this driver has ended.

        Raises:
            RunTakenOver: another driver's mark is there.
            StorageError: the store refuses.
        """
        if not ended and self._clock() < self._next:
            return
        found = read_mark(self._storage)
        if self._taken and found is not None and found.token != self._mark.token:
            host = found.machine.partition(" ")[0]
            raise RunTakenOver(
                f"process {found.process} on {host} has resumed this run at {self._storage.address}, so it ends here; what is in "
                "the run folder here and not there is lost to the run"
            )
        self._mark = msgspec.structs.replace(self._mark, beats=self._mark.beats + 1, ended=ended)
        self._storage.put_bytes(NAME, msgspec.json.encode(self._mark))
        self._taken, self._next = True, self._clock() + BEAT_S
        if self._storage.read(_STOP) == self._mark.token.encode():
            self._storage.remove(_STOP)
            self._stop()


def ask_to_end(storage: Storage, sleep: Callable[[float], None] = time.sleep) -> None:
    """Ask the driver of the run in the store to end it in order, and return once it has heard.

    Raises:
        RecipeError: the run has no driver, or none that answers.
        StorageError: the store refuses.
    """
    mark, remedy = read_mark(storage), f"go on with it: asyncrl launch --resume {storage.address}"
    if mark is None or mark.ended:
        raise RecipeError("", f"nobody drives the run at {storage.address}", remedy)
    storage.put_bytes(_STOP, mark.token.encode())
    for _ in range(int(ANSWER_S / _LOOK_S)):
        sleep(_LOOK_S)
        if storage.read(_STOP) is None:
            return
    storage.remove(_STOP)
    who = f"process {mark.process} on {mark.machine.partition(' ')[0]}"
    raise RecipeError("", f"{who}, which drove the run at {storage.address}, has not answered for {ANSWER_S:g} s", remedy)


def wait_for_silence(
    storage: Storage,
    note: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return once no other driver of the run is alive: at once if it has ended, or was a process of this machine that is gone.

    Raises:
        RecipeError: one is alive.
        StorageError: the store refuses.
    """
    mark = read_mark(storage)
    if mark is None or mark.ended or _is_gone(mark):
        return
    who = f"process {mark.process} on {mark.machine.partition(' ')[0]}"
    note(f"{who} has driven the run at {storage.address}; waiting at most {SILENT_S:g} s to see whether it still does")
    until = clock() + SILENT_S
    while clock() < until:
        sleep(_LOOK_S)
        now = read_mark(storage)
        if now is None or now.ended:
            return
        if now != mark:
            raise RecipeError("", f"{who} is still running {storage.address}", "wait for it, or stop it first")


def _is_gone(mark: DriverMark) -> bool:
    if mark.machine != this_machine():
        return False
    if mark.process == os.getpid():
        return True  # an earlier run of this process
    try:
        os.kill(mark.process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
