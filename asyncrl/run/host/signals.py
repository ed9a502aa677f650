"""Handles the signals that ask a run to stop: SIGINT, which Ctrl-C sends, and SIGTERM, which batch systems, containers
and ``timeout`` send.

Only the driver handles them; it then ends all other processes in order. What always holds: processes that the driver
starts, and those that Ray starts for it, have SIGTERM blocked from the start, as Ray itself blocks SIGINT. So it does
not matter whether a signal is sent to the driver, to its process group, or to every process of the run. Only generators
unblock SIGTERM again, because the processes that their environments start inherit the setting; a generator that gets
SIGTERM hands its episodes back, ends and is replaced.
"""

import ctypes
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from types import FrameType
from typing import TYPE_CHECKING, Any

from asyncrl.core.errors import Interrupted

if TYPE_CHECKING:
    import asyncio

STOPPING = (signal.SIGINT, signal.SIGTERM)
_HEARING_AGAIN_S = 0.05
SAME_REQUEST_S = 1.0
"""``timeout`` and batch systems signal a process and its group: a signal within this time of the first is the same request."""


class Heard(Enum):
    """What a signal means."""

    STOP = auto()
    SAME = auto()
    """The signal belongs to the request that was heard before."""
    KILL = auto()


class StopRequests:
    """Tells a second request to stop apart from a first one whose signal was sent twice."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._first: float | None = None

    def heard(self) -> Heard:
        """Note a signal that came now, and return what it means."""
        now = self._clock()
        if self._first is None:
            self._first = now
            return Heard.STOP
        return Heard.SAME if now - self._first < SAME_REQUEST_S else Heard.KILL


def stopped_by(number: int) -> str:
    """The reason that is reported for a run that signal ``number`` stopped."""
    return f"stopped by {signal.Signals(number).name}"


@contextmanager
def hearing(heard: Callable[[int], object]) -> Iterator[None]:
    """While this context is open, call ``heard`` in the main thread with the number of each stopping signal."""

    def handle(number: int, frame: FrameType | None) -> None:
        heard(number)

    before = {number: signal.signal(number, handle) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def wait_hearing(work: "asyncio.Future[Any]", seconds: float | None = None) -> None:
    """Wait at most ``seconds`` for ``work``, which starts or ends Ray; stopping signals are still heard meanwhile.

    Neither the end of that time nor a cancellation cancels ``work``. When Ray starts, it replaces our handlers by its
    own, which prints a stack at SIGTERM; when it ends, it removes all handlers. No event tells when, so ours are put
    back again and again.
    """
    import asyncio  # the command line imports this module before it knows whether there will be a loop

    loop = asyncio.get_running_loop()
    end = None if seconds is None else loop.time() + seconds
    done = False
    while not done and (end is None or loop.time() < end):
        await asyncio.wait({work}, timeout=_HEARING_AGAIN_S)
        done = work.done()
        for number in STOPPING:
            signal.signal(number, signal.getsignal(number))


@contextmanager
def interrupting() -> Iterator[None]:
    """While this context is open, a request to stop raises :class:`Interrupted` in the main thread."""
    requests = StopRequests(time.monotonic)

    def interrupt(number: int) -> None:
        if requests.heard() is not Heard.SAME:
            raise Interrupted(stopped_by(number))

    with hearing(interrupt):
        yield


@contextmanager
def sigterm_blocked() -> Iterator[None]:
    """Block SIGTERM in this thread while this context is open; threads and processes started meanwhile keep it blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def on_sigterm(heard: Callable[[], object]) -> None:
    """Call ``heard``, in a thread of its own, when this process gets SIGTERM for the first time.

    SIGTERM still ends the processes that this thread and its threads start. Python's ``signal.signal`` works in the main thread
    only, and Ray makes asynchronous actors in another one. So the C library sets what forks of this process do, and
    ``faulthandler``, whose handler works in any thread, writes to a pipe that is read here.
    """
    ctypes.CDLL(None).signal(int(signal.SIGTERM), int(signal.SIG_DFL))
    reading, writing = os.pipe()
    faulthandler.register(signal.SIGTERM, file=writing, all_threads=False)

    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def become_a_child() -> None:
        faulthandler.unregister(signal.SIGTERM)
        unblock()

    # A fork that gets SIGTERM at once must not write to the pipe.
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=become_a_child)
    unblock()

    def read() -> None:
        os.read(reading, 1)
        heard()

    threading.Thread(target=read, name="waiting for SIGTERM", daemon=True).start()
