"""The signals that ask a run to stop: SIGINT, which Ctrl-C sends, and SIGTERM, of batch systems, containers and ``timeout``.

They are for the driver alone, which then ends all others in order. What always holds: processes that the driver starts, and those
that Ray starts for it, have SIGTERM blocked from their beginning, as Ray itself blocks SIGINT. So it does not matter whether a
signal is sent to the driver, to its process group, or to every process of the run. Generators alone take it again: processes that
their environments start inherit what they do. One that is sent it is lost, as if it had been killed, and replaced.
"""

import asyncio
import ctypes
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from types import FrameType
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM)
_HEARING_AGAIN_S = 0.05
SAME_REQUEST_S = 1.0
"""``timeout`` and batch systems signal a process and its group: what comes within this time of the first is the same request."""


class Heard(Enum):
    """What a signal means."""

    STOP = auto()
    SAME = auto()
    """It is the request that was heard before."""
    KILL = auto()


class StopRequests:
    """Tells a second request to stop from a signal that was sent twice.

    Args:
        clock: seconds, from any beginning.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._first: float | None = None

    def heard(self) -> Heard:
        """What a signal that came now means."""
        now = self._clock()
        if self._first is None:
            self._first = now
            return Heard.STOP
        return Heard.SAME if now - self._first < SAME_REQUEST_S else Heard.KILL


class Interrupted(KeyboardInterrupt):
    """A signal came while there was no event loop to stop a run in order; its text is :func:`stopped_by`."""


def stopped_by(number: int) -> str:
    """The reason of a run that signal ``number`` ended."""
    return f"stopped by {signal.Signals(number).name}"


@contextmanager
def hearing(heard: Callable[[int], object]) -> Iterator[None]:
    """Meanwhile the number of each stopping signal is told to ``heard``, between any two steps of the main thread."""

    def handle(number: int, frame: FrameType | None) -> None:
        heard(number)

    before = {number: signal.signal(number, handle) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def wait_hearing(work: "asyncio.Future[Any]", seconds: float | None = None) -> None:
    """Wait until ``work``, which starts or ends Ray, is done, at most ``seconds``; neither cancels it.

    As Ray starts, it puts a handler of its own before whatever is there, which prints a stack at SIGTERM; as it ends, it takes
    all handlers away. Nothing tells when, so ours are put back again and again.
    """
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
    """Meanwhile a request to stop raises :class:`Interrupted` in the main thread."""
    requests = StopRequests(time.monotonic)

    def interrupt(number: int) -> None:
        if requests.heard() is not Heard.SAME:
            raise Interrupted(stopped_by(number))

    with hearing(interrupt):
        yield


@contextmanager
def sigterm_blocked() -> Iterator[None]:
    """Neither this thread nor what it starts meanwhile, threads or processes, takes SIGTERM; what is started never does."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_by_sigterm() -> None:
    """SIGTERM ends this process at once from now on, and what this thread and those that it starts begin.

    Not by :mod:`signal`: it changes what a signal does from the main thread only, where Ray does not make asynchronous actors.
    """
    ctypes.CDLL(None).signal(int(signal.SIGTERM), int(signal.SIG_DFL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
