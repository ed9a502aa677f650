"""Run a blocking function beside the event loop, in a thread that nobody ever has to wait for."""

import asyncio
import contextlib
import contextvars
import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

from asyncrl.envs.contained import Raised

T = TypeVar("T")

INTERRUPTED_AFTER_S = 5.0
"""Seconds that a thread may go on when nobody waits for it any more. Most end by themselves in that time, and clean up."""


class Abandoned(BaseException):
    """Raised in a thread that nobody waits for any more, at its next Python instruction: code that never ends must not go on to
    take its share of the interpreter, of which there is one in a process."""


async def run_in_daemon_thread(function: Callable[[], T], name: str) -> T:
    """What ``function`` returns in a thread of its own. Cancelling stops the wait, and later interrupts the thread.

    Not a thread pool: functions that never return would fill it, and the interpreter joins a pool's threads at exit. A daemon
    thread that waits for something outside Python is not interrupted before that comes, and costs its memory and nothing else.
    Starting one takes about 0.1 ms.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T | Raised] = loop.create_future()
    ending, ended = threading.Lock(), False

    def settle(value: T | Raised) -> None:
        if not outcome.done():
            outcome.set_result(value)

    def work() -> None:
        nonlocal ended
        value: T | Raised
        try:
            value = function()
        except BaseException as error:  # noqa: BLE001 - handed to the one who waits, as a value: a future takes no StopIteration
            value = Raised(error)
        with ending:
            ended = True
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits
            loop.call_soon_threadsafe(settle, value)

    def run() -> None:
        with contextlib.suppress(Abandoned):  # it came when the function had just returned
            work()

    def interrupt() -> None:
        with ending:
            if not ended:  # so the thread's number is not another's by now
                number, error = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Abandoned)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(number, error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name=name, daemon=True)
    thread.start()
    try:
        value = await outcome
    except asyncio.CancelledError:
        loop.call_later(INTERRUPTED_AFTER_S, interrupt)
        raise
    if isinstance(value, Raised):
        raise value.error
    return value
